"""jupyter_console 6.6.3, from ptshell.py: what was printed stays, a display is printed once, as text."""

from replays import FrontEnd


class Client(FrontEnd):
    of_library = True

    def append(self, cell, output):
        if output["output_type"] == "error":
            text = "\n".join(output["traceback"]) + "\n"
        elif output["output_type"] == "stream":
            text = output["text"]
        elif "text/plain" in output["data"]:
            text = output["data"]["text/plain"] + "\n"
        else:
            return
        super().append(cell, {"output_type": "stream", "name": "terminal", "text": text})

    def clear(self, cell):
        self.clears_next = False

    def update(self, cell, content):
        pass
