"""Linux calls for processes that Python 3.11 has no function for."""

import contextlib
import ctypes
import functools
import os
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IOLBF = 1
_CLOCK_MONOTONIC = 1


def set_parent_death_signal(signal_number: int) -> None:
    """Let Linux send this signal to us when the parent *thread* ends (prctl(2), PR_SET_PDEATHSIG)."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")


def become_subreaper() -> None:
    """Become the parent of orphaned descendants, to find and end them (PR_SET_CHILD_SUBREAPER)."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def line_buffer_c_stdout() -> None:
    """Let C's stdout write each line as it ends, also into a file (setvbuf(3))."""
    stdout = ctypes.c_void_p.in_dll(_libc, "stdout")
    _libc.setvbuf(stdout, None, _IOLBF, ctypes.c_size_t(0))


def flush_c_streams() -> None:
    """Write out what C code has buffered in any of its streams (fflush(3))."""
    _libc.fflush(None)


def children(pid: int = 0) -> set[int]:
    """Return the children of a process, of this one by default, adopted ones included (proc(5)).

    The launcher asks for them whenever a task ends: 34 µs, where `psutil.Process.children` reads all of
    /proc, 1.9 ms with 85 processes. Only a Linux without CONFIG_PROC_CHILDREN has to ask psutil.
    """
    found: set[int] = set()
    pid = pid or os.getpid()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found.update(map(int, file.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
            import psutil

            with contextlib.suppress(psutil.NoSuchProcess):
                found.update(child.pid for child in psutil.Process(pid).children())
    return found


def descendants(pid: int = 0) -> list[int]:
    """Return all descendants of a process, parents before their children."""
    found: list[int] = []
    level = children(pid)
    while level:
        found += level
        level = {child for parent in level for child in children(parent)} - set(found)
    return found


def close_all_but(*keep: int) -> None:
    """Close every descriptor except the standard ones and these."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)


def rewrite_first_environ(name: str, value: str) -> None:
    """Overwrite a variable in the environment that this process was started with, which proc(5) shows.

    `os.environ` does not change that memory. The variable must not have been set since, and must have a value
    of the same length.
    """
    get = _libc.getenv
    get.restype = ctypes.c_void_p
    place = get(name.encode())
    if place is None or len(ctypes.string_at(place)) != len(value):
        raise ValueError(f"{name} is not there, or has another length")
    ctypes.memmove(place, value.encode(), len(value))


class _TimerSpec(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "value_s", "value_ns"))


_NEVER = ctypes.byref(_TimerSpec())


@functools.lru_cache(maxsize=8)
def _timer_spec(after_s: float) -> Any:
    return ctypes.byref(_TimerSpec(0, 0, int(after_s), max(int(after_s % 1 * 1e9), 1)))


class Alarm:
    """A timer that one thread sets and another one waits for (timerfd_create(2))."""

    def __init__(self) -> None:
        self.fd = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_CLOEXEC)
        _check(min(self.fd, 0), "timerfd_create")

    def set(self, after_s: float) -> None:
        """Let the timer end after that time, and not at the time set before. Takes two microseconds."""
        spec = _timer_spec(after_s)
        if _libc.timerfd_settime(self.fd, 0, spec, None):
            _check(-1, "timerfd_settime")

    def stop(self) -> None:
        """Let the timer not end."""
        if _libc.timerfd_settime(self.fd, 0, _NEVER, None):
            _check(-1, "timerfd_settime")

    def wait(self) -> None:
        """Wait until the timer ends."""
        os.read(self.fd, 8)


def call_libc(name: str, *arguments: Any) -> None:
    """Call a function of C's library that returns 0, or else raise its OSError."""
    _check(getattr(_libc, name)(*arguments), name)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
