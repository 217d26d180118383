"""When each task began and ended a cell or a call, on the clock of the notebook."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from tfmagic.supervisor.state import CellState

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """Start, end and run time by task name; a task that still runs has only a start."""

    started: Mapping[str, datetime]
    ended: Mapping[str, datetime]
    seconds: Mapping[str, float]


def task_times(cell: CellState | None) -> TaskTimes:
    """Return the times of a cell. Before it is sent to its tasks (None, too) there are none."""
    if cell is None or not cell.sent:
        return TaskTimes({}, {}, {})
    shift = datetime.now().astimezone() - timedelta(seconds=time.monotonic())
    ended = dict(sorted(cell.ended_at.items()))
    seconds = {task: getattr(cell.outcomes[task], "seconds", at - cell.started) for task, at in ended.items()}
    started = {
        task: ended[task] - seconds[task] if task in ended else cell.started
        for task in sorted(cell.request.commands)
    }
    return TaskTimes(
        {task.name: shift + timedelta(seconds=at) for task, at in started.items()},
        {task.name: shift + timedelta(seconds=at) for task, at in ended.items()},
        {task.name: found for task, found in seconds.items()},
    )


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
