"""Sample the CPU time and the memory of processes, at a bounded cost for any number of processes.

Called by the supervisor every now and then, on its own thread. To read a process' CPU time is to read one
small file. For its unique memory (which would be free if it ended) Linux walks its pages: some 10 ms for a
process with TensorFlow. So the memory is read of a few processes at a time, within a share of one core, and
only of those that have computed since: a cluster at rest costs little.
"""

import contextlib
import os
import time
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import psutil

K = TypeVar("K", bound=Hashable)

_SHARE = 0.007  # of one core, for all samples together
_MEASURED_AT_ONCE = 2
_CLOSELY_AT_ONCE = 8
_CLOSELY_PROCESSES = 200
_SAMPLED_AT_ONCE = 128
_LEAST_AT_ONCE = 8
_COMPUTED_S = 0.05  # between two readings of a process' memory
_MIN_INTERVAL_S = 0.2  # a shorter one measures the clock tick (10 ms) more than the task


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process uses."""

    cpu_percent: float | None = None  # of one core, since the previous sample; None in the first
    cpu_s: float | None = None  # since its start; of a fork its own time only
    memory_bytes: int | None = None  # unique to it; this and the next three are None until `read_memory`
    shared_bytes: int | None = None  # that other processes use too
    threads: int | None = None
    open_files: int | None = None
    paused: bool = False  # stopped by SIGSTOP or a debugger
    wanted_s: float | None = None  # see `wanted_seconds` (schedstat of proc(5)); None unless requested
    uptime_s: float | None = None  # only of processes on other machines


class Sampler(Generic[K]):
    """Keeps what the next sample needs. `usage` has the last sample of each process."""

    def __init__(self) -> None:
        self.usage: dict[K, Usage] = {}
        self._processes: dict[K, psutil.Process] = {}
        self._cpu: dict[K, tuple[float, float]] = {}
        self._memory_at: dict[K, float] = {}  # the CPU time of each process when its memory was read
        self._sampled = self._measured = 0  # counts, from which the next turn follows
        self._started = time.monotonic()
        self._spent_s = 0.0

    def sample(
        self, pids: Mapping[K, int], closely: Collection[K] = (), with_memory: bool = True
    ) -> dict[K, Usage]:
        """Sample the processes, as many as fit into one turn; of those in `closely` read `wanted_s`, too.

        Without `with_memory`, no memory is read: of processes that start it says nothing, and costs the most.
        """
        began = time.thread_time()
        alive = {key: pid for key, pid in pids.items() if pid}
        for gone in set(self.usage) - set(alive):
            self.usage.pop(gone)
            self._processes.pop(gone, None)
        is_over_budget = self._spent_s > _SHARE * (time.monotonic() - self._started)
        most = max(len(alive) // 2, _LEAST_AT_ONCE) if is_over_budget else len(alive)
        sampled = _in_turn(list(alive), self._sampled, min(most, _SAMPLED_AT_ONCE))
        self._sampled += len(sampled)
        new = [key for key in sampled if self.usage.get(key, Usage()).memory_bytes is None]
        old = [key for key in sampled if key not in new and self._has_computed(key)]
        measurable = _MEASURED_AT_ONCE if with_memory else 0
        measured = set() if is_over_budget else set(_in_turn(old, self._measured, measurable))
        self._measured += len(measured)
        for key in sampled:
            self.usage[key] = self._read(key, alive[key], key in measured)
        for key in [key for key in sampled if key in closely][:_CLOSELY_AT_ONCE]:
            self.usage[key] = replace(self.usage[key], wanted_s=wanted_seconds(alive[key]))
        self._spent_s += time.thread_time() - began
        for key in new[:measurable]:  # once for each process: beside the budget
            self.usage[key] = self._read(key, alive[key], True)
        return dict(self.usage)

    def _read(self, key: K, pid: int, with_memory: bool) -> Usage:
        before = self.usage.get(key, Usage())
        try:
            process = self._processes.get(key)
            if process is None or process.pid != pid:
                process = self._processes[key] = psutil.Process(pid)
                self._cpu.pop(key, None)
                before = Usage()
            with process.oneshot():
                times = process.cpu_times()
                paused = is_paused(process)
            # includes what its children used that have ended
            cpu_s = times.user + times.system + times.children_user + times.children_system
            percent = self._cpu_percent(key, cpu_s, before)
            seen = replace(before, cpu_percent=percent, cpu_s=cpu_s, paused=paused, wanted_s=None)
            if with_memory:
                self._memory_at[key], seen = cpu_s, read_memory(process, seen)
            return seen
        except (psutil.Error, OSError):  # or no file can be opened
            return Usage()  # it ended meanwhile: the backend reports that

    def _has_computed(self, key: K) -> bool:
        """Check whether the process has computed since its memory was read; mostly it has not."""
        used_s = self.usage[key].cpu_s
        return used_s is None or abs(used_s - self._memory_at.get(key, 0.0)) >= _COMPUTED_S

    def _cpu_percent(self, key: K, cpu_s: float, before: Usage) -> float | None:
        now = time.monotonic()
        last = self._cpu.get(key)
        if last is not None and now - last[1] < _MIN_INTERVAL_S:
            return before.cpu_percent
        self._cpu[key] = (cpu_s, now)
        return None if last is None else max(100 * (cpu_s - last[0]) / (now - last[1]), 0.0)


def is_paused(process: psutil.Process) -> bool:
    """Check whether a process is stopped now."""
    return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def _in_turn(keys: list[K], start: int, count: int) -> list[K]:
    return [keys[(start + i) % len(keys)] for i in range(min(count, len(keys)))]


def wanted_seconds(pid: int) -> float:
    """Return the seconds for which a process and its descendants computed or waited for a core."""
    total_ns, pids = 0, [pid]
    while pids and len(pids) < _CLOSELY_PROCESSES:
        folder = f"/proc/{pids.pop()}/task"
        with contextlib.suppress(OSError, ValueError):  # one ends meanwhile
            for thread in os.listdir(folder):
                with open(f"{folder}/{thread}/schedstat") as file:
                    computed, waited, _ = file.read().split()
                with open(f"{folder}/{thread}/children") as file:
                    pids += map(int, file.read().split())
                total_ns += int(computed) + int(waited)
    return total_ns / 1e9


def read_memory(process: psutil.Process, seen: Usage) -> Usage:
    """Return `seen` with what is expensive to read. Raises `psutil.Error` where the process has ended."""
    memory = process.memory_full_info()
    return replace(
        seen,
        memory_bytes=memory.uss,
        shared_bytes=max(memory.rss - memory.uss, 0),
        threads=process.num_threads(),
        open_files=process.num_fds(),
    )
