"""A stream that takes text at once: a thread writes it to the stream behind, whose reader can have stopped.

In ``tfmagic run``, the main thread, which hands on signals, and the supervisor's, which ends tasks, write
their messages here. The output of tasks can be large, and goes past it: see `tfmagic.frontends.cli.printer`.
"""

import contextlib
import io
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from tfmagic.frontends.cli.streams import show

_LOOK_S = 0.01


class Outlet(io.TextIOBase):
    """Writes to `stream` on a thread "tfmagic-messages", which ends with this process.

    Attributes:
        done: How many texts were written.
    """

    def __init__(self, stream: TextIO):
        self._stream, self._given, self.done = stream, 0, 0
        self._texts: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="tfmagic-messages", daemon=True).start()

    @property
    def waiting(self) -> int:
        """The number of texts that were not written yet."""
        return self._given - self.done

    @property
    def is_empty(self) -> bool:
        """Whether everything was written, or dropped by a stream that takes nothing."""
        return not self.waiting

    def write(self, text: str) -> int:
        self._given += 1
        self._texts.put(text)
        return len(text)

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def _serve(self) -> None:
        while True:
            show(self._texts.get(), self._stream)
            self.done += 1


@contextlib.contextmanager
def outlets() -> Iterator[tuple[Outlet, Outlet]]:
    """Yield outlets of standard output and of standard error; the latter is `sys.stderr` meanwhile."""
    former = sys.stderr
    out, err = Outlet(sys.stdout), Outlet(former)
    sys.stderr = err
    try:
        yield out, err
    finally:
        sys.stderr = former
        while not (out.is_empty and err.is_empty):
            time.sleep(_LOOK_S)
