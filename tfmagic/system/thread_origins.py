"""Find out which threads this process has besides the main one, and whose code they run.

The file that starts a thread of Python's is noted at its start. Linux does not say where another thread comes
from, but its stack does: the C library keeps the function that the thread was started with at the stack's
upper end, and below it are the return addresses of its calls (/proc/PID/task/TID/syscall has the stack
pointer of a thread that waits). The library of the outermost address is the one that started the thread.
"""

import contextlib
import os
import re
import struct
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

_LOOK_S, _LOOKS_S = 0.01, 0.2  # between two looks; for all threads together
_STACK_BYTES = 1 << 16  # more than a thread that waits has (measured: 5 KiB)
_RUNTIME = re.compile(r"/(ld-|libc[.-]|libpthread|libstdc\+\+|libgcc_s|libpython)|/python[\d.]*$")
_STARTS = ("threading", "concurrent.futures.thread", "multiprocessing.pool")  # for other files


_starters: dict[threading.Thread, str] = {}


@contextlib.contextmanager
def noting_starters() -> Iterator[None]:
    """Note which file starts a thread of Python's meanwhile."""
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") in _STARTS:
            frame = frame.f_back
        _starters[thread] = frame.f_code.co_filename if frame is not None else ""
        start(thread)

    threading.Thread.start = noted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


def describe_others() -> list[str]:
    """Return each thread but the main one: its name, and the library or the module whose code it runs."""
    pythons = {thread.native_id: thread for thread in threading.enumerate()}
    found, until = [], time.monotonic() + _LOOKS_S
    for tid in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError):  # it has just ended
            if tid == os.getpid():
                continue
            if (thread := pythons.get(tid)) is not None:
                found.append(f"the thread {thread.name!r}{_of(_starters.get(thread, ''))}")
                continue
            with open(f"/proc/self/task/{tid}/comm") as file:
                name = file.read().strip()
            found.append(f"the thread {name!r}{_of(_library_of(tid, until))}")
    return found


def _of(origin: str) -> str:
    for folder in sorted(sys.path, key=len, reverse=True):
        if folder and origin.startswith(os.path.join(folder, "")):
            return f" of {origin.removeprefix(os.path.join(folder, ''))}"
    return f" of {origin}" if origin else ""


def _library_of(tid: int, until: float) -> str:
    """Return the path of the library whose code a thread runs; "" if it is unknown.

    A thread that runs is looked at again: one that has just been started has not reached its library.
    """
    while not (library := _look_at(tid)) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return library


def _look_at(tid: int) -> str:
    with open(f"/proc/self/task/{tid}/syscall") as file:
        call = file.read().split()
    if len(call) < 3:  # it runs just now
        return ""
    pointer, end = int(call[-2], 16), 0
    code: list[tuple[int, int, str]] = []
    with open("/proc/self/maps") as file:
        for line in file:
            span, rights, _, _, _, path = f"{line.rstrip()} ".split(" ", maxsplit=5)
            first, last = (int(word, 16) for word in span.split("-"))
            end = last if first <= pointer < last else end
            path = path.strip()  # "" of memory without a file
            if "x" in rights and path.startswith("/") and not _RUNTIME.search(path):
                code.append((first, last, path))
    with open("/proc/self/mem", "rb", 0) as memory:
        memory.seek(pointer)
        stack = memory.read(min(max(end - pointer, 0), _STACK_BYTES) // 8 * 8)
    words = (word for (word,) in reversed(list(struct.iter_unpack("Q", stack))))
    return next((library for word in words for first, last, library in code if first <= word < last), "")
