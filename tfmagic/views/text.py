"""The text view: every task's lines, prefixed, live, never torn; rich displays where they happened.

Reads the logs twenty times a second in bounded pieces, so that a flood costs neither memory nor the
tasks' own speed: while the cell runs the view follows as far as its budget goes, and catches up when
the cell has ended. Nothing is left out.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tfmagic.events import CellRaised, CellReturned, Displayed
from tfmagic.runs import Run
from tfmagic.spec import TaskId
from tfmagic.states import CellState
from tfmagic.tasklog import LogReader, prefix

_LIVE_BYTES = 1 << 18  # a task and a look; 5 MB/s a task is more than anybody reads
_CATCH_UP_BYTES = 1 << 20


class QuietView:
    """Shows nothing, and keeps nothing either."""

    interval_s = 1.0

    def __init__(self, displays: deque[Displayed]):
        self._incoming = displays

    def update(self) -> None:
        self._incoming.clear()

    def finish(self, cell: CellState | None) -> None:
        pass


class TextView:
    """See the module.

    Args:
        tasks: The tasks to follow, each from the offset at which its part of the cell begins.
        displays: Where rich displays arrive.
        show_rich: Publishes a bundle (data, metadata) that is more than text, where the front end
            can; None prints its text form.
    """

    interval_s = 0.05

    def __init__(
        self,
        run: Run,
        tasks: Iterable[tuple[TaskId, int]],
        displays: deque[Displayed],
        write: Callable[[str], Any] | None = None,
        show_rich: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
    ):
        self._readers = {task: LogReader(run.log_path(task), task, start) for task, start in tasks}
        self._incoming, self._write, self._show_rich = displays, write, show_rich
        self._seen = {task: reader.offset for task, reader in self._readers.items()}
        self._waiting: dict[TaskId, deque[Displayed]] = {task: deque() for task in self._readers}

    def update(self) -> None:
        """Show what was new at the last look, within the budget of one look.

        What a task displayed before it wrote a line is known a moment after the line is in the log.
        """
        self._sort_displays()
        for task, reader in self._readers.items():
            seen, self._seen[task] = self._seen[task], reader.offset + reader.behind_bytes
            self._show(task, reader, _LIVE_BYTES, max(seen, reader.offset))
        self._flush()

    def finish(self, cell: CellState | None) -> None:
        """Show everything that is left of the cell."""
        self._sort_displays()
        for task, reader in self._readers.items():
            end = None
            if cell is not None:
                outcome = cell.outcomes.get(task)
                end = outcome.log_end if isinstance(outcome, CellReturned | CellRaised) else None
            end = reader.offset + reader.behind_bytes if end is None else max(end, reader.offset)
            while self._show(task, reader, _CATCH_UP_BYTES, end):
                pass
            self._emit(reader.take_partial())
            reader.close()
        self._flush()

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
        self._emit(reader.read_lines(budget, stop))
        if waiting and reader.offset >= waiting[0].offset:
            self._emit(reader.take_partial())
            self._show_display(waiting.popleft())
            return True
        return end is not None and reader.offset > before

    def _show_display(self, shown: Displayed) -> None:
        content = json.loads(shown.bundle)
        data = content["data"]
        if content.get("clear") or not data:
            return
        head = prefix(shown.task)
        rich = [kind for kind in data if kind != "text/plain"]
        text = str(data.get("text/plain", ""))
        if rich and self._show_rich is not None:
            self._emit(f"{head.rstrip()}\n")
            self._flush()
            self._show_rich(data, content["metadata"])
        else:
            self._emit("".join(f"{head}{line}\n" for line in text.splitlines()))

    def _emit(self, text: str) -> None:
        if text:
            (self._write or sys.stdout.write)(text)

    def _flush(self) -> None:
        if self._write is None:
            sys.stdout.flush()
