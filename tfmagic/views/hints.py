"""The hints of a cell, for its view: bars in panel and saved form, lines in text.

hints.jsonl ── CellHints ─┐
failures of its tasks ────┴→ hints_of: each once, with all of its tasks
"""

import time
from collections.abc import Callable, Iterable

from tfmagic.runs.cell_records import CellRecord
from tfmagic.runs.folder import RunFolder, file_size
from tfmagic.runs.given_hints import Hint, fold_hints, hints_path, read_hints

_MOST_SAID, _SAID_CHARACTERS = 3, 200  # sentences, and characters of each
_SOON_S = 3.0  # a cell goes on so long before its text has a hint: that of a short one has it once


def hints_of(record: CellRecord, given: Iterable[Hint]) -> list[Hint]:
    """Return the hints that were given during a cell, and those for its failures."""
    failed = [(task.task, task.error) for task in record.tasks if task.error is not None and task.error.hint]
    return fold_hints([*given, *(Hint(error.hint_name, error.hint, (task,)) for task, error in failed)])


def announce(record: CellRecord, hints: Iterable[Hint]) -> str:
    """Return what is read out of a cell that failed, or has hints, the cause before the rest; else "".

    `panel.js` says the same of a cell that has a panel.
    """
    failed = [(task, task.error) for task in record.tasks if task.error is not None]
    failed.sort(key=lambda found: not found[1].root)
    found = [
        f"{task.task} {task.state}{'' if error.root else ' as a consequence'}: {error.type}: {error.message}"
        for task, error in failed
    ]
    found += [f"Hint: {hint.advice}" for hint in hints]
    if not found and record.verdict in ("done", "stopped"):
        return ""
    more = [f"and {len(found) - _MOST_SAID} more"] if len(found) > _MOST_SAID else []
    end = f"Cell {record.prompt or record.cell} is over: {record.verdict}"
    return ". ".join([*(sentence[:_SAID_CHARACTERS] for sentence in found[:_MOST_SAID]), *more, end])


class CellHints:
    """The hints that were given during one cell, read from disk when there are more.

    Args:
        cell: Its number; None means all cells of the run.
        may_have: Whether there might be some, for which a file is read.
    """

    def __init__(self, run: RunFolder, cell: int | None, may_have: Callable[[], bool]):
        self._run, self._cell, self._may_have = run, cell, may_have
        self._size, self._found = 0, list[Hint]()
        self._seen: dict[tuple[str, str], float] = {}  # when a hint was seen first, by name and advice
        self._told: set[tuple[str, str]] = set()

    def read(self) -> list[Hint]:
        """Return those that there are now."""
        if self._may_have() and (size := file_size(hints_path(self._run))) != self._size:
            self._size, self._found = size, read_hints(self._run, self._cell)
        return self._found

    def due(self) -> list[Hint]:
        """Return those that the user should see before the end of a cell that goes on; each once."""
        now, found = time.monotonic(), []
        for hint in self.read():
            key = hint.name, hint.advice
            if now - self._seen.setdefault(key, now) >= _SOON_S and key not in self._told:
                self._told.add(key)
                found.append(hint)
        return found
