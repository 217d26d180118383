"""Ctrl-C while this process waits for tasks: a callback instead of a KeyboardInterrupt in our own code."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums: a tenth of the time
import signal
import threading
from collections.abc import Callable
from typing import Any


class CtrlC:
    """Calls `on_press` for SIGINT between `take` and `give_back`, or inside a ``with`` block.

    Does nothing in other threads than the main one, which alone gets signals, and where SIGINT is ignored.
    """

    def __init__(self, on_press: Callable[[], object]):
        self._on_press = on_press
        self._former: Any = None

    def take(self) -> None:
        """Take the place of the present handler."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and callable(_signal.getsignal(signal.SIGINT)):
            self._former = _signal.signal(signal.SIGINT, lambda number, frame: self._on_press())

    def give_back(self) -> None:
        """Restore the former handler. Does nothing a second time."""
        if self._former is not None:
            _signal.signal(signal.SIGINT, self._former)
            self._former = None

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        self.give_back()
