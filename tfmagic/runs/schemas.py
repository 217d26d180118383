"""What programs get as JSON: the structs below are the schemas of every ``--json``, and of the agents' tools.

    run folder ── cells.jsonl, <task>.log, status.json ──→ reports ──→ `as_json` ──→ a line
    records of features ── feature_fields ────────────────────┘

The commands of the notebook and the shell, and the server extension, build their answers here: a cell is
described the same way while its kernel is busy and after its end. A field is None where it is not known.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tfmagic.protocol.cluster_spec import TaskId, parse_task
from tfmagic.runs import feature_fields
from tfmagic.runs.cell_records import CellRecord, ErrorRecord, read_records
from tfmagic.runs.doing import ENDS
from tfmagic.runs.feature_fields import OfRun, OfTask
from tfmagic.runs.feature_fields import Report as Report
from tfmagic.runs.folder import RunFolder, file_size
from tfmagic.runs.given_hints import count_hints, read_hints
from tfmagic.runs.log_reader import cut_lines, prefix, tail_lines
from tfmagic.runs.status_reader import Snapshot, read_snapshot, row_of, state_of

MOST_CHARACTERS = 2000  #: of a message; TensorFlow's can have a hundred times as many
_LINE_CHARACTERS = 300
RUNS = "running"  #: The state of a cell that has not ended.


class ErrorReport(Report, frozen=True, kw_only=True):
    """A task's failure in a cell or a run."""

    task: str
    type: str  #: The class of the exception; TaskDied for a process that ended.
    message: str
    cell_line: int | None = None  #: The line of the cell.
    place: str = ""  #: The line of a script.
    root: bool = True  #: False for a consequence of another task's failure.
    hint: str = ""  #: What to do about a known trap.
    hint_name: str = ""  #: The trap's short name.
    exit_code: int | None = None  #: Of a process that ended by itself.
    signal: str = ""  #: The name of the signal that ended the process.
    log: str = ""  #: The path of the task's output.


class TaskReport(OfTask, frozen=True, kw_only=True):
    """A task of a cluster, as a row of the status has it."""

    task: str
    state: str  #: planned, starting, ready, running, ending, dead or stopped; "" where it is not known.
    doing: str = ""  #: running, waiting, stalled, paused, input, or the state between cells.
    line: int | None = None  #: The line of the cell that it executes.
    note: str = ""  #: What it waits for, for example.
    pid: int | None = None
    host: str = ""
    address: str = ""
    cut_off: bool = False  #: Whether its simulated host is cut off from the others.
    uptime_s: float | None = None
    cpu_percent: float | None = None  #: Of one core.
    cpu_s: float | None = None
    memory_bytes: int | None = None  #: Unique to its process.
    shared_bytes: int | None = None
    threads: int | None = None
    open_files: int | None = None
    restarts: int | None = None
    stalls: int | None = None
    log_bytes: int | None = None
    not_forked: str = ""  #: Why its process imported TensorFlow itself.
    log: str = ""  #: The path of its output.


class ClusterReport(Report, frozen=True, kw_only=True):
    """A cluster of this user, for the shell's ``status``."""

    run: str
    cluster: str
    shape: str
    state: str  #: running, kept, ended, died, elsewhere or unknown.
    pid: int | None  #: The kernel's.
    host: str
    started: float  #: In seconds since the epoch.
    written: float | None  #: When the kernel last wrote its state.
    folder: str
    tasks: list[TaskReport]
    cells: dict[str, float] | None  #: The number of cells by state.


class ProgressReport(OfTask, frozen=True, kw_only=True):
    """What a task does in a cell."""

    task: str
    state: str  #: running, waiting, stalled, ..., done, failed, died or stopped.
    note: str = ""
    line: int | None = None  #: The line of the cell that it executes.
    last_line: str = ""  #: The last line that it has written.


class HintReport(Report, frozen=True, kw_only=True):
    """A hint that is no failure's: something that neither TensorFlow nor Keras reports."""

    name: str  #: Its short name.
    advice: str
    tasks: list[str]  #: The tasks that it is about; empty where the advice names them.


class CellReport(Report, frozen=True, kw_only=True):
    """A cell that runs or has ended."""

    cell: int  #: The number that the notebook shows, or 0.
    state: str  #: running, done, failed, interrupted, timed out, stopped, or ended with its kernel.
    seconds: float
    tasks: list[ProgressReport]
    errors: list[ErrorReport]  #: The root cause first.
    hints: list[HintReport] = msgspec.field(default_factory=list)


class WaitReport(Report, frozen=True, kw_only=True):
    """The cells that ``wait`` has waited for."""

    cluster: str
    run: str
    state: str  #: running while a cell runs, else failed if one has not ended well, else done.
    cells: list[CellReport]


class LogReport(Report, frozen=True, kw_only=True):
    """A piece of a task's output."""

    task: str
    text: str
    start: int  #: The offset of the piece, in bytes.
    next: int  #: The offset for ``--since`` that continues it.
    size: int  #: The length of the output so far, in bytes.
    path: str


class FindingReport(Report, frozen=True, kw_only=True):
    """A finding of the doctor."""

    severity: str  #: fine, note or trouble.
    what: str
    advice: str = ""


class RunReport(OfRun, frozen=True, kw_only=True):
    """The outcome of ``tfmagic run``."""

    outcome: str  #: succeeded, failed, timed out, interrupted, terminated, broken pipe or not started.
    exit_code: int
    seconds: float
    run: str = ""
    errors: list[ErrorReport] = msgspec.field(default_factory=list)  #: The root cause first.
    message: str = ""  #: Why it was not started.
    hints: list[HintReport] = msgspec.field(default_factory=list)


def as_json(report: Report | Sequence[Report]) -> str:
    """Return a report as a line of JSON."""
    return msgspec.json.encode(report).decode()


def error_reports(record: CellRecord, run: RunFolder) -> list[ErrorReport]:
    """Return the failures of a cell, the root cause first."""
    failed = [(part, part.error) for part in record.tasks if part.error is not None]
    failed.sort(key=lambda found: (not found[1].root, found[0].seconds or 0.0))
    return [error_report(part.task, error, run) for part, error in failed]


def error_report(task: str, error: ErrorRecord, run: RunFolder) -> ErrorReport:
    """Return a task's failure."""
    return ErrorReport(
        task=task,
        type=error.type,
        message=error.message[:MOST_CHARACTERS],
        cell_line=error.line or None,
        root=error.root,
        hint=error.hint,
        hint_name=error.hint_name,
        exit_code=error.exit_code,
        signal=error.signal,
        log=str(run.log_path(parse_task(task))),
    )


def task_report(row: Mapping[str, Any], run: RunFolder) -> TaskReport:
    """Return a row of `clusters.tools.status.status_rows` with what is on disk beside it."""
    task = parse_task(row["task"])
    more = {**feature_fields.of_task(run, task), "log": str(run.log_path(task))}
    known = {name: row.get(name) for name in TaskReport.__struct_fields__ if row.get(name) is not None}
    return msgspec.convert({**known, **more}, TaskReport, strict=False)


def cluster_report(snapshot: Snapshot, base: Path) -> ClusterReport:
    """Return a cluster, from its status in the state folder `base`."""
    run = RunFolder(base / "runs" / snapshot.run)
    return ClusterReport(
        run=snapshot.run,
        cluster=snapshot.cluster,
        shape=snapshot.shape,
        state=state_of(snapshot),
        pid=snapshot.pid or None,
        host=snapshot.host,
        started=snapshot.started,
        written=snapshot.written or None,
        folder=str(run.folder),
        tasks=[task_report(row_of(task), run) for task in snapshot.tasks],
        cells=dict(snapshot.cells) if snapshot.cells else None,
    )


def cell_report(record: CellRecord, run: RunFolder, lines: Mapping[str, int] = {}) -> CellReport:
    """Return how far a cell is, or how it ended.

    Args:
        lines: The line of the cell that each task executes, where it is known.
    """
    parts = [(part, parse_task(part.task)) for part in record.tasks]
    return CellReport(
        cell=record.prompt,
        state=record.verdict or RUNS,
        seconds=round(record.elapsed_s, 3),
        tasks=[
            ProgressReport(
                task=part.task,
                state=str(part.state),
                note=part.note,
                line=lines.get(part.task),
                last_line=_last_line(run, task, part.start, part.end),
                **feature_fields.of_task(run, task, record.cell),
            )
            for part, task in parts
        ],
        errors=error_reports(record, run),
        hints=hint_reports(run, record.cell),
    )


def hint_reports(run: RunFolder, cell: int | None = None) -> list[HintReport]:
    """Return the hints that were given during a cell, or in a whole run."""
    found = read_hints(run, cell)
    return [HintReport(name=hint.name, advice=hint.advice, tasks=list(hint.tasks)) for hint in found]


def wait_report(cluster: str, run: RunFolder, cells: Sequence[CellReport]) -> WaitReport:
    """Return the common state of some cells."""
    states = {cell.state for cell in cells}
    state = RUNS if RUNS in states else "done" if states <= {"done"} else "failed"
    return WaitReport(cluster=cluster, run=str(run), state=state, cells=list(cells))


def newest_cell(run: RunFolder) -> CellReport | None:
    """Return the last cell of a run, as its kernel has noted it; None if there is none."""
    record, snapshot = next(reversed(read_records(run)), None), read_snapshot(run.folder)
    if record is None:
        return None
    tasks = {} if snapshot is None or record.verdict else {task.task: task for task in snapshot.tasks}
    lines = {name: int(task.numbers["line"]) for name, task in tasks.items() if "line" in task.numbers}
    return cell_report(record, run, lines)


def log_report(run: RunFolder, task: TaskId, since: int, max_bytes: int | None) -> LogReport:
    """Return whole lines of a task's output from an offset on; an unfinished line at its end, too."""
    path = run.log_path(task)
    size = file_size(path)
    start = min(since, size)
    text, end = cut_lines(path, start, size if max_bytes is None else min(size, start + max_bytes), size)
    return LogReport(task=task.name, text=text, start=start, next=end, size=size, path=str(path))


def log_text(report: LogReport, command: str) -> str:
    """Return a piece of a log as prefixed lines, and how `command` goes on after it."""
    head = prefix(report.task)
    lines = "".join(f"{head}{line}\n" for line in report.text.split("\n")[:-1])
    left = f"{report.size - report.next:,} bytes more" if report.size > report.next else "the end so far"
    return (
        f"{lines}tfmagic: {report.task}: {left}; go on with  {command} {report.task} --since {report.next}\n"
    )


def describe(cell: CellReport) -> str:
    """Return a sentence about a cell.

    While it runs: ``cell [5] still runs: step 340, loss 0.21 (worker-0), line 4; 62 s``.
    """
    hints = f"; {count_hints(cell.hints)}" if cell.hints else ""
    if cell.state != RUNS:
        root = cell.errors[0] if cell.errors else None
        place = f", at line {root.cell_line} of the cell" if root is not None and root.cell_line else ""
        why = f": {root.task}: {root.type}: {root.message.partition(chr(10))[0]}{place}" if root else ""
        return f"cell [{cell.cell}] {cell.state} after {cell.seconds:.0f} s{why}{hints}"
    if cell.tasks and all(task.note == "queued" for task in cell.tasks):
        return f"cell [{cell.cell}] waits for its turn; {cell.seconds:.0f} s"
    recorded = feature_fields.describe({task.task: task for task in cell.tasks})
    what = ", ".join([*recorded, *_places(cell.tasks)])
    return f"cell [{cell.cell}] still runs: {f'{what}; ' if what else ''}{cell.seconds:.0f} s{hints}"


def _places(tasks: Sequence[ProgressReport]) -> list[str]:
    """Return the lines that tasks execute, equal ones once; without names where all tasks are at one."""
    places: dict[str, list[str]] = {}
    for task in tasks:
        if task.line and task.state not in ENDS:
            where = f"line {task.line}{f' ({task.note})' if task.note else ''}"
            places.setdefault(where, []).append(task.task)
    if len(places) == 1 and len(tasks) == len(next(iter(places.values()))):
        return list(places)
    return [f"{place} ({', '.join(names)})" for place, names in places.items()]


def _last_line(run: RunFolder, task: TaskId, start: int, end: int | None) -> str:
    lines = tail_lines(run.log_path(task), 1, 1 << 14, since=start, until=end)
    return lines[-1][:_LINE_CHARACTERS] if lines else ""
