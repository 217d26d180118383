"""How much of the machine each task uses, sampled cheaply: what it costs is bounded however many there are.

Called by a view, now and then, on its own thread. Reading a task's CPU time is one small file; its unique
memory (what would be free if it ended) makes the system walk its pages, some milliseconds for a process
with TensorFlow in it, so that only a few tasks are weighed at each sample, in turn.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from tfmagic.spec import TaskId

_WEIGHED_AT_ONCE = 2
_MIN_INTERVAL_S = 0.2  # a shorter one measures the clock tick (10 ms) more than the task


@dataclass(frozen=True, slots=True)
class Usage:
    """What a task process uses.

    Attributes:
        cpu_percent: Of one core, since the sample before; None in the first.
        memory_bytes: Unique to the process; None where it was not weighed yet.
        paused: Whether it is stopped (SIGSTOP, or a debugger).
    """

    cpu_percent: float | None = None
    memory_bytes: int | None = None
    paused: bool = False


class Sampler:
    """Remembers what it needs between samples. One for each view."""

    def __init__(self) -> None:
        self._processes: dict[TaskId, psutil.Process] = {}
        self._cpu: dict[TaskId, tuple[float, float]] = {}
        self._usage: dict[TaskId, Usage] = {}
        self._turn = itertools.count()

    def sample(self, pids: Mapping[TaskId, int]) -> dict[TaskId, Usage]:
        """The usage of each task that has a process."""
        alive = {task: pid for task, pid in pids.items() if pid}
        weighed = self._next_to_weigh(list(alive))
        self._usage = {task: self._look_at(task, pid, task in weighed) for task, pid in alive.items()}
        return self._usage

    def _next_to_weigh(self, tasks: list[TaskId]) -> set[TaskId]:
        if not tasks:
            return set()
        new = [task for task in tasks if self._usage.get(task, Usage()).memory_bytes is None]
        turn = [tasks[next(self._turn) % len(tasks)] for _ in range(_WEIGHED_AT_ONCE)]
        return set((new + turn)[:_WEIGHED_AT_ONCE])

    def _look_at(self, task: TaskId, pid: int, weigh: bool) -> Usage:
        before = self._usage.get(task, Usage())
        try:
            process = self._processes.get(task)
            if process is None or process.pid != pid:
                process = self._processes[task] = psutil.Process(pid)
                self._cpu.pop(task, None)
                before = Usage()
            memory = process.memory_full_info().uss if weigh else before.memory_bytes
            paused = process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
            return Usage(self._cpu_percent(task, process, before), memory, paused)
        except psutil.Error:
            return Usage()  # it ended while we looked: its end is told by others

    def _cpu_percent(self, task: TaskId, process: psutil.Process, before: Usage) -> float | None:
        times, now = process.cpu_times(), time.monotonic()
        used = times.user + times.system
        last = self._cpu.get(task)
        if last is not None and now - last[1] < _MIN_INTERVAL_S:
            return before.cpu_percent
        self._cpu[task] = (used, now)
        return None if last is None else max(100 * (used - last[0]) / (now - last[1]), 0.0)
