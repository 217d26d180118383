"""Describes what each task of a cell does, from the cluster's state: for the panel and for the record."""

import time
from collections.abc import Mapping
from dataclasses import replace

from tfmagic.failures.deaths import describe_end
from tfmagic.failures.headlines import headline
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import Cause, CellRaised, CellReturned, TaskExited, TaskLost
from tfmagic.runs.cell_records import CellRecord, ErrorRecord, TaskRecord
from tfmagic.runs.doing import FAILURES, Doing
from tfmagic.runs.folder import RunFolder
from tfmagic.supervisor import stall_sentences, stalls
from tfmagic.supervisor.escalation import name_failure
from tfmagic.supervisor.stalls import TaskActivity
from tfmagic.supervisor.state import CellState, ClusterState, Outcome, Phase
from tfmagic.views.protocol import SupervisorFacts, ViewContext

_REQUESTS = (Cause.USER, Cause.RESTART, Cause.CHIEF)  # their end is no failure of the task's


def describe_cell(context: ViewContext, cell: CellState | None, now: float) -> CellRecord:
    """Return the present record of the cell; `cell` is its outcome, None where there is none."""
    run, state = context.run, context.supervisor.state
    cell = cell or run.outcome
    known = cell or context.cell
    activities = {} if known is None else stalls.describe(state, known, context.supervisor.policy(), now)
    tasks = tuple(
        _describe_task(state, known, task, activities.get(task, TaskActivity()), start)
        for task, start in run.starts.items()
    )
    several = len({seen.host for seen in state.tasks.values()} - {""}) > 1
    if several or not context.supervisor.backend.runs_here:
        hosts = [state.tasks[task].place for task in run.starts]
        tasks = tuple(replace(part, host=host) for part, host in zip(tasks, hosts, strict=True))
    if cell is None and run.done.is_set():
        tasks = tuple(replace(t, state=Doing.STOPPED, note="") if t.end is None else t for t in tasks)
    return CellRecord(
        cell=run.request.cell,
        cluster=context.cluster,
        shape=context.shape,
        tasks=tasks,
        prompt=context.prompt,
        source=context.source,
        started=time.time() - (now - run.requested_at),
        elapsed_s=now - run.requested_at,
        verdict=_verdict(cell) if run.done.is_set() else "",
    )


def describe_in_full(context: ViewContext, cell: CellState | None) -> CellRecord:
    """Return the present record of the cell, with each failure in full."""
    record = describe_cell(context, cell, time.monotonic())
    known = cell or context.run.outcome or context.cell
    if known is None or not any(task.error for task in record.tasks):
        return record
    return with_failures(record, context.failures(known))


def find_place(context: ViewContext, task: TaskId) -> tuple[str, int]:
    """Return the file and line at which the task was seen last in the cell; ("", 0) if never."""
    cell = context.run.outcome or context.cell
    mark = None if cell is None else cell.progress.get(task)
    return ("", 0) if mark is None or mark.place is None else (mark.place.filename, mark.place.line)


def find_news(context: ViewContext) -> str:
    """Return the `cell_news` of the cell, or ""."""
    cell = context.cell
    return "" if cell is None else cell_news(context.supervisor, cell)


def find_left(context: ViewContext) -> str:
    """Return which tasks Ctrl-C has not ended, and what to do; or ""."""
    cell = context.cell
    return "" if cell is None else stall_sentences.explain_interrupt(cell)


def cell_news(supervisor: SupervisorFacts, cell: CellState) -> str:
    """Return who waits for whom, tasks beside the cell's that are dead, and a lack of memory; or ""."""
    state, policy = supervisor.state, supervisor.policy()
    if cell.escalation is not None or cell.presses > 0:
        waits = stall_sentences.explain_interrupt(cell)
    else:
        waits = stall_sentences.explain(state, cell, policy, time.monotonic())
    dead = [
        f"{task} has no process (it {describe_end(seen.death)}); %tfcluster restart {task} brings it back"
        for task, seen in state.tasks.items()
        if seen.death and task not in cell.request.commands
    ]
    return "; ".join(text for text in (waits, *dead, supervisor.warning) if text)


def find_ending(context: ViewContext) -> str:
    """Return which tasks are being ended, or will be, and why; "" if none is."""
    cell = context.cell
    if cell is None or not cell.waiting_for:
        return ""
    if cell.is_users_turn:
        return find_left(context)
    ending = [t.name for t in cell.waiting_for if cell.escalation is not None and t in cell.escalation.tasks]
    if ending and cell.escalation is not None:
        return f"{cell.escalation.reason}: ending {', '.join(ending[:3])}"
    if cell.failed_at is None or cell.request.keep_going:
        return ""
    grace_s = context.supervisor.policy().failure_grace_s
    return f"{name_failure(cell)}; the other tasks are interrupted after {grace_s:g} s"


def _describe_task(
    state: ClusterState, cell: CellState | None, task: TaskId, activity: TaskActivity, start: int
) -> TaskRecord:
    outcome = cell.outcomes.get(task) if cell is not None else None
    if cell is None or outcome is None:
        is_queued = cell is not None and not cell.sent  # other cells write to the log
        word, note = _live_state(state, cell, task, activity)
        return TaskRecord(task.name, word, note, start=start, end=start if is_queued else None)
    word, note, error = _ended_state(cell, task, outcome)
    seconds = getattr(outcome, "seconds", None)
    if seconds is None and task in cell.ended_at:
        seconds = max(cell.ended_at[task] - cell.started, 0.0)
    return TaskRecord(task.name, word, note, seconds, start, getattr(outcome, "log_end", None), error)


def _live_state(
    state: ClusterState, cell: CellState | None, task: TaskId, activity: TaskActivity
) -> tuple[Doing, str]:
    phase = state.tasks[task].phase
    if phase in (Phase.PLANNED, Phase.STARTING, Phase.ENDING):
        return Doing.STARTING, "a new process" if state.tasks[task].attempt > 1 else ""
    if cell is None:  # it has ended just now
        return Doing.RUNNING, ""
    if not cell.sent:
        return Doing.READY, "queued"
    return activity.doing, activity.note


def _ended_state(cell: CellState, task: TaskId, outcome: Outcome) -> tuple[Doing, str, ErrorRecord | None]:
    match outcome:
        case CellReturned():
            return Doing.DONE, "", None
        case CellRaised(interrupted=True):
            return Doing.STOPPED, "interrupted", None
        case CellRaised(error=error):
            message = headline(error.type_name, error.message)
            record = ErrorRecord(_encodable(error.type_name), _encodable(message), error.line)
            return Doing.FAILED, "", record
        case TaskExited(cause=Cause.STOP):
            return Doing.STOPPED, "", None
        case TaskExited(cause=cause) if cause in _REQUESTS:
            return Doing.STOPPED, describe_end(outcome).removeprefix("was "), None
        case TaskExited() | TaskLost():
            if task in cell.replaced:
                return Doing.STOPPED, "killed: nothing else reached it", None
            return Doing.DIED, "", ErrorRecord("TaskDied", f"{task} {describe_end(outcome)}")


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _verdict(cell: CellState | None) -> str:
    if cell is None:
        return "stopped"
    if cell.presses:
        return "interrupted"
    if cell.timed_out:
        return "timed out"
    states = {_ended_state(cell, task, outcome)[0] for task, outcome in cell.outcomes.items()}
    return "failed" if states & set(FAILURES) else "stopped" if Doing.STOPPED in states else "done"


def with_failures(record: CellRecord, found: Mapping[str, ErrorRecord]) -> CellRecord:
    """Return the record with each failure in full.

    Args:
        found: The failures by task name.
    """
    tasks = tuple(
        replace(task, error=_encodable_error(found.get(task.task, task.error))) if task.error else task
        for task in record.tasks
    )
    return replace(record, tasks=tasks)


def _encodable_error(error: ErrorRecord) -> ErrorRecord:
    kind, message, text = map(_encodable, (error.type, error.message, error.text))
    return replace(error, type=kind, message=message, text=text)


def attach_line(run: RunFolder, prompt: int) -> str:
    """Return the line that shows a cell again; `prompt` is the number that the notebook shows, or 0."""
    return f"%tfcluster attach {run}" + (f" --cell {prompt}" if prompt else "")
