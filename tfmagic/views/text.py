"""The text view: the lines of every task, prefixed, live, and never torn; rich displays where they happened.

It reads the logs twenty times a second in bounded pieces, so that a flood of output costs neither memory nor
the speed of the tasks. While the cell runs, the view reads as much as its budget allows; when the cell has
ended, it shows the rest. Nothing is left out.

On a terminal, unfinished lines (progress bars) stand at the bottom, one line a task, and complete lines are
written above them; prefixes and the user's own text have colours. Elsewhere there are no colours, and a bar
becomes one line when it is done.
"""

import json
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellReturned, Displayed
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.given_hints import Hint
from tfmagic.runs.log_reader import LogReader, prefix
from tfmagic.runs.tensorflow_noise import is_noise
from tfmagic.runs.terminal.lines import cut
from tfmagic.runs.terminal.screen import Row, ansi_text, plain_text, rows_of
from tfmagic.supervisor.state import CellState
from tfmagic.system import notices
from tfmagic.views.figures import Figures
from tfmagic.views.hints import CellHints

_LIVE_BYTES = 1 << 18  # a task and a look; 5 MB/s a task is more than anyone reads
_CATCH_UP_BYTES = 1 << 20
_LIVE_LINES = 8
_NEWS_S = 0.5
_FIGURES_S = 60.0  # between two looks at what features show
_COLOURS = (36, 33, 35, 32, 94, 91)
_COLOUR_OF_TYPE = {"worker": 0, "ps": 3, "evaluator": 4, "chief": 5}  # of the first task of a type

ShowRich = Callable[[dict[str, Any], dict[str, Any], dict[str, Any], bool], None]


class _News:
    """Gives the present news about a cell, once, at most every `interval_s`; "" if they did not change."""

    def __init__(self, news: Callable[[], str], interval_s: float = 0.0):
        self._news, self._interval_s = news, interval_s
        self._shown, self._due = "", 0.0

    def take(self) -> str:
        if time.monotonic() < self._due:
            return ""
        self._due = time.monotonic() + self._interval_s
        before, self._shown = self._shown, self._news()
        return self._shown if self._shown != before else ""


class QuietView:
    """Shows no output; prints `news`, as `TextView` does, to the error stream."""

    interval_s = 1.0

    def __init__(
        self,
        displays: deque[Displayed],
        news: Callable[[], str] = lambda: "",
        starts: Collection[tuple[TaskId, int]] = (),
    ):
        self._incoming, self._news, self._starts = displays, _News(news), starts
        self._has_dropped = False

    def has_nothing(self, cell: CellState) -> bool:
        """Check whether a cell that has ended has left nothing to show."""
        return not self._has_dropped and not self._incoming and _left_no_lines(cell, self._starts)

    def show_now(self) -> None:
        pass

    def update(self) -> None:
        self._has_dropped |= bool(self._incoming)
        self._incoming.clear()
        if news := self._news.take():
            notices.tell(f"tfmagic: {news}")

    def finish(self, cell: CellState | None) -> None:
        pass

    def add_note(self, text: str) -> None:
        pass


def _left_no_lines(cell: CellState, starts: Collection[tuple[TaskId, int]]) -> bool:
    """Check whether no log has grown in a cell that has ended."""
    ends = {task: getattr(outcome, "log_end", -1) for task, outcome in cell.outcomes.items()}
    return all(ends.get(task) == start for task, start in starts)


def _is_good(cell: CellState) -> bool:
    return all(isinstance(outcome, CellReturned) for outcome in cell.outcomes.values())


class _LiveLines:
    """The lines at the bottom of a terminal, which are drawn again in place; the cursor is below them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._widths: list[int] = []

    def draw(self, above: str, lines: list[tuple[str, int]], columns: int) -> str:
        """Return the text to write so that `above` is added, with these (line, width) below it."""
        texts = [text for text, _ in lines]
        if not above and texts == self._lines:
            return ""
        # a line takes several after the window was made narrower
        height = sum(max(1, -(-width // columns)) for width in self._widths)
        erase = f"\r\x1b[{height}A\x1b[J" if height else ""
        self._lines, self._widths = texts, [width for _, width in lines]
        return erase + above + "".join(f"{text}\n" for text in texts)


class TextView:
    """Writes the lines of a cell's tasks.

    Args:
        tasks: The tasks to follow, each with the log offset at which its part of the cell begins; read when
            the cell has begun, since that of a queued cell is not known before.
        displays: The queue in which rich displays arrive.
        show_rich: Publishes a bundle (data, metadata, transient, update) that is more than text, where
            the front end can; None prints its text form.
        updates: Whether the front end can change a display; else it gets pictures, and text of the rest.
        news: Returns what the user should know beside the output; printed when it has changed.
        has_begun: Whether the cell was sent: until then, other cells write to the tasks' logs.
        terminal: Whether the output can move the cursor of a terminal; with colours, unless NO_COLOR is
            set.
        cell: The number of the cell whose figures are told, now and then, and at the end; 0: none.
        has_records: Whether there might be some, for which files are read.
        hints: Those of the cell: printed in time if it goes on, and once more below its output. After a
            failure the exception has them.
    """

    interval_s = 0.05

    def __init__(
        self,
        run: RunFolder,
        tasks: Collection[tuple[TaskId, int]],
        displays: deque[Displayed],
        write: Callable[[str], Any] | None = None,
        show_rich: ShowRich | None = None,
        terminal: bool = False,
        *,
        updates: bool = True,
        has_begun: Callable[[], bool] = lambda: True,
        news: Callable[[], str] = lambda: "",
        cell: int = 0,
        has_records: Callable[[], bool] = lambda: True,
        hints: CellHints | None = None,
    ):
        self._has_records, self._hints = has_records, hints
        self._figures = Figures(run, cell, [task for task, _ in tasks] if cell else ())
        self._figures_due = time.monotonic() + _FIGURES_S
        self._told: list[str] = []  # their lines as they were shown last
        self._run, self._tasks, self._has_begun, self._updates = run, tasks, has_begun, updates
        self._readers: dict[TaskId, LogReader] = {}
        self._incoming, self._write, self._show_rich = displays, write, show_rich
        self._waiting: dict[TaskId, deque[Displayed]] = {}
        self._has_colours = terminal and not os.environ.get("NO_COLOR")
        self._live = _LiveLines() if terminal else None
        self._news = _News(news, _NEWS_S)
        self._above: list[str] = []  # to be written above the live lines

    def show_now(self) -> None:
        """Do nothing: text stays where it was printed."""

    def update(self) -> None:
        """Show what had been written at the last look, within the budget of one look."""
        self._begin()
        at_end = []
        for task, reader in self._readers.items():
            end = reader.log.next_end()
            self._show(task, reader, _LIVE_BYTES, end)
            if reader.log.offset == end:  # in a flood, the end of a piece is not the line that is there
                at_end.append(task)
        if news := self._news.take():
            self._emit(f"tfmagic: {news}\n")
        if self._hints is not None:
            self._emit_hints(self._hints.due())
        if time.monotonic() >= self._figures_due:
            self._figures_due = time.monotonic() + _FIGURES_S
            self._show_figures()
        self._draw(self._live_lines(at_end))
        self._flush()

    def finish(self, cell: CellState | None) -> None:
        """Show everything that is left of the cell."""
        if cell is not None and self.has_nothing(cell):
            return
        self._begin()
        for task, reader in self._readers.items():
            log = reader.log
            end = None if cell is None else getattr(cell.outcomes.get(task), "log_end", None)
            end = log.offset + log.behind_bytes if end is None else max(end, log.offset)
            while self._show(task, reader, _CATCH_UP_BYTES, end):
                self._draw([])  # so that no more than a piece is held in memory
            self._emit_partial(task, reader)
            log.close()
        self._show_figures()
        if self._hints is not None and (cell is None or _is_good(cell)):
            self._emit_hints(self._hints.read())
        self._draw([])
        self._flush()

    def has_nothing(self, cell: CellState) -> bool:
        """Check whether nothing was shown of a cell that has ended, and nothing is left to show."""
        if self._readers or self._incoming or (self._hints is not None and self._hints.read()):
            return False
        if self._has_records() and (self._figures.read() or self._figures.lines()):
            return False
        return _left_no_lines(cell, self._tasks)

    def add_note(self, text: str) -> None:
        """Print nothing: it would tear the line that the user types now. The next cell shows the note."""

    def _begin(self) -> None:
        """Open the logs once the cell was sent, and sort the new displays by task."""
        if not self._readers and self._has_begun():
            for task, start in self._tasks:
                self._readers[task] = LogReader(self._run.log_path(task), task, start)
                self._waiting[task] = deque()
        while self._readers and self._incoming:  # they can come before the cell is seen to have begun
            shown = self._incoming.popleft()
            if shown.task in self._waiting:
                self._waiting[shown.task].append(shown)

    def _show(self, task: TaskId, reader: LogReader, budget: int, end: int) -> bool:
        """Show lines up to the next display, and that. Return whether there can be more at once."""
        waiting = self._waiting[task]
        stop = min(end, waiting[0].offset) if waiting else end
        before = reader.log.offset
        if self._live is None:
            self._emit(reader.read_lines(budget, stop))
        else:
            self._emit_rows(task, reader.read_rows(budget, stop))
        if waiting and reader.log.offset >= waiting[0].offset:
            self._show_display(task, reader, waiting.popleft())
            return True
        return reader.log.offset > before

    def _show_figures(self) -> None:
        """Print what figures say, if that has changed since the last time."""
        if not self._has_records():
            return
        self._figures.read()
        before, self._told = self._told, self._figures.lines()
        if self._told != before:
            self._emit("".join(f"{line}\n" for line in self._told))

    # -- displays --

    def _show_display(self, task: TaskId, reader: LogReader, shown: Displayed) -> None:
        content = json.loads(shown.bundle)
        data, transient = content["data"], dict(content.get("transient") or {})
        if content.get("clear") or not data:
            return
        name = transient.get("display_id")
        if name is not None:  # tasks run the same cell, and give their displays the same names
            transient["display_id"] = f"{self._run}:{task}:{name}"
        is_update = bool(content.get("update")) and name is not None
        is_rich = name is not None or any(kind != "text/plain" for kind in data)
        if not self._updates:
            is_rich = not is_update and any(kind.startswith("image/") for kind in data)
        if not (is_rich and self._show_rich is not None):
            self._emit_partial(task, reader)
            text = str(data.get("text/plain", ""))
            self._emit_rows(task, rows_of(text.encode("utf-8", "replace")))
            return
        name_of = "" if not any(kind.startswith("image/") for kind in data) else data.get("text/plain", "")
        if name_of and self._updates:  # programs can show a picture without the line above it
            data = {**data, "text/plain": f"[{task}]: {name_of}"}
        elif name_of:  # consoles print both
            data = {kind: part for kind, part in data.items() if kind != "text/plain"}
        if not is_update:  # an updated display stays where it is
            self._emit_partial(task, reader)
            self._emit(f"{self._prefix(task)}{name_of}".rstrip() + "\n")
        self._draw([])
        self._flush()
        self._show_rich(data, content.get("metadata") or {}, transient, is_update)

    # -- output --

    def _prefix(self, task: TaskId) -> str:
        head = prefix(task)
        if not self._has_colours:
            return head
        colour = _COLOURS[(_COLOUR_OF_TYPE.get(task.type, 0) + task.index) % len(_COLOURS)]
        name = head.rstrip()
        return f"\x1b[{colour}m{name}\x1b[0m{head[len(name) :]}"

    def _row_text(self, row: Row) -> str:
        text = plain_text(row)
        if not self._has_colours:
            return text
        return f"\x1b[2m{text}\x1b[0m" if is_noise(text) else ansi_text(row)

    def _emit_partial(self, task: TaskId, reader: LogReader) -> None:
        if self._live is None:
            self._emit(reader.take_partial())
        else:
            self._emit_rows(task, reader.take_partial_rows())

    def _emit_rows(self, task: TaskId, rows: list[Row]) -> None:
        head = self._prefix(task)
        self._emit("".join([f"{head}{self._row_text(row)}\n" for row in rows]))

    def _emit_hints(self, hints: Iterable[Hint]) -> None:
        self._emit("".join([f"tfmagic: {hint.note}\n" for hint in hints]))

    def _emit(self, text: str) -> None:
        if self._live is not None:
            self._above.append(text)
        elif text:
            (self._write or sys.stdout.write)(text)

    def _live_lines(self, tasks: list[TaskId]) -> list[tuple[str, int]]:
        """Return the present unfinished lines and their widths."""
        if self._live is None:
            return []
        columns = shutil.get_terminal_size().columns - 1  # some terminals wrap after the last column
        lines: list[tuple[str, int]] = []
        for task in tasks:
            row = self._readers[task].live_row
            if row and len(lines) < _LIVE_LINES:
                width = len(prefix(task))
                shown, taken = cut(row, max(columns - width, 0))
                lines.append((self._prefix(task) + self._row_text(shown), width + taken))
        return lines

    def _draw(self, lines: list[tuple[str, int]]) -> None:
        """On a terminal: write what was emitted, with these lines below it."""
        if self._live is None:
            return
        above = "".join(self._above)
        self._above.clear()
        text = self._live.draw(above, lines, max(shutil.get_terminal_size().columns, 1))
        if text:
            (self._write or sys.stdout.write)(text)

    def _flush(self) -> None:
        if self._write is None:
            sys.stdout.flush()
