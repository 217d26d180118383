"""The line command ``%tfcluster debug``."""

from tfmagic.clusters.api.lines import Notebook, flag, line_command, option
from tfmagic.features.debug.methods import Debugging


@line_command(
    "debug",
    "start pdb in a task, on its last failure, with live frames; or let an editor attach",
    option("task", "TASK", "the task"),
    flag("--editor", "listen on loopback for VS Code or another DAP client"),
    after="run",
    elsewhere=("pdb", "pm"),
)
def _debug(magics: Notebook[Debugging], name: str, task: str, editor: bool) -> None:
    magics.running(name).debug(task, editor=editor)
