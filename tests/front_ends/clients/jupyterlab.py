"""JupyterLab 4.6.6 and Notebook 7.6, from `@jupyterlab/outputarea` (model.ts, widget.ts) and `services` (default.ts).

A display that is shown again at another place also changes at the first one. When a cell is over, the panel takes
its own output out of the notebook's model.
"""

from replays import FrontEnd, display_id


class Client(FrontEnd):
    metadata = {"cellId": "cbf8b2c5", "deletedCells": [], "recordTiming": False, "trusted": True}
    answers_comms = in_session = True

    def receive(self, cell, kind, content):
        if kind == "display_data" and display_id(content):
            self.update(cell, content)
        super().receive(cell, kind, content)

    def follow_comm(self, kind, content):
        super().follow_comm(kind, content)
        if content["data"].get("content", {}).get("kind") == "form" and content["data"]["content"]["over"]:
            for outputs in self.cells:
                outputs[:] = [o for o in outputs if not is_live(o)]


def is_live(output):
    return output.get("metadata", {}).get("tfmagic", {}).get("live")
