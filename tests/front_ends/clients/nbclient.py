"""nbclient, and so nbconvert and papermill's notebook: the installed package, with the kernel of the test."""

import asyncio
import contextlib
import json

from jupyter_client import AsyncKernelClient
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook


class Client:
    in_session = False

    def __init__(self, kernel):
        self.kernel, self.notebook = kernel, new_notebook()
        self.program = self.make(self.notebook, kernel.manager)
        self.seen, self.process = None, self.program.process_message
        self.program.process_message = self.look

    def make(self, notebook, manager):
        return NotebookClient(notebook, km=manager)

    def look(self, message, *where):
        if message["msg_type"] != "execute_input":
            self.seen(json.dumps(message["content"], default=str))
        return self.process(message, *where)

    def run(self, code, seen):
        self.seen = seen
        self.notebook.cells.append(new_code_cell(code))
        asyncio.run(self.run_last())
        return self.shown(self.notebook.cells[-1].outputs)

    async def run_last(self):
        client = self.program.kc = AsyncKernelClient(parent=self.kernel.manager)
        client.load_connection_info(self.kernel.manager.get_connection_info())
        client.start_channels()
        client.allow_stdin = False
        await client.wait_for_ready(timeout=60)
        with contextlib.suppress(CellExecutionError):
            await self.program.async_execute_cell(self.notebook.cells[-1], len(self.notebook.cells) - 1)
        client.stop_channels()

    def shown(self, outputs):
        return outputs
