"""Reading a task's log: bytes by offset in, prefixed lines out.

The log file is the truth of what a task wrote. A `LogReader` follows one from an offset, in bounded
pieces, however fast it grows; the task never waits for its readers.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tfmagic.spec import TaskId

PREFIX_COLUMNS = 14  # as TensorFlow's multi_process_runner pads "[worker-0]:"
_MAX_PARTIAL_BYTES = 1 << 20  # a line longer than this is shown in pieces
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def prefix(task: TaskId | str) -> str:
    """``[worker-0]:`` padded to 14 columns, and a space."""
    return f"[{task}]:".ljust(PREFIX_COLUMNS) + " "


class LogReader:
    """Follows the log of one task from `offset`; owns a file descriptor."""

    def __init__(self, path: Path, task: TaskId, offset: int = 0):
        self.offset = offset
        self._path = path
        self._fd: int | None = None
        self._partial = b""
        self._prefix = prefix(task)
        self._prefix_bytes = self._prefix.encode()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def read_lines(self, max_bytes: int, end: int | None = None) -> str:
        """The next whole lines, prefixed; "" when there is none yet.

        Args:
            max_bytes: How much to read at the most.
            end: Offset behind which nothing is read yet.
        """
        chunk = self._read(max_bytes, end)
        if not chunk:
            return ""
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            self._partial += chunk
            if len(self._partial) < _MAX_PARTIAL_BYTES:
                return ""
            return self.take_partial()
        lines, self._partial = self._partial + chunk[:cut], chunk[cut:]
        return self._render(lines)

    def take_partial(self) -> str:
        """What stands after the last line end, as a line of its own."""
        partial, self._partial = self._partial, b""
        return self._render(partial + b"\n") if partial else ""

    @property
    def behind_bytes(self) -> int:
        """How much has been written and not been read."""
        try:
            return self._path.stat().st_size - self.offset
        except OSError:
            return 0

    def _read(self, max_bytes: int, end: int | None) -> bytes:
        if end is not None:
            max_bytes = min(max_bytes, end - self.offset)
        if max_bytes <= 0:
            return b""
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
        chunk = os.pread(self._fd, max_bytes, self.offset)
        self.offset += len(chunk)
        return chunk

    def _render(self, lines: bytes) -> str:
        """Prefix complete lines. The usual case is one pass of `bytes.replace`."""
        if b"\r" not in lines and b"\b" not in lines:
            body = lines[:-1].replace(b"\n", b"\n" + self._prefix_bytes)
            return (self._prefix_bytes + body + b"\n").decode("utf-8", "replace")
        text = lines.decode("utf-8", "replace")
        return "".join(self._prefix + settle_line(line) + "\n" for line in text[:-1].split("\n"))


def settle_line(line: str) -> str:
    r"""How a line with ``\r`` and ``\b`` looks when it has come to rest.

    Colour codes count no column. A progress bar of a thousand updates becomes its last state.
    """
    if "\r" not in line and "\b" not in line:
        return line
    cells: list[str] = []
    column, pending, position = 0, "", 0
    while position < len(line):
        if match := _ANSI.match(line, position):
            pending, position = pending + match[0], match.end()
            continue
        char = line[position]
        position += 1
        if char == "\r":
            column = 0
        elif char == "\b":
            column = max(column - 1, 0)
        else:
            cells[column : column + 1] = [pending + char]
            column, pending = column + 1, ""
    return ("".join(cells) + pending).rstrip(" ")


def read_output(path: Path, start: int, end: int) -> str:
    """The text of a log between two offsets; "" where the file is gone."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(max(end - start, 0)).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def tail_lines(path: Path, count: int, max_bytes: int = 1 << 18, since: int = 0) -> list[str]:
    """The last `count` lines of a log after its byte `since`, from its last `max_bytes` bytes."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return []
    text = read_output(path, max(size - max_bytes, since), size)
    return [settle_line(line) for line in text.splitlines()[-count:]]
