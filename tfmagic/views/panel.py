"""The panel: one display for a whole cell, live while it runs, static html and text when it has ended.

    state, resources ─┐
    feeds (rows) ─────┴→ Board.look() → what changed → LiveDisplay.send(message)      ten times a second
    outcome → CellRecord → static form → replaces the live display, and stays

A cell that is over in a tenth of a second never becomes a live display. What the page asks for comes in
between by `LiveDisplay.requests`; what must not wait (interrupt, kill, stop) is done where it arrives.
`HtmlView` does without a widget: the static form, drawn anew once a second, or only at the end.
"""

from __future__ import annotations

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
_LOOK_SHARE = 0.05  # of a core, for looking and for what is sent to the page
_SHOW_AFTER_S = 0.1  # cells that are over by then need no live display
_KEYFRAME_S, _KEYFRAME_LIMIT_S = 0.15, 16.0  # snapshots until the page has said hello, ever more rarely
_DRAFT_BYTES = 30_000


class LiveDisplay(Protocol):
    """Something that shows the cell while it runs."""

    def open(self, board: PanelModel) -> Mapping[str, Any]:
        """What is to be put on the page."""

    def send(self, message: Mapping[str, Any]) -> None:
        """What changed."""

    def requests(self) -> list[Mapping[str, Any]]:
        """What the page has asked for since the last call."""

    def end(self, replay: Callable[[], Mapping[str, Any]]) -> None:
        """The cell is over; `replay` gives a snapshot for pages that come later."""


class _Nobody:
    """Before anything is shown."""

    def open(self, board: PanelModel) -> Mapping[str, Any]:
        return {}

    def send(self, message: Mapping[str, Any]) -> None:
        pass

    def requests(self) -> list[Mapping[str, Any]]:
        return []

    def end(self, replay: Callable[[], Mapping[str, Any]]) -> None:
        pass


class Publisher(Protocol):
    """Puts a bundle on the page, or in the place of the one with the same id."""

    def __call__(self, data: Mapping[str, Any], *, display_id: str, update: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Look:
    """How output is shown: see the settings of the same names in `tfmagic.clusters.settings`."""

    fold_noise: bool = True
    fold_equal: bool = True
    saved_bytes: int = static_form.LIMIT_BYTES


class _Ending:
    """Puts a cell's static form in its place, and notes the cell in the run folder."""

    def __init__(self, stage: ViewContext, publish: Publisher, look: Look, place: str):
        self._stage, self._publish, self._look = stage, publish, look
        self._display_id = place or f"tfmagic-{stage.folder}-{stage.run.request.cell}"
        self._is_shown, self._is_noted = bool(place), False
        self._record: CellRecord | None = None

    def begin(self) -> None:
        """Note that the cell runs, so that it can be found when the kernel dies."""
        if not self._is_noted:
            self._is_noted = True
            append_record(self._stage.folder, describe_cell(self._stage, None, time.monotonic()))

    def show(self, data: Mapping[str, Any]) -> None:
        self._publish(data, display_id=self._display_id, update=self._is_shown)
        self._is_shown = True

    def show_again(self, data: Mapping[str, Any]) -> None:
        """The same at another place of the page; both are replaced at the end."""
        self._publish(data, display_id=self._display_id)

    def record(self, cell: CellState | None, open_names: tuple[str, ...]) -> CellRecord:
        record = describe_cell(self._stage, cell, time.monotonic())
        if cell is not None:
            record = with_texts(record, self._stage.texts(cell))
        return static_form.with_open(record, open_names)

    def draw(self, record: CellRecord, limit_bytes: int | None = None) -> static_form.StaticForm:
        limit = self._look.saved_bytes if limit_bytes is None else limit_bytes
        form = static_form.render(
            record, self._stage.folder, limit_bytes=limit, fold_noise=self._look.fold_noise
        )
        self.show({"text/html": form.html, "text/plain": form.text})
        return form

    def add_note(self, text: str) -> None:
        """Draw the cell anew, with what happened to its tasks after it."""
        if self._record is not None:
            self.finish(replace(self._record, notes=(*self._record.notes, text)))

    def finish(self, record: CellRecord) -> None:
        self._record = record
        append_record(self._stage.folder, record)
        try:
            form = self.draw(record)
        except Exception:  # a picture that cannot be drawn must not cost the cell its outcome
            where = f"what the tasks wrote is in {self._stage.folder.folder}"
            self.show({"text/plain": f"tfmagic could not draw this cell; {where}\n{traceback.format_exc()}"})
            return
        for item in form.apart:
            self._publish(item.data, display_id=f"{self._display_id}-{item.key}")


class PanelView:
    """A live widget, then the static form."""

    def __init__(
        self,
        stage: ViewContext,
        publish: Publisher,
        live: Callable[[], LiveDisplay],
        look: Look,
        place: str = "",
    ):
        self._stage = stage
        self._ending = _Ending(stage, publish, look, place)
        self._make_live = live
        self._live: LiveDisplay = _Nobody()
        self._board = PanelModel(stage, fold_noise=look.fold_noise, fold_equal=look.fold_equal)
        self._is_live = self._greeted = False
        self._keyframe_at, self._keyframe_s = 0.0, _KEYFRAME_S
        self._look_cost_s = 0.0

    @property
    def interval_s(self) -> float:
        """Between two looks. In a flood nobody reads, and the tasks want the cores; so do many tasks."""
        return max(_FLOOD_LOOK_S if self._board.is_flooded else _LOOK_S, self._look_cost_s / _LOOK_SHARE)

    def update(self) -> None:
        """Show what is new."""
        began = time.thread_time()
        self._update()
        self._look_cost_s = time.thread_time() - began

    def _update(self) -> None:
        self._ending.begin()
        age_s = time.monotonic() - self._stage.run.requested_at
        if not self._is_live:
            if age_s < _SHOW_AFTER_S:
                return
            self._open(self._ending.show)
        self._answer()
        if not self._greeted and time.monotonic() >= self._keyframe_at:
            self._keyframe_s = min(2 * self._keyframe_s, _KEYFRAME_LIMIT_S)
            self._keyframe_at = time.monotonic() + self._keyframe_s
            self._live.send(self._board.snapshot())
        elif message := self._board.look():
            self._live.send(message)

    def finish(self, cell: CellState | None) -> None:
        """Replace the live display by what stays."""
        stage = self._stage
        record = self._ending.record(cell, self._board.open_names)
        try:
            if self._is_live:
                self._answer()
                record = static_form.with_open(record, self._board.open_names)
                self._live.send(self._board.look(record))
        finally:
            self._board.close()
            self._ending.finish(record)
        if self._is_live:
            folder = stage.folder  # and nothing else: a page may ask much later
            self._live.end(lambda: PanelModel.replay(record, folder))

    def add_note(self, text: str) -> None:
        self._ending.add_note(text)

    def show_again(self) -> None:
        """Put the same display on the page once more; both are live, and both end as the static form."""
        self._open(self._ending.show_again if self._is_live else self._ending.show)

    def _open(self, show: Callable[[Mapping[str, Any]], None]) -> None:
        if not self._is_live:
            self._is_live, self._live = True, self._make_live()
        show(self._live.open(self._board))

    def _answer(self) -> None:
        for request in self._live.requests():
            if request.get("kind") == "hello":
                self._greeted = True
                self._live.send(self._board.greet())
            else:
                with contextlib.suppress(KeyError, TypeError, ValueError, IndexError):  # of a foreign page
                    self._board.obey(request, self._live.send)


class HtmlView:
    """The static form: drawn anew every `refresh_s` seconds, or only at the end."""

    interval_s = 0.1

    def __init__(
        self, stage: ViewContext, publish: Publisher, refresh_s: float | None, look: Look, place: str = ""
    ):
        self._stage, self._refresh_s = stage, refresh_s
        self._ending = _Ending(stage, publish, look, place)
        self._due = 0.0

    def update(self) -> None:
        self._ending.begin()
        self._stage.run.displays.clear()  # they are on disk
        if self._refresh_s is not None and time.monotonic() >= self._due:
            self._ending.draw(self._ending.record(None, ()), _DRAFT_BYTES)
            self._due = time.monotonic() + self._refresh_s

    def finish(self, cell: CellState | None) -> None:
        self._ending.finish(self._ending.record(cell, ()))

    def add_note(self, text: str) -> None:
        self._ending.add_note(text)
