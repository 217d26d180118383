"""A plain script without a line about clusters, `tfmagic run script.py`: the cell is the script."""

from clients import python_script


class Client(python_script.Client):
    words = ("run", "--workers", "2", "--grace", "60")

    def script(self, code):
        head, _, last = code.partition("\n")[2].rpartition("\n")
        return f"import tfmagic\n{head}\n" + (last if last.startswith((" ", "print(")) else f"print({last})")
