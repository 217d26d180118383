"""marimo 0.25.2, which has no magics: each cell is a function for `Cluster.run`, in a notebook that marimo exports."""

import json
import re
import subprocess
import textwrap

import nbformat
from whole_notebooks import PYTHON, WholeNotebook, as_function

BEGIN = """
import marimo
app = marimo.App()
@app.cell
def _():
    import tfmagic
    cluster = tfmagic.Cluster(workers=2)
    return cluster, tfmagic
"""
CELL = """
@app.cell
def _(cluster, tfmagic):
    def _cell():
{body}
    cluster.run(_cell, on={on!r})
    return
"""


class Client(WholeNotebook):
    def execute(self, cells):
        (self.folder / "notebook.py").write_text(BEGIN + "".join(map(self.cell, cells)))
        command = f"{PYTHON} -m marimo export ipynb --include-outputs notebook.py -o out.ipynb".split()
        subprocess.run(
            command, cwd=self.folder, capture_output=True, timeout=120
        )  # its code: did a cell fail
        found = nbformat.read(self.folder / "out.ipynb", 4).cells[1:]
        return [[self.stable(output) for output in cell["outputs"]] for cell in found]

    def cell(self, code):
        made = as_function(code)
        return CELL.format(body=textwrap.indent(made["body"], "    "), on=made["on"])

    def stable(self, output):
        """Return an output without the seconds of tables and the frames of tracebacks."""
        frames = output.get("traceback", [])
        text = re.sub(r"\d\.\d{3}<", "N<", json.dumps(output))
        return json.loads(text) | {"traceback": [line for line in frames if line[:1] not in ("", " ")]}
