"""Shows the start of a cluster in one line, drawn in place; nothing if the start takes less than 0.3 s."""

import html
import sys
import time
from collections.abc import Callable
from typing import Any

from tfmagic.supervisor.state import ClusterState, Phase
from tfmagic.views.panel import Publisher

_QUIET_S = 0.3
_WIDTH = 20


class StartProgress:
    """Called with the state now and then; draws a bar on the terminal, or, with `publish`, on the page.

    Attributes:
        display_id: The id of the bar on the page: the view of the cell takes its place.
    """

    def __init__(
        self,
        name: str,
        shape: str,
        write: Callable[[str], Any] | None = None,
        publish: Publisher | None = None,
    ):
        self._name, self._shape, self._write, self._publish = name, shape, write, publish
        self._started = time.monotonic()
        self._drawn = 0
        self.display_id = ""

    def __call__(self, state: ClusterState) -> None:
        seconds = time.monotonic() - self._started
        if seconds < _QUIET_S:
            return
        total = len(state.tasks)
        ready = sum(t.phase in (Phase.READY, Phase.RUNNING) for t in state.tasks.values())
        forked = any(t.pid for t in state.tasks.values())
        step = "" if ready == total else ", starting tasks" if forked else ", importing TensorFlow"
        text = f"{ready} of {total} ready, {seconds:.1f} s{step}"
        if self._publish is not None:
            self._show(self._publish, text, ready / total)
            return
        filled = _WIDTH * ready // total
        bar = "█" * filled + "░" * (_WIDTH - filled)
        self._draw(f"tfmagic: cluster {self._name} ({self._shape})  {bar}  {text}")

    def end(self) -> None:
        """End the line on a terminal."""
        if self._drawn and self._publish is None:
            (self._write or sys.stdout.write)("\n")
            self._drawn = 0

    def _draw(self, text: str) -> None:
        (self._write or sys.stdout.write)("\r" + text.ljust(self._drawn))
        if self._write is None:
            sys.stdout.flush()
        self._drawn = len(text)

    def _show(self, publish: Publisher, text: str, share: float) -> None:
        is_first = not self.display_id
        self.display_id = self.display_id or f"tfmagic-start-{self._name}-{self._started}"
        bar = f'<progress value="{share:.2f}" style="vertical-align:middle;width:8em"></progress>'
        style = "padding:4px 10px;border:1px solid rgba(128,128,128,.28);border-radius:6px"
        name, shape = html.escape(self._name), html.escape(self._shape)
        page = (
            f'<div style="{style}"><b>{name}</b> <span style="opacity:.65">· {shape} ·</span> {bar} '
            f'<span style="opacity:.65">{html.escape(text)}</span></div>'
        )
        plain = f"tfmagic: cluster {self._name} ({self._shape}): {text}"
        bundle = {"text/html": page, "text/plain": plain}
        publish(bundle, display_id=self.display_id, update=not is_first)
