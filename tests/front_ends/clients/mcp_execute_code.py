"""jupyter-mcp-server 2.2.4 as an extension: `execute_code`, from `execute_code_local` of utils.py.

It ignores `clear_output` and updates of displays: an agent gets everything that was ever shown.
"""

from replays import OUTPUTS, FrontEnd, for_agent


class Client(FrontEnd):
    request = {**FrontEnd.request, "allow_stdin": False, "stop_on_error": False}
    of_library = True

    def receive(self, cell, kind, content):
        if kind in OUTPUTS:
            super().receive(cell, kind, content)

    def update(self, cell, content):
        pass

    def shown(self, cell):
        return for_agent(cell)
