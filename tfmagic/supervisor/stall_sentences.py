"""The sentence about the tasks of a cell: who waits for whom. Pure functions, as those of `stalls`.

TaskActivity of each task + outcomes → one sentence, "" as long as all goes well
"""

import itertools
import re
from collections.abc import Iterable, Mapping

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellReturned, Wait
from tfmagic.runs.doing import Doing
from tfmagic.supervisor import barriers, stalls
from tfmagic.supervisor.stalls import (
    FOR_OTHERS,
    WAITS,
    Reason,
    TaskActivity,
    may_read_data,
    name_tasks,
    others_can_come,
    waits_for_peers,
)
from tfmagic.supervisor.state import COMING, CellState, ClusterState, Policy
from tfmagic.system.advice import Step

FOR_EVER = "all wait: no task can come"
_UNSEEN = "all wait, and no data set is seen to read or compute: probably no task can come"
_SURE_S = 3.0  # a collective that goes on computes meanwhile
_CUT_OFF_S = 3.0  # until who waits is told, where a host is cut off
_READS_DATA = re.compile(r"read_shards|[Dd]ataset|\.fit\(")
_FEWER_BATCHES = "perhaps its data ended first: give each task as many batches, with take or repeat"


def explain(
    state: ClusterState, cell: CellState, policy: Policy, now: float, after_s: float | None = None
) -> str:
    """Return who waits for whom, in one sentence; "" as long as all goes well.

    "worker-0 and worker-2 wait in all_reduce (cell line 14); worker-1 is in time.sleep (line 9)"

    Args:
        after_s: How long a task must have waited for another; by default as long as for a stall.
    """
    if after_s is None:
        after_s = policy.stall_s
    if not cell.sent:
        coming = [t for t in cell.request.commands if state.tasks[t].phase in COMING]
        is_late = bool(coming) and not cell.queued and now - cell.started >= policy.stall_s
        return f"the cell waits for a new process of {name_tasks(coming)}" if is_late else ""
    if not cell.progress:
        return ""
    if cut_off := list(_cut_off(state)):
        after_s = min(after_s, _CUT_OFF_S)
    activities = stalls.describe(state, cell, policy, now)
    if debugged := _in_debugger(cell, activities):
        return debugged
    if not any(_is_worth_telling(activity, after_s) for activity in activities.values()):
        return ""
    order = sorted(activities, key=lambda task: (activities[task].doing is Doing.RUNNING, task))
    order.sort(key=lambda task: activities[task].reason not in WAITS)
    clauses: dict[tuple[Reason, str, str], list[TaskId]] = {}
    for task in order:
        activity = activities[task]
        clauses.setdefault((activity.reason, activity.what, _place(cell, task)), []).append(task)
    hosts = _hosts_of(state)
    parts = [reason.clause(tasks, what, hosts) + place for (reason, what, place), tasks in clauses.items()]
    parts += _absent(cell, any(_meets_in_a_call(cell, task) for task in activities))
    parts += cut_off
    if not cut_off and _wait_for_each_other(state, cell, activities):
        parts.append(_UNSEEN if any(may_read_data(cell, task) for task in activities) else FOR_EVER)
    return "; ".join([*parts[:1], *(part.replace("(cell line ", "(line ") for part in parts[1:])])


def explain_interrupt(cell: CellState) -> str:
    """Return which tasks one Ctrl-C did not reach, and what a second one does; "" if it reached all."""
    reached = () if cell.escalation is None else cell.escalation.tasks
    left = [task for task in cell.waiting_for if task in reached]
    if not left or not cell.is_users_turn:
        return ""
    places: dict[str, list[TaskId]] = {}
    for task in left:
        last = cell.progress.get(task)
        inside = "" if last is None or last.place is None else last.place.inside
        places.setdefault(f"in {inside}{_place(cell, task)}" if inside else "", []).append(task)
    where = "; ".join(f"{name_tasks(tasks)} {place}" for place, tasks in places.items() if place)
    whose, them = ("its", "it") if len(left) == 1 else ("their", "them")
    caught = any(map(cell.has_caught, left))
    why = "code that catches KeyboardInterrupt" if caught else "in native code"
    how = f"interrupts {them} once more, and then kills" if caught else "kills"
    return (
        f"{name_tasks(left)} did not stop yet{where and f' ({where})'}: {why}, or at work on its end. Wait, "
        f"or interrupt again (Ctrl-C, the stop button or {Step('interrupt')}), which {how} {them} and loses "
        f"{whose} variables"
    )


def _in_debugger(cell: CellState, activities: Mapping[TaskId, TaskActivity]) -> str:
    """Return which tasks stand in a debugger and whether all others wait for them; "" if that is not all."""
    places: dict[str, list[TaskId]] = {}
    for task, activity in activities.items():
        if activity.doing is Doing.STALLED:
            return ""
        if activity.reason is Reason.DEBUGGER:
            places.setdefault(_place(cell, task), []).append(task)
    stopped = list(itertools.chain(*places.values()))
    others = [activity.reason for task, activity in activities.items() if task not in stopped]
    parts = [Reason.DEBUGGER.clause(tasks, "", {}) + place for place, tasks in places.items()]
    if parts and others and all(reason in FOR_OTHERS for reason in others):
        parts.append(f"the others wait for {'it' if len(stopped) == 1 else 'them'}")
    return "; ".join(parts)


def _is_worth_telling(activity: TaskActivity, after_s: float) -> bool:
    """Check whether the user should hear of it: not of a slow data set, nor of a question to the user."""
    if activity.doing is Doing.WAITING:
        return activity.reason in FOR_OTHERS and activity.still_s >= after_s
    return activity.doing is Doing.STALLED


def _place(cell: CellState, task: TaskId) -> str:
    place = cell.place(task)
    if place is None or not place.line:
        return ""
    if place.filename == cell.request.commands[task].filename:
        return f" (cell line {place.line})"
    return f" ({place.filename.rpartition('/')[2]} line {place.line})"


def _meets_in_a_call(cell: CellState, task: TaskId) -> bool:
    place = cell.place(task)
    return place is not None and place.wait is Wait.COLLECTIVE


def _absent(cell: CellState, others_meet: bool) -> Iterable[str]:
    """Yield a clause for the tasks that have ended the cell, and one for those that failed.

    Where the others meet in a collective and the cell reads data, the usual reason is that there were fewer
    batches for a task; what an iterator has done is not known here.
    """
    ended = [task for task, outcome in cell.outcomes.items() if isinstance(outcome, CellReturned)]
    failed = [task for task in cell.outcomes if task not in ended]
    if ended:
        reads_data = any(_READS_DATA.search(command.source) for command in cell.request.commands.values())
        why = f" ({_FEWER_BATCHES})" if others_meet and reads_data else ""
        yield f"{name_tasks(ended)} {'has' if len(ended) == 1 else 'have'} ended the cell{why}"
    if failed:
        yield f"{name_tasks(failed)} failed"


def _wait_for_each_other(
    state: ClusterState, cell: CellState, activities: Mapping[TaskId, TaskActivity]
) -> bool:
    """Check whether all tasks that have not ended the cell wait for others, and have done so for a while."""
    meetings = barriers.describe_waits(state) if state.barriers else {}
    return not others_can_come(state, cell) and all(
        waits_for_peers(cell, task, meetings) and activity.still_s >= _SURE_S
        for task, activity in activities.items()
    )


def _cut_off(state: ClusterState) -> Iterable[str]:
    """Yield a clause for the hosts that are cut off."""
    hosts = sorted({seen.host for seen in state.tasks.values() if seen.cut_off})
    if hosts:
        yield f"{' and '.join(hosts)} {'is' if len(hosts) == 1 else 'are'} cut off"


def _hosts_of(state: ClusterState) -> Mapping[TaskId, str]:
    """Return the host of each task; {} if all are on one."""
    hosts = {task: seen.host for task, seen in state.tasks.items() if seen.host}
    return hosts if len(set(hosts.values())) > 1 else {}
