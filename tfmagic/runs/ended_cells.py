"""The cells of a run that have ended, read from its cells.jsonl as it grows, in bounded time and memory."""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tfmagic.runs.status_reader import clean_text
from tfmagic.system import files

VERDICTS = ("done", "failed", "interrupted", "timed out", "stopped")
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
        with suppress(OSError):
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
        while self.offset > before:  # it stops at the end, or before a line that is not complete yet
            before = self.offset
            self.read_ended(_MAX_LINE)
        return len(self.seen)

    def _read(self, max_bytes: int) -> bytes:
        with suppress(OSError):
            return files.read_bytes(self.path, max_bytes, self.offset)
        return b""


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
