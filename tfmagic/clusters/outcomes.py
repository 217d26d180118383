"""Turn the outcome of a cell that succeeded into values.

Only this module unpickles values in the notebook, in the thread that waited for them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfmagic.clusters.results import RemoteValue, TaskResults
from tfmagic.errors import CaptureError
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellReturned, FailedPull
from tfmagic.protocol.payload import HandleLost, Packed
from tfmagic.runs.folder import RunFolder
from tfmagic.serialization import pickling
from tfmagic.supervisor.state import CellState
from tfmagic.system import advice
from tfmagic.system.memory import format_bytes


@dataclass(slots=True)
class CellResult:
    """The results of a cell by task, and each pulled name as {task name: value}."""

    results: TaskResults[Any]
    pulled: dict[str, dict[str, Any]] = field(default_factory=dict)


def unpack_outcome(
    outcome: CellState,
    starts: Mapping[TaskId, int],
    pull: tuple[str, ...],
    main: Mapping[str, Any],
    run: RunFolder,
) -> CellResult:
    """Return the values of a cell that returned on every task.

    Args:
        starts: The length of each task's log when the cell began, in bytes.
        pull: The names that were requested.
        main: The notebook's namespace.

    Raises:
        NameError: A task does not have a variable that was pulled.
        CaptureError: A variable that was pulled cannot travel.
    """
    __tracebackhide__ = True
    values: dict[TaskId, Any] = {}
    seconds: dict[TaskId, float] = {}
    spans: dict[TaskId, tuple[int, int]] = {}
    pulled: dict[str, dict[str, Any]] = {name: {} for name in pull}
    for task in sorted(outcome.outcomes):
        result = outcome.outcomes[task]
        assert isinstance(result, CellReturned)
        values[task] = value_of(task, result, main)
        seconds[task] = result.seconds
        spans[task] = (starts[task], result.log_end)
        for name, packed in result.pulled.items():
            pulled[name][task.name] = _load(task, packed, main)
    _raise_failed_pulls(outcome)
    return CellResult(TaskResults(values, seconds, spans, run), pulled)


def warn_of_lost_output(outcome: CellState, run: RunFolder, closed: Collection[TaskId]) -> None:
    """Warn of output that was lost because the disk or a log (one of `closed`) is full."""
    full = sorted(task.name for task in closed if task in outcome.request.commands)
    if full:
        warning = (
            f"tfmagic: the log of {', '.join(full)} has reached TFCluster.max_log_bytes, and what is written "
            "now is not kept; %tfcluster stop, then start, begins new ones"
        )
        print(advice.here(warning), file=sys.stderr)
    for task, result in outcome.outcomes.items():
        lost = getattr(result, "lost_bytes", 0)
        if lost:
            warnings.warn(
                f"{task}: {format_bytes(lost)} of output could not be written, since the disk of "
                f"{run.folder} is full; free some space or set TFMAGIC_STATE_DIR",
                stacklevel=2,
            )


def require_values(results: Mapping[str, Any]) -> None:
    """Raise `CaptureError` for the first result that stayed on its task."""
    __tracebackhide__ = True
    for name, value in results.items():
        if isinstance(value, RemoteValue):
            raise CaptureError(f"what {name} returned cannot travel: {value.reason}. {value.advice}")


def value_of(task: TaskId, result: CellReturned, main: Mapping[str, Any]) -> Any:
    """Return the value of the task, or a `RemoteValue` if it cannot travel. Can be called only once."""
    if result.value_error:
        return RemoteValue(task.name, result.value_error)
    return None if result.value is None else _load(task, result.value, main)


def _load(task: TaskId, packed: Packed, main: Mapping[str, Any]) -> Any:
    try:
        return pickling.loads(packed, main, import_tensorflow=False)
    except HandleLost as error:
        return RemoteValue(task.name, f"it {error.strerror}", "The task still has its variables.")
    except pickling.NeedsTensorFlow as error:
        return RemoteValue(task.name, f"it needs {error}, and this process has not imported TensorFlow")


def _raise_failed_pulls(outcome: CellState) -> None:
    __tracebackhide__ = True
    failed: dict[tuple[str, FailedPull], list[str]] = {}
    for task, result in outcome.outcomes.items():
        for pull in getattr(result, "failed_pulls", {}).items():
            failed.setdefault(pull, []).append(task.name)
    if not failed:
        return
    lines = [f"  on {', '.join(tasks)}: {name}: {pull.reason}" for (name, pull), tasks in failed.items()]
    kind = NameError if all(pull.is_missing for _, pull in failed) else CaptureError
    raise kind("cannot pull\n" + "\n".join(lines))
