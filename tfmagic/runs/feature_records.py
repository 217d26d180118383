"""What features of tasks record while a cell runs, on disk: a line {"cell": n, "t": t, "record": ...} each.

    a feature of a task ══ FeatureRecorded ══ append_feature_record ──→ ``TASK.FEATURE.jsonl`` ──┐
    NAME/figures.py for views, NAME/recorded.py for reports, NAME/names.py for results  ←────────┘

The supervisor writes them, beside the displays, with the time at which it got them, in seconds since the
epoch. What is in a record, only the feature knows.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import FeatureRecorded
from tfmagic.runs.folder import RunFolder, append_text, file_size
from tfmagic.system import files

_TAIL_BYTES = 1 << 16


def records_path(run: RunFolder, task: TaskId, feature: str) -> Path:
    return run.folder / f"{task.name}.{feature}.jsonl"


def append_feature_record(run: RunFolder, event: FeatureRecorded, max_bytes: int) -> None:
    """Keep a record, as long as the file of its task and feature is below `max_bytes`."""
    path = records_path(run, event.task, event.feature)
    head = f'{{"cell": {event.cell}, "t": {time.time():.3f}'
    line = f'{head}, "record": {event.record.decode()}}}\n'
    if file_size(path) + len(line) <= max_bytes:
        append_text(path, line)


def newest_records(run: RunFolder, task: TaskId, feature: str, cell: int | None = None) -> list[Any]:
    """Return the last records of a cell, the newest first, from the end of the file.

    Args:
        cell: The number of the cell; None means the last one that has some.
    """
    found: list[Any] = []
    try:
        size = file_size(path := records_path(run, task, feature))
        with open(path, "rb") as file:
            file.seek(max(size - _TAIL_BYTES, 0))
            lines = file.read(_TAIL_BYTES).splitlines()
    except OSError:
        return found
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # the first line is cut short
            content = json.loads(line)
            if cell is not None and content["cell"] < cell:
                break
            cell = content["cell"] if cell is None else cell
            if content["cell"] == cell:
                found.append(content["record"])
    return found


class RecordReader:
    """Reads the records of one task's cell as they come."""

    def __init__(self, run: RunFolder, task: TaskId, feature: str, cell: int):
        self._path, self._head = records_path(run, task, feature), f'{{"cell": {cell}, '
        self._offset = 0

    def read(self) -> Iterator[Any]:
        """Yield the records since the last call."""
        try:
            with open(self._path, encoding="utf-8") as file:
                file.seek(self._offset)
                while (line := file.readline()).endswith("\n"):
                    self._offset += len(line)  # it is ASCII
                    if line.startswith(self._head):
                        with contextlib.suppress(ValueError, KeyError):  # a crash cut the line short
                            yield json.loads(line)["record"]
        except OSError:
            return


def timed_records(run: RunFolder, task: TaskId, feature: str) -> Iterator[tuple[float, Any]]:
    """Yield all records of a task with the time at which each came, in seconds since the epoch.

    A record of a version that did not note the time is left out.
    """
    for line in files.text_of(records_path(run, task, feature)).splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a crash cut the line short
            content = json.loads(line)
            yield float(content["t"]), content["record"]
