"""Reads the logs of tasks: bytes by offset in; rows of text, or prefixed lines, out.

The log file holds everything that a task wrote, in order. `LogFollower` reads one from an offset, in bounded
pieces, however fast it grows; a task never waits for its readers. `LogReader` makes prefixed lines from it,
for the text view and the command line. Lines without control characters are prefixed as bytes; all others go
through a `Screen`, so that no control character reaches a reader and a progress bar is one line.
"""

import contextlib
import os
import struct
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.folder import STDERR, file_size
from tfmagic.runs.terminal.lines import LIMIT_COLUMNS
from tfmagic.runs.terminal.screen import WINDOW_ROWS, Row, Screen, has_controls, plain_text, rows_of
from tfmagic.system import files

PREFIX_COLUMNS = 14  # as TensorFlow's multi_process_runner pads "[worker-0]:"
_PIECE_BYTES = 1 << 18
_SPAN = struct.Struct("<QQ")
_OUT_OF_ORDER = 64
_PATIENCE_S = 10.0
_LONG_LINE_BYTES = 4096  # the average line of a log is shorter

Choice = Callable[[Iterable[str]], Iterable[str]]
"""Yields some of these lines."""


def prefix(task: TaskId | str) -> str:
    """Return ``[worker-0]:`` padded to 14 columns, and a space."""
    return f"[{task}]:".ljust(PREFIX_COLUMNS) + " "


class LogFollower:
    """Reads one growing log; owns a file descriptor from the first read until `close`."""

    def __init__(self, path: Path, offset: int = 0):
        self.path, self.offset = path, offset  # the end of what was read, in bytes
        self._fd: int | None = None
        self._last_size = offset

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @property
    def behind_bytes(self) -> int:
        """The number of bytes that were written and not read."""
        return max(file_size(self.path) - self.offset, 0)

    def next_end(self) -> int:
        """Return the end of the log at the previous call: a view reads up to there.

        A display that a task published before it wrote a line arrives a moment after the line is in the log.
        """
        end, self._last_size = self._last_size, file_size(self.path)
        return max(end, self.offset)

    def read(self, max_bytes: int, end: int | None = None) -> bytes:
        """Return the next bytes, at most `max_bytes`, and none after the offset `end`."""
        size = max_bytes if end is None else min(max_bytes, end - self.offset)
        chunk = self.peek(self.offset, size)
        self.offset += len(chunk)
        return chunk

    def peek(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on, fewer where the log ends, without moving on."""
        if size <= 0:
            return b""
        if self._fd is None:
            try:
                self._fd = files.open_regular(self.path)
            except OSError as error:
                if error.errno in files.SHORTAGES:  # it is there, and a view must not pass over it
                    raise
                return b""
        data = os.pread(self._fd, size, offset)
        if not data and not files.is_still_at(self._fd, self.path):  # deleted; a copy can take its place
            self.close()
        return data

    def skip(self, end: int) -> int:
        """Move on to the offset `end`; return the number of line ends before it."""
        lines = 0
        while chunk := self.read(_PIECE_BYTES, end):
            lines += chunk.count(b"\n")
        return lines


class ErrorSpans:
    """Knows which parts of a task's log its Python error stream has written.

    The task appends the two offsets of each write to a file: see `tfmagic.task.streams`. Before the write, it
    notes an offset that the text cannot be before, with a 0: a task can be held up between text and offsets.
    """

    def __init__(self, log_path: Path):
        self._file = LogFollower(log_path.with_suffix(STDERR))
        self._held, self._held_since = -1, 0.0
        self._spans: list[tuple[int, int]] = []
        self._end = -1  # the offset in the log up to which spans were asked for

    def close(self) -> None:
        self._file.close()

    def known_end(self, start: int, end: int) -> int:
        """Return up to which offset, between these two, the parts can be told apart.

        It is `end` after some seconds, also where a write does not end: its process may have been killed.
        """
        count = file_size(self._file.path) // _SPAN.size
        last = self._file.peek(max(count - _OUT_OF_ORDER, 0) * _SPAN.size, _OUT_OF_ORDER * _SPAN.size)
        begun: deque[int] = deque()
        for offset, text_end in _SPAN.iter_unpack(last[: len(last) // _SPAN.size * _SPAN.size]):
            if not text_end:
                begun.append(offset)
            elif begun:
                begun.popleft()
        held = min(max(start, min(begun, default=end)), end)
        if held != self._held:
            self._held, self._held_since = held, time.monotonic()
        return held if time.monotonic() - self._held_since < _PATIENCE_S else end

    def split(self, start: int, data: bytes) -> Iterator[tuple[bool, bytes]]:
        """Yield the parts of the log's bytes from `start` on, each with whether it is of the error stream."""
        end, done = start + len(data), start
        for first, last in self._between(start, end):
            if first > done:
                yield False, data[done - start : first - start]
            if last > done:
                yield True, data[max(first, done) - start : last - start]
                done = min(last, end)
        if done < end:
            yield False, data[done - start :]

    def _between(self, start: int, end: int) -> list[tuple[int, int]]:
        if start != self._end:  # threads and child processes can have changed the order a little
            count = file_size(self._file.path) // _SPAN.size
            place = bisect_left(range(count), start, key=self._start_of)
            self._spans, self._file.offset = [], max(place - _OUT_OF_ORDER, 0) * _SPAN.size
        self._end = end
        while not self._spans or self._spans[-1][0] < end:
            chunk = self._file.read(1 << 16)
            self._file.offset -= len(chunk) % _SPAN.size
            if len(chunk) < _SPAN.size:
                break
            self._spans += _SPAN.iter_unpack(chunk[: len(chunk) // _SPAN.size * _SPAN.size])
        self._spans = [span for span in self._spans if span[1] > start]
        return sorted(span for span in self._spans if span[0] < end)

    def _start_of(self, number: int) -> int:
        found: int = _SPAN.unpack(self._file.peek(number * _SPAN.size, _SPAN.size))[0]
        return found


class RowStream:
    """Takes bytes and gives each row once, when it will probably not change any more."""

    def __init__(self) -> None:
        self.screen = Screen()
        self._rows: list[Row] = []  # not given yet, or changed since
        self._first = 0  # the number of the first of them
        self._settled = 0
        self._given: dict[int, Row] = {}  # the last ones, in case the cursor comes back to them
        self._given_end = 0

    def feed(self, data: bytes) -> list[Row]:
        """Return the rows that are complete.

        A progress bar that the cursor just left waits for the next call. Where bars stand one below the
        other, the cursor leaves the first for the second and comes back at each step, and a step can be
        split between two calls.
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
        """Return all other rows. Nothing can be fed after that."""
        self.screen.finish()
        rows = self.feed(b"") + self._give(self._settled)
        while self._rows and not self._rows[-1]:
            self._rows.pop()  # the line that nothing was written to, and the empty ones below bars
        return rows + self._give(self._first + len(self._rows))

    @property
    def idle(self) -> bool:
        """Whether all rows were given, and later rows depend on none of them."""
        return len(self._rows) <= 1 and self.screen.idle and self.screen.settled == self._first

    @property
    def live(self) -> Row:
        """The lowest row with text that was not given; "" if there is none."""
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
        if start < self._given_end:  # rows that did not change are not given twice
            given = [row for number, row in enumerate(rows, start) if self._given.get(number) != row]
        last = rows[-WINDOW_ROWS:]
        self._given.update(enumerate(last, end - len(last)))
        self._given_end = max(self._given_end, end)
        for number in [n for n in self._given if n < end - WINDOW_ROWS]:
            del self._given[number]
        return given


class LogReader:
    """Makes prefixed lines, or rows, from the log of one task; `close` its `log` at the end.

    A line without controls of more than `whole_bytes` (by default the columns of a row) is split.
    """

    def __init__(self, path: Path, task: TaskId, offset: int = 0, whole_bytes: int = LIMIT_COLUMNS):
        self.log = LogFollower(path, offset)
        self._whole_bytes = whole_bytes
        # text without controls and without a line end; empty while there is a stream, which holds it then
        self._partial = bytearray()
        self._stream: RowStream | None = None
        self._prefix = prefix(task)
        self._prefix_bytes = self._prefix.encode()

    def read_lines(self, max_bytes: int, end: int | None = None) -> str:
        """Return the next whole lines, prefixed, up to the offset `end`; "" if there is none yet.

        Read at most `max_bytes`, more where a line is longer.
        """
        is_text = self._stream is None
        while (chunk := self.log.read(max_bytes, end)) and is_text:
            is_text = not has_controls(bytes(self._partial[-3:]) + chunk)  # a character can be cut
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
        """Return the next whole lines with their styles."""
        return self._feed(self.log.read(max_bytes, end))

    def take_partial(self) -> str:
        """Return the text after the last line end as a line."""
        if self._stream is None:
            partial, self._partial = bytes(self._partial), bytearray()
            return self._prefixed(partial) if partial else ""
        return self._render(self.take_partial_rows())

    def take_partial_rows(self) -> list[Row]:
        """Return the text after the last line end, and progress bars that were not done."""
        rows = self._feed(b"")
        if self._stream is not None:
            rows += self._stream.finish()
            self._stream = None
        return rows

    @property
    def live_row(self) -> Row:
        """The present text after the last line end; only where rows are read."""
        return self._stream.live if self._stream is not None else ""

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
    """Return the text of a log between two offsets, as it was written; "" if there is no file."""
    return _read_span(path, start, end).decode("utf-8", "replace")


def cut_lines(path: Path, start: int, end: int, size: int) -> tuple[str, int]:
    """Return the text of a piece of a log, and its end: that of the last whole line in it.

    The piece ends in a line where it has no whole one, or where it reaches the end of the log.
    """
    data = _read_span(path, start, end)
    cut = data.rfind(b"\n") + 1
    if cut and end < size:
        data = data[:cut]
    return "".join(f"{plain_text(row)}\n" for row in rows_of(data)), start + len(data)


def read_rows(path: Path) -> Iterator[Row]:
    """Yield all rows of a log, in constant memory; none if there is no file."""
    stream = RowStream()
    with contextlib.closing(LogFollower(path)) as log:
        while chunk := log.read(_PIECE_BYTES):
            yield from stream.feed(chunk)
    yield from stream.finish()


def log_lines(
    path: Path, task: TaskId, tail: int | None = None, choose: Choice | None = None
) -> Iterator[str]:
    """Yield the lines of `find_lines`, prefixed."""
    head = prefix(task)
    return (f"{head}{line}\n" for line in find_lines(path, tail, choose))


def tail_lines(
    path: Path, count: int, max_bytes: int = 1 << 18, since: int = 0, until: int | None = None
) -> list[str]:
    """Return the last `count` lines of a log between two offsets, from at most its last `max_bytes`."""
    size = file_size(path) if until is None else until
    rows = rows_of(_read_span(path, max(size - max_bytes, since), size))
    return [plain_text(row) for row in rows[max(len(rows) - count, 0) :]]


def find_lines(path: Path, tail: int | None = None, choose: Choice | None = None) -> Iterator[str]:
    """Yield the lines of a log that `choose` yields, or the last `tail` of them; in constant memory."""
    if tail is not None and choose is None:
        yield from tail_lines(path, tail, max(_PIECE_BYTES, tail * _LONG_LINE_BYTES))
        return
    rows = (plain_text(row) for row in read_rows(path))
    lines = rows if choose is None else choose(rows)
    yield from lines if tail is None else deque(lines, maxlen=tail)


def _read_span(path: Path, start: int, end: int) -> bytes:
    with contextlib.closing(LogFollower(path, start)) as log:
        return log.read(max(end - start, 0))
