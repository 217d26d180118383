"""What is kept of a cell beside the tasks' logs, so that it can be shown again when the kernel is gone.

    <run>/cells.jsonl        a line for each cell when it begins, and one when it has ended: the last holds
    <run>/<task>.displays    a line for each rich display of the task: {"cell", "offset", "bundle"}

The supervisor writes the displays, whoever shows a cell its record; anybody may read both.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import Displayed
from tfmagic.runs.folder import RunFolder
from tfmagic.system import files

_SOURCE_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """A task's failure, for people."""

    type: str
    message: str
    line: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task's part of a cell.

    Attributes:
        state: One word: starting, ready, running, waiting, stalled, failed, died, stopped or done.
        note: What it waits for, or how it ended.
        seconds: How long its part took; None while it runs.
        start, end: Its part of the log, in bytes; `end` is None while it runs.
    """

    task: str
    state: str
    note: str = ""
    seconds: float | None = None
    start: int = 0
    end: int | None = None
    error: ErrorRecord | None = None


@dataclass(frozen=True, slots=True)
class CellRecord:
    """A cell and how far it got.

    Attributes:
        cell: Its number in the run's own count.
        prompt: The number that the notebook shows, or 0.
        started: Seconds since the epoch.
        elapsed_s: How long it took, or takes until now.
        verdict: done, failed, interrupted, timed out or stopped; "" while it runs.
        notes: What happened to its tasks after it, before the next cell.
    """

    cell: int
    cluster: str
    shape: str
    tasks: tuple[TaskRecord, ...]
    prompt: int = 0
    source: str = ""
    started: float = 0.0
    elapsed_s: float = 0.0
    verdict: str = ""
    open: tuple[str, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())

    def encode(self) -> str:
        """The record as a line of JSON."""
        content = asdict(self)
        content["source"] = self.source[:_SOURCE_CHARACTERS]
        return json.dumps(content) + "\n"


def append_record(run: RunFolder, record: CellRecord) -> None:
    """Note a cell in its run folder. A full disk costs the note, not the cell."""
    _append(run.folder / "cells.jsonl", record.encode())


def read_records(run: RunFolder) -> list[CellRecord]:
    """The cells of a run, the last one last, each as it was noted last."""
    found: dict[int, CellRecord] = {}
    for line in _lines(run.folder / "cells.jsonl"):
        with contextlib.suppress(ValueError, TypeError, KeyError):  # a line that a crash cut short
            record = _decode(json.loads(line))
            found[record.cell] = record
    return list(found.values())


def append_display(run: RunFolder, shown: Displayed, max_bytes: int) -> None:
    """Keep a display, as long as the task's file is below `max_bytes`."""
    path = displays_path(run, shown.task)
    line = json.dumps({"cell": shown.cell, "offset": shown.offset, "bundle": shown.bundle.decode()})
    with contextlib.suppress(OSError):
        if path.stat().st_size + len(line) > max_bytes:
            return
    _append(path, line + "\n")


def read_displays(run: RunFolder, task: TaskId, cell: int) -> list[Displayed]:
    """What the task displayed in that cell, in order."""
    found = []
    head = json.dumps({"cell": cell, "offset": 0}).partition(' "offset"')[0]
    for line in _lines(displays_path(run, task)):
        if not line.startswith(head):  # of another cell: not worth reading
            continue
        with contextlib.suppress(ValueError, TypeError, KeyError):
            content = json.loads(line)
            if content["cell"] == cell:
                found.append(Displayed(task, 0, cell, int(content["offset"]), content["bundle"].encode()))
    return found


def displays_path(run: RunFolder, task: TaskId) -> Path:
    return run.folder / f"{task.name}.displays"


def _decode(content: dict[str, Any]) -> CellRecord:
    tasks = []
    for part in content.pop("tasks"):
        error = part.pop("error", None)
        tasks.append(TaskRecord(**part, error=None if error is None else ErrorRecord(**error)))
    content |= {name: tuple(content.get(name, ())) for name in ("open", "notes")}
    return CellRecord(tasks=tuple(tasks), **content)


def _append(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        files.append(path, text)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
