"""The line command ``%tfcluster diff``."""

from IPython.core.error import UsageError
from IPython.display import display

from tfmagic.clusters.api.lines import ON, Notebook, flag, line_command, option
from tfmagic.features.diff.methods import Differences


@line_command(
    "diff",
    "compare a variable over tasks: weights, batches, losses, data sets, settings",
    option("variable", "NAME", "a variable of the tasks, or an attribute of one: model.optimizer"),
    ON,
    flag("--rows", "compare the rows of its arrays, too: which were read by several tasks"),
    option("--of", "NAME", "the notebook's variable with all rows, to find those that nobody has read"),
    after="pull",
)
def _diff(
    magics: Notebook[Differences], name: str, variable: str, on: str | None, rows: bool, of: str | None
) -> None:
    cluster, namespace = magics.running(name), magics.shell.user_ns
    if of and of not in namespace:
        raise UsageError(f"the notebook has no variable {of!r}, which --of names")
    display(cluster.diff(variable, on=on or "all", rows=rows, of=namespace[of] if of else None))
