"""Keep the last failure of a task, and open the debugger on it in a cell that asks for it."""

import sys

from tfmagic.errors import TfmagicError
from tfmagic.features.debug import debugger
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.task.cell_parts import Attempt, CellPart


class LastFailure(CellPart):
    """What the last cell of a task has raised, with its live frames."""

    def __init__(self, boot: TaskBoot):
        self._task = boot.task
        self._error: BaseException | None = None

    def begin(self, cell: RunCell) -> None:
        """Forget it before code runs: its frames hold memory that the code can need."""
        if cell.source or cell.call:
            self._error = None

    def run(self, cell: RunCell) -> None:
        """Look at it, if the cell is there for that."""
        if "debug" not in cell.extras:
            return
        if self._error is None:
            raise TfmagicError(
                f"{self._task} has no failure to look at: its last cell did not fail in this process. "
                "The frames are kept until the next cell."
            )
        debugger.look_at(self._error)

    def end(self, cell: RunCell, attempt: Attempt) -> None:
        """Keep what the cell has raised."""
        if attempt.error is not None and "debug" not in cell.extras:
            self._error = attempt.error


def make(boot: TaskBoot) -> CellPart:
    """Return the part of a task, in which `breakpoint()` opens the debugger."""
    sys.breakpointhook = debugger.break_here
    return LastFailure(boot)
