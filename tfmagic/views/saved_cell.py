"""What the saved notebook holds of a cell: drafts while it runs, then its end.

A front end saves what it was sent last, and nothing that a kernel does can reach a file that no page has
open. So a draft has the text so far, and the line by which the rest can be seen. It is drawn if something has
changed, at a bounded rate: a page draws it again each time, and a server keeps it for a page that is away.
A draft of a flood is short, since the flood needs the cores; the whole one is drawn when the flood has ended.
"""

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tfmagic.protocol.cluster_spec import parse_task
from tfmagic.runs.cell_records import CellRecord, append_record, displays_path
from tfmagic.runs.folder import file_size
from tfmagic.runs.given_hints import count_hints, hints_path, read_hints
from tfmagic.supervisor.state import CellState
from tfmagic.views import static_form, words
from tfmagic.views.facts import describe_cell, describe_in_full
from tfmagic.views.hints import hints_of
from tfmagic.views.protocol import ViewContext

DRAFT_S = 5.0
_DRAFT_BYTES_S = 20_000
_FLOOD_DRAFT_BYTES = 20_000
_DRAFT_SHARE = 0.02  # of a core, for drawing drafts


class Publisher(Protocol):
    """Puts a bundle on the page, or in the place of the one with the same id."""

    def __call__(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        display_id: str,
        update: bool = False,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Look:
    """How output is shown: see the settings of the same names in `tfmagic.clusters.launch.settings`."""

    fold_noise: bool = True
    fold_equal: bool = True
    saved_bytes: int = static_form.LIMIT_BYTES


class SavedCell:
    """Notes a cell in the run folder, and puts its static form on the page.

    What is shown first takes the place of the display `display_id`, if there is one. Two drafts are at least
    `draft_s` apart, and have at most `draft_bytes`.

    Attributes:
        is_for_programs: Whether the pictures of the form are displays of their own as well, without html: for
            what reads no html, such as an agent, or a notebook that is printed.
    """

    is_for_programs = False

    def __init__(
        self,
        context: ViewContext,
        publish: Publisher,
        look: Look,
        display_id: str,
        draft_s: float = DRAFT_S,
        draft_bytes: int = 0,
    ):
        self._context, self._publish, self._look = context, publish, look
        self._display_id = f"tfmagic-{context.folder}-{context.run.request.cell}"
        self._live_id, self._free_id = f"{self._display_id}-live", display_id
        self._is_shown = False
        self._noted: bool | None = None  # whether the record says that the cell has begun
        self._record: CellRecord | None = None
        self._form: Mapping[str, Any] = {}
        self._draft_s, self._draft_bytes = draft_s, draft_bytes or look.saved_bytes
        self._draft_at = 0.0
        self._written, self._written_at = 0, context.run.requested_at  # by the tasks until the last draft
        self._drafted: list[object] = []

    @property
    def is_over(self) -> bool:
        """Whether the end was shown."""
        return self._record is not None

    def begin(self) -> None:
        """Note that the cell waits or runs, so that it can be found if the kernel dies."""
        has_begun = self._context.has_begun()
        if has_begun is not self._noted:
            self._noted = has_begun
            append_record(self._context.folder, describe_cell(self._context, None, time.monotonic()))

    def show_now(self) -> None:
        """Show the end, or a draft as long as there is none."""
        if self.is_over:
            self.show()
        else:
            self.draft(at_once=True)

    def draft(self, at_once: bool = False) -> bool:
        """Draw the cell as it is now, if something has changed and it is due; return whether it was drawn."""
        now = time.monotonic()
        if now < self._draft_at and not at_once:
            return False
        began, size = time.thread_time(), 0
        record = self.record(None)
        seen = self._look_at(record)
        if seen != self._drafted:
            is_flood = self._is_flood(record, now)
            self._drafted = [] if is_flood else seen  # then the next one differs
            limit_bytes = min(_FLOOD_DRAFT_BYTES, self._draft_bytes) if is_flood else self._draft_bytes
            form = self._draw(record, limit_bytes)
            size = len(form.html) + len(form.text)
        cost_s = time.thread_time() - began
        pause_s = max(self._draft_s, size / _DRAFT_BYTES_S, cost_s / _DRAFT_SHARE)
        self._draft_at = time.monotonic() + pause_s
        return size > 0

    def show(self, again: bool = False) -> None:
        """Show the last form; `again` puts it at another place too. Later ones replace both."""
        if self._free_id:
            self._display_id, self._free_id, self._is_shown = self._free_id, "", True
        update, self._is_shown = self._is_shown and not again, True
        self._publish(self._form, self._mark(), display_id=self._display_id, update=update)

    def show_live(self, data: Mapping[str, Any]) -> None:
        """Put a live display on the page; data without content removes it.

        The form stands below it. Of a shared notebook, other pages move an output to the end when it changes,
        so that only the last one can change.
        """
        update = not data
        if self._free_id:
            self._live_id, self._free_id, update = self._free_id, "", True
        self._publish(data, self._mark(live=True), display_id=self._live_id, update=update)

    def message(self) -> dict[str, Any]:
        """Return the form for pages that were loaded too late to get it as a display."""
        return {**self.notice(), "data": self._form}

    def notice(self) -> dict[str, Any]:
        """Return the same for pages that have the form."""
        return {"kind": "form", "over": self.is_over}

    def record(self, cell: CellState | None) -> CellRecord:
        return describe_in_full(self._context, cell)

    def add_note(self, text: str) -> None:
        """Draw the cell again, with what happened to its tasks after it: "" if only their widgets changed."""
        if self._record is not None:
            self.finish(replace(self._record, notes=(*self._record.notes, *filter(None, [text]))))

    def finish(self, record: CellRecord, brief: bool = False) -> None:
        """Note and show the end. With `brief`, its text comes as an update, which does not get into logs."""
        is_again, self._record = self.is_over, record
        append_record(self._context.folder, record)
        try:
            form = self._draw(record, self._look.saved_bytes, brief)
        except Exception:  # an error in drawing must not hide the outcome of the cell
            where = f"what the tasks wrote is in {self._context.folder.folder}"
            self._form = {
                "text/plain": f"tfmagic could not draw this cell; {where}\n{traceback.format_exc()}"
            }
            self.show()
            return
        for item in form.apart:
            self._publish(
                item.data, item.metadata, display_id=f"{self._display_id}-{item.key}", update=is_again
            )
        for item in form.pictures if self.is_for_programs else ():
            name = f"{self._display_id}-{item.key}"
            self._publish({**item.data, "text/html": ""}, item.metadata, display_id=name, update=is_again)
        if not is_again and self._context.widgets is not None:  # those that take input stay below the form
            data = self._context.widgets.control_panel(form.widgets, lambda: self.add_note(""))
            if data is not None:
                self._publish(data, display_id=f"{self._display_id}-widgets")

    def _draw(self, record: CellRecord, limit_bytes: int, brief: bool = False) -> static_form.StaticForm:
        form = static_form.render(
            record, self._context.folder, limit_bytes=limit_bytes, fold_noise=self._look.fold_noise
        )
        if brief:
            self._form = {"text/html": form.html, "text/plain": self._sum_up(record)}
            self.show()
        self._form = {"text/html": form.html, "text/plain": form.text}
        self.show()
        return form

    def _sum_up(self, record: CellRecord) -> str:
        hints = count_hints(hints_of(record, read_hints(self._context.folder, record.cell)))
        return words.summary_of(record) + (hints and f", {hints}")

    def _mark(self, **more: bool) -> dict[str, Any]:
        """Return metadata by which the page and other programs find the outputs of a cell."""
        return {"tfmagic": {"run": str(self._context.folder), "cell": self._context.run.request.cell, **more}}

    def _is_flood(self, record: CellRecord, now: float) -> bool:
        """Return whether the tasks wrote more since the last draft than drafts are to hold."""
        sizes = (part.end or self._context.folder.log_bytes(parse_task(part.task)) for part in record.tasks)
        written = sum(sizes) - sum(part.start for part in record.tasks)
        new, since_s = written - self._written, now - self._written_at
        self._written, self._written_at = written, now
        return new > max(_FLOOD_DRAFT_BYTES, _DRAFT_BYTES_S * since_s)

    def _look_at(self, record: CellRecord) -> list[object]:
        """Return a key that changes when a new draft would differ in more than the time."""
        folder = self._context.folder
        seen: list[object] = [self._context.run.has_hints and file_size(hints_path(folder))]
        for part in record.tasks:
            task = parse_task(part.task)
            sizes = (folder.log_bytes(task), file_size(displays_path(folder, task)))
            seen.append((part.state, part.note, part.end or sizes))
        return seen
