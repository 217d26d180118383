"""jupyter-server-nbmodel 0.2.9, which runs cells in the Jupyter server, from actions.py.

It takes each `clear_output` as one that does not wait, ignores updates of displays, and can ask the user for input.
It applies `\\r` and `\\b` of streams itself.
"""

import re

from replays import FrontEnd


class Client(FrontEnd):
    of_library = in_session = True

    def receive(self, cell, kind, content):
        super().receive(cell, kind, content | {"wait": False} if kind == "clear_output" else content)

    def update(self, cell, content):
        pass

    def append(self, cell, output):
        super().append(cell, output)
        if output["output_type"] == "stream":
            cell[-1]["text"] = re.sub(r"[^\n]*\r(?!\n|$)", "", cell[-1]["text"])
