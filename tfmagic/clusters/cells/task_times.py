"""When each task began and ended a cell or a call, on the clock of the notebook."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import TypeVar

from tfmagic.supervisor.state import CellState

T = TypeVar("T")


class TaskTimes:
    """Start, end and run time by task name; a task that still runs has only a start.

    Args:
        begun, over: The starts and ends, in seconds of the monotonic clock.
        seconds: The run times.
    """

    def __init__(self, begun: Mapping[str, float], over: Mapping[str, float], seconds: Mapping[str, float]):
        self._begun, self._over, self.seconds = begun, over, seconds
        self._shift_s = time.time() - time.monotonic()

    @property
    def started(self) -> Mapping[str, datetime]:
        return {name: self._date(at) for name, at in self._begun.items()}

    @property
    def ended(self) -> Mapping[str, datetime]:
        return {name: self._date(at) for name, at in self._over.items()}

    def _date(self, at: float) -> datetime:
        return datetime.fromtimestamp(at + self._shift_s).astimezone()


def task_times(cell: CellState | None) -> TaskTimes:
    """Return the times of a cell. Before it is sent to its tasks (None, too) there are none."""
    begun: dict[str, float] = {}
    over: dict[str, float] = {}
    seconds: dict[str, float] = {}
    if cell is None or not cell.sent:
        return TaskTimes(begun, over, seconds)
    for task in cell.request.commands:
        name, started, at = task.name, cell.started, cell.ended_at.get(task)
        if at is not None:
            over[name], seconds[name] = at, getattr(cell.outcomes[task], "seconds", at - started)
            started = at - seconds[name]
        begun[name] = started
    return TaskTimes(begun, over, seconds)


class CallFuture(Future[T]):
    """A future that also has the times of its call, by task name; {} before the call begins."""

    def __init__(self, times: Callable[[], TaskTimes]):
        super().__init__()
        self._times = times

    @property
    def started(self) -> Mapping[str, datetime]:
        """When the tasks began."""
        return self._times().started

    @property
    def ended(self) -> Mapping[str, datetime]:
        """When the tasks ended that have ended, also by a failure."""
        return self._times().ended

    @property
    def seconds(self) -> Mapping[str, float]:
        """The run time of the tasks that have ended."""
        return self._times().seconds
