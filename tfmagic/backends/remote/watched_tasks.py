"""The tasks of a host, as its agent sees them, and how long an event of one waits for those of others."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from tfmagic.backends.remote.journal import Journal
from tfmagic.backends.remote.task_files import TaskFiles
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import (
    CellRaised,
    CellReturned,
    Event,
    TaskExited,
    TaskLost,
    TaskReady,
    TaskStarted,
)

_BUSY_LOOK_S = 0.01  # between two looks at the logs while a cell runs
_IDLE_LOOK_S = 0.25
# tasks that end a cell at about the same time are reported in one answer, not in one each: of each task
_GATHER_S, _GATHER_MOST_S = 0.0005, 0.02
_START_S, _START_MOST_S = 0.02, 1.0  # the same for tasks that start: a host forks them one after the other


@dataclass(slots=True)
class Watched:
    """A task of this host, and the events that wait until its output was reported.

    Attributes:
        cells: The number of its cells that were sent and have not ended.
        starts: Whether its process is not ready yet.
    """

    task: TaskId
    files: TaskFiles
    attempt: int = 0
    held: deque[tuple[int, Event]] = field(default_factory=deque)
    pid: int = 0
    cells: int = 0
    starts: bool = False
    journal: Journal | None = None
    is_log_closed: bool = False

    def begin(self, attempt: int) -> None:
        """Note that a process is started."""
        self.attempt, self.cells, self.pid, self.is_log_closed, self.starts = attempt, 0, 0, False, True

    def note(self, event: Event) -> None:
        """Note an event of the process."""
        match event:
            case TaskStarted(pid=pid):
                self.pid = pid
            case TaskReady():
                self.starts = False
            case TaskExited() | TaskLost():
                self.pid, self.cells, self.starts = 0, 0, False
            case CellReturned() | CellRaised():
                self.cells -= 1


def are_busy(tasks: Collection[Watched]) -> bool:
    """Check whether a cell runs on one of them."""
    return any(watched.cells for watched in tasks)


def gather_s(tasks: Collection[Watched]) -> float:
    """Return how long an event waits for others: while a cell runs, as long as its tasks might need.

    While tasks start, until all are ready or one has ended: nobody waits for the first ones.
    """
    if are_busy(tasks):
        return min(_GATHER_S * len(tasks), _GATHER_MOST_S)
    has_ended = any(w.held and isinstance(w.held[-1][1], TaskExited | TaskLost) for w in tasks)
    if has_ended or not any(watched.starts for watched in tasks):
        return 0.0
    return min(_START_S * len(tasks), _START_MOST_S)


def pace_s(tasks: Collection[Watched]) -> float:
    """Return the time between two looks at the logs."""
    return max(gather_s(tasks), _BUSY_LOOK_S if are_busy(tasks) else _IDLE_LOOK_S)
