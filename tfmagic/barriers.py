"""Which barriers open, and which break because somebody will never come. Pure, as the lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tfmagic.events import BarrierReached, CellRaised, CellReturned, TaskExited, TaskLost
from tfmagic.spec import TaskId
from tfmagic.states import Action, AnswerBarrier, ClusterState, WaitingAt

_MESSAGE_CHARACTERS = 200  # of a failure inside another failure's message


def decide_barriers(state: ClusterState, now: float, actions: list[Action]) -> ClusterState:
    """Open each barrier that everybody reached; break each that somebody will never reach."""
    if not state.barriers:
        return state
    left = {}
    for name, waiting in state.barriers.items():
        members = {m for at in waiting.values() for m in at.reached.members}
        missing = sorted(members - set(waiting))
        gone = "; ".join(f"{m} {why}" for m in missing if (why := _why_gone(state, m)))
        late = _why_late(waiting, missing, now)
        if gone or late:
            actions += [AnswerBarrier(task, name, gone or late) for task in waiting]
        elif not missing:
            actions += [AnswerBarrier(task, name) for task in waiting]
        else:
            left[name] = waiting
    return replace(state, barriers=_break_deadlock(state, left, actions))


def next_deadline(state: ClusterState) -> float | None:
    """When the first barrier's time is up."""
    ends = [at.until for waiting in state.barriers.values() for at in waiting.values()]
    return min((end for end in ends if end is not None), default=None)


def forget_task(state: ClusterState, task: TaskId) -> ClusterState:
    """The task waits nowhere any more."""
    waiting = {
        name: {t: reached for t, reached in tasks.items() if t != task}
        for name, tasks in state.barriers.items()
    }
    return replace(state, barriers={name: tasks for name, tasks in waiting.items() if tasks})


def arrive(state: ClusterState, event: BarrierReached, now: float) -> ClusterState:
    """The task waits there from now on, and nowhere else."""
    state = forget_task(state, event.task)
    limit = event.timeout_s
    until = now + limit if isinstance(limit, int | float) and limit >= 0 else None
    waiting = {**state.barriers.get(event.barrier, {}), event.task: WaitingAt(event, until)}
    return replace(state, barriers={**state.barriers, event.barrier: waiting})


def _why_late(waiting: Mapping[TaskId, WaitingAt], missing: list[TaskId], now: float) -> str:
    for at in waiting.values() if missing else ():
        if at.until is not None and now >= at.until:
            names = ", ".join(task.name for task in missing)
            return f"{names} did not come within {at.reached.timeout_s:g} s"
    return ""


def _break_deadlock(
    state: ClusterState, barriers: Mapping[str, Mapping[TaskId, WaitingAt]], actions: list[Action]
) -> Mapping[str, Mapping[TaskId, WaitingAt]]:
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
            return f"raised {error.type_name}: {error.message[:_MESSAGE_CHARACTERS]}"
        case TaskExited() | TaskLost():
            return "died"
