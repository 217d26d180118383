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
_MANY_TASKS = 100  # of a cluster: with more of them, each is sampled less often while a cell runs


class HostUsage:
    """When the next sample is due, and of which tasks the costly values are wanted.

    Attributes:
        of_tasks: The number of tasks of the cluster, on all hosts.
    """

    of_tasks = 0

    def __init__(self) -> None:
        self.closely: tuple[TaskId, ...] = ()
        self._sampler: Sampler[TaskId] = Sampler()
        self._next = 0.0
        self._began: dict[int, float] = {}  # by pid

    def expect(self, soon: bool) -> None:
        """Let a sample be due now, or soon after a cell has begun."""
        self._next = min(self._next, time.monotonic() + _BUSY_S) if soon else 0.0

    def sample(self, pids: Mapping[TaskId, int], is_busy: bool) -> TasksUsed | None:
        """Return the usage of these processes, if it is due."""
        now = time.monotonic()
        if now < self._next or not pids:
            return None
        busy_s = min(_BUSY_S * max(self.of_tasks / _MANY_TASKS, 1), _IDLE_S)
        self._next = now + (busy_s if is_busy else _IDLE_S)
        used = self._sampler.sample(dict(pids), self.closely)
        began: dict[int, float] = {}
        for task, pid in pids.items():
            with contextlib.suppress(psutil.Error, KeyError):
                began[pid] = self._began.get(pid) or psutil.Process(pid).create_time()
                used[task] = replace(used[task], uptime_s=round(time.time() - began[pid], 1))
        self._began = began
        return TasksUsed({task.name: usage for task, usage in used.items()})
