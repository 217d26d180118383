"""The rules for new processes, and for tasks that end with their chief. Pure functions, as the lifecycle's.

A task gets a new process if the user asks for it, if nothing but SIGKILL reached it, and, as often as the
policy allows, if it died by itself: after a delay that doubles each time, since a process that died at once
is likely to do so again.
"""

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import EndTask
from tfmagic.protocol.events import Cause
from tfmagic.supervisor.state import (
    ALIVE,
    SIGKILL,
    Action,
    ClusterState,
    Launch,
    Phase,
    Policy,
    Send,
    Signal,
    TaskState,
    replace,
    with_task,
)

_SETTLED = (Phase.READY, Phase.RUNNING)
_LONGEST_DELAY_S = 30.0
_LATER_S = 5.0
GOODBYE_S = 1.0  # for a process that runs nothing to flush its files; mostly it takes some milliseconds


def decide_processes(
    state: ClusterState, policy: Policy, now: float, actions: list[Action]
) -> tuple[ClusterState, float | None]:
    """Start and end processes; return when the next start or end is due."""
    times: list[float | None] = []
    for task, seen in state.tasks.items():
        if seen.phase in _SETTLED and not seen.replace:  # nearly all, nearly always
            continue
        if _may_restart(state, seen, policy):  # from here on cells wait for it
            due = seen.since + min(policy.restart_delay_s * 2**seen.restarts, _LONGEST_DELAY_S)
            seen = replace(seen, phase=Phase.PLANNED, since=due, restarts=seen.restarts + 1)
            state = replace(state, tasks={**state.tasks, task: seen})
        if seen.phase is Phase.PLANNED and now < seen.since:
            times.append(seen.since)
        elif seen.phase is Phase.PLANNED:
            state = _launch(state, task, now, actions)
            times.append(_late_at(state.tasks[task], policy))
        elif seen.kill_at is not None and now < seen.kill_at:
            times.append(seen.kill_at)
        elif seen.kill_at is not None or _must_end(seen, policy, now):
            state = end_task(state, task, now, actions, Cause.RESTART if seen.replace else Cause.NONE)
            times.append(state.tasks[task].kill_at)
        elif seen.phase is Phase.STARTING:
            times.append(_late_at(seen, policy))
    if policy.dependence_on_chief and _is_chief_dead(state):
        state = _end_with_chief(state, actions)
    return state, min((t for t in times if t is not None), default=None)


def end_task(
    state: ClusterState, task: TaskId, now: float, actions: list[Action], cause: Cause
) -> ClusterState:
    """End the process: one that runs nothing is asked to end as a program does, any other is killed."""
    if state.tasks[task].phase is Phase.READY:
        actions.append(Send(task, EndTask()))
        return with_task(state, task, phase=Phase.ENDING, kill_at=now + GOODBYE_S)
    return kill_task(state, task, actions, cause)


def kill_task(state: ClusterState, task: TaskId, actions: list[Action], cause: Cause) -> ClusterState:
    """Kill the process."""
    actions.append(Signal(task, SIGKILL))
    return with_task(note_signal(state, task, SIGKILL, cause), task, phase=Phase.ENDING, kill_at=None)


def note_signal(state: ClusterState, task: TaskId, number: int, cause: Cause) -> ClusterState:
    """Note why the process was sent a signal; the first reason counts."""
    seen = state.tasks[task]
    if seen.phase not in ALIVE or seen.signals.get(number, Cause.NONE) is not Cause.NONE:
        return state
    return with_task(state, task, signals={**seen.signals, number: cause})


def must_rejoin(state: ClusterState) -> bool:
    """Check whether TensorFlow in a task knows a former process of a peer.

    It neither accepts the new process nor forgets the old one: all tasks need new addresses.
    """
    return any(
        seen.phase in ALIVE
        and any(state.tasks[m].next_attempt != attempt for m, attempt in seen.joined.items())
        for seen in [seen for seen in state.tasks.values() if seen.joined]
    )


def _may_restart(state: ClusterState, seen: TaskState, policy: Policy) -> bool:
    """Check whether it died by itself after it was ready, and the policy gives it another process."""
    if seen.phase is not Phase.DEAD or not seen.host or seen.restarts >= policy.auto_restart:
        return False
    is_over = policy.dependence_on_chief and _is_chief_dead(state)
    return not is_over or any(s is seen for t, s in state.tasks.items() if t.type == "chief")


def _must_end(seen: TaskState, policy: Policy, now: float) -> bool:
    return seen.phase is not Phase.ENDING and (seen.replace or now >= _late_at(seen, policy))


def _late_at(seen: TaskState, policy: Policy) -> float:
    """Return when a starting process is given up: shortly after the thread that waits for it gave up."""
    return seen.since + policy.start_timeout_s + _LATER_S if seen.phase is Phase.STARTING else float("inf")


def _launch(state: ClusterState, task: TaskId, now: float, actions: list[Action]) -> ClusterState:
    attempt = state.tasks[task].attempt + 1
    actions.append(Launch(task, attempt))
    seen = replace(state.tasks[task], phase=Phase.STARTING, since=now, attempt=attempt)
    seen = replace(seen, host="", joined={}, signals={})
    return replace(state, tasks={**state.tasks, task: seen})


def _is_chief_dead(state: ClusterState) -> bool:
    return any(task.type == "chief" and seen.phase is Phase.DEAD for task, seen in state.tasks.items())


def _end_with_chief(state: ClusterState, actions: list[Action]) -> ClusterState:
    """End the others after a chief that died for good, as TensorFlow's own runner does."""
    for task, seen in state.tasks.items():
        if seen.phase in (Phase.STARTING, Phase.READY, Phase.RUNNING):
            state = kill_task(state, task, actions, Cause.CHIEF)
    return state
