"""The text view: every task's lines, prefixed, live, never torn; rich displays where they happened.

Reads the logs twenty times a second in bounded pieces, so that a flood costs neither memory nor the
tasks' own speed: while the cell runs the view follows as far as its budget goes, and catches up when
the cell has ended. Nothing is left out.

On a terminal, unfinished lines (progress bars) stand live at the bottom, a line a task, and what tasks
print goes above them; prefixes and the user's own colours are shown. Elsewhere there are no colours, and
a bar is one line when it is done.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import Displayed
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.log_reader import LogReader, prefix
from tfmagic.runs.tensorflow_noise import is_noise
from tfmagic.runs.terminal.lines import cut
from tfmagic.runs.terminal.screen import Row, ansi_text, plain_text, rows_of
from tfmagic.supervisor.state import CellState

_LIVE_BYTES = 1 << 18  # a task and a look; 5 MB/s a task is more than anybody reads
_CATCH_UP_BYTES = 1 << 20
_LIVE_LINES = 8
_NEWS_S = 0.5
_COLOURS = (36, 33, 35, 32, 94, 91)
_COLOUR_OF_TYPE = {"worker": 0, "ps": 3, "evaluator": 4, "chief": 5}  # of the first task of a type

ShowRich = Callable[[dict[str, Any], dict[str, Any], dict[str, Any], bool], None]


class QuietView:
    """Shows nothing, and keeps nothing either; `news`, as of `TextView`, go to the error stream."""

    interval_s = 1.0

    def __init__(self, displays: deque[Displayed], news: Callable[[], str] = lambda: ""):
        self._incoming, self._news, self._told = displays, news, ""

    def update(self) -> None:
        self._incoming.clear()
        news = self._news()
        if news and news != self._told:
            print(f"tfmagic: {news}", file=sys.stderr)
        self._told = news

    def finish(self, cell: CellState | None) -> None:
        pass

    def add_note(self, text: str) -> None:
        pass


class _Look:
    """How lines look: with colours or without."""

    def __init__(self, colours: bool):
        self._colours = colours

    def prefix(self, task: TaskId) -> str:
        head = prefix(task)
        if not self._colours:
            return head
        colour = _COLOURS[(_COLOUR_OF_TYPE.get(task.type, 0) + task.index) % len(_COLOURS)]
        name = head.rstrip()
        return f"\x1b[{colour}m{name}\x1b[0m{head[len(name) :]}"

    def row(self, row: Row) -> str:
        if not self._colours:
            return plain_text(row)
        text = plain_text(row)
        return f"\x1b[2m{text}\x1b[0m" if is_noise(text) else ansi_text(row)


class _LiveLines:
    """The lines at the bottom of a terminal, drawn anew in place; the cursor stands below them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._widths: list[int] = []

    def draw(self, above: str, lines: list[tuple[str, int]], columns: int) -> str:
        """What to write so that `above` is added and these lines, of so many columns, stand below it."""
        texts = [text for text, _ in lines]
        if not above and texts == self._lines:
            return ""
        # after the window was made narrower, a line takes several
        height = sum(max(1, -(-width // columns)) for width in self._widths)
        erase = f"\r\x1b[{height}A\x1b[J" if height else ""
        self._lines, self._widths = texts, [width for _, width in lines]
        return erase + above + "".join(f"{text}\n" for text in texts)


class TextView:
    """See the module.

    Args:
        tasks: The tasks to follow, each from the offset at which its part of the cell begins.
        displays: Where rich displays arrive.
        show_rich: Publishes a bundle (data, metadata, transient, update) that is more than text, where
            the front end can; None prints its text form.
        news: What somebody should know beside the output, as it is now; printed when it has changed.
        has_begun: Whether the cell has been sent: until then, others write to the tasks' logs.
        terminal: Whether what is written moves the cursor of a terminal; with colours, unless NO_COLOR
            is set.
    """

    interval_s = 0.05

    def __init__(
        self,
        run: RunFolder,
        tasks: Iterable[tuple[TaskId, int]],
        displays: deque[Displayed],
        write: Callable[[str], Any] | None = None,
        show_rich: ShowRich | None = None,
        terminal: bool = False,
        has_begun: Callable[[], bool] = lambda: True,
        news: Callable[[], str] = lambda: "",
    ):
        self._run, self._tasks, self._has_begun = run, tasks, has_begun
        self._readers: dict[TaskId, LogReader] = {}
        self._incoming, self._write, self._show_rich = displays, write, show_rich
        self._seen: dict[TaskId, int] = {}
        self._waiting: dict[TaskId, deque[Displayed]] = {}
        self._look = _Look(terminal and not os.environ.get("NO_COLOR"))
        self._live = _LiveLines() if terminal else None
        self._news, self._told, self._next_news = news, "", 0.0
        self._above: list[str] = []  # to be written above the live lines

    def update(self) -> None:
        """Show what was new at the last look, within the budget of one look.

        What a task displayed before it wrote a line is known a moment after the line is in the log.
        """
        self._begin()
        self._sort_displays()
        resting = []
        for task, reader in self._readers.items():
            seen, self._seen[task] = self._seen[task], reader.offset + reader.behind_bytes
            end = max(seen, reader.offset)
            self._show(task, reader, _LIVE_BYTES, end)
            if reader.offset == end:  # in a flood, the end of a piece is no line to look at
                resting.append(task)
        self._tell_news()
        self._draw(self._live_lines(resting))
        self._flush()

    def finish(self, cell: CellState | None) -> None:
        """Show everything that is left of the cell."""
        if cell is not None and not self._readers and not self._incoming and self._is_silent(cell):
            return
        self._begin()
        self._sort_displays()
        for task, reader in self._readers.items():
            end = None if cell is None else getattr(cell.outcomes.get(task), "log_end", None)
            end = reader.offset + reader.behind_bytes if end is None else max(end, reader.offset)
            while self._show(task, reader, _CATCH_UP_BYTES, end):
                self._draw([])  # no more than a piece is kept
            self._emit_partial(task, reader)
            reader.close()
        self._draw([])
        self._flush()

    def _is_silent(self, cell: CellState) -> bool:
        """Whether no task has written anything; its log need not be opened then."""
        ends = {task: getattr(outcome, "log_end", -1) for task, outcome in cell.outcomes.items()}
        return all(ends.get(task) == start for task, start in self._tasks)

    def add_note(self, text: str) -> None:
        """What comes later would tear the line that the user types now: the next cell tells it."""

    def _begin(self) -> None:
        """Open the logs as soon as it is known where the cell's part of them begins."""
        if self._readers or not self._has_begun():
            return
        for task, start in self._tasks:
            self._readers[task] = LogReader(self._run.log_path(task), task, start)
            self._seen[task], self._waiting[task] = start, deque()

    def _tell_news(self) -> None:
        if time.monotonic() < self._next_news:
            return
        self._next_news = time.monotonic() + _NEWS_S
        news = self._news()
        if news and news != self._told:
            self._emit(f"tfmagic: {news}\n")
        self._told = news

    def _sort_displays(self) -> None:
        while self._incoming:
            shown = self._incoming.popleft()
            if shown.task in self._waiting:
                self._waiting[shown.task].append(shown)

    def _show(self, task: TaskId, reader: LogReader, budget: int, end: int | None) -> bool:
        """Show lines up to the next display, and that. True when there may be more at once."""
        waiting = self._waiting[task]
        stop = end
        if waiting and (end is None or waiting[0].offset <= end):
            stop = waiting[0].offset
        before = reader.offset
        if self._live is None:
            self._emit(reader.read_lines(budget, stop))
        else:
            self._emit_rows(task, reader.read_rows(budget, stop))
        if waiting and reader.offset >= waiting[0].offset:
            self._show_display(task, reader, waiting.popleft())
            return True
        return end is not None and reader.offset > before

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
        if not (is_rich and self._show_rich is not None):
            self._emit_partial(task, reader)
            text = str(data.get("text/plain", ""))
            self._emit_rows(task, rows_of(text.encode("utf-8", "replace")))
            return
        if not is_update:  # which stands where it is
            self._emit_partial(task, reader)
            self._emit(f"{self._look.prefix(task).rstrip()}\n")
        self._draw([])
        self._flush()
        self._show_rich(data, content.get("metadata") or {}, transient, is_update)

    # -- output --

    def _emit_partial(self, task: TaskId, reader: LogReader) -> None:
        if self._live is None:
            self._emit(reader.take_partial())
        else:
            self._emit_rows(task, reader.take_partial_rows())

    def _emit_rows(self, task: TaskId, rows: list[Row]) -> None:
        if rows:
            head, look = self._look.prefix(task), self._look.row
            self._emit("".join([f"{head}{look(row)}\n" for row in rows]))

    def _emit(self, text: str) -> None:
        if not text:
            return
        if self._live is None:
            (self._write or sys.stdout.write)(text)
        else:
            self._above.append(text)

    def _live_lines(self, tasks: list[TaskId]) -> list[tuple[str, int]]:
        """Unfinished lines as they stand now, and their widths."""
        if self._live is None:
            return []
        columns = shutil.get_terminal_size().columns - 1  # the last column may begin a new line
        lines: list[tuple[str, int]] = []
        for task in tasks:
            row = self._readers[task].live_row
            if row and len(lines) < _LIVE_LINES:
                width = len(prefix(task))
                shown, taken = cut(row, max(columns - width, 0))
                lines.append((self._look.prefix(task) + self._look.row(shown), width + taken))
        return lines

    def _draw(self, lines: list[tuple[str, int]]) -> None:
        """Write what was emitted; on a terminal, with these lines below it."""
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
