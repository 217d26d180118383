"""What a cluster is and what to do next, as two pure functions.

    apply(state, event, now) → state        folds what happened
    decide(state, policy, now) → actions    what must be done about it, and when to look again

No process, no clock, no thread: the supervisor brings events and the time and carries out actions.
An action that was decided is folded in by the event that follows from it, or by `performed`.

A cell ends when each of its tasks has an outcome. Tasks that cannot get one by themselves, since one
of them failed, the time is up or the user pressed Ctrl-C, are brought there by the ladder: SIGINT,
then an abort of TensorFlow's collectives, then SIGKILL and a new process.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from tfmagic.events import (
    BarrierReached,
    CellRaised,
    CellRequested,
    CellReturned,
    Displayed,
    Event,
    InterruptPressed,
    LaunchRequested,
    RunCell,
    StopRequested,
    TaskExited,
    TaskLost,
    TaskReady,
    TaskStarted,
)
from tfmagic.spec import TaskId

# the kernel's own signal module is not needed to name three numbers that Linux will not change
SIGINT, SIGUSR1, SIGKILL = 2, 10, 9


class Phase(enum.Enum):
    """Where a task process is in its life."""

    PLANNED = "planned"
    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    ENDING = "ending"  # SIGKILL is on its way
    DEAD = "dead"
    STOPPED = "stopped"


_COMING = (Phase.PLANNED, Phase.STARTING, Phase.ENDING)
_ALIVE = (Phase.STARTING, Phase.READY, Phase.RUNNING, Phase.ENDING)


@dataclass(frozen=True, slots=True)
class TaskState:
    """One task: its present process and how its last one ended."""

    phase: Phase = Phase.PLANNED
    attempt: int = 0
    pid: int = 0
    host: str = ""
    fresh: bool = False
    end: TaskExited | TaskLost | None = None
    replace: bool = False  # its end is ours: give it a new process
    restarts: int = 0


Outcome = CellReturned | CellRaised | TaskExited | TaskLost


@dataclass(frozen=True, slots=True)
class Ladder:
    """Bringing tasks to an end: why, since when, and the last rung that was taken."""

    reason: str
    since: float
    rung: int = 0


@dataclass(frozen=True, slots=True)
class CellState:
    """The cell that runs, or the last one."""

    request: CellRequested
    started: float
    sent: bool = False
    outcomes: Mapping[TaskId, Outcome] = field(default_factory=dict)
    failed_at: float | None = None
    timed_out: bool = False
    aborted: bool = False
    presses: int = 0
    ladder: Ladder | None = None
    finished: bool = False

    @property
    def waiting_for(self) -> tuple[TaskId, ...]:
        """The tasks that have no outcome yet."""
        return tuple(t for t in self.request.commands if t not in self.outcomes)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Everything that the supervisor knows."""

    tasks: Mapping[TaskId, TaskState]
    cell: CellState | None = None
    barriers: Mapping[str, Mapping[TaskId, BarrierReached]] = field(default_factory=dict)
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers behind decisions, in seconds."""

    failure_grace_s: float = 3.0
    interrupt_grace_s: float = 0.5
    abort_grace_s: float = 0.5
    auto_restart: int = 0


# ---- actions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a process for the task, as this attempt."""

    task: TaskId
    attempt: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send the task its part of the cell."""

    task: TaskId
    command: RunCell


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal the task's process (its group for SIGKILL)."""

    task: TaskId
    number: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort the collectives that the task waits in."""

    task: TaskId
    message: str


@dataclass(frozen=True, slots=True)
class AnswerBarrier:
    """Open the barrier for the task; with a reason, as broken."""

    task: TaskId
    barrier: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FinishCell:
    """Everybody has an outcome: hand them over."""

    cell: CellState


Action = Launch | Send | Signal | Abort | AnswerBarrier | FinishCell


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, the state after it, and when time alone will change something."""

    actions: tuple[Action, ...]
    state: ClusterState
    wake_at: float | None


def new_state(tasks: tuple[TaskId, ...]) -> ClusterState:
    """A cluster of which no process runs yet."""
    return ClusterState({task: TaskState() for task in tasks})


# ---- folding events -----------------------------------------------------------------------------


def apply(state: ClusterState, event: Event, now: float) -> ClusterState:
    """The state after `event`. Events of an earlier attempt of a task change nothing."""
    match event:
        case LaunchRequested(tasks):
            return _apply_launch(state, tasks)
        case CellRequested():
            return replace(state, cell=CellState(event, now))
        case InterruptPressed():
            return _apply_press(state)
        case StopRequested():
            return replace(state, stopping=True)
        case TaskStarted(task, attempt, pid, fresh):
            if state.tasks[task].attempt != attempt:
                return state
            # says nothing about the phase: on another channel, it may come after the task is ready
            return _with_task(state, task, pid=pid, fresh=fresh)
        case TaskReady(task, attempt, _, host):
            if state.tasks[task].attempt != attempt:
                return state
            return _with_task(state, task, phase=Phase.READY, host=host)
        case BarrierReached(task, attempt, barrier, _):
            if state.tasks[task].attempt != attempt:
                return state
            waiting = {**state.barriers.get(barrier, {}), task: event}
            return replace(state, barriers={**state.barriers, barrier: waiting})
        case CellReturned(task) | CellRaised(task):
            return _apply_outcome(state, event, now)
        case TaskExited(task) | TaskLost(task):
            return _apply_end(state, event, now)
        case Displayed():
            return state
        case _:
            assert_never(event)


def _apply_press(state: ClusterState) -> ClusterState:
    if state.cell is None or state.cell.finished:
        return state
    return _with_cell(state, presses=state.cell.presses + 1)


def _apply_launch(state: ClusterState, tasks: tuple[TaskId, ...]) -> ClusterState:
    for task in tasks:
        phase = state.tasks[task].phase
        if phase in _ALIVE:
            state = _with_task(state, task, replace=True)
        else:
            state = _with_task(state, task, phase=Phase.PLANNED)
    return state


def _apply_outcome(state: ClusterState, event: CellReturned | CellRaised, now: float) -> ClusterState:
    cell, task = state.cell, event.task
    if state.tasks[task].attempt != event.attempt:
        return state
    state = _with_task(state, task, phase=Phase.READY)
    if cell is None or cell.request.cell != event.cell or task in cell.outcomes:
        return state
    return _with_outcome(state, task, event, now)


def _with_outcome(state: ClusterState, task: TaskId, outcome: Outcome, now: float) -> ClusterState:
    cell = state.cell
    assert cell is not None
    failed_at = cell.failed_at
    if failed_at is None and not isinstance(outcome, CellReturned):
        failed_at = now
    return _with_cell(state, outcomes={**cell.outcomes, task: outcome}, failed_at=failed_at)


def _apply_end(state: ClusterState, event: TaskExited | TaskLost, now: float) -> ClusterState:
    task = event.task
    old = state.tasks[task]
    if old.attempt != event.attempt:
        return state
    phase = Phase.STOPPED if state.stopping else Phase.PLANNED if old.replace else Phase.DEAD
    state = _with_task(state, task, phase=phase, pid=0, end=event, replace=False)
    waiting = {
        name: {t: reached for t, reached in tasks.items() if t != task}
        for name, tasks in state.barriers.items()
    }
    state = replace(state, barriers={name: tasks for name, tasks in waiting.items() if tasks})
    cell = state.cell
    if cell is not None and not cell.finished and task in cell.waiting_for:
        state = _with_outcome(state, task, event, now)
    return state


# ---- deciding -----------------------------------------------------------------------------------


def decide(state: ClusterState, policy: Policy, now: float) -> Decision:
    """What must be done in `state` at the time `now`."""
    if state.stopping:
        return Decision((), state, None)
    actions: list[Action] = []
    wake_at: float | None = None
    state = _decide_processes(state, policy, actions)
    if state.cell is not None and not state.cell.finished:
        state, wake_at = _decide_cell(state, policy, now, actions)
    state = _decide_barriers(state, actions)
    return Decision(tuple(actions), state, wake_at)


def _decide_processes(state: ClusterState, policy: Policy, actions: list[Action]) -> ClusterState:
    for task, seen in state.tasks.items():
        if seen.phase is Phase.PLANNED:
            state = _launch(state, task, actions)
        elif seen.phase is Phase.DEAD and seen.host and seen.restarts < policy.auto_restart:
            state = _launch(state, task, actions, restarts=seen.restarts + 1)
        elif seen.replace and seen.phase is not Phase.ENDING:
            actions.append(Signal(task, SIGKILL))
            state = _with_task(state, task, phase=Phase.ENDING)
    return state


def _launch(state: ClusterState, task: TaskId, actions: list[Action], **changes: object) -> ClusterState:
    attempt = state.tasks[task].attempt + 1
    actions.append(Launch(task, attempt))
    return _with_task(state, task, phase=Phase.STARTING, attempt=attempt, host="", **changes)


def _decide_cell(
    state: ClusterState, policy: Policy, now: float, actions: list[Action]
) -> tuple[ClusterState, float | None]:
    cell = state.cell
    assert cell is not None
    if not cell.sent:
        if any(state.tasks[task].phase in _COMING for task in cell.request.commands):
            return state, None
        state = _send_cell(state, actions, now)
        cell = state.cell
        assert cell is not None
    if not cell.waiting_for:
        cell = replace(cell, finished=True)
        actions.append(FinishCell(cell))
        return replace(state, cell=cell), None
    state = _start_ladder(state, policy, now, actions)
    return _climb_ladder(state, policy, now, actions)


def _send_cell(state: ClusterState, actions: list[Action], now: float) -> ClusterState:
    """Send the cell; a task that is not there is an outcome at once."""
    cell = state.cell
    assert cell is not None
    tasks = dict(state.tasks)
    for task, command in cell.request.commands.items():
        seen = tasks[task]
        if seen.phase is Phase.READY:
            actions.append(Send(task, command))
            tasks[task] = replace(seen, phase=Phase.RUNNING)
        else:
            end = seen.end or TaskLost(task, seen.attempt, "it has no process")
            state = _with_outcome(state, task, end, now)
    assert state.cell is not None
    return replace(state, tasks=tasks, cell=replace(state.cell, sent=True))


def _start_ladder(state: ClusterState, policy: Policy, now: float, actions: list[Action]) -> ClusterState:
    """Put the cell on the ladder when there is a reason to."""
    cell = state.cell
    assert cell is not None
    dead = [t for t, o in cell.outcomes.items() if isinstance(o, TaskExited | TaskLost)]
    if cell.ladder is not None:
        if cell.presses > 1 and cell.ladder.rung < 2:  # the second Ctrl-C skips the rungs
            return _with_cell(state, ladder=replace(cell.ladder, rung=2))
        return state
    if cell.presses:
        return _with_cell(state, ladder=Ladder("interrupted", now))
    timeout = cell.request.timeout_s
    if timeout is not None and now >= cell.started + timeout:
        actions += [Signal(t, SIGUSR1) for t in cell.waiting_for]
        return _with_cell(state, timed_out=True, ladder=Ladder("the time limit has passed", now))
    if cell.failed_at is not None and not cell.request.keep_going and now >= _release_at(cell, policy):
        names = ", ".join(t.name for t in dead) or "a task"
        return _with_cell(state, ladder=Ladder(f"{names} failed", now))
    return state


def _release_at(cell: CellState, policy: Policy) -> float:
    assert cell.failed_at is not None
    return cell.failed_at + policy.failure_grace_s


def _climb_ladder(
    state: ClusterState, policy: Policy, now: float, actions: list[Action]
) -> tuple[ClusterState, float | None]:
    """Take the rungs that are due: SIGINT, abort, SIGKILL with a new process."""
    cell = state.cell
    assert cell is not None
    state = _abort_after_death(state, actions)
    if cell.ladder is None:
        times = []
        if cell.request.timeout_s is not None:
            times.append(cell.started + cell.request.timeout_s)
        if cell.failed_at is not None and not cell.request.keep_going:
            times.append(_release_at(cell, policy))
        return state, min(times, default=None)
    ladder = cell.ladder
    due = (0.0, policy.interrupt_grace_s, policy.interrupt_grace_s + policy.abort_grace_s)
    while ladder.rung < 3 and (now >= ladder.since + due[ladder.rung] or cell.presses > 1):
        for task in cell.waiting_for:
            if ladder.rung == 0:
                actions.append(Signal(task, SIGINT))
            elif ladder.rung == 1:
                actions.append(Abort(task, f"tfmagic released this task: {ladder.reason}"))
            else:
                actions.append(Signal(task, SIGKILL))
                state = _with_task(state, task, replace=True, phase=Phase.ENDING)
        ladder = replace(ladder, rung=ladder.rung + 1)
    state = _with_cell(state, ladder=ladder)
    return state, ladder.since + due[ladder.rung] if ladder.rung < 3 else None


def _abort_after_death(state: ClusterState, actions: list[Action]) -> ClusterState:
    """A dead task breaks every collective for good: release the others from theirs at once."""
    cell = state.cell
    assert cell is not None
    dead = [t for t, o in cell.outcomes.items() if isinstance(o, TaskExited | TaskLost)]
    if not dead or cell.request.keep_going or cell.aborted:
        return state
    message = f"{', '.join(t.name for t in dead)} died"
    actions += [Abort(t, message) for t in cell.waiting_for]
    return _with_cell(state, aborted=True)


def _decide_barriers(state: ClusterState, actions: list[Action]) -> ClusterState:
    """Open each barrier that everybody reached; break each that somebody will never reach."""
    if not state.barriers:
        return state
    left = {}
    for name, waiting in state.barriers.items():
        members = {m for reached in waiting.values() for m in reached.members}
        gone = sorted((m, _why_gone(state, m)) for m in members if m not in waiting and _why_gone(state, m))
        if gone:
            reason = "; ".join(f"{task} {why}" for task, why in gone)
            actions += [AnswerBarrier(task, name, reason) for task in waiting]
        elif members <= set(waiting):
            actions += [AnswerBarrier(task, name) for task in waiting]
        else:
            left[name] = waiting
    return replace(state, barriers=_break_deadlock(state, left, actions))


def _break_deadlock(
    state: ClusterState, barriers: Mapping[str, Mapping[TaskId, BarrierReached]], actions: list[Action]
) -> Mapping[str, Mapping[TaskId, BarrierReached]]:
    """Break every barrier when all tasks that still run wait, each at another one."""
    cell = state.cell
    at = {task: name for name, waiting in barriers.items() for task in waiting}
    if cell is None or len(barriers) < 2 or not set(cell.waiting_for) <= set(at):
        return barriers
    where = ", ".join(f"{task} at {name}" for task, name in sorted(at.items()))
    reason = f"the tasks wait for each other at different places: {where}"
    actions += [AnswerBarrier(task, name, reason) for task, name in at.items()]
    return {}


def _why_gone(state: ClusterState, task: TaskId) -> str:
    """Why `task` will not reach a barrier of the present cell; "" if it still may."""
    cell = state.cell
    if cell is None or task not in cell.request.commands:
        return "does not run this cell (see --on)"
    match cell.outcomes.get(task):
        case None:
            return ""
        case CellReturned():
            return "has ended the cell without coming here"
        case CellRaised(error=error):
            return f"raised {error.type_name}: {error.message[:200]}"
        case TaskExited() | TaskLost():
            return "died"


# ---- small helpers ------------------------------------------------------------------------------


def _with_task(state: ClusterState, task: TaskId, **changes: object) -> ClusterState:
    changed = replace(state.tasks[task], **changes)  # type: ignore[arg-type]
    return replace(state, tasks={**state.tasks, task: changed})


def _with_cell(state: ClusterState, **changes: object) -> ClusterState:
    assert state.cell is not None
    return replace(state, cell=replace(state.cell, **changes))  # type: ignore[arg-type]
