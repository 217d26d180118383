"""End the task that takes the memory of a host, before Ray ends the agent there, and with it all tasks.

Ray ends processes of its own when the memory of a node is used up to a limit. A task is no process of Ray's,
so it would take the agent, whose end is that of all tasks of the host. This looks more often the less is
left, and acts a little earlier.

Facts about Ray (2.60): it looks each 250 ms, and its limit is a share of the memory, or what is left of it
when a given number of bytes is free, whichever is more; a refresh of 0 ms turns it off.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.system import memory
from tfmagic.system.memory import format_bytes

_SHARE = 0.95  # Ray's own
_EARLIER = 0.02  # of the memory
_FILLED_S = 8e9  # bytes that tasks can write in a second
_LEAST_S, _MOST_S, _FREED_S = 0.02, 1.0, 1.0
_OURS = 0.25  # of what is in use: with less, to end a task would help little


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """When Ray ends processes on this host: see the module."""

    share: float = _SHARE
    least_free: int = -1

    def limit(self, total: int) -> int:
        """Return how many bytes may be in use."""
        return max(int(self.share * total), total - self.least_free if self.least_free > 0 else 0)


def rule_of(environ: Mapping[str, str]) -> MemoryRule | None:
    """Return the rule by the variables that a process of Ray inherits from its node; None without one."""

    def number(name: str, default: float) -> float:
        try:
            return float(environ[name])
        except (KeyError, ValueError):
            return default

    if number("RAY_memory_monitor_refresh_ms", 250) == 0:
        return None
    share = number("RAY_memory_usage_threshold", _SHARE)
    return MemoryRule(share, int(number("RAY_min_memory_free_bytes", -1)))


def watch(
    rule: MemoryRule,
    address: str,
    pids: Callable[[], Mapping[TaskId, int]],
    end: Callable[[TaskId, int, str], object],
    wait: Callable[[float], bool],
) -> None:
    """Watch the memory until `wait`, called with seconds, returns True.

    Args:
        pids: Returns the processes of the tasks.
        end: Called with a task, its process, and the reason why it has to end now.
    """
    pause_s = _MOST_S
    while not wait(pause_s):
        total = memory.limit_bytes()
        used, limit = total - memory.free_bytes(), rule.limit(total)
        left = limit - int(_EARLIER * total) - used
        pause_s = min(max(left / _FILLED_S, _LEAST_S), _MOST_S)
        if left > 0:
            continue
        processes = dict(pids())
        sizes = {task: _size(pid) for task, pid in processes.items()}
        pause_s = _FREED_S
        if sum(sizes.values()) < _OURS * used:
            continue
        task = max(sizes, key=lambda each: sizes[each])
        reason = (
            f"its host {address} had {format_bytes(used)} of {format_bytes(total)} of memory in use, of "
            f"which {task} had the most, {format_bytes(sizes[task])}. From {format_bytes(limit)} on, Ray "
            "ends all tasks of a host"
        )
        end(task, processes[task], reason)


def _size(pid: int) -> int:
    """Return the bytes that a process and its children have for themselves."""
    found = 0
    with contextlib.suppress(psutil.Error):
        task = psutil.Process(pid)
        for process in (task, *task.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                used = process.memory_info()
                found += used.rss - used.shared
    return found
