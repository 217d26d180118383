"""The rules of barriers, which open, or break if a task will never come. Pure functions."""

from collections.abc import Mapping

import msgspec

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import BreakBarrier, ReleaseBarrier
from tfmagic.protocol.events import (
    FIRST_STRATEGY,
    BarrierReached,
    CellRaised,
    CellReturned,
    TaskExited,
    TaskLost,
)
from tfmagic.supervisor.state import Action, ClusterState, Send, WaitingAt, replace, with_task

_NAMED = 3  # missing tasks that a note names
_MESSAGE_CHARACTERS = 200  # of a failure inside another failure's message


def decide_barriers(state: ClusterState, now: float, actions: list[Action]) -> ClusterState:
    """Open each barrier that all have reached; break each that a task will never reach."""
    if not state.barriers:
        return state
    left = {}
    for (number, name), waiting in state.barriers.items():
        missing = _missing(waiting)
        reasons = [(m, why) for m in missing if (why := _why_gone(state, number, m))]
        gone = "; ".join(f"{m} {why}" for m, why in sorted(reasons))
        if name.startswith(FIRST_STRATEGY) and _is_interrupted(state, number):  # all of them start, or none
            gone = gone or "the cell is being interrupted"
        late = _why_late(waiting, missing, now)
        if gone or late:
            actions += [Send(task, BreakBarrier(name, gone or late)) for task in waiting]
        elif not missing:
            actions += [Send(task, ReleaseBarrier(name, place)) for place, task in enumerate(waiting)]
            if name.startswith(FIRST_STRATEGY):
                state = _note_strategy(state, waiting)
        else:
            left[number, name] = waiting
    return replace(state, barriers=_break_deadlocks(state, left, actions))


def _note_strategy(state: ClusterState, waiting: Mapping[TaskId, WaitingAt]) -> ClusterState:
    """Note that these tasks make their first collective strategy, with the members' present processes."""
    for task, at in waiting.items():
        state = with_task(state, task, joined={m: state.tasks[m].attempt for m in at.reached.members})
    return state


def next_deadline(state: ClusterState) -> float | None:
    """Return when the time of the first barrier is up, or None."""
    if not state.barriers:
        return None
    ends = [at.until for waiting in state.barriers.values() for at in waiting.values()]
    return min((end for end in ends if end is not None), default=None)


def describe_waits(state: ClusterState) -> dict[TaskId, tuple[str, str]]:
    """Return the barrier of each task that waits at one, and a note with the tasks that are missing."""
    found: dict[TaskId, tuple[str, str]] = {}
    for (_, name), waiting in state.barriers.items():
        missing = sorted(_missing(waiting))
        whom = ", ".join(t.name for t in missing[:_NAMED]) or "the others"
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        found |= dict.fromkeys(waiting, (name, f"for {whom}{more} at {name}"))
    return found


def forget_task(state: ClusterState, task: TaskId) -> ClusterState:
    """Note that the task waits nowhere any more."""
    if not any(task in tasks for tasks in state.barriers.values()):  # most arrive from nowhere
        return state
    waiting = {
        key: {t: reached for t, reached in tasks.items() if t != task}
        for key, tasks in state.barriers.items()
    }
    return replace(state, barriers={key: tasks for key, tasks in waiting.items() if tasks})


def arrive(state: ClusterState, event: BarrierReached, now: float) -> ClusterState:
    """Note that the task waits there, and nowhere else."""
    state = forget_task(state, event.task)
    limit = event.timeout_s
    until = now + limit if isinstance(limit, int | float) and limit >= 0 else None
    key = (event.cell, event.barrier)
    there = state.barriers.get(key, {})
    first = next(iter(there.values()), None)
    if first is not None and first.reached.members == event.members:
        event = msgspec.structs.replace(event, members=first.reached.members)  # one object: see `_missing`
    return replace(state, barriers={**state.barriers, key: {**there, event.task: WaitingAt(event, until)}})


def _missing(waiting: Mapping[TaskId, WaitingAt]) -> set[TaskId]:
    """Return the expected tasks that have not come. A thousand tasks share one tuple of members."""
    shared = {id(at.reached.members): at.reached.members for at in waiting.values()}
    return {member for members in shared.values() for member in members}.difference(waiting)


def _why_late(waiting: Mapping[TaskId, WaitingAt], missing: set[TaskId], now: float) -> str:
    for at in waiting.values() if missing else ():
        if at.until is not None and now >= at.until:
            names = ", ".join(task.name for task in sorted(missing))
            return f"{names} did not come within {at.reached.timeout_s:g} s"
    return ""


def _break_deadlocks(
    state: ClusterState,
    barriers: Mapping[tuple[int, str], Mapping[TaskId, WaitingAt]],
    actions: list[Action],
) -> Mapping[tuple[int, str], Mapping[TaskId, WaitingAt]]:
    """Break the barriers of a cell if all its unfinished tasks wait, and at different ones."""
    for number, cell in state.cells.items():
        names = {name: waiting for (owner, name), waiting in barriers.items() if owner == number}
        at = {task: name for name, waiting in names.items() for task in waiting}
        if len(names) < 2 or not set(cell.waiting_for) <= set(at):
            continue
        where = ", ".join(f"{task} at {name}" for task, name in sorted(at.items()))
        reason = f"the tasks wait for each other at different places: {where}"
        actions += [Send(task, BreakBarrier(name, reason)) for task, name in at.items()]
        barriers = {key: waiting for key, waiting in barriers.items() if key[0] != number}
    return barriers


def _is_interrupted(state: ClusterState, number: int) -> bool:
    cell = state.cells.get(number)
    return cell is not None and cell.escalation is not None


def _why_gone(state: ClusterState, number: int, task: TaskId) -> str:
    """Return why `task` will not reach a barrier of this cell or group; "" if it still can."""
    if number in state.groups:
        return state.groups[number].get(task, "")
    cell = state.cells.get(number)
    if cell is None:  # it has finished: a thread that it left behind waits
        return "has ended the cell without coming here"
    if task not in cell.request.commands:
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
