"""Keep the last failure of a task, and open a debugger in a cell that asks for it: pdb, or an editor's."""

import os
import sys
from pathlib import Path

from tfmagic.errors import TfmagicError
from tfmagic.features.debug import debugger
from tfmagic.features.debug.editor import Editor
from tfmagic.features.debug.records import EditorAsked, Listening, decode_asked, encode
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.task.cell_parts import Attempt, CellPart

_NAME = "debug"


class TaskDebuggers(CellPart):
    """What the last cell of a task has raised, with its live frames, and the debuggers that look at it."""

    def __init__(self, boot: TaskBoot):
        self._task = boot.task
        self._error: BaseException | None = None
        self._editor = Editor(boot.task.name, Path(os.path.dirname(boot.stacks_path)))
        self._answer: Listening | None = None

    def begin(self, cell: RunCell) -> None:
        """Forget the failure before code runs: its frames hold memory that the code can need."""
        if cell.source or cell.call:
            self._error = None
            if self._editor.listens:
                self._editor.begin(cell)

    def run(self, cell: RunCell) -> None:
        """Look at it, or let an editor do so, if the cell is there for that."""
        asked = cell.extras.get(_NAME)
        if asked:
            self._open_editor(decode_asked(asked))
        elif asked is not None:
            self._look()

    def _open_editor(self, asked: EditorAsked) -> None:
        answer = self._editor.listen(asked.loopback)
        if self._error is None:
            self._answer = answer
        elif asked.looks:
            self._editor.look_at(self._error)
        else:
            self._answer = self._editor.with_failure(answer, self._error)

    def _look(self) -> None:
        if self._error is None:
            raise TfmagicError(
                f"{self._task} has no failure to look at: its last cell did not fail in this process. "
                "The frames are kept until the next cell."
            )
        debugger.look_at(self._error)

    def tick(self) -> None:
        """Let an editor that has attached stop the cell."""
        if self._editor.listens:
            self._editor.tick()

    def end(self, cell: RunCell, attempt: Attempt) -> None:
        """Keep what the cell has raised, and report where the task listens."""
        if attempt.error is not None and _NAME not in cell.extras:
            self._error = attempt.error
        if self._editor.listens:
            self._editor.end()
        if self._answer is not None:
            attempt.extras[_NAME], self._answer = encode(self._answer), None


def make(boot: TaskBoot) -> CellPart:
    """Return the part of a task, in which `breakpoint()` opens the debugger."""
    sys.breakpointhook = debugger.break_here
    return TaskDebuggers(boot)
