"""euporie 2.10.4, `euporie-notebook` in a terminal, from core/kernel/jupyter.py, core/comm and core/widgets/cell.py.

It can ask the user for input. It adds an update of a display as a further output, and knows no anywidget.
"""

from replays import FrontEnd


class Client(FrontEnd):
    of_library = True

    def run(self, code, seen):
        session = self.kernel.client.session
        before, session.username = session.username, "euporie-4242"
        try:
            return super().run(code, seen)
        finally:
            session.username = before

    def update(self, cell, content):
        self.append(cell, {"output_type": "display_data", **content})
