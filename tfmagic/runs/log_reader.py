"""Reading a task's log: bytes by offset in, prefixed lines out.

The log file is the truth of what a task wrote. A `LogReader` follows one from an offset, in bounded
pieces, however fast it grows; the task never waits for its readers. Lines without a control are prefixed
as bytes, all others go through a `Screen`: no control reaches who reads, and a progress bar is one line.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.terminal.lines import LIMIT_COLUMNS
from tfmagic.runs.terminal.screen import WINDOW_ROWS, Row, Screen, has_controls, plain_text, rows_of

PREFIX_COLUMNS = 14  # as TensorFlow's multi_process_runner pads "[worker-0]:"
_PIECE_BYTES = 1 << 18
_LONG_LINE_BYTES = 4096  # few are longer on the average


def prefix(task: TaskId | str) -> str:
    """``[worker-0]:`` padded to 14 columns, and a space."""
    return f"[{task}]:".ljust(PREFIX_COLUMNS) + " "


class RowStream:
    """Bytes in, rows out, each once: when it will not change any more, as far as one can tell.

    Attributes:
        screen: Where the bytes go.
    """

    def __init__(self) -> None:
        self.screen = Screen()
        self._rows: list[Row] = []  # not given out yet, or changed since
        self._first = 0  # the number of the first of them
        self._settled = 0
        self._given: dict[int, Row] = {}  # the last ones, should the cursor come back to them
        self._given_end = 0

    def feed(self, data: bytes) -> list[Row]:
        """Rows that have come to rest.

        A bar that was just left waits for the next call: of bars one below the other, the first is left
        for the second and come back to at each step, and a step may be torn.
        """
        self.screen.feed(data)
        base, rows = self.screen.take()
        if rows and base < self._first:
            self._rows, self._first = rows, base
        elif rows:
            self._rows[base - self._first :] = rows
        since, self._settled = self._settled, self.screen.settled
        count = self._settled
        while count > since and self.screen.is_drawn(count - 1):
            count -= 1
        return self._give(count)

    def finish(self) -> list[Row]:
        """All other rows; nothing is fed after that."""
        self.screen.finish()
        rows = self.feed(b"") + self._give(self._settled)
        while self._rows and not self._rows[-1]:
            self._rows.pop()  # the line that nothing was written to, and what bars leave below
        return rows + self._give(self._first + len(self._rows))

    @property
    def idle(self) -> bool:
        """Whether everything was given out, and what comes next depends on nothing of it."""
        return len(self._rows) <= 1 and self.screen.idle and self.screen.settled == self._first

    @property
    def live(self) -> Row:
        """The lowest row with text that is not given out; "" if there is none."""
        for place in range(len(self._rows) - 1, -1, -1):
            row = self._rows[place]
            if plain_text(row).strip() and self._given.get(self._first + place) != row:
                return row
        return ""

    def _give(self, end: int) -> list[Row]:
        count = end - self._first
        if count <= 0:
            return []
        rows, start = self._rows[:count], self._first
        del self._rows[:count]
        self._first = end
        given = rows
        if start < self._given_end:  # what did not change is not said twice
            given = [row for number, row in enumerate(rows, start) if self._given.get(number) != row]
        last = rows[-WINDOW_ROWS:]
        self._given.update(enumerate(last, end - len(last)))
        self._given_end = max(self._given_end, end)
        for number in [n for n in self._given if n < end - WINDOW_ROWS]:
            del self._given[number]
        return given


class LogReader:
    """Follows the log of one task from `offset`; owns a file descriptor.

    Args:
        whole_bytes: `read_lines` gives a line without controls whole up to this size. A longer one, by
            default one that has more bytes than a row has columns, ends where rows end.
    """

    def __init__(self, path: Path, task: TaskId, offset: int = 0, whole_bytes: int = LIMIT_COLUMNS):
        self.offset = offset
        self._whole_bytes = whole_bytes
        self._path = path
        self._fd: int | None = None
        self._partial = bytearray()  # text without controls and without a line end; and, while there is a
        self._stream: RowStream | None = None  # stream, everything is in that
        self._prefix = prefix(task)
        self._prefix_bytes = self._prefix.encode()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def read_lines(self, max_bytes: int, end: int | None = None) -> str:
        """The next whole lines, prefixed; "" when there is none yet.

        Args:
            max_bytes: How much to read at the most; more where a line is longer.
            end: Offset behind which nothing is read yet.
        """
        is_text = self._stream is None
        while (chunk := self._read(max_bytes, end)) and is_text:
            is_text = not has_controls(bytes(self._partial[-1:]) + chunk)
            if not is_text or b"\n" in chunk or len(self._partial) + len(chunk) > self._whole_bytes:
                break
            self._partial += chunk
        if is_text and not chunk:
            return ""
        if is_text:
            cut = chunk.rfind(b"\n") + 1
            lines = bytes(self._partial + chunk[:cut])
            if cut and not _has_long_line(lines, self._whole_bytes):
                self._partial = bytearray(chunk[cut:])
                return self._prefixed(lines[:-1])
        text = self._render(self._feed(chunk))
        if self._stream is not None and self._stream.idle:
            self._stream = None
        return text

    def read_rows(self, max_bytes: int, end: int | None = None) -> list[Row]:
        """The next whole lines, with their styles."""
        return self._feed(self._read(max_bytes, end))

    def take_partial(self) -> str:
        """What stands after the last line end, as a line of its own."""
        if self._stream is None:
            partial, self._partial = bytes(self._partial), bytearray()
            return self._prefixed(partial) if partial else ""
        return self._render(self.take_partial_rows())

    def take_partial_rows(self) -> list[Row]:
        """What stands after the last line end, and bars that were not done."""
        rows = self._feed(b"")
        if self._stream is not None:
            rows += self._stream.finish()
            self._stream = None
        return rows

    @property
    def live_row(self) -> Row:
        """What stands after the last line end now; "" if there is nothing. Of those who read rows."""
        return self._stream.live if self._stream is not None else ""

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

    def _feed(self, chunk: bytes) -> list[Row]:
        if self._stream is None:
            chunk, self._partial = bytes(self._partial + chunk), bytearray()
            if not chunk:
                return []
            self._stream = RowStream()
        return self._stream.feed(chunk)

    def _prefixed(self, lines: bytes) -> str:
        """Prefix lines without controls, the last one without its end: one pass of `bytes.replace`."""
        body = lines.replace(b"\n", b"\n" + self._prefix_bytes)
        return b"".join((self._prefix_bytes, body, b"\n")).decode("utf-8", "replace")

    def _render(self, rows: list[Row]) -> str:
        return "".join(f"{self._prefix}{plain_text(row)}\n" for row in rows)


def _has_long_line(data: bytes, limit_bytes: int) -> bool:
    """Check whether a line has more bytes than `limit_bytes`."""
    start = 0
    while len(data) - start > limit_bytes:
        end = data.rfind(b"\n", start, start + limit_bytes + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def read_output(path: Path, start: int, end: int) -> str:
    """The text of a log between two offsets, as it was written; "" where the file is gone."""
    return _read_span(path, start, end).decode("utf-8", "replace")


def read_rows(path: Path) -> Iterator[Row]:
    """All rows of a log, in constant memory; none where the file is gone."""
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed below
    except FileNotFoundError:
        return
    stream = RowStream()
    with file:
        while chunk := file.read(_PIECE_BYTES):
            yield from stream.feed(chunk)
    yield from stream.finish()


def log_lines(
    path: Path, task: TaskId, tail: int | None = None, pattern: re.Pattern[str] | None = None
) -> Iterator[str]:
    """As `find_lines`, prefixed."""
    head = prefix(task)
    return (f"{head}{line}\n" for line in find_lines(path, tail, pattern))


def tail_lines(
    path: Path, count: int, max_bytes: int = 1 << 18, since: int = 0, until: int | None = None
) -> list[str]:
    """The last `count` lines of a log after its byte `since`, before `until`, from the last `max_bytes`."""
    try:
        size = path.stat().st_size if until is None else until
    except FileNotFoundError:
        return []
    rows = rows_of(_read_span(path, max(size - max_bytes, since), size))
    return [plain_text(row) for row in rows[-count:]]


def find_lines(path: Path, tail: int | None = None, pattern: re.Pattern[str] | None = None) -> Iterator[str]:
    """The lines of a log that match, or the last `tail` of them; in constant memory."""
    if tail is not None and pattern is None:
        yield from tail_lines(path, tail, max(_PIECE_BYTES, tail * _LONG_LINE_BYTES))
        return
    rows = (plain_text(row) for row in read_rows(path))
    lines = (line for line in rows if pattern is None or pattern.search(line))
    yield from lines if tail is None else deque(lines, maxlen=tail)


def _read_span(path: Path, start: int, end: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(max(end - start, 0))
    except FileNotFoundError:
        return b""
