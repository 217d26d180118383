"""How much of the machine processes use, sampled cheaply: what that costs is bounded however many there are.

Called by the supervisor, now and then, on its own thread. Reading a process' CPU time is one small file; its
unique memory (what would be free if it ended) makes the system walk its pages, some 10 ms for a process
with TensorFlow in it. So processes are weighed in turn, as far as a share of one core allows.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import psutil

K = TypeVar("K", bound=Hashable)

_SHARE = 0.007  # of one core, for all looks together
_WEIGHED_AT_ONCE = 2
_CLOSELY_AT_ONCE = 8
_CLOSELY_PROCESSES = 200
_LOOKED_AT_ONCE = 128
_LEAST_AT_ONCE = 8
_MIN_INTERVAL_S = 0.2  # a shorter one measures the clock tick (10 ms) more than the task


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process uses.

    Attributes:
        cpu_percent: Of one core, since the look before; None in the first.
        cpu_s: Since its start; a fork's own time only.
        memory_bytes: Unique to the process; it, and the next three, are None until it has been weighed.
        shared_bytes: What others use too.
        threads, open_files: How many.
        paused: Whether it is stopped (SIGSTOP, or a debugger).
        wanted_s: The time for which its threads, and those of its descendants, computed or waited for a
            core (proc(5), schedstat); None unless it was asked for.
    """

    cpu_percent: float | None = None
    cpu_s: float | None = None
    memory_bytes: int | None = None
    shared_bytes: int | None = None
    threads: int | None = None
    open_files: int | None = None
    paused: bool = False
    wanted_s: float | None = None


class Sampler(Generic[K]):
    """Remembers what it needs between looks. `usage` has the last look at each process."""

    def __init__(self) -> None:
        self.usage: dict[K, Usage] = {}
        self._processes: dict[K, psutil.Process] = {}
        self._cpu: dict[K, tuple[float, float]] = {}
        self._looked_at = self._weighed = 0  # how many, in their turn
        self._started = time.monotonic()
        self._spent_s = 0.0

    def sample(self, pids: Mapping[K, int], closely: Collection[K] = ()) -> dict[K, Usage]:
        """Look at the processes: at all of them, or at as many as are looked at in one turn.

        Args:
            closely: Those whose `wanted_s` is asked for: some milliseconds each.
        """
        began = time.thread_time()
        alive = {key: pid for key, pid in pids.items() if pid}
        for gone in set(self.usage) - set(alive):
            self.usage.pop(gone)
            self._processes.pop(gone, None)
        is_dear = self._spent_s > _SHARE * (time.monotonic() - self._started)
        most = max(len(alive) // 2, _LEAST_AT_ONCE) if is_dear else len(alive)
        looked_at = _in_turn(list(alive), self._looked_at, min(most, _LOOKED_AT_ONCE))
        self._looked_at += len(looked_at)
        new = [key for key in looked_at if self.usage.get(key, Usage()).memory_bytes is None]
        old = [key for key in looked_at if key not in new]
        weighed = set() if is_dear else set(_in_turn(old, self._weighed, _WEIGHED_AT_ONCE))
        self._weighed += len(weighed)
        for key in looked_at:
            self.usage[key] = self._look_at(key, alive[key], key in weighed)
        for key in [key for key in looked_at if key in closely][:_CLOSELY_AT_ONCE]:
            self.usage[key] = replace(self.usage[key], wanted_s=wanted_seconds(alive[key]))
        self._spent_s += time.thread_time() - began
        for key in new[:_WEIGHED_AT_ONCE]:  # once for each process: beside the budget
            self.usage[key] = self._look_at(key, alive[key], True)
        return dict(self.usage)

    def _look_at(self, key: K, pid: int, weigh: bool) -> Usage:
        before = self.usage.get(key, Usage())
        try:
            process = self._processes.get(key)
            if process is None or process.pid != pid:
                process = self._processes[key] = psutil.Process(pid)
                self._cpu.pop(key, None)
                before = Usage()
            with process.oneshot():
                times = process.cpu_times()
                paused = process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
            # of its children, what those used that have ended
            cpu_s = times.user + times.system + times.children_user + times.children_system
            percent = self._cpu_percent(key, cpu_s, before)
            seen = replace(before, cpu_percent=percent, cpu_s=cpu_s, paused=paused, wanted_s=None)
            return weigh_process(process, seen) if weigh else seen
        except (psutil.Error, OSError):  # or no file can be opened
            return Usage()  # it ended while we looked: its end is told by others

    def _cpu_percent(self, key: K, cpu_s: float, before: Usage) -> float | None:
        now = time.monotonic()
        last = self._cpu.get(key)
        if last is not None and now - last[1] < _MIN_INTERVAL_S:
            return before.cpu_percent
        self._cpu[key] = (cpu_s, now)
        return None if last is None else max(100 * (cpu_s - last[0]) / (now - last[1]), 0.0)


def _in_turn(keys: list[K], start: int, count: int) -> list[K]:
    return [keys[(start + i) % len(keys)] for i in range(min(count, len(keys)))]


def wanted_seconds(pid: int) -> float:
    """The time for which the threads of a process and of its descendants computed or waited for a core."""
    total_ns, pids = 0, [pid]
    while pids and len(pids) < _CLOSELY_PROCESSES:
        folder = f"/proc/{pids.pop()}/task"
        with contextlib.suppress(OSError, ValueError):  # one ends while we look
            for thread in os.listdir(folder):
                with open(f"{folder}/{thread}/schedstat") as file:
                    computed, waited, _ = file.read().split()
                with open(f"{folder}/{thread}/children") as file:
                    pids += map(int, file.read().split())
                total_ns += int(computed) + int(waited)
    return total_ns / 1e9


def weigh_process(process: psutil.Process, seen: Usage) -> Usage:
    """`seen` with what is dear to find out. Raises `psutil.Error` where the process has ended."""
    memory = process.memory_full_info()
    return replace(
        seen,
        memory_bytes=memory.uss,
        shared_bytes=max(memory.rss - memory.uss, 0),
        threads=process.num_threads(),
        open_files=process.num_fds(),
    )
