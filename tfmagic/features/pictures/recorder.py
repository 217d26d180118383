"""Writes what the tasks do into the run folder, while it happens: see `timeline_file`.

    Supervisor: events, Decision ─→ TimelineRecorder.note ─→ records ─→ timeline.jsonl

Most decisions cost one comparison: the state is looked at every `_LOOK_S` at most. In a cell that has run for
long, a task's lines are noted ever more rarely, so that the file grows with the logarithm of the time.
"""

import threading
import time
import traceback
from collections.abc import Iterable, Sequence

import msgspec

from tfmagic.failures import ipython_tracebacks
from tfmagic.failures.deaths import describe_end
from tfmagic.features.pictures import timeline_file
from tfmagic.features.pictures.timeline_file import (
    ENDED_WELL,
    CellBegan,
    CellEnded,
    Change,
    Mark,
    Record,
    TaskPart,
    TimelineFile,
)
from tfmagic.protocol import events
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import Cause, CellRaised, CellReturned, TaskExited, TaskLost, Wait
from tfmagic.runs.doing import Doing
from tfmagic.runs.folder import RunFolder
from tfmagic.supervisor import stalls
from tfmagic.supervisor.stalls import Reason, TaskActivity
from tfmagic.supervisor.state import CellState, ClusterState, Decision, FinishCell, Outcome, Phase, Policy
from tfmagic.system import notices
from tfmagic.system.signal_handlers import name_signal

_LOOK_S = 0.05  # between two looks at the state, at least
_LOOK_SHARE = 0.005  # of a core, for looks: with many tasks they are rarer
_WRITE_S = 0.2  # between two writes
_CHANGE_S, _CHANGE_SHARE = 0.05, 0.005  # between two changes of a task in a cell: of the age of the cell
_NOTE_CHARACTERS = 200
_BETWEEN_CELLS = {Phase.PLANNED: Doing.STARTING, Phase.READY: Doing.IDLE}
_IN_CELL = (Doing.RUNNING, Doing.WAITING, Doing.INPUT, Doing.STALLED, Doing.PAUSED)
_MARKED = (
    *(events.InterruptPressed, events.LaunchRequested, events.SignalAsked, events.FloodAsked),
    events.TasksSlowed,
    *(events.HostSilent, events.HostCutOff, TaskExited, TaskLost),
)
_OF_REASON = {Reason.INPUT: Doing.INPUT, Reason.DEBUGGER: Doing.INPUT, Reason.STOPPED: Doing.PAUSED}
_MEETS = (Wait.COLLECTIVE, Wait.PEERS)


class TimelineRecorder:
    """Notes what the tasks of a run do. Used on the supervisor's thread; `flush` is for any thread."""

    def __init__(self, run: RunFolder):
        self._file = TimelineFile(run)
        self._offset = time.time() - time.monotonic()
        self._records: list[Record] = []
        self._known: dict[TaskId, Change] = {}  # the last change of each task that was noted
        self._late: dict[TaskId, Change] = {}  # changes that came too soon after another one
        self._open: dict[int, CellBegan] = {}  # the cells that were noted and have not ended
        self._skipped: tuple[ClusterState, float] | None = None
        self._look_at = self._write_at = 0.0
        self._has_failed = False
        self._lock = threading.Lock()

    def note(self, happened: Sequence[events.Event], decision: Decision, policy: Policy, now: float) -> None:
        """Note what has changed. Called after each decision of the supervisor."""
        if self._has_failed:
            return
        try:
            with self._lock:
                self._note(happened, decision, policy, now)
        except Exception:  # a defect here must not end a cluster
            self._has_failed = True
            notices.tell(traceback.format_exc())

    def end(self) -> None:
        """Note that the cluster has ended."""
        with self._lock:
            self._records.append(Mark(self._wall(time.monotonic()), "stop"))
            self._write()

    def flush(self) -> None:
        """Write what was noted."""
        with self._lock:
            if self._records:
                self._write()

    def _note(self, happened: Sequence[events.Event], decision: Decision, policy: Policy, now: float) -> None:
        for event in happened:
            if type(event) in _MARKED and (found := marks_of(event, decision.state, self._wall(now))):
                self._records += found
                self._look_at = 0.0
        for action in decision.actions:
            if type(action) is FinishCell:
                self._finish(action.cell, now)
        if now >= self._look_at:
            began = time.thread_time()
            if self._skipped is not None:
                self._look(*self._skipped, policy)
                self._skipped = None
            self._look(decision.state, now, policy)
            self._look_at = now + max(_LOOK_S, (time.thread_time() - began) / _LOOK_SHARE)
        else:
            self._skipped = (decision.state, now)
        if self._records and now >= self._write_at:
            self._write_at = now + _WRITE_S
            self._write()

    def _look(self, state: ClusterState, now: float, policy: Policy) -> None:
        for cell in state.cells.values():
            if cell.sent and cell.number not in self._open:
                self._begin(cell)
        for task, change in describe_tasks(state, policy, now, self._wall(now)).items():
            gap_s, late = self._gap_s(task, change, state, now), self._late.get(task)
            if late is not None and not _is_same(late, change) and change.t - late.t >= gap_s:
                self._keep(task)  # it came soon after another change, but lasted
            if _is_same(self._known.get(task), change):
                self._late.pop(task, None)
                continue
            if not _is_same(self._late.get(task), change):
                self._late[task] = change
            if not gap_s or self._wall(now) - self._known[task].t >= gap_s:
                self._keep(task)

    def _keep(self, task: TaskId) -> None:
        self._known[task] = self._late.pop(task)
        self._records.append(self._known[task])

    def _gap_s(self, task: TaskId, change: Change, state: ClusterState, now: float) -> float:
        """Return how long after the last change of a task this one may be noted; 0 if at once."""
        known, cell = self._known.get(task), state.cells.get(change.cell)
        if known is None or cell is None or change.doing not in _IN_CELL or known.cell != change.cell:
            return 0.0
        return max(_CHANGE_S, _CHANGE_SHARE * (now - cell.started))

    def _begin(self, cell: CellState) -> None:
        command = next(iter(cell.request.commands.values()))
        if not command.is_users:
            return
        record = CellBegan(
            self._wall(cell.started),
            cell.number,
            tuple(task.name for task in cell.request.commands),
            command.prompt or ipython_tracebacks.prompt_of(command.filename),
            command.source[: timeline_file.SOURCE_CHARACTERS],
        )
        self._open[cell.number] = record
        self._records.append(record)

    def _finish(self, cell: CellState, now: float) -> None:
        if cell.number not in self._open:
            self._begin(cell)
        if self._open.pop(cell.number, None) is None:
            return
        parts = {
            task.name: part_of(outcome, self._wall(cell.ended_at.get(task, now)))
            for task, outcome in cell.outcomes.items()
        }
        note = "time limit" if cell.timed_out else ""
        self._records.append(CellEnded(self._wall(now), cell.number, parts, note))

    def _wall(self, now: float) -> float:
        """Return a time of the supervisor's clock in seconds since the epoch."""
        return round(now + self._offset, 3)

    def _write(self) -> None:
        if self._file.is_full:
            self._file.turn()
            self._records[:0] = [*self._open.values(), *self._known.values()]
        if not self._file.append(self._records):  # all of it again when there is a folder
            self._known.clear()
            self._open.clear()
        self._records.clear()


# ---- from the state to records: pure functions ------------------------------------------------------


def describe_tasks(state: ClusterState, policy: Policy, now: float, at: float) -> dict[TaskId, Change]:
    """Return the activity of each task at the time `now`, which is `at` in seconds since the epoch."""
    found: dict[TaskId, Change] = {}
    meetings = _meetings(state) if state.barriers else {}
    for cell in state.cells.values():
        if not cell.sent:
            continue
        activities = stalls.describe(state, cell, policy, now)
        waiting = {task: cell.place(task) for task, a in activities.items() if a.doing is not Doing.RUNNING}
        in_calls = {task for task, place in waiting.items() if place is not None and place.wait in _MEETS}
        coming = tuple(task.name for task in activities if task not in in_calls and task not in meetings)
        for task, activity in activities.items():
            barrier, whom = meetings.get(task, ("", coming if task in in_calls else ()))
            if barrier and activity.doing is Doing.RUNNING:  # no look was taken since
                activity = TaskActivity(Doing.WAITING, Reason.BARRIER, barrier)
            found[task] = _in_cell(state, cell, task, activity, whom, at)
    for task, seen in state.tasks.items():
        if task not in found:
            note = _note_on(seen.death, is_idle=True) if seen.death else ""
            doing = _BETWEEN_CELLS.get(seen.phase, Doing(seen.phase.value))
            pid, host = seen.pid, seen.host
            found[task] = Change(at, task.name, doing, seen.attempt, note=note, pid=pid, host=host)
    return found


def _note_on(end: TaskExited | TaskLost, is_idle: bool) -> str:
    """Return how a process ended; a script that is done ends its process."""
    is_well = is_idle and isinstance(end, TaskExited) and end.exit_code == 0 and end.cause is Cause.NONE
    return ENDED_WELL if is_well and not end.reason else describe_end(end)


def _in_cell(
    state: ClusterState,
    cell: CellState,
    task: TaskId,
    activity: TaskActivity,
    whom: tuple[str, ...],
    at: float,
) -> Change:
    doing = _OF_REASON.get(activity.reason, activity.doing)
    is_running, place, attempt = activity.doing is Doing.RUNNING, cell.place(task), state.tasks[task].attempt
    line, file, inside = (0, "", "") if place is None else (place.line, place.filename, place.inside)
    file = "" if file == cell.request.commands[task].filename else file
    what = activity.what or ("" if is_running else inside)
    note = "" if is_running else activity.note
    return Change(at, task.name, doing, attempt, cell.number, line, file, what, whom, note)


def _meetings(state: ClusterState) -> dict[TaskId, tuple[str, tuple[str, ...]]]:
    """Return the barrier of each task that waits at one, and the tasks that have not come."""
    found = {}
    for (_, barrier), there in state.barriers.items():
        for task, waiting in there.items():
            missing = tuple(member.name for member in waiting.reached.members if member not in there)
            found[task] = (barrier, missing)
    return found


def _is_same(before: Change | None, now: Change) -> bool:
    """Check whether two changes differ in their time only."""
    return before is not None and msgspec.structs.replace(now, t=before.t) == before


def part_of(outcome: Outcome, at: float) -> TaskPart:
    """Return how a task ended its part of a cell."""
    match outcome:
        case CellReturned():
            return TaskPart(Doing.DONE, at)
        case CellRaised(interrupted=True):
            return TaskPart("interrupted", at)
        case CellRaised(error=error):
            return TaskPart(Doing.FAILED, at, f"{error.type_name}: {error.message}"[:_NOTE_CHARACTERS])
        case TaskExited(cause=Cause.STOP):
            return TaskPart(Doing.STOPPED, at)
        case TaskExited() | TaskLost():
            return TaskPart(Doing.DIED, at, describe_end(outcome)[:_NOTE_CHARACTERS])


def marks_of(event: events.Event, state: ClusterState, at: float) -> list[Record]:
    """Return the record of an event for a timeline; `state` is the one after it."""

    def mark(what: str, tasks: Iterable[TaskId], note: str = "") -> list[Record]:
        return [Mark(at, what, tuple(task.name for task in tasks), note[:_NOTE_CHARACTERS])]

    match event:
        case events.InterruptPressed(tasks):
            running = [task for cell in state.cells.values() for task in cell.waiting_for]
            return mark("interrupt", tasks or running)
        case events.LaunchRequested(tasks):
            return mark("restart", tasks, "a new process was asked for")
        case events.SignalAsked(task, number, cause) if cause is not Cause.NONE:
            return mark("signal", (task,), f"{name_signal(number)}: {cause.value}")
        case events.TasksSlowed(factors):
            return [r for task, by in factors.items() for r in mark("slow", (task,), f"{by:g} times slower")]
        case events.FloodAsked(task, size_bytes):
            return mark("flood", (task,), f"{size_bytes:,} bytes")
        case events.HostSilent(tasks, host, silent):
            return mark("host", tasks, f"{host} {'does not answer' if silent else 'answers again'}")
        case events.HostCutOff(tasks, cut):
            return mark("network", tasks, "cut off from the others" if cut else "joined again")
        case TaskExited(task, attempt) | TaskLost(task, attempt):
            end = state.tasks[task].end if task in state.tasks else None
            if state.stopping or end is None or end.attempt != attempt:
                return []
            is_idle = not any(task in cell.request.commands for cell in state.cells.values() if cell.sent)
            return mark("ended", (task,), _note_on(end, is_idle))
    return []
