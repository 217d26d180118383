"""Shows the start of a cluster in one line; nothing if the start takes less than 0.3 s.

On a terminal and on a page the line is drawn in place. In a pipe or a file it is written once, at the end;
with `announces`, another line says at its beginning that the cluster starts.
"""

import html
import sys
import time

from tfmagic.supervisor.state import ClusterState, Phase
from tfmagic.system import notices
from tfmagic.views.saved_cell import Publisher

_QUIET_S = 0.3
_WIDTH = 20


class StartProgress:
    """Called with the state now and then; shows it on standard output, or, with `publish`, on the page."""

    def __init__(self, name: str, shape: str, publish: Publisher | None = None, announces: bool = False):
        self._name, self._shape, self._publish, self._announces = name, shape, publish, announces
        self._started = time.monotonic()
        self._drawn = ""
        self.display_id = ""  # of the bar on the page: the view of the cell takes its place

    def __call__(self, state: ClusterState) -> None:
        seconds = time.monotonic() - self._started
        if seconds < _QUIET_S:
            return
        total = len(state.tasks)
        ready = sum(t.phase in (Phase.READY, Phase.RUNNING) for t in state.tasks.values())
        forked = any(t.pid for t in state.tasks.values())
        step = "" if ready == total else ", starting tasks" if forked else ", importing TensorFlow"
        step = f", waiting for {state.waits_for}" if state.waits_for else step
        text = f"{ready} of {total} ready, {seconds:.1f} s{step}"
        if self._publish is not None:
            self._show(self._publish, text, ready / total)
            return
        before, head = len(self._drawn), f"tfmagic: cluster {self._name} ({self._shape})"
        if not sys.stdout.isatty():
            if self._announces and not self._drawn and ready < total:
                doing = f"starting{step.removeprefix(', starting')}"  # true also if nothing follows
                notices.say_now(f"{head}: {doing}")
            self._drawn = f"{head}: {text}"
            return
        filled = _WIDTH * ready // total
        self._drawn = f"{head}  {'█' * filled}{'░' * (_WIDTH - filled)}  {text}"
        sys.stdout.write("\r" + self._drawn.ljust(before))
        sys.stdout.flush()

    def end(self) -> None:
        """End the line on a terminal; write it elsewhere."""
        if self._drawn:
            if sys.stdout.isatty():
                print(flush=True)
            else:
                notices.say_now(self._drawn)
            self._drawn = ""

    def _show(self, publish: Publisher, text: str, share: float) -> None:
        is_first = not self.display_id
        self.display_id = self.display_id or f"tfmagic-start-{self._name}-{self._started}"
        look = 'aria-label="Tasks that are ready" style="vertical-align:middle;width:8em"'
        bar = f'<progress value="{share:.2f}" {look}></progress>'
        style = "padding:4px 10px;border:1px solid rgba(128,128,128,.28);border-radius:6px"
        name, shape = html.escape(self._name), html.escape(self._shape)
        page = (
            f'<div style="{style}"><b>{name}</b> <span style="opacity:.7">· {shape} ·</span> {bar} '
            f'<span style="opacity:.7">{html.escape(text)}</span></div>'
        )
        plain = f"tfmagic: cluster {self._name} ({self._shape}): {text}"
        bundle = {"text/html": page, "text/plain": plain}
        publish(bundle, display_id=self.display_id, update=not is_first)
