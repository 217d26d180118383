"""The results of a cell or call by task, and how they are made from the outcome of the supervisor.

Only this module unpickles values in the notebook, in the thread that waited for them.
"""

from collections.abc import Collection, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from tfmagic.clusters.cells.task_times import TaskTimes, task_times
from tfmagic.errors import CaptureError
from tfmagic.features.names import FeatureAttributes
from tfmagic.protocol.cluster_spec import TASK_TYPES, TaskId
from tfmagic.protocol.events import CellReturned, FailedPull
from tfmagic.protocol.payload import HandleLost, Packed
from tfmagic.runs.feature_records import RecordReader
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.log_reader import cut_lines, read_output
from tfmagic.serialization import pickling, tensorflow_values
from tfmagic.supervisor.state import CellState, Outcome
from tfmagic.system import notices
from tfmagic.system.advice import Step
from tfmagic.system.memory import format_bytes
from tfmagic.views import tables

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RemoteValue:
    """Stands for a value that cannot travel to this process, and stayed on its task."""

    task: str
    reason: str
    advice: str = "Return plain data, such as numbers, strings or numpy arrays."

    def __repr__(self) -> str:
        return f"<a value on {self.task}: {self.reason}>"


class TaskResults(FeatureAttributes, Mapping[str, T], Generic[T]):
    """The value of each task by task name, ordered chief, worker, ps, evaluator.

    Attributes:
        done: True, as that of a name that stood for the results of a detached cell while it ran.
        seconds: The run time, by task name.
        steps: How often a task called the tf.function that it called most often, by task name.
        started, ended: When the task began and ended it, by task name.
        output: What the task wrote, by task name, as it wrote it; read from its log at each access.
        text: The same as a terminal shows it: without its codes, and of a progress bar the last state.

    `tfmagic.features.names` has the attributes of features.
    """

    def __init__(
        self,
        values: Mapping[TaskId, T],
        returned: Mapping[TaskId, CellReturned],
        starts: Mapping[TaskId, int],
        run: RunFolder,
        times: TaskTimes,
        found: Mapping[str, Any] | None = None,
    ):
        self._run, self._times, self._found = run, times, found or {}
        self._values = {task.name: value for task, value in values.items()}
        # without the bytes of the values, which would be kept twice
        self._ends = [_without_values(returned[task]) for task in values]
        self._starts = starts

    @property
    def done(self) -> bool:
        return True

    @property
    def seconds(self) -> dict[str, float]:
        return {end.task.name: end.seconds for end in self._ends}

    @property
    def steps(self) -> dict[str, int]:
        return {end.task.name: end.steps for end in self._ends}

    @property
    def started(self) -> Mapping[str, datetime]:
        return self._times.started

    @property
    def ended(self) -> Mapping[str, datetime]:
        return self._times.ended

    @property
    def output(self) -> dict[str, str]:
        return {
            end.task.name: read_output(self._run.log_path(end.task), self._starts[end.task], end.log_end)
            for end in self._ends
        }

    @property
    def text(self) -> dict[str, str]:
        spans = [(end, self._run.log_path(end.task), self._starts[end.task]) for end in self._ends]
        return {end.task.name: cut_lines(path, at, end.log_end, end.log_end)[0] for end, path, at in spans}

    def _recorded(self, feature: str) -> dict[str, Iterator[Any]]:
        """Return what a feature has recorded on each task while it ran, by task name; read from disk."""
        return {
            end.task.name: RecordReader(self._run, end.task, feature, end.cell).read() for end in self._ends
        }

    def of(self, task_type: str) -> list[T]:
        """Return the values of the tasks of one type, by index.

        Raises:
            KeyError: It is no task type.
        """
        if task_type not in TASK_TYPES:
            raise KeyError(f"{task_type!r} is no task type; they are {', '.join(TASK_TYPES)}")
        return [v for name, v in self._values.items() if name.rpartition("-")[0] == task_type]

    def __getitem__(self, name: str) -> T:
        try:
            return self._values[name]
        except KeyError:
            known = ", ".join(self._values)
            hint = f"; use .of({name!r}) for the tasks of a type" if name in TASK_TYPES else ""
            raise KeyError(f"no result of {name!r}; there are results of {known}{hint}") from None

    def values(self) -> ValuesView[T]:
        return self._values.values()

    def items(self) -> ItemsView[str, T]:
        return self._values.items()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        body = ", ".join(f"{name!r}: {_short(value)}" for name, value in self._values.items())
        return f"TaskResults({{{body}}})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        rows = [(name, f"{self.seconds[name]:.3f}", _short(v)) for name, v in self._values.items()]
        return tables.bundle(("task", "seconds", "value"), rows)


def _without_values(end: CellReturned) -> CellReturned:
    has_some = end.value is not None or end.pulled or end.extras
    return replace(end, value=None, pulled={}, extras={}) if has_some else end


def _short(value: Any, limit: int = 200) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


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
    found: Mapping[str, Any],
    *,
    in_part: bool = False,
    writable: bool = True,
) -> CellResult:
    """Return the values of a cell from the tasks on which it returned: all, unless it failed on the others.

    Args:
        starts: The length of each task's log when the cell began, in bytes.
        pull: The names that were requested.
        main: The notebook's namespace.
        in_part: Leave out the variables that a task could not send.
        writable: Whether large arrays among the variables can be written.

    Raises:
        NameError: A task does not have a variable that was pulled.
        CaptureError: A variable that was pulled cannot travel.
    """
    ends = {task: outcome.outcomes.get(task) for task in outcome.request.commands}
    returned = {task: end for task, end in ends.items() if isinstance(end, CellReturned)}
    values: dict[TaskId, Any] = {}
    pulled: dict[str, dict[str, Any]] = {name: {} for name in pull}
    for task, result in returned.items():
        values[task] = value_of(task, result, main)
        for name, packed in result.pulled.items():
            pulled[name][task.name] = _load(task, packed, main, writable)
    if not in_part:
        _raise_failed_pulls(outcome)
    return CellResult(TaskResults(values, returned, starts, run, task_times(outcome), found), pulled)


def warn_of_lost_output(outcome: CellState, run: RunFolder, closed: Collection[TaskId]) -> None:
    """Warn of output that was lost because the disk or a log (one of `closed`) is full."""
    full = sorted(task.name for task in closed if task in outcome.request.commands)
    if full:
        notices.tell(
            f"tfmagic: the log of {', '.join(full)} has reached TFCluster.max_log_bytes, and what is written "
            f"now is not kept; {Step('stop, then start')}, begins new ones"
        )
    for task, result in outcome.outcomes.items():
        warn_of_full_disk(task, result, run)


def warn_of_full_disk(task: TaskId, result: Outcome, run: RunFolder) -> None:
    """Warn of output that a task has lost because the disk is full."""
    lost, where = getattr(result, "lost_bytes", 0), getattr(result, "lost_where", "")
    if lost:
        there = " there, before  ray start" if where else ""
        notices.tell(  # by `warnings` an equal loss would be silent
            f"tfmagic: {task}: {format_bytes(lost)} of output could not be written, since the disk of "
            f"{where or run.log_path(task).parent} is full; free some space or set TFMAGIC_STATE_DIR{there}"
        )


def report_restored_folder(run: RunFolder) -> None:
    """Print once that the run folder was deleted and made again."""
    if run.restored:
        run.restored = False
        notices.tell(
            f"tfmagic: {run.folder} was deleted meanwhile. It was made again, with the logs of the tasks "
            f"that run; {Step('logs')} shows what this cell may lack. Earlier cells' panels are lost."
        )


def require_values(results: Mapping[str, Any]) -> None:
    """Raise `CaptureError` for the first result that stayed on its task."""
    for name, value in results.items():
        if isinstance(value, RemoteValue):
            raise CaptureError(f"what {name} returned cannot travel: {value.reason}. {value.advice}")


def value_of(task: TaskId, result: CellReturned, main: Mapping[str, Any]) -> Any:
    """Return the value of the task, or a `RemoteValue` if it cannot travel. Can be called only once."""
    if result.value_error:
        return RemoteValue(task.name, result.value_error)
    return None if result.value is None else _load(task, result.value, main)


def _load(task: TaskId, packed: Packed, main: Mapping[str, Any], writable: bool = True) -> Any:
    try:
        return pickling.loads(packed, main, import_tensorflow=False, writable=writable)
    except HandleLost as error:
        return RemoteValue(task.name, f"it {error.strerror}", "The task still has its variables.")
    except tensorflow_values.NeedsTensorFlow as error:
        return RemoteValue(task.name, f"it needs {error}, and this process has not imported TensorFlow")


def _raise_failed_pulls(outcome: CellState) -> None:
    failed: dict[tuple[str, FailedPull], list[str]] = {}
    ends = [
        (task, found) for task, end in outcome.outcomes.items() if (found := getattr(end, "failed_pulls", {}))
    ]
    for task, found in sorted(ends):
        for pull in found.items():
            failed.setdefault(pull, []).append(task.name)
    if not failed:
        return
    lines = [f"  on {', '.join(tasks)}: {name}: {pull.reason}" for (name, pull), tasks in failed.items()]
    kind = NameError if all(pull.is_missing for _, pull in failed) else CaptureError
    raise kind("cannot pull\n" + "\n".join(lines))
