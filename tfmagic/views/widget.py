"""The live panel as one widget: an anywidget whose model stays here and whose view is `assets/panel.js`.

From the page to the kernel come custom messages only: ipywidgets holds back changes of synced state while
a cell runs (it waits for an idle status that concurrent messages do not get). They arrive on the main
thread, or on that of a subshell; there they are done or put aside, and nothing is printed or displayed.

A widget lives on for a while after its cell: a page that was reloaded while the cell ran has lost the
replacement by the static form, and asks the widget for the cell's end.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from tfmagic.views.panel_model import PanelModel

_ASSETS = Path(__file__).parent / "assets"
_KEPT = 8
_FALLBACK = (
    "tfmagic: the live panel needs jupyterlab_widgets and anywidget where JupyterLab runs; "
    "%%tfcluster --view text does without."
)

_kept: deque[PanelWidget] = deque()


class PanelWidget(anywidget.AnyWidget):  # type: ignore[misc]  # untyped
    """The model of a panel."""

    _esm = (_ASSETS / "panel.js").read_text("utf-8")
    _css = (_ASSETS / "panel.css").read_text("utf-8")
    setup = traitlets.Dict().tag(sync=True)


class WidgetDisplay:
    """A `LiveDisplay`."""

    def __init__(self) -> None:
        self._requests: deque[Mapping[str, Any]] = deque()
        self._widget: PanelWidget | None = None
        self._snapshot: Callable[[], Mapping[str, Any]] | None = None
        self._board: PanelModel | None = None

    def open(self, board: PanelModel) -> Mapping[str, Any]:
        self._board = board
        if self._widget is None:
            self._widget = PanelWidget(setup=board.setup)
            self._widget.on_msg(self._on_message)
        view = {"version_major": 2, "version_minor": 1, "model_id": self._widget.model_id}
        return {"application/vnd.jupyter.widget-view+json": view, "text/plain": _FALLBACK}

    def send(self, message: Mapping[str, Any]) -> None:
        if self._widget is not None and message:
            self._widget.send(dict(message))

    def requests(self) -> list[Mapping[str, Any]]:
        found = []
        while self._requests:
            found.append(self._requests.popleft())
        return found

    def end(self, record_of: Callable[[], Mapping[str, Any]]) -> None:
        self._snapshot, self._board = record_of, None
        if self._widget is None:
            return
        _kept.append(self._widget)
        while len(_kept) > _KEPT:
            _kept.popleft().close()

    def _on_message(self, _: Any, content: Any, __: Any) -> None:
        if not isinstance(content, dict):
            return
        if self._snapshot is not None:  # the cell is over
            if content.get("kind") == "hello":
                self.send(self._snapshot())
            return
        with contextlib.suppress(TypeError, ValueError, IndexError):  # of a foreign page
            if self._board is not None and self._board.act(content):
                return
        self._requests.append(content)


def close_all() -> None:
    """End the widgets that were kept."""
    while _kept:
        _kept.popleft().close()
