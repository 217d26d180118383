"""jupyter-mcp-server 2.2.4 as an extension of the Jupyter server: `execute_cell` runs cells by jupyter-server-nbmodel."""

from clients import nbmodel
from replays import for_agent


class Client(nbmodel.Client):
    def shown(self, cell):
        return for_agent(cell)
