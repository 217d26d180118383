"""What is going on in each task, in words: from the cluster's state, for panel and record alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tfmagic.failures.deaths import describe_end
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellRaised, CellReturned, TaskExited, TaskLost
from tfmagic.runs.cell_records import CellRecord, ErrorRecord, TaskRecord
from tfmagic.supervisor import stalls
from tfmagic.supervisor.stalls import TaskActivity
from tfmagic.supervisor.state import CellState, ClusterState, Outcome, Phase
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system import advice
from tfmagic.views.protocol import ViewContext

Texts = Callable[[CellState], Mapping[str, str]]


def describe_cell(stage: ViewContext, cell: CellState | None, now: float) -> CellRecord:
    """The cell as it is now; `cell` is None where the cluster was stopped and nobody knows its outcome."""
    cell = cell or stage.run.outcome
    state = stage.state()
    known = cell or state.cells.get(stage.run.request.cell)
    standings = {} if known is None else stalls.describe(state, known, stage.supervisor.policy(), now)
    tasks = tuple(_describe_task(state, known, task, standings, stage.starts[task]) for task in stage.starts)
    if cell is None and stage.run.done.is_set():
        tasks = tuple(replace(t, state="stopped", note="") if t.end is None else t for t in tasks)
    return CellRecord(
        cell=stage.run.request.cell,
        cluster=stage.cluster,
        shape=stage.shape,
        tasks=tasks,
        prompt=stage.prompt,
        source=stage.source,
        started=time.time() - (now - stage.run.requested_at),
        elapsed_s=now - stage.run.requested_at,
        verdict=_verdict(cell) if stage.run.done.is_set() else "",
    )


def find_place(stage: ViewContext, task: TaskId) -> tuple[str, int]:
    """The file and line of its source at which the task was seen last in the cell; ("", 0) if never."""
    cell = stage.run.outcome or stage.state().cells.get(stage.run.request.cell)
    mark = None if cell is None else cell.marks.get(task)
    return ("", 0) if mark is None or mark.place is None else (mark.place.filename, mark.place.line)


def find_news(stage: ViewContext) -> str:
    """What somebody should know of the cell and its cluster now; "" where all goes well."""
    cell = stage.state().cells.get(stage.run.request.cell)
    return "" if cell is None else tell_news(stage.supervisor, cell)


def tell_news(supervisor: Supervisor, cell: CellState) -> str:
    """Who waits for whom, which tasks beside the cell's are dead, and whether memory runs out."""
    state, policy = supervisor.state, supervisor.policy()
    is_ending = cell.ladder is not None or cell.presses > 0
    waits = "" if is_ending else stalls.explain(state, cell, policy, time.monotonic())
    dead = [
        f"{task} {describe_end(seen.end)}; %tfcluster restart {task} brings it back"
        for task, seen in state.tasks.items()
        if seen.phase is Phase.DEAD and seen.end is not None and task not in cell.request.commands
    ]
    return advice.here("; ".join(text for text in (waits, *dead, supervisor.warning) if text))


def find_ending(stage: ViewContext) -> str:
    """Which tasks are being brought to an end, and why; "" when none is."""
    cell = stage.state().cells.get(stage.run.request.cell)
    if cell is None or cell.ladder is None:
        return ""
    ending = [task.name for task in cell.waiting_for if task in cell.ladder.tasks]
    return f"{cell.ladder.reason}: ending {', '.join(ending[:3])}" if ending else ""


def _describe_task(
    state: ClusterState,
    cell: CellState | None,
    task: TaskId,
    standings: Mapping[TaskId, TaskActivity],
    start: int,
) -> TaskRecord:
    """One task's part of it."""
    outcome = cell.outcomes.get(task) if cell is not None else None
    if cell is None or outcome is None:
        word, note = _live_state(state, cell, task, standings.get(task, TaskActivity()))
        return TaskRecord(task.name, word, note, start=start)
    word, note, error = _ended_state(cell, task, outcome)
    seconds = getattr(outcome, "seconds", None)
    if seconds is None and task in cell.ended_at:
        seconds = max(cell.ended_at[task] - cell.started, 0.0)
    end = getattr(outcome, "log_end", None)
    return TaskRecord(task.name, word, note, seconds, start, end, error)


def _live_state(
    state: ClusterState, cell: CellState | None, task: TaskId, standing: TaskActivity
) -> tuple[str, str]:
    phase = state.tasks[task].phase
    if phase in (Phase.PLANNED, Phase.STARTING, Phase.ENDING):
        return "starting", "a new process" if state.tasks[task].attempt > 1 else ""
    if cell is None:  # it has ended at this very moment
        return "running", ""
    if not cell.sent:
        return "ready", "queued"
    return standing.word, standing.note


def _ended_state(cell: CellState, task: TaskId, outcome: Outcome) -> tuple[str, str, ErrorRecord | None]:
    match outcome:
        case CellReturned():
            return "done", "", None
        case CellRaised(interrupted=True):
            return "stopped", "interrupted", None
        case CellRaised(error=error):
            return (
                "failed",
                "",
                ErrorRecord(_encodable(error.type_name), _encodable(error.message), error.line),
            )
        case TaskExited() | TaskLost():
            if task in cell.replaced:
                return "stopped", "killed: nothing else reached it", None
            return "died", "", ErrorRecord("TaskDied", f"{task} {describe_end(outcome)}")


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _verdict(cell: CellState | None) -> str:
    if cell is None:
        return "stopped"
    if cell.presses:
        return "interrupted"
    if cell.timed_out:
        return "timed out"
    return "done" if all(isinstance(o, CellReturned) for o in cell.outcomes.values()) else "failed"


def with_texts(record: CellRecord, texts: Mapping[str, str]) -> CellRecord:
    """The record with each failure's text in full."""
    tasks = tuple(
        replace(task, error=replace(task.error, text=_encodable(texts.get(task.task, ""))))
        if task.error
        else task
        for task in record.tasks
    )
    return replace(record, tasks=tasks)


def count_done(record: CellRecord) -> int:
    return sum(task.state == "done" for task in record.tasks)
