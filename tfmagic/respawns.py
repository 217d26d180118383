"""Which tasks get a new process, and when; and which ones end with their chief. Pure, as the lifecycle.

A task is given a new process when somebody asks for it, when nothing but SIGKILL reached it, and, as often
as the policy allows, when it died by itself: after a delay that doubles each time, since what killed it at
once will do so again.
"""

from __future__ import annotations

from dataclasses import replace

from tfmagic.events import FIRST_STRATEGY, BarrierReached
from tfmagic.spec import TaskId
from tfmagic.states import (
    ALIVE,
    SIGKILL,
    Action,
    ClusterState,
    Launch,
    Phase,
    Policy,
    Signal,
    TaskState,
    with_task,
)

_LONGEST_DELAY_S = 30.0


def decide_processes(
    state: ClusterState, policy: Policy, now: float, actions: list[Action]
) -> tuple[ClusterState, float | None]:
    """Start and end processes; says when the next one is due."""
    times = []
    for task, seen in state.tasks.items():
        if _may_restart(seen, policy):  # from here on cells wait for it
            due = seen.not_before + restart_delay(seen, policy)
            seen = replace(seen, phase=Phase.PLANNED, not_before=due, restarts=seen.restarts + 1)
            state = replace(state, tasks={**state.tasks, task: seen})
        if seen.phase is Phase.PLANNED and now < seen.not_before:
            times.append(seen.not_before)
        elif seen.phase is Phase.PLANNED:
            state = _launch(state, task, actions)
        elif seen.replace and seen.phase is not Phase.ENDING:
            actions.append(Signal(task, SIGKILL))
            state = with_task(state, task, phase=Phase.ENDING)
    if policy.dependence_on_chief:
        state = _end_with_chief(state, actions)
    return state, min(times, default=None)


def restart_delay(seen: TaskState, policy: Policy) -> float:
    """Seconds between the end of the process and its next one."""
    return min(policy.restart_delay_s * 2**seen.restarts, _LONGEST_DELAY_S)


def note_strategy(state: ClusterState, event: BarrierReached) -> ClusterState:
    """The task makes its first collective strategy, with the present processes of the members."""
    if not event.barrier.startswith(FIRST_STRATEGY):
        return state
    return with_task(state, event.task, joined={m: state.tasks[m].attempt for m in event.members})


def must_rejoin(state: ClusterState) -> bool:
    """Whether a task's TensorFlow knows a process of a peer that is not the present one.

    TensorFlow never lets the new process in, nor forgets the old one: all of them need new addresses.
    """
    return any(
        seen.phase in ALIVE and any(state.tasks[m].attempt != attempt for m, attempt in seen.joined.items())
        for seen in state.tasks.values()
    )


def _may_restart(seen: TaskState, policy: Policy) -> bool:
    """Whether it died by itself, after it had been ready, and the policy gives it another process."""
    return seen.phase is Phase.DEAD and bool(seen.host) and seen.restarts < policy.auto_restart


def _launch(state: ClusterState, task: TaskId, actions: list[Action]) -> ClusterState:
    attempt = state.tasks[task].attempt + 1
    actions.append(Launch(task, attempt))
    return with_task(state, task, phase=Phase.STARTING, attempt=attempt, host="", joined={})


def _end_with_chief(state: ClusterState, actions: list[Action]) -> ClusterState:
    """A chief that died for good takes the others along, as in TensorFlow's own runner."""
    chief = next((t for t in state.tasks if t.type == "chief"), None)
    if chief is None or state.tasks[chief].phase is not Phase.DEAD:
        return state
    for task, seen in state.tasks.items():
        if seen.phase in (Phase.STARTING, Phase.READY, Phase.RUNNING):
            actions.append(Signal(task, SIGKILL))
            state = replace(state, tasks={**state.tasks, task: replace(seen, phase=Phase.ENDING)})
    return state
