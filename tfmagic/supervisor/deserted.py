"""Tasks that wait in a collective for tasks that have ended the cell. A pure function.

Such a cell would never end. It is released as if a task had failed, if nothing else can happen:

- all workers of the cluster run the cell, and those that have ended it run no other one;
- a thread waits for the cell, so that the user starts no other one meanwhile (not with ``--detach``);
- the others wait in a collective, and neither compute nor write, for `Policy.failure_grace_s`;
- no code of the user's goes on in a thread of a task that has ended the cell;
- no host is out of reach, and no task is slowed down: a collective can be late then.
"""

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellReturned, Wait
from tfmagic.supervisor.state import CellState, ClusterState, Phase, Policy

_TRAINERS = ("chief", "worker")


def find_deserted(state: ClusterState, cell: CellState, policy: Policy, now: float) -> tuple[TaskId, ...]:
    """Return the tasks that wait in a collective to which no task can come any more."""
    request = cell.request
    if not cell.outcomes or not cell.progress or not request.attended or request.keep_going:
        return ()
    if cell.released or cell.failed_at is not None or cell.escalation is not None or cell.presses:
        return ()
    trainers = [task for task in state.tasks if task.type in _TRAINERS]
    ended = [task for task in trainers if task in cell.outcomes]
    waiting = [task for task in trainers if task not in cell.outcomes]
    if not ended or not waiting or not set(trainers) <= set(request.commands):
        return ()
    if state.slowdowns or any(seen.cut_off or seen.silent_host for seen in state.tasks.values()):
        return ()
    has_gone = all(_has_gone(state, cell, task, now - policy.failure_grace_s) for task in ended)
    is_stuck = all(_is_stuck(state, cell, task, policy.failure_grace_s) for task in waiting)
    return tuple(waiting) if has_gone and is_stuck else ()


def _has_gone(state: ClusterState, cell: CellState, task: TaskId, before: float) -> bool:
    outcome = cell.outcomes[task]
    if not isinstance(outcome, CellReturned) or outcome.goes_on:
        return False
    return state.tasks[task].phase is Phase.READY and cell.ended_at[task] <= before


def _is_stuck(state: ClusterState, cell: CellState, task: TaskId, for_s: float) -> bool:
    last, observed_at = cell.progress.get(task), state.observed_at
    if last is None or last.place is None or observed_at is None or last.stopped or last.asks:
        return False
    return last.place.wait is Wait.COLLECTIVE and observed_at - last.at >= for_s
