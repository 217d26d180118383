"""Open one task's log safely, and find the requested span of its bytes. Called by `handlers`.

Names come from the network. A run must be listed in the folder, a task's name must be one that tfmagic
writes, and only a regular file in exactly that place is opened: no names are joined to a path, no link is
followed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from tfmagic.runs.folder import is_task_name

_BLOCK_BYTES = 1 << 16
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENXIO)
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` to `end` of a log."""

    start: int
    end: int
    partial: bool = False  # a Range header asked for them: the answer is 206


def open_log(base: Path, run: str, task: str) -> int:
    """Return a file descriptor of the task's log.

    Raises:
        LookupError: There is no such run or log.
    """
    if not is_task_name(task):
        raise LookupError(task)
    folders: list[int] = []
    try:
        if run not in os.listdir(base / "runs"):  # no separator, no "..", no NUL
            raise LookupError(run)
        folders.append(os.open(base / "runs", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        folders.append(os.open(run, flags | os.O_DIRECTORY, dir_fd=folders[-1]))
        os.stat("run.json", dir_fd=folders[-1])
        fd = os.open(f"{task}.log", flags, dir_fd=folders[-1])
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise LookupError(f"{run}/{task}") from error
        raise
    finally:
        for folder in folders:
            os.close(folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LookupError("not a file")
    return fd


def span_from_offset(offset: int, size: int) -> Span:
    """Return the bytes from `offset` on; none if the log is shorter."""
    return Span(min(offset, size), size)


def span_of_range(header: str, size: int) -> Span | None:
    """Return the bytes that a Range header asks for; None if the log has none of them.

    A header that cannot be parsed, or asks for several ranges, gets the whole log, as HTTP allows.
    """
    match = _RANGE.fullmatch(header.strip())
    if not match or not (match[1] or match[2]):
        return Span(0, size)
    if not match[1]:  # the last N bytes
        start, end = max(size - int(match[2]), 0), size
    else:
        start, end = int(match[1]), min(int(match[2]) + 1, size) if match[2] else size
        if match[2] and int(match[2]) < start:
            return Span(0, size)
    return Span(start, end, partial=True) if start < end else None


def span_of_tail(fd: int, lines: int, size: int) -> Span:
    """Return the last lines. A line end at the end of the log begins no further line.

    Reads the log backwards, in constant memory. Must not be called on an event loop.
    """
    if not lines or not size:
        return Span(size, size)
    wanted = lines + (os.pread(fd, 1, size - 1) == b"\n")
    end = size
    while end:
        start = max(end - _BLOCK_BYTES, 0)
        block = os.pread(fd, end - start, start)
        ends = block.count(b"\n")
        if ends >= wanted:
            at = len(block)
            for _ in range(wanted):
                at = block.rfind(b"\n", 0, at)
            return Span(start + at + 1, size)
        wanted -= ends
        end = start
    return Span(0, size)
