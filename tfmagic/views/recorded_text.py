"""The view of a cell that is noted in the run folder, so that ``%tfcluster attach`` shows it again."""

from dataclasses import replace

from tfmagic.protocol.events import CellReturned
from tfmagic.runs.cell_records import append_record
from tfmagic.supervisor.state import CellState
from tfmagic.views.facts import describe_in_full
from tfmagic.views.protocol import ViewContext
from tfmagic.views.text import QuietView, TextView


class RecordedText:
    """A view that also notes its cell: once it has begun, and its end."""

    def __init__(self, view: TextView | QuietView, context: ViewContext):
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
        outcomes = [] if cell is None else cell.outcomes.values()
        is_good = all(isinstance(outcome, CellReturned) for outcome in outcomes)
        # nothing can be shown again of a quick cell: its record would take a tenth of its time
        is_empty = self._noted is None and cell is not None and is_good and self._view.has_nothing(cell)
        if not is_empty:
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
