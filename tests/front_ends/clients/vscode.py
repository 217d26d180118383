"""VS Code's Jupyter extension, from microsoft/vscode-jupyter, src/kernels/execution (read in November 2026).

It sends the address of the cell's document, keeps one output for each display id, across cells, and applies `\\r` and `\\b` of
streams itself. The outputs of a cell that ends are not removed by the panel, whose script cannot reach them.
"""

import re

from replays import FrontEnd, display_id


class Client(FrontEnd):
    request = {**FrontEnd.request, "stop_on_error": False}
    metadata = {"cellId": "vscode-notebook-cell:/home/user/notebook.ipynb#W0sZmlsZQ%3D%3D"}
    answers_comms = True

    def update(self, cell, content):
        for output in reversed([output for outputs in self.cells for output in outputs]):
            if display_id(output) == display_id(content):
                output |= {"data": content["data"], "metadata": content["metadata"]}
                return

    def append(self, cell, output):
        super().append(cell, output)
        if output["output_type"] == "stream":
            cell[-1]["text"] = re.sub(r"[^\n]*\r(?!\n|$)", "", cell[-1]["text"])
