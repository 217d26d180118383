"""jupyter-server-documents 0.3.3, which runs cells in the Jupyter server, from outputs/output_processor.py.

Each message is an output of its own, text of streams and updates of displays too (seen with the real one), and there is
no page that could answer.
"""

from replays import FrontEnd


class Client(FrontEnd):
    request = {**FrontEnd.request, "allow_stdin": False}
    of_library = in_session = True

    def append(self, cell, output):
        cell.append(output)

    def update(self, cell, content):
        cell.append({"output_type": "display_data", **content})
