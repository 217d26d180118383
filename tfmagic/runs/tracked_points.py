"""The points that tasks have tracked, on disk: for each batch a line {"cell": n, "points": {name: [[x, y]]}}.

The supervisor writes them, beside the displays; views and results read them, also after the kernel's end.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import PointsTracked
from tfmagic.runs.folder import RunFolder, append_text, file_size

_TAIL_BYTES = 1 << 16

Points = dict[str, list[tuple[float, float]]]
"""Steps and values, by name."""


def points_path(run: RunFolder, task: TaskId) -> Path:
    return run.folder / f"{task.name}.points"


def append_points(run: RunFolder, tracked: PointsTracked, max_bytes: int) -> None:
    """Keep a batch, as long as the task's file is below `max_bytes`."""
    path = points_path(run, tracked.task)
    line = f'{{"cell": {tracked.cell}, "points": {tracked.points.decode()}}}\n'
    if file_size(path) + len(line) <= max_bytes:
        append_text(path, line)


def last_points(run: RunFolder, task: TaskId, cell: int | None = None) -> dict[str, tuple[float, float]]:
    """Return the last step and value of each name that a task has tracked, from the end of its file.

    Args:
        cell: The number of the cell; None means the last one that has tracked something.
    """
    found: dict[str, tuple[float, float]] = {}
    try:
        size = file_size(path := points_path(run, task))
        with open(path, "rb") as file:
            file.seek(max(size - _TAIL_BYTES, 0))
            lines = file.read(_TAIL_BYTES).splitlines()
    except OSError:
        return found
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):  # the first line is cut short
            batch = json.loads(line)
            if cell is not None and batch["cell"] < cell:
                break
            cell = batch["cell"] if cell is None else cell
            points: Points = batch["points"] if batch["cell"] == cell else {}
            for name, rows in points.items():
                found.setdefault(name, (rows[-1][0], rows[-1][1]))
    return found


class PointsReader:
    """Reads the points of one task's cell as they come."""

    def __init__(self, run: RunFolder, task: TaskId, cell: int):
        self._path, self._head, self._offset = points_path(run, task), f'{{"cell": {cell}, ', 0

    def read(self) -> Iterator[Points]:
        """Yield the batches since the last call."""
        try:
            with open(self._path, encoding="utf-8") as file:
                file.seek(self._offset)
                while (line := file.readline()).endswith("\n"):
                    self._offset += len(line)  # it is ASCII
                    if line.startswith(self._head):
                        with contextlib.suppress(ValueError, KeyError):  # a crash cut the line short
                            yield json.loads(line)["points"]
        except OSError:
            return
