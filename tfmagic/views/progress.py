"""A line that shows a cluster coming up, in place; nothing at all where the start is instant."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from tfmagic.states import ClusterState, Phase

_QUIET_S = 0.3  # a start that is over by then needs no words
_WIDTH = 20


class StartProgress:
    """Called with the state now and then; draws a bar on the terminal or in the cell."""

    def __init__(self, name: str, shape: str, write: Callable[[str], Any] | None = None):
        self._name, self._shape, self._write = name, shape, write
        self._started = time.monotonic()
        self._drawn = 0

    def __call__(self, state: ClusterState) -> None:
        seconds = time.monotonic() - self._started
        if seconds < _QUIET_S:
            return
        total = len(state.tasks)
        ready = sum(t.phase in (Phase.READY, Phase.RUNNING) for t in state.tasks.values())
        forked = any(t.pid for t in state.tasks.values())
        what = "starting tasks" if forked else "importing TensorFlow"
        filled = _WIDTH * ready // total
        bar = "█" * filled + "░" * (_WIDTH - filled)
        text = (
            f"tfmagic: cluster {self._name} ({self._shape})  {bar}  {ready} of {total} ready, {seconds:.1f} s"
        )
        self._draw(text if ready == total else f"{text}, {what}")

    def end(self) -> None:
        """Leave the line."""
        if self._drawn:
            (self._write or sys.stdout.write)("\n")
            self._drawn = 0

    def _draw(self, text: str) -> None:
        (self._write or sys.stdout.write)("\r" + text.ljust(self._drawn))
        if self._write is None:
            sys.stdout.flush()
        self._drawn = len(text)
