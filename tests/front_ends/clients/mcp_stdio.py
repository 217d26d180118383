"""jupyter-mcp-server 2.2.4 as a program of its own: `execute_cell`, from code_sandboxes 1.10.0, jupyter_server.py.

An agent gets the text of standard output, that of standard error, the displays, and the error, in this order. It ignores a
`clear_output` that waits, and updates of displays.
"""

from replays import OUTPUTS, FrontEnd, for_agent


class Client(FrontEnd):
    of_library = True

    def receive(self, cell, kind, content):
        if kind in OUTPUTS or (kind == "clear_output" and not content["wait"]):
            super().receive(cell, kind, content)

    def append(self, cell, output):
        streams = [o for o in cell if output["output_type"] == "stream" and o.get("name") == output["name"]]
        if streams:
            streams[0]["text"] += output["text"]
        else:
            cell.append(output)

    def update(self, cell, content):
        pass

    def shown(self, cell):
        order = ("stdout", "stderr", "display_data", "execute_result", "error")
        return for_agent(sorted(cell, key=lambda o: order.index(o.get("name", o["output_type"]))))
