"""The panel: one display for a whole cell, live while it runs, static html and text when it has ended.

    state, resources ─┐
    feeds (rows) ─────┴→ PanelModel.look() → what changed → LiveDisplay.send(message)     ten times a second
    record → static form → SavedCell: drafts, which stand below the live display, then the end, which stays

A cell that is over in a tenth of a second never becomes a live display; if it failed or has a hint, the page
gets a widget nevertheless, which displays nothing. `LiveDisplay.requests` returns what
the page asked for since the last look; requests that must not wait (interrupt, kill, stop) are carried out
where they arrive. `HtmlView` needs no widget: it draws the static form once a second, or only at the end.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from tfmagic.runs.given_hints import read_hints
from tfmagic.supervisor.state import CellState
from tfmagic.views.hints import announce, hints_of
from tfmagic.views.panel_model import PanelModel
from tfmagic.views.protocol import ViewContext
from tfmagic.views.saved_cell import Look, Publisher, SavedCell

_LOOK_S, _FLOOD_LOOK_S = 0.1, 0.3
_LOOK_SHARE = 0.05  # of a core, for looking and for sending to the page
_SHOW_AFTER_S = 0.1  # cells that are over by then need no live display
_KEYFRAME_S, _KEYFRAME_LIMIT_S = 0.15, 16.0  # between snapshots until the page says hello; doubled each time
_AWAY_S = 150.0  # a page reports each 20 s, or each 60 s where the browser slows its timers down
_LIVE_HTML_BYTES = 30_000


class LiveDisplay(Protocol):
    """Shows the cell on a page while it runs."""

    def open(self, model: PanelModel) -> Mapping[str, Any]:
        """Return the bundle to put on the page."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send what changed."""

    def requests(self) -> list[Mapping[str, Any]]:
        """Return the page's requests since the last call."""

    def end(self, message: Mapping[str, Any]) -> None:
        """Keep the last message for pages that come later."""


class PanelView:
    """A live widget, then the static form; in the place of the display with this id, if there is one."""

    def __init__(
        self,
        context: ViewContext,
        publish: Publisher,
        live: Callable[[], LiveDisplay],
        look: Look,
        display_id: str = "",
    ):
        self._context = context
        self._saved = SavedCell(context, publish, look, display_id)
        self._make_live = live
        self._live: LiveDisplay | None = None
        self._model = PanelModel(context, fold_noise=look.fold_noise, fold_equal=look.fold_equal)
        self._keyframe_at, self._keyframe_s = 0.0, _KEYFRAME_S
        self._look_cost_s = 0.0
        self._pages = set[str]()  # the pages that have said hello; the first one gets forms as displays
        self._heard_at = 0.0

    @property
    def interval_s(self) -> float:
        """The time between two looks: longer in a flood, which needs the cores, and for many tasks."""
        return max(_FLOOD_LOOK_S if self._model.is_flooded else _LOOK_S, self._look_cost_s / _LOOK_SHARE)

    def show_now(self) -> None:
        """Show the cell as it is now."""
        if self._live is None and not self._saved.is_over:
            self._open()
        else:
            self._saved.show_now()

    def update(self) -> None:
        """Show what is new."""
        self._saved.begin()
        if self._live is None and time.monotonic() - self._context.run.requested_at >= _SHOW_AFTER_S:
            self._open()
        if (live := self._live) is not None:
            self._answer(live)
            if not self._is_away:
                began = time.thread_time()
                self._look(live)
                self._look_cost_s = time.thread_time() - began
                if self._saved.draft() and len(self._pages) > 1:
                    live.send(self._saved.message())

    @property
    def _is_away(self) -> bool:
        """Whether the page was closed: a server keeps in memory what it cannot send."""
        return self._model.greeted and time.monotonic() - self._heard_at > _AWAY_S

    def _look(self, live: LiveDisplay) -> None:
        if not self._model.greeted and time.monotonic() >= self._keyframe_at:
            self._keyframe_s = min(2 * self._keyframe_s, _KEYFRAME_LIMIT_S)
            self._keyframe_at = time.monotonic() + self._keyframe_s
            live.send(self._model.snapshot())
        elif message := self._model.look():
            live.send(message)

    def finish(self, cell: CellState | None) -> None:
        """Replace the live display by the static form."""
        live = self._live
        record = self._saved.record(cell)
        try:
            if live is not None:
                self._answer(live)
                record = self._model.complete(record)
                live.send(self._model.look(record))
            elif announce(record, hints_of(record, read_hints(self._context.folder, record.cell))):
                self._load_script()
        finally:
            self._model.close()
            self._saved.finish(record)
        if live is not None:
            self._end(live)
            self._saved.show_live({})

    def _load_script(self) -> None:
        """Bring `panel.js` to a page that might have none: it reads out the form that now comes.

        A widget that is displayed nowhere is enough for that, and leaves nothing in the notebook.
        """
        unseen = self._make_live()
        unseen.open(self._model)
        unseen.end({})

    def add_note(self, text: str) -> None:
        self._saved.add_note(text)
        if self._live is not None:
            self._end(self._live)

    def show_again(self) -> None:
        """Put the same display on the page once more; both are live, and both end as the static form."""
        if self._live is None:
            self._open()
        else:
            self._saved.show_live(self._live.open(self._model))
            self._saved.show(again=True)

    def _end(self, live: LiveDisplay) -> None:
        """Tell the pages that the form is the last; a page that did not get it as a display gets it now."""
        live.end(self._saved.message())
        live.send(self._saved.message() if len(self._pages) > 1 else self._saved.notice())

    def _open(self) -> None:
        self._live = self._make_live()
        self._saved.show_live(self._live.open(self._model))
        self._saved.draft()

    def _answer(self, live: LiveDisplay) -> None:
        for request in live.requests():
            is_new = request.get("kind") == "hello"
            if is_new or self._is_away:
                live.send(self._model.greet())
            if is_new:
                self._pages.add(str(request.get("page")))
                if len(self._pages) > 1:
                    self._saved.draft(at_once=True)
                    live.send(self._saved.message())
            else:
                with contextlib.suppress(KeyError, TypeError, ValueError, IndexError):  # not from `panel.js`
                    self._model.obey(request, live.send)
            self._heard_at = time.monotonic()


class HtmlView:
    """The static form, drawn again every `refresh_s` seconds; or only at the end, for programs."""

    interval_s = 0.1

    def __init__(
        self,
        context: ViewContext,
        publish: Publisher,
        refresh_s: float | None,
        look: Look,
        display_id: str = "",
    ):
        self._context, self._is_live = context, refresh_s is not None
        self._saved = SavedCell(context, publish, look, display_id, refresh_s or 0.0, _LIVE_HTML_BYTES)
        self._saved.is_for_programs = refresh_s is None

    def show_now(self) -> None:
        """Show the cell as it is now."""
        self._saved.show_now()

    def update(self) -> None:
        self._saved.begin()
        self._context.run.displays.clear()  # the static form reads them from disk
        if self._is_live:
            self._saved.draft()

    def finish(self, cell: CellState | None, notes: tuple[str, ...] = (), *, brief: bool = False) -> None:
        self._saved.finish(replace(self._saved.record(cell), notes=notes), brief)

    def add_note(self, text: str) -> None:
        self._saved.add_note(text)
