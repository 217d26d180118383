"""The text view of a cell that is noted in the run folder, so that ``%tfcluster attach`` shows it again."""

from dataclasses import replace

from tfmagic.protocol.events import CellReturned
from tfmagic.runs.cell_records import append_record
from tfmagic.supervisor.state import CellState
from tfmagic.views.facts import describe_in_full
from tfmagic.views.protocol import ViewContext
from tfmagic.views.text import TextView


class RecordedText:
    """A `TextView` that also notes its cell: once it has begun, and its end."""

    def __init__(self, view: TextView, context: ViewContext):
        self._view, self._context = view, context
        self._noted: bool | None = None  # whether the record says that the cell has begun
        self._notes: tuple[str, ...] = ()
        self.interval_s = view.interval_s

    def show_now(self) -> None:
        self._view.show_now()
        self._note(self._context.has_begun())

    def update(self) -> None:
        self._view.update()
        if not self._noted and self._context.has_begun():
            self._note(has_begun=True)

    def _note(self, has_begun: bool) -> None:
        if has_begun is not self._noted:
            self._noted = has_begun
            self._append(None)

    def finish(self, cell: CellState | None) -> None:
        is_empty = self._noted is None and cell is not None and self._has_nothing(cell)
        self._view.finish(cell)
        if not is_empty:
            self._append(cell)

    def add_note(self, text: str) -> None:
        self._view.add_note(text)
        if text:
            self._notes += (text,)
            self._append(None)

    def _has_nothing(self, cell: CellState) -> bool:
        """Check whether a quick cell left nothing to be shown again: its record takes a tenth of its time."""
        has_failed = any(not isinstance(outcome, CellReturned) for outcome in cell.outcomes.values())
        return not has_failed and self._view.has_nothing(cell)

    def _append(self, cell: CellState | None) -> None:
        record = replace(describe_in_full(self._context, cell), notes=self._notes)
        append_record(self._context.folder, record)
