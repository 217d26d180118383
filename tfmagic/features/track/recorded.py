"""The last step and value of each tracked name: in JSON for programs, and in the sentence on a cell."""

from collections.abc import Mapping

from tfmagic.features.track.names import NAME, Points
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.feature_records import newest_records
from tfmagic.runs.folder import RunFolder

Tracked = dict[str, tuple[float, float]]
FIELD, TYPE = "tracked", Tracked
_MOST_NAMES = 4


def last(run: RunFolder, task: TaskId, cell: int | None = None) -> Tracked:
    """Return the last step and value of each name that a task has tracked.

    Args:
        cell: The number of the cell; None means the last one that has tracked something.
    """
    found: Tracked = {}
    batches: list[Points] = newest_records(run, task, NAME, cell)
    for batch in batches:
        for name, rows in batch.items():
            found.setdefault(name, (rows[-1][0], rows[-1][1]))
    return found


def describe(tracked: Mapping[str, Tracked]) -> str:
    """Return the last step and values of the first task that tracks some: ``step 340, loss 0.21 (worker-0)``.

    Args:
        tracked: By task; the result is "" if there is nothing.
    """
    for task, points in tracked.items():
        if points:
            step = max(at for at, _ in points.values())
            named = [f"{name} {value:.4g}" for name, (_, value) in points.items()]
            return f"step {step:g}, {', '.join(named[:_MOST_NAMES])} ({task})"
    return ""
