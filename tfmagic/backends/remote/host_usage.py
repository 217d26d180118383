"""What the tasks of a host use, sampled now and then: often while a cell runs."""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace

import psutil

from tfmagic.backends.remote.messages import TasksUsed
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.system.usage import Sampler

_BUSY_S, _IDLE_S = 0.5, 5.0


class HostUsage:
    """When the next sample is due, and of which tasks the costly values are wanted."""

    def __init__(self) -> None:
        self.closely: tuple[TaskId, ...] = ()
        self._sampler: Sampler[TaskId] = Sampler()
        self._next = 0.0

    def expect(self, soon: bool) -> None:
        """Let a sample be due now, or soon after a cell has begun."""
        self._next = min(self._next, time.monotonic() + _BUSY_S) if soon else 0.0

    def sample(self, pids: Mapping[TaskId, int], is_busy: bool) -> TasksUsed | None:
        """Return the usage of these processes, if it is due."""
        now = time.monotonic()
        if now < self._next or not pids:
            return None
        self._next = now + (_BUSY_S if is_busy else _IDLE_S)
        used = self._sampler.sample(dict(pids), self.closely)
        for task, pid in pids.items():
            with contextlib.suppress(psutil.Error, KeyError):
                age_s = round(time.time() - psutil.Process(pid).create_time(), 1)
                used[task] = replace(used[task], uptime_s=age_s)
        return TasksUsed({task.name: usage for task, usage in used.items()})
