"""A plain script, `python script.py`, with its output in a file: the cell is a function, which `Cluster.run` calls."""

import re
import select

from whole_notebooks import as_function

SCRIPT = """
import tfmagic
def cell():
{body}
if __name__ == "__main__":
    with tfmagic.Cluster(workers=2) as cluster:
        results = cluster.run(cell, on={on!r})
    print(*results.values())
"""


class Client:
    takes, in_session, words = "scripts", False, ("python",)

    def __init__(self, scripts):
        self.commands, self.folder = scripts

    def run(self, code, seen):
        (self.folder / "script.py").write_text(self.script(code))
        self.commands.start(self.folder, [*self.words, self.folder / "script.py"])
        while not select.select([self.commands.process.stdout], [], [], 0.02)[0]:
            seen(self.written("out"))
        self.commands.wait()
        texts = {name: self.written(name) for name in ("out", "err")}
        return [
            {"output_type": "stream", "name": f"std{n}", "text": text} for n, text in texts.items() if text
        ]

    def written(self, stream):
        """Return what was written, without the frames of tracebacks, which differ between versions of Python."""
        text = (self.folder / f"{stream}.txt").read_text().replace(f"{self.folder}/", "")
        return re.sub(r"(?m)^(\[\S+\]: {4})? .*\n", "", text) if stream == "err" else text

    def script(self, code):
        return SCRIPT.format(**as_function(code))
