"""The line command ``%tfcluster debug``."""

from tfmagic.clusters.api.lines import Notebook, line_command, option
from tfmagic.features.debug.methods import Debugging


@line_command(
    "debug",
    "start pdb in a task, on its last failure, with live frames",
    option("task", "TASK", "the task"),
    after="run",
    elsewhere=("pdb", "pm"),
)
def _debug(magics: Notebook[Debugging], name: str, task: str) -> None:
    magics.running(name).debug(task)
