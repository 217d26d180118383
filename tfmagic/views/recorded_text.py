"""The text view of a cell that is noted in the run folder, so that ``%tfcluster attach`` shows it again."""

from dataclasses import replace

from tfmagic.runs.cell_records import append_record
from tfmagic.supervisor.state import CellState
from tfmagic.views.facts import describe_in_full
from tfmagic.views.protocol import ViewContext
from tfmagic.views.text import TextView


class RecordedText:
    """A `TextView` that also notes its cell: once it has begun, and its end."""

    def __init__(self, view: TextView, context: ViewContext):
        self._view, self._context = view, context
        self._noted = False
        self._notes: tuple[str, ...] = ()
        self.interval_s = view.interval_s

    def show_now(self) -> None:
        self._view.show_now()

    def update(self) -> None:
        self._view.update()
        if not self._noted and self._context.has_begun():
            self._noted = True
            self._append(None)

    def finish(self, cell: CellState | None) -> None:
        self._view.finish(cell)
        self._append(cell)

    def add_note(self, text: str) -> None:
        self._view.add_note(text)
        if text:
            self._notes += (text,)
            self._append(None)

    def _append(self, cell: CellState | None) -> None:
        record = replace(describe_in_full(self._context, cell), notes=self._notes)
        append_record(self._context.folder, record)
