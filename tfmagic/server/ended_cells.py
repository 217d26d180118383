"""Read from a run's cells.jsonl which cells have ended, and after how many seconds.

`metrics` feeds the cells into a histogram, `handlers` counts them. Files in a state folder can hold anything,
so nothing here raises for their content, follows a link or waits for a pipe.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tfmagic.runs.status_reader import clean_text, read_regular

VERDICTS = ("done", "failed", "interrupted", "timed out", "stopped")
_SCRAPE_BYTES = 1 << 18  # 300 cells of 4 tasks, 10 ms of parsing; the next scrape reads the rest
_MAX_LINE = 1 << 20  # 100,000 characters of source, and the failures
_RUNS = b'"verdict": ""'  # a cell that has begun; within a string JSON has a backslash before the quote


class EndedCell(NamedTuple):
    """A cell that has ended, as its record describes it."""

    cell: int
    cluster: str
    verdict: str
    seconds: float


@dataclass(slots=True)
class CellsFile:
    """The cells.jsonl of one run, read from where the last call stopped; each cell is returned once."""

    path: Path
    offset: int = 0
    seen: set[int] = field(default_factory=set)

    def skip_all_but(self, max_bytes: int) -> None:
        """Begin near the end. The first line is cut then, is no JSON, and is ignored."""
        with contextlib.suppress(OSError):
            self.offset = max(self.path.stat().st_size - max_bytes, 0)

    def read_ended(self, max_bytes: int) -> tuple[list[EndedCell], int]:
        """Return the cells that have ended since the last call, and the number of bytes read."""
        data = self._read(max_bytes)
        if len(data) == max_bytes and b"\n" not in data:
            data = self._read(max(max_bytes, _MAX_LINE))
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) >= _MAX_LINE:
            whole = data  # tfmagic writes no line of that length: skip it; its end is no JSON and is ignored
        self.offset += len(whole)
        found = []
        for line in whole.splitlines():
            cell = None if _RUNS in line else _decode(line)
            if cell and cell.cell not in self.seen:
                self.seen.add(cell.cell)
                found.append(cell)
        return found, len(data)

    def count_all(self) -> int:
        """Return the number of cells that have ended, in constant memory."""
        before = -1
        while self.offset > before:  # it stands still at the end, or before a line that is not complete yet
            before = self.offset
            self.read_ended(_MAX_LINE)
        return len(self.seen)

    def _read(self, max_bytes: int) -> bytes:
        with contextlib.suppress(OSError):
            return read_regular(self.path, max_bytes, self.offset)
        return b""


class EndedCells:
    """The ended cells of all runs, each returned by one scrape.

    The first scrape reads the end of the history that it finds, up to `_SCRAPE_BYTES`. The rest is never
    read: later it would look like cells that end now.
    """

    def __init__(self) -> None:
        self._files: dict[Path, CellsFile] = {}
        self._has_begun = False

    def read(self, folders: Iterable[Path]) -> list[EndedCell]:
        """Return the cells that these runs have recorded since the last call, in bounded time."""
        found, budget = [], _SCRAPE_BYTES
        for folder in folders:
            file = self._files.get(folder)
            if file is None:
                file = self._files[folder] = CellsFile(folder / "cells.jsonl")
                if not self._has_begun:
                    file.skip_all_but(budget)
            if budget > 0:
                cells, size = file.read_ended(budget)
                found += cells
                budget -= size
        self._has_begun = True
        # a run that is not among the newest now can come back, and its cells have been counted
        for folder in [folder for folder in self._files if not folder.exists()]:
            del self._files[folder]
        return found


def _decode(line: bytes) -> EndedCell | None:
    """Return the cell of a line; None if it has not ended, or if the line is no record."""
    try:
        content = json.loads(line)
        verdict, seconds = content["verdict"], float(content["elapsed_s"])
        if verdict not in VERDICTS or not 0 <= seconds < 1e9:
            return None
        return EndedCell(int(content["cell"]), clean_text(content["cluster"]), verdict, seconds)
    # a line that a crash cut short, or that another program wrote
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
