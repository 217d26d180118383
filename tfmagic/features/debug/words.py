"""What the user is told about an editor's debugger."""

import json

from tfmagic.features.debug.records import HOST, Listening
from tfmagic.protocol.cluster_spec import TaskId


def configuration(task: TaskId, port: int) -> str:
    """Return the entry of a ``launch.json`` of VS Code, in one line."""
    connect = {"host": HOST, "port": port}
    return json.dumps({"name": task.name, "type": "debugpy", "request": "attach", "connect": connect})


def nvim_command(task: TaskId, port: int) -> str:
    """Return the command of Neovim with nvim-dap."""
    adapter = f'type = "server", host = "{HOST}", port = {port}'
    run = f'type = "tfmagic", request = "attach", name = "{task}"'
    return f':lua local dap = require("dap"); dap.adapters.tfmagic = {{{adapter}}}; dap.run({{{run}}})'


def how_to_attach(task: TaskId, found: Listening) -> str:
    """Return the lines to copy into an editor."""
    state = "an editor is attached to it" if found.attached else "it listens for an editor"
    still = " still" if found.known else ""
    return "\n".join(
        [
            f"tfmagic: {task}:{still and still + ','} {state} on {HOST}:{found.port}",
            f"  VS Code, in launch.json:  {configuration(task, found.port)}",
            f"  Neovim with nvim-dap:     {nvim_command(task, found.port)}",
            f"  the source of its cells:  {found.cells}",
        ]
    )
