"""The live panel as one widget: an anywidget with its model here and its view in `assets/panel.js`.

The page sends custom messages only: ipywidgets holds back changes of synced state while a cell runs (it
waits for an idle status that concurrent messages do not get). They arrive on the main thread, or on the
thread of a subshell; there they are carried out or queued, and nothing is printed or displayed.

A widget is kept for a while after its cell: a page that was loaded after the cell began does not get the
static form as a display, and asks the widget for it; the form on a page asks it for whole logs.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from tfmagic.views import palette
from tfmagic.views.panel_model import PanelModel
from tfmagic.views.whole_logs import WholeLogs

_ASSETS = Path(__file__).parent / "assets"
_KEPT = 8
_AT_ONCE_S = 0.5
_FALLBACK = (
    "tfmagic: a live panel is here while the kernel runs, where jupyterlab_widgets and anywidget are "
    "installed for JupyterLab; %%tfcluster --view html does without"
)

_kept: deque[PanelWidget] = deque()


class PanelWidget(anywidget.AnyWidget):  # untyped
    """The model of a panel."""

    _esm = (_ASSETS / "panel.js").read_text("utf-8")
    _css = palette.style_sheet() + (_ASSETS / "panel.css").read_text("utf-8")
    setup = traitlets.Dict().tag(sync=True)


class WidgetDisplay:
    """A `LiveDisplay`."""

    def __init__(self) -> None:
        self._requests: deque[Mapping[str, Any]] = deque()
        self._widget: PanelWidget | None = None
        self._end: Mapping[str, Any] | None = None
        self._model: PanelModel | None = None
        self._logs: WholeLogs | None = None
        self._answered: dict[Any, float] = {}  # when a view has got the end

    def open(self, model: PanelModel) -> Mapping[str, Any]:
        self._model, self._logs = model, model.logs
        if self._widget is None:
            self._widget = PanelWidget(setup=model.setup)
            self._widget.on_msg(self._on_message)
        view = {"version_major": 2, "version_minor": 1, "model_id": self._widget.model_id}
        return {"application/vnd.jupyter.widget-view+json": view, "text/plain": _FALLBACK}

    def send(self, message: Mapping[str, Any]) -> None:
        if self._widget is not None and message:
            self._widget.send(dict(message))

    def requests(self) -> list[Mapping[str, Any]]:
        return [self._requests.popleft() for _ in range(len(self._requests))]

    def end(self, message: Mapping[str, Any]) -> None:
        is_first, self._end, self._model = self._end is None, message, None
        if self._widget is not None and is_first:
            _kept.append(self._widget)
            while len(_kept) > _KEPT:
                _kept.popleft().close()

    def _on_message(self, _: Any, content: Any, __: Any) -> None:
        if not isinstance(content, dict):
            return
        with contextlib.suppress(KeyError, TypeError, ValueError, IndexError):  # not from `panel.js`
            if self._end is not None:
                self._answer(content, self._end)
                return
            if self._model is not None and self._model.act(content):
                return
        self._requests.append(content)

    def _answer(self, content: Mapping[str, Any], end: Mapping[str, Any]) -> None:
        """Answer a page after the end of the cell.

        A view asks each second until it has an answer: a busy kernel finds several questions at once.
        """
        view, now = content.get("view"), time.monotonic()
        if content.get("kind") == "hello" and now - self._answered.get(view, -math.inf) > _AT_ONCE_S:
            self._answered[view] = now
            self.send(end)
        if content.get("kind") == "log" and self._logs is not None:
            self._logs.obey(content, self.send)


def close_all() -> None:
    """Close the widgets that are kept."""
    while _kept:
        _kept.popleft().close()
