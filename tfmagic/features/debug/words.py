"""What the user is told about an editor's debugger."""

import json

from tfmagic.features.debug.records import HOST, Listening


def configuration(task: str, port: int) -> str:
    """Return the entry of a ``launch.json`` of VS Code, in one line."""
    connect = {"host": HOST, "port": port}
    return json.dumps({"name": task, "type": "debugpy", "request": "attach", "connect": connect})


def nvim_command(task: str, port: int) -> str:
    """Return the command of Neovim with nvim-dap."""
    adapter = f'type = "server", host = "{HOST}", port = {port}'
    run = f'type = "tfmagic", request = "attach", name = "{task}"'
    return f':lua local dap = require("dap"); dap.adapters.tfmagic = {{{adapter}}}; dap.run({{{run}}})'


def how_to_attach(task: str, found: Listening, waits: bool = False) -> str:
    """Return the lines to copy into an editor.

    Args:
        waits: Whether a script waits for the editor, instead of cells that come.
    """
    state = (
        "has an editor attached"
        if found.attached
        else "waits for an editor"
        if waits
        else "listens for an editor"
    )
    lines = [
        f"tfmagic: {task} {'still ' * found.known}{state} on {HOST}:{found.port}",
        f"  VS Code, in launch.json:  {configuration(task, found.port)}",
        f"  Neovim with nvim-dap:     {nvim_command(task, found.port)}",
    ]
    if not waits:
        lines.append(f"  the source of its cells:  {found.cells}")
    if found.failure:
        lines.append(
            f"tfmagic: {task} waits for the editor, to show it where {found.failure} was raised; "
            "an interrupt ends that"
        )
    if found.lacks:
        lines.append(f"tfmagic: {found.lacks}")
    return "\n".join(lines)
