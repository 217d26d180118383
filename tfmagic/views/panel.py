"""The panel: one display for a whole cell, live while it runs, static html and text when it has ended.

    state, resources ─┐
    feeds (rows) ─────┴→ PanelModel.look() → what changed → LiveDisplay.send(message)     ten times a second
    outcome → CellRecord → static form → replaces the live display, and stays

A cell that is over in a tenth of a second never becomes a live display. `LiveDisplay.requests` returns what
the page asked for since the last look; requests that must not wait (interrupt, kill, stop) are carried out
where they arrive. `HtmlView` needs no widget: it draws the static form once a second, or only at the end.
"""

import contextlib
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tfmagic.runs.cell_records import CellRecord, append_record
from tfmagic.supervisor.state import CellState
from tfmagic.views import static_form
from tfmagic.views.facts import describe_cell, with_texts
from tfmagic.views.panel_model import PanelModel
from tfmagic.views.protocol import ViewContext

_LOOK_S, _FLOOD_LOOK_S = 0.1, 0.3
_LOOK_SHARE = 0.05  # of a core, for looking and for sending to the page
_SHOW_AFTER_S = 0.1  # cells that are over by then need no live display
_KEYFRAME_S, _KEYFRAME_LIMIT_S = 0.15, 16.0  # between snapshots until the page says hello; doubled each time
_DRAFT_BYTES = 30_000


class LiveDisplay(Protocol):
    """Shows the cell on a page while it runs."""

    def open(self, model: PanelModel) -> Mapping[str, Any]:
        """Return the bundle to put on the page."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send what changed."""

    def requests(self) -> list[Mapping[str, Any]]:
        """Return what the page has asked for since the last call."""

    def end(self, replay: Callable[[], Mapping[str, Any]]) -> None:
        """Note that the cell is over; `replay` returns a snapshot for pages that come later."""


class Publisher(Protocol):
    """Puts a bundle on the page, or in the place of the one with the same id."""

    def __call__(self, data: Mapping[str, Any], *, display_id: str, update: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Look:
    """How output is shown: see the settings of the same names in `tfmagic.clusters.settings`."""

    fold_noise: bool = True
    fold_equal: bool = True
    saved_bytes: int = static_form.LIMIT_BYTES


class _SavedCell:
    """Notes a cell in the run folder, and puts its static form on the page."""

    def __init__(self, context: ViewContext, publish: Publisher, look: Look, display_id: str):
        self._context, self._publish, self._look = context, publish, look
        self._display_id = display_id or f"tfmagic-{context.folder}-{context.run.request.cell}"
        self._is_shown, self._is_noted = bool(display_id), False
        self._record: CellRecord | None = None

    def begin(self) -> None:
        """Note that the cell runs, so that it can be found if the kernel dies."""
        if not self._is_noted:
            self._is_noted = True
            append_record(self._context.folder, describe_cell(self._context, None, time.monotonic()))

    def show(self, data: Mapping[str, Any], again: bool = False) -> None:
        """Put a bundle in the cell's place; `again` puts it at another place too. The end replaces both."""
        self._publish(data, display_id=self._display_id, update=self._is_shown and not again)
        self._is_shown = True

    def record(self, cell: CellState | None, open_names: tuple[str, ...] = ()) -> CellRecord:
        record = describe_cell(self._context, cell, time.monotonic())
        if cell is not None:
            record = with_texts(record, self._context.texts(cell))
        return replace(record, open=open_names)

    def draw(self, record: CellRecord, limit_bytes: int) -> static_form.StaticForm:
        form = static_form.render(
            record, self._context.folder, limit_bytes=limit_bytes, fold_noise=self._look.fold_noise
        )
        self.show({"text/html": form.html, "text/plain": form.text})
        return form

    def add_note(self, text: str) -> None:
        """Draw the cell again, with what happened to its tasks after it."""
        if self._record is not None:
            self.finish(replace(self._record, notes=(*self._record.notes, text)))

    def finish(self, record: CellRecord) -> None:
        self._record = record
        append_record(self._context.folder, record)
        try:
            form = self.draw(record, self._look.saved_bytes)
        except Exception:  # an error in drawing must not hide the outcome of the cell
            where = f"what the tasks wrote is in {self._context.folder.folder}"
            self.show({"text/plain": f"tfmagic could not draw this cell; {where}\n{traceback.format_exc()}"})
            return
        for item in form.apart:
            self._publish(item.data, display_id=f"{self._display_id}-{item.key}")


class PanelView:
    """A live widget, then the static form.

    Args:
        live: Makes the live display.
        display_id: Of a display that the panel replaces; "" for a new one.
    """

    def __init__(
        self,
        context: ViewContext,
        publish: Publisher,
        live: Callable[[], LiveDisplay],
        look: Look,
        display_id: str = "",
    ):
        self._context = context
        self._saved = _SavedCell(context, publish, look, display_id)
        self._make_live = live
        self._live: LiveDisplay | None = None
        self._model = PanelModel(context, fold_noise=look.fold_noise, fold_equal=look.fold_equal)
        self._keyframe_at, self._keyframe_s = 0.0, _KEYFRAME_S
        self._look_cost_s = 0.0

    @property
    def interval_s(self) -> float:
        """The time between two looks: longer in a flood, which needs the cores, and for many tasks."""
        return max(_FLOOD_LOOK_S if self._model.is_flooded else _LOOK_S, self._look_cost_s / _LOOK_SHARE)

    def update(self) -> None:
        """Show what is new."""
        began = time.thread_time()
        self._saved.begin()
        if self._live is not None:
            self._look(self._live)
        elif time.monotonic() - self._context.run.requested_at >= _SHOW_AFTER_S:
            self._look(self._open())
        self._look_cost_s = time.thread_time() - began

    def _look(self, live: LiveDisplay) -> None:
        self._answer(live)
        if not self._model.greeted and time.monotonic() >= self._keyframe_at:
            self._keyframe_s = min(2 * self._keyframe_s, _KEYFRAME_LIMIT_S)
            self._keyframe_at = time.monotonic() + self._keyframe_s
            live.send(self._model.snapshot())
        elif message := self._model.look():
            live.send(message)

    def finish(self, cell: CellState | None) -> None:
        """Replace the live display by the static form."""
        live = self._live
        record = self._saved.record(cell, self._model.open_names)
        try:
            if live is not None:
                self._answer(live)
                record = replace(record, open=self._model.open_names)
                live.send(self._model.look(record))
        finally:
            self._model.close()
            self._saved.finish(record)
        if live is not None:
            folder = self._context.folder  # and nothing else: a page can ask much later
            live.end(lambda: PanelModel.replay(record, folder))

    def add_note(self, text: str) -> None:
        self._saved.add_note(text)

    def show_again(self) -> None:
        """Put the same display on the page once more; both are live, and both end as the static form."""
        if self._live is None:
            self._open()
        else:
            self._saved.show(self._live.open(self._model), again=True)

    def _open(self) -> LiveDisplay:
        self._live = self._make_live()
        self._saved.show(self._live.open(self._model))
        return self._live

    def _answer(self, live: LiveDisplay) -> None:
        for request in live.requests():
            if request.get("kind") == "hello":
                live.send(self._model.greet())
            else:
                with contextlib.suppress(KeyError, TypeError, ValueError, IndexError):  # not from `panel.js`
                    self._model.obey(request, live.send)


class HtmlView:
    """The static form, drawn again every `refresh_s` seconds, or only at the end."""

    interval_s = 0.1

    def __init__(
        self,
        context: ViewContext,
        publish: Publisher,
        refresh_s: float | None,
        look: Look,
        display_id: str = "",
    ):
        self._context, self._refresh_s = context, refresh_s
        self._saved = _SavedCell(context, publish, look, display_id)
        self._due = 0.0

    def update(self) -> None:
        self._saved.begin()
        self._context.run.displays.clear()  # the static form reads them from disk
        if self._refresh_s is not None and time.monotonic() >= self._due:
            self._saved.draw(self._saved.record(None), _DRAFT_BYTES)
            self._due = time.monotonic() + self._refresh_s

    def finish(self, cell: CellState | None) -> None:
        self._saved.finish(self._saved.record(cell))

    def add_note(self, text: str) -> None:
        self._saved.add_note(text)
