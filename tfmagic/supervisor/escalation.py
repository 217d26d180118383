"""The way to an end of tasks that have no outcome of a cell yet. Pure functions, as those of the lifecycle.

The stages: KeyboardInterrupt, a cancellation of what runs inside TensorFlow, an abort of its collectives, a
look at the stacks, SIGKILL and a new process. Each reaches what the one before it cannot, and costs the task
more of its state. The last two wait while a task makes progress, for some seconds; after Ctrl-C they wait for
a second one, which begins with the first stage again if code of a task has caught KeyboardInterrupt.
"""

from tfmagic.protocol import events
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import AbortCollectives, CancelOps, InterruptCell
from tfmagic.supervisor import restarts
from tfmagic.supervisor.state import (
    GENTLE_STAGES,
    SIGCONT,
    SIGUSR1,
    Action,
    CellState,
    ClusterState,
    Escalation,
    Policy,
    Send,
    Signal,
    replace,
    with_cell,
    with_task,
)

_DUMP_S = 0.2  # from asking a task for its stacks to moving it; a busy machine takes some milliseconds
_STACKS, _LAST_STAGE = GENTLE_STAGES, 5
_STILL_S = 1.0  # without a sign of progress: looks are half a second apart
_NEVER = float("inf")
PATIENCE_S = 5.0  # with a task that makes progress although it was interrupted


def start(cell: CellState, policy: Policy, now: float, actions: list[Action]) -> CellState:
    """Begin to escalate on tasks if there is a reason to."""
    old, waiting = cell.escalation, set(cell.waiting_for)
    if cell.presses and (old is None or not waiting & set(cell.pressed_tasks) <= set(old.tasks)):
        tasks = cell.pressed_tasks if old is None else (*old.tasks, *cell.pressed_tasks)
        return replace(cell, escalation=Escalation("interrupted", now, tasks))
    if old is not None and waiting & set(old.tasks):
        if cell.presses > 1 and not old.again and any(map(cell.has_caught, waiting & set(old.tasks))):
            return replace(cell, escalation=Escalation(old.reason, now, old.tasks, again=True))
        if cell.presses > 1 + old.again and old.stage < _STACKS:
            since = now - _stage_times(policy)[_STACKS - 1]
            return replace(cell, escalation=replace(old, since=min(since, old.since)))
        if not cell.is_users_turn or waiting <= set(old.tasks):
            return cell
    timeout = cell.request.timeout_s
    if timeout is not None and now >= cell.started + timeout and not cell.timed_out:
        actions += [Signal(t, SIGUSR1, cell.number) for t in cell.waiting_for]
        escalation = Escalation("the time limit has passed", now + _DUMP_S, cell.waiting_for)
        return replace(cell, timed_out=True, escalation=escalation)
    release_at = _release_at(cell, policy)
    if release_at is not None and now >= release_at:
        return replace(cell, escalation=Escalation(name_failure(cell), now, cell.waiting_for))
    return cell


def name_failure(cell: CellState) -> str:
    """Return which tasks have failed, or were interrupted or killed by the user."""
    found: dict[str, list[str]] = {}
    for task, outcome in cell.outcomes.items():
        if isinstance(outcome, events.CellRaised) and outcome.interrupted:
            found.setdefault("interrupted", []).append(task.name)
        elif isinstance(outcome, events.TaskExited) and outcome.cause is events.Cause.USER:
            found.setdefault("killed", []).append(task.name)
        elif not isinstance(outcome, events.CellReturned):
            found.setdefault("failed", []).append(task.name)
    words = {how: "" if how == "failed" else "were " if names[1:] else "was " for how, names in found.items()}
    return " and ".join(f"{', '.join(names)} {words[how]}{how}" for how, names in found.items())


def _release_at(cell: CellState, policy: Policy) -> float | None:
    """Return when the grace period of the other tasks after a failure ends."""
    if cell.failed_at is None or cell.request.keep_going:
        return None
    return cell.failed_at + policy.failure_grace_s


def _stage_times(policy: Policy) -> tuple[float, ...]:
    """Return the seconds of the escalation at which interrupt, cancel, abort, stacks and SIGKILL are due."""
    cancel = policy.interrupt_grace_s
    abort = cancel + policy.cancel_grace_s
    kill = abort + policy.abort_grace_s
    return (0.0, cancel, abort, max(kill - _DUMP_S, abort), kill)


def escalate(
    state: ClusterState, cell: CellState, policy: Policy, now: float, actions: list[Action]
) -> tuple[ClusterState, float | None]:
    """Take the stages that are due, and return when the next one is."""
    escalation, waiting = cell.escalation, cell.waiting_for
    if escalation is None or not set(escalation.tasks) & set(waiting):
        timeout = cell.request.timeout_s
        limit = None if timeout is None or cell.timed_out else cell.started + timeout
        times = [t for t in (limit, _release_at(cell, policy)) if t is not None]
        return with_cell(state, cell), min(times, default=None)
    while now >= (wake_at := _next_stage_at(cell, escalation, policy)):
        if escalation.stage == _STACKS:  # it can come late, and SIGKILL must not come with it
            escalation = replace(escalation, since=max(escalation.since, now - _stage_times(policy)[_STACKS]))
        for task in (t for t in waiting if t in escalation.tasks):
            state, cell = _take_stage(state, cell, task, escalation, actions)
        escalation = replace(escalation, stage=escalation.stage + 1)
        cell = replace(cell, escalation=escalation)
    is_for_all = not cell.is_users_turn or set(waiting) <= set(escalation.tasks)
    others_at = None if is_for_all else _release_at(cell, policy)
    wake_at = min(wake_at, others_at or _NEVER)
    return with_cell(state, cell), None if wake_at == _NEVER else wake_at


def _next_stage_at(cell: CellState, escalation: Escalation, policy: Policy) -> float:
    """Return when the next stage is due."""
    if escalation.stage == _LAST_STAGE:
        return _NEVER
    at = escalation.since + _stage_times(policy)[escalation.stage]
    if escalation.stage != _STACKS or cell.presses > 1:
        return at
    if cell.is_users_turn:
        timeout = cell.request.timeout_s
        return _NEVER if timeout is None else max(at, cell.started + timeout)
    signs = [cell.progress[t].at for t in cell.waiting_for if t in escalation.tasks and t in cell.progress]
    return min(max(at, max(signs, default=0.0) + _STILL_S), at + PATIENCE_S)


def _take_stage(
    state: ClusterState, cell: CellState, task: TaskId, escalation: Escalation, actions: list[Action]
) -> tuple[ClusterState, CellState]:
    match escalation.stage:
        case 0:
            last = cell.progress.get(task)
            if last is not None and last.stopped:  # else nothing but SIGKILL would reach it
                actions.append(Signal(task, SIGCONT))
            actions.append(Send(task, InterruptCell(cell.number)))
        case 1:
            actions.append(Send(task, CancelOps()))  # the channel keeps its order: before any later cell
        case 2:
            actions.append(Send(task, AbortCollectives(f"tfmagic released this task: {escalation.reason}")))
        case 3:
            if not cell.timed_out:  # else its stacks have been taken
                actions.append(Signal(task, SIGUSR1, cell.number))
        case _:
            state = restarts.kill_task(state, task, actions, events.Cause.UNREACHABLE)
            cell = replace(cell, replaced=(*cell.replaced, task))
            state = with_task(state, task, replace=True)
    return state, cell
