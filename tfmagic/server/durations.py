"""How long cells took: a histogram by cluster and verdict, out of the runs' cells.jsonl.

Each line is read once, in the scrape after it was written, and a cell counts once. The counts outlive
the folders: a counter that sank when an old run is pruned would be read as a restart of the server. Of the
history that the first scrape finds, as much is counted as is read in that scrape, and no more later: it
would be read as cells that end now.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from tfmagic.runs.status_reader import clean_text

BUCKETS_S = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)
"""From a cell that does nothing on warm tasks, 1 ms, to a training of some hours."""

VERDICTS = ("done", "failed", "interrupted", "timed out", "stopped")
_SCRAPE_BYTES = 1 << 18  # 300 cells of 4 tasks, 10 ms of parsing; what is left waits for the next scrape
_MAX_LINE = 1 << 20  # 100,000 characters of source, and what failed
_RUNS = b'"verdict": ""'  # of a cell that has begun; within a string JSON has a backslash before the quote


@dataclass(frozen=True, slots=True)
class EndedCell:
    """A cell that has ended, as its record says."""

    cell: int
    cluster: str
    verdict: str
    seconds: float


@dataclass(slots=True)
class Histogram:
    """Durations of one cluster's cells of one verdict; `counts` by bucket, the last is for the rest."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def cumulated(self) -> list[tuple[str, float]]:
        """Bucket bounds with the count at or below each, as Prometheus has them."""
        bounds = [*(str(bound) for bound in BUCKETS_S), "+Inf"]
        return list(zip(bounds, accumulate(map(float, self.counts)), strict=True))


@dataclass(slots=True)
class CellsFile:
    """Follows the cells.jsonl of one run; holds an offset and the numbers of the cells that it gave."""

    path: Path
    offset: int = 0
    seen: set[int] = field(default_factory=set)

    def skip_all_but(self, max_bytes: int) -> None:
        """Begin near the end; the line that is cut is no JSON then."""
        with contextlib.suppress(OSError):
            self.offset = max(self.path.stat().st_size - max_bytes, 0)

    def read_ended(self, max_bytes: int) -> tuple[list[EndedCell], int]:
        """Cells that have ended since the last call, and how many bytes that took."""
        data = self._read(max_bytes)
        if len(data) == max_bytes and b"\n" not in data:
            data = self._read(max(max_bytes, _MAX_LINE))
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) >= _MAX_LINE:
            whole = data  # no line of ours is that long: go past it, its end is then no JSON
        self.offset += len(whole)
        found = []
        for line in whole.splitlines():
            cell = None if _RUNS in line else _decode(line)
            if cell and cell.cell not in self.seen:
                self.seen.add(cell.cell)
                found.append(cell)
        return found, len(data)

    def read_all(self) -> Iterator[EndedCell]:
        """Every cell that has ended, in constant memory."""
        before = -1
        while self.offset > before:  # a line that is not complete yet is the end
            before = self.offset
            found, _ = self.read_ended(_MAX_LINE)
            yield from found

    def _read(self, max_bytes: int) -> bytes:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            facts = os.fstat(fd)
            return os.pread(fd, max_bytes, self.offset) if stat.S_ISREG(facts.st_mode) else b""
        except OSError:
            return b""
        finally:
            os.close(fd)


class CellDurations:
    """The histograms of everything that was read; only grows.

    Attributes:
        histograms: By cluster and verdict.
    """

    def __init__(self) -> None:
        self.histograms: dict[tuple[str, str], Histogram] = {}
        self._files: dict[Path, CellsFile] = {}
        self._has_begun = False

    def update(self, folders: Iterable[Path]) -> None:
        """Read what these runs have noted since the last time, in bounded time."""
        budget = _SCRAPE_BYTES
        for folder in folders:
            file = self._files.get(folder)
            if file is None:
                file = self._files[folder] = CellsFile(folder / "cells.jsonl")
                if not self._has_begun:
                    file.skip_all_but(budget)
            if budget > 0:
                found, read = file.read_ended(budget)
                budget -= read
                for cell in found:
                    self.histograms.setdefault((cell.cluster, cell.verdict), Histogram()).observe(
                        cell.seconds
                    )
        self._has_begun = True
        # a run that is only out of sight may come back, and its cells have been counted
        for folder in [folder for folder in self._files if not folder.exists()]:
            del self._files[folder]


def _decode(line: bytes) -> EndedCell | None:
    """The cell of a line; None for one that has not ended, and for what is not a record."""
    try:
        content = json.loads(line)
        verdict, seconds = content["verdict"], float(content["elapsed_s"])
        if verdict not in VERDICTS or not 0 <= seconds < 1e9:
            return None
        return EndedCell(int(content["cell"]), clean_text(content["cluster"]), verdict, seconds)
    # a line that a crash cut short, or one of somebody else's
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
