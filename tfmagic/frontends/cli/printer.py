"""The output of ``tfmagic run``: a thread follows the logs of the tasks, and writes them to standard output.

On a terminal all lines stand in the order in which they were written. Elsewhere, what Python's error stream
has written goes to standard error. Native code writes past that stream: its lines go to standard output.

The printer has a thread of its own because the reader of standard output can stop reading. The timeout and
the rules of the run must work all the same. What a failing
stream does not take is still in the logs.
"""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from tfmagic.frontends.cli.streams import show
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.log_reader import ErrorSpans, LogFollower, LogReader
from tfmagic.views.text import TextView

_PIECE_BYTES = 1 << 18


def say(text: str) -> None:
    """Print a line on standard error, beside the script's own output. A failing stream ends nothing."""
    show(f"tfmagic: {text}\n", sys.stderr)


class _Piece(LogFollower):
    """Gives bytes that were read elsewhere."""

    data = b""

    def read(self, max_bytes: int, end: int | None = None) -> bytes:
        given, self.data = self.data, b""
        return given


class _TaskStreams:
    """Makes lines of what each stream of a task has written."""

    def __init__(self, path: Path, task: TaskId):
        self.log, self._spans = LogFollower(path), ErrorSpans(path)
        self._readers = {is_error: LogReader(path, task) for is_error in (False, True)}
        for reader in self._readers.values():
            reader.log = _Piece(path)

    def next_end(self) -> int:
        """Return the offset in the log up to which it can be read now."""
        return self._spans.known_end(self.log.offset, self.log.next_end())

    def read(self, end: int) -> Iterator[tuple[str, bool]]:
        """Yield the whole lines of the next piece before `end`, and whether they are of the error stream."""
        start, silent = self.log.offset, set(self._readers)
        for is_error, data in self._spans.split(start, self.log.read(_PIECE_BYTES, end)):
            silent.discard(is_error)
            reader = self._readers[is_error]
            reader.log.data = data  # type: ignore[attr-defined]
            yield reader.read_lines(len(data)), is_error
        # a progress bar that is done is given at the next look, also if nothing follows it
        yield from ((self._readers[is_error].read_lines(0), is_error) for is_error in silent)

    def finish(self) -> Iterator[tuple[str, bool]]:
        """Yield all that is left."""
        while size := self.log.behind_bytes:
            yield from self.read(self.log.offset + size)
        yield from ((reader.take_partial(), is_error) for is_error, reader in self._readers.items())
        self.log.close()
        self._spans.close()


class _TwoStreams:
    """Writes the lines of all tasks, in the place of a `TextView`."""

    interval_s = TextView.interval_s

    def __init__(self, run: RunFolder, tasks: Sequence[TaskId], write: Callable[[str, bool], None]):
        self._tasks, self._write = [_TaskStreams(run.log_path(task), task) for task in tasks], write

    def update(self) -> None:
        for task in self._tasks:
            self._emit(task.read(task.next_end()))

    def finish(self, cell: None) -> None:
        for task in self._tasks:
            self._emit(task.finish())

    def _emit(self, lines: Iterator[tuple[str, bool]]) -> None:
        for text, is_error in lines:
            if text:
                self._write(text, is_error)


class Printer:
    """The thread that writes the tasks' output to standard output and standard error."""

    def __init__(self, run: RunFolder, tasks: Sequence[TaskId], streams: tuple[TextIO, TextIO]):
        if streams[0].isatty() and streams[1].isatty():
            starts, is_terminal = [(task, 0) for task in tasks], os.environ.get("TERM") != "dumb"
            self._view: TextView | _TwoStreams = TextView(
                run, starts, deque(), self._write, terminal=is_terminal
            )
        else:
            self._view = _TwoStreams(run, tasks, self._write)
        self.broken = False  #: the reader of standard output has closed it
        self.done = 0  #: how many pieces were written
        self._out, self._err = streams
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._serve, name="tfmagic-printer", daemon=True)
        self.thread.start()

    @property
    def is_empty(self) -> bool:
        """Whether everything was written."""
        return not self.thread.is_alive()

    def finish(self) -> None:
        """Let `thread` end when it has shown everything; the tasks write no more."""
        self._over.set()

    def _serve(self) -> None:
        while not self._over.wait(self._view.interval_s):
            self._view.update()
        self._view.finish(None)

    def _write(self, text: str, is_error: bool = False) -> None:
        error = show(text, self._err if is_error else self._out)
        self.done += 1
        if isinstance(error, BrokenPipeError):
            self.broken |= not is_error
        elif error is not None:  # a full disk, for example, if the output is redirected: the run goes on
            say(f"the output cannot be written any more ({error}); the logs of the tasks have it")
