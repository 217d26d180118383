"""Records of cells, kept beside the logs so that a cell can be shown again after its kernel has ended.

    <run>/cells.jsonl        a line for each cell when it begins and when it has ended; the last line counts
    <run>/<task>.displays    a line for each rich display of the task: {"cell", "offset", "bundle"}

The supervisor writes the displays, and a view the records. `%tfcluster attach`, the doctor and the server
extension read them.
"""

import contextlib
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import Displayed
from tfmagic.runs.doing import Doing
from tfmagic.runs.folder import RunFolder, append_text, file_size
from tfmagic.runs.kept import is_kept
from tfmagic.runs.kernels import KernelState, kernel_state, last_change
from tfmagic.system import files

LOST = "ended with its kernel"  #: The verdict of a cell whose kernel died or was restarted while it ran.
_SOURCE_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """A task's failure as text."""

    type: str
    message: str
    line: int = 0  #: The line of the cell, or 0.
    text: str = ""  #: The traceback, or how the process ended and its last lines.
    root: bool = True  #: False for a consequence of another task's failure.
    hint: str = ""  #: What to do about a known trap.
    hint_name: str = ""  #: The trap's short name.
    exit_code: int | None = None  #: Of a process that ended by itself.
    signal: str = ""  #: The name of the signal that ended the process.


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task's part of a cell."""

    task: str
    state: str  #: A `Doing`.
    note: str = ""  #: The object it waits for, or how it ended.
    seconds: float | None = None  #: How long its part took; None while it runs.
    start: int = 0  #: The offset in its log at which its part begins.
    end: int | None = None  #: The offset at which its part ends; None while it runs.
    error: ErrorRecord | None = None
    host: str = ""  #: The address of its machine, if that is another one than the notebook's.
    cpu: tuple[int, ...] = ()  #: In per cent of a core, each second at its end, if a panel saw it.


@dataclass(frozen=True, slots=True)
class CellRecord:
    """A cell, complete or as far as it has run."""

    cell: int  #: Its number in the run.
    cluster: str
    shape: str
    tasks: tuple[TaskRecord, ...]
    prompt: int = 0  #: The number that the notebook shows, or 0.
    source: str = ""
    started: float = 0.0  #: In seconds since the epoch.
    elapsed_s: float = 0.0
    verdict: str = ""  #: done, failed, interrupted, timed out, stopped or `LOST`; "" while it runs.
    open: tuple[str, ...] = ()  #: The tasks whose panels are open.
    notes: tuple[str, ...] = ()  #: What happened to its tasks between its end and the next cell.

    def encode(self) -> str:
        """Return the record as a line of JSON."""
        content = msgspec.to_builtins(self)  # asdict() takes a tenth of an empty cell
        content["source"] = self.source[:_SOURCE_CHARACTERS]
        return json.dumps(content) + "\n"


def append_record(run: RunFolder, record: CellRecord) -> None:
    """Note a cell in its run folder."""
    append_text(run.folder / "cells.jsonl", record.encode())


def read_records(run: RunFolder) -> list[CellRecord]:
    """Return the last record of each cell of a run, the last cell last.

    A cell that has no record of its end runs, or has ended with its kernel.
    """
    found: dict[int, CellRecord] = {}
    for line in files.text_of(run.folder / "cells.jsonl").splitlines():
        with contextlib.suppress(ValueError, msgspec.ValidationError):  # a crash cut the line short
            record = msgspec.convert(json.loads(line), CellRecord)
            found[record.cell] = record
    return [record if record.verdict else _bring_up_to_date(record, run) for record in found.values()]


def _bring_up_to_date(record: CellRecord, run: RunFolder) -> CellRecord:
    state, until = kernel_state(run), time.time()
    lives = state is KernelState.LIVES or is_kept(run.folder)
    if not lives:
        until = min(last_change(run.folder), until)
    record = replace(record, elapsed_s=max(until - record.started, record.elapsed_s))
    if lives or state is KernelState.ELSEWHERE:
        return record
    note = "the kernel ended while the cell ran, and the tasks with it"
    tasks = tuple(replace(task, state=Doing.STOPPED, note="ended with its kernel") for task in record.tasks)
    return replace(record, tasks=tasks, verdict=LOST, notes=(*record.notes, note))


def append_display(run: RunFolder, shown: Displayed, max_bytes: int) -> None:
    """Keep a display, as long as the task's file is below `max_bytes`."""
    path = displays_path(run, shown.task)
    line = json.dumps({"cell": shown.cell, "offset": shown.offset, "bundle": shown.bundle.decode()})
    if file_size(path) + len(line) <= max_bytes:
        append_text(path, line + "\n")


def read_displays(run: RunFolder, task: TaskId, cell: int) -> list[Displayed]:
    """Return the displays of the task in that cell, in order."""
    found = []
    head = json.dumps({"cell": cell, "offset": 0}).partition(' "offset"')[0]
    for line in files.text_of(displays_path(run, task)).splitlines():
        if not line.startswith(head):  # of another cell: decoding it would cost time
            continue
        with contextlib.suppress(ValueError, TypeError, KeyError):
            content = json.loads(line)
            found.append(Displayed(task, 0, cell, int(content["offset"]), content["bundle"].encode()))
    return found


def displays_path(run: RunFolder, task: TaskId) -> Path:
    return run.folder / f"{task.name}.displays"
