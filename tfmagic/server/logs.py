"""The bytes of one task's log: found safely, and the span of them that is asked for.

Names come from the network. A run is one that the folder lists, a task one that can have a log, and what
is opened is a regular file in exactly that place: nothing is joined, no link is followed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from tfmagic.runs.status_reader import is_task_name

_BLOCK_BYTES = 1 << 16
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENXIO)
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` to `end` of a log that had `size` when it was looked at; `partial` as HTTP means it."""

    start: int
    end: int
    size: int
    partial: bool = False


def open_log(base: Path, run: str, task: str) -> int:
    """A descriptor of the task's log.

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
        return _only_regular(os.open(f"{task}.log", flags, dir_fd=folders[-1]))
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise LookupError(f"{run}/{task}") from error
        raise
    finally:
        for fd in folders:
            os.close(fd)


def _only_regular(fd: int) -> int:
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise LookupError("not a file")


def span_from_offset(offset: int, size: int) -> Span:
    """From that byte on; empty where the log has not got that far."""
    return Span(min(offset, size), size, size)


def span_of_range(header: str, size: int) -> Span | None:
    """What a Range header asks for; None where the log has nothing of it.

    One that is not understood, or wants several ranges, gets the whole log, as HTTP allows.
    """
    match = _RANGE.fullmatch(header.strip())
    if not match or not (match[1] or match[2]):
        return Span(0, size, size)
    if not match[1]:  # the last so many
        start, end = max(size - int(match[2]), 0), size
    else:
        start, end = int(match[1]), min(int(match[2]) + 1, size) if match[2] else size
        if match[2] and int(match[2]) < start:
            return Span(0, size, size)
    return Span(start, end, size, partial=True) if start < end else None


def span_of_tail(fd: int, lines: int, size: int) -> Span:
    """The last so many lines; a line end that ends the log begins no further line.

    Reads the log backwards, in constant memory; not on an event loop.
    """
    if not lines or not size:
        return Span(size, size, size)
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
            return Span(start + at + 1, size, size)
        wanted -= ends
        end = start
    return Span(0, size, size)
