"""The view for programs that run notebooks: lines as they come, and the static form at the end.

Such a program (nbclient, papermill, a server that executes cells) has no page that a user looks at, but often
a log. A cell that takes longer than a second prints the lines of its tasks there. At the end the form takes
the place of all that the cell has printed, so that the saved notebook has no line twice; notices of tfmagic
from before the cell ran become its notes. The log has no line twice either, unless a Jupyter server runs the
cell: the form arrives there with one line as its text, and the whole text is an update of it. Of a flood the
log gets the beginning, then its size now and then.
"""

import time
from collections.abc import Callable

from tfmagic.runs.folder import RunFolder
from tfmagic.supervisor.state import CellState
from tfmagic.system import notices
from tfmagic.system.memory import format_bytes
from tfmagic.views.panel import HtmlView
from tfmagic.views.text import TextView

_QUICK_S = 1.0  # a shorter cell prints no lines
_MOST_BYTES = 200_000  # of lines in a log
_COUNT_S = 60.0


class LoggedView:
    """Shows the lines of `lines`, and the form of `form` at the end.

    Args:
        make_lines: Returns the view of lines, which writes with the given function.
        clear: Removes what the cell has printed, as soon as it prints something else.
        updates: Whether the program applies an update of a display.
    """

    interval_s = 0.1

    def __init__(
        self,
        folder: RunFolder,
        make_lines: Callable[[Callable[[str], object]], TextView],
        form: HtmlView,
        clear: Callable[[], object],
        updates: bool,
    ):
        self._folder, self._form, self._clear, self._updates = folder, form, clear, updates
        self._lines = make_lines(self._write)
        self._began, self._counted_at = time.monotonic(), 0.0
        self._printed = 0  # bytes

    def show_now(self) -> None:
        """Show the cell as it is now."""
        self._form.show_now()

    def update(self) -> None:
        """Print the lines that are new."""
        if time.monotonic() - self._began >= _QUICK_S:
            if self._printed < _MOST_BYTES:
                self._lines.update()
            else:
                self._count()
        self._form.update()

    def finish(self, cell: CellState | None) -> None:
        """Put the form in the place of the lines."""
        if 0 < self._printed < _MOST_BYTES:
            self._lines.finish(cell)
        replaces = self._printed > 0 or notices.have_passed()
        if replaces:
            self._clear()
        notes = tuple(text.removeprefix("tfmagic: ") for text in notices.said()) if replaces else ()
        self._form.finish(cell, notes, brief=self._updates and self._printed > 0)

    def add_note(self, text: str) -> None:
        """Draw the form again, with what happened to its tasks."""
        self._form.add_note(text)

    def _write(self, text: str) -> None:
        self._printed += len(text)
        print(text, end="")

    def _count(self) -> None:
        """Say that there is more, and where, once a minute."""
        if time.monotonic() - self._counted_at >= _COUNT_S:
            self._counted_at = time.monotonic()
            size = sum(path.stat().st_size for path in self._folder.folder.glob("*.log"))
            print(f"tfmagic: no more lines here; so far {format_bytes(size)} are in {self._folder.folder}")
