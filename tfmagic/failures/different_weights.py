"""The hint after a `fit` that has left different weights on tasks that trained one model."""

from array import array
from collections.abc import Mapping

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.system.advice import Step, in_notebook


def different_weights(reports: Mapping[TaskId, object]) -> str:
    """Return the hint if the last report of each task shows such a difference, else ""."""
    found = [(task, sample) for task, end in reports.items() if (sample := getattr(end, "trained", b""))]
    trained = [(task.name, sample) for task, sample in sorted(found)]
    differ = [name for name, sample in trained if _differ(trained[0][1], sample)]
    if not differ:
        return ""
    compare = in_notebook(f"; {Step('diff', 'NAME')} compares a model")
    return (
        f"hint: fit has left different weights on {trained[0][0]} and {', '.join(differ)}: all tasks add "
        "equal gradients to the weights that they have, so these differed before. Load or set weights on all "
        f"tasks alike{compare}. ({Step('explain', 'different-weights')})"
    )


def _differ(one: bytes, other: bytes) -> bool:
    """Compare two samples of weights, but for the last digits, which processors can round differently."""
    if one[:4] != other[:4] or len(one) != len(other):
        return False  # models with other shapes
    pairs = zip(array("f", one[4:]), array("f", other[4:]), strict=True)
    return any(abs(a - b) > 1e-5 + 1e-3 * max(abs(a), abs(b)) or (a == a) != (b == b) for a, b in pairs)
