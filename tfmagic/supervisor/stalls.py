"""Which tasks make no progress, and who waits for whom. Pure functions, as those of the lifecycle.

    TasksObserved, LineReached, ... → `LastProgress` of each task: when it gave its last sign of progress
    progress + outcomes + barriers  → `TaskActivity` of each task, and one sentence about all of them

A sign of progress is output, another line of the cell, a display, or computing, in a child process too. A
task that gives none for `Policy.stall_s` is *stalled*, unless it waits for something that can still come: a
peer that goes on, its data set, the user. A task that computes is never stalled, however long one step takes,
nor is one that would compute if it got a core. Time in which no look was taken (a laptop that slept, a kernel
that stood still) does not count.
"""

import enum
from collections.abc import Collection, Iterable, Mapping

import msgspec

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import (
    FIRST_STRATEGY,
    Displayed,
    InputAnswered,
    InputWanted,
    LineReached,
    ProcessSample,
    TasksObserved,
    Wait,
)
from tfmagic.runs.doing import Doing
from tfmagic.supervisor import barriers
from tfmagic.supervisor.state import (
    CellState,
    ClusterState,
    LastProgress,
    Policy,
    replace,
    with_cell,
    with_task,
)
from tfmagic.system import features

# A task that only waits, with TensorFlow's servers and heartbeats in it, was measured at 0.004 to 0.006
# of a core (2.21, up to 109 threads); a clock tick is 0.01 s.
_IDLE_SHARE = 0.02
_BURST_S = 0.03
_WANTED_SHARE = 0.5  # of the time between two looks; one that only waits wakes up now and then
_GAP_S = 3.0  # between two looks, which are 0.5 s apart: no look was taken meanwhile
_NAMED = 3  # tasks that are named in one clause
_PEER_WAITS = (Wait.COLLECTIVE, Wait.PEERS, Wait.STEP)


# ---- folding what is seen -----------------------------------------------------------------------


def observe(state: ClusterState, event: TasksObserved, now: float) -> ClusterState:
    """Fold a look from outside into the progress of the tasks that run a cell."""
    gap_s = 0.0 if state.observed_at is None else now - state.observed_at
    asleep_s = gap_s if gap_s > _GAP_S else 0.0
    for cell in [c for c in state.cells.values() if c.sent]:
        progress = dict(cell.progress)
        for task in cell.waiting_for:
            last = progress.get(task) or LastProgress(cell.started)
            if asleep_s:
                last = replace(last, at=min(last.at + asleep_s, now))
            sample = event.samples.get(task)
            progress[task] = last if sample is None else _fold_sample(last, sample, max(gap_s, 1e-3), now)
        state = with_cell(state, replace(cell, progress=progress))
    return replace(state, observed_at=now)


def _fold_sample(last: LastProgress, sample: ProcessSample, elapsed_s: float, now: float) -> LastProgress:
    is_first = last.log_bytes < 0  # from here on differences count
    has_moved = is_first or sample.log_bytes != last.log_bytes or _computes(last, sample, elapsed_s, now)
    return replace(
        last,
        at=now if has_moved else last.at,
        cpu_s=sample.cpu_s if has_moved else last.cpu_s,
        log_bytes=sample.log_bytes if has_moved else last.log_bytes,
        seen_cpu_s=sample.cpu_s,
        seen_wanted_s=sample.wanted_s,
        stopped=sample.stopped,
    )


def _computes(last: LastProgress, sample: ProcessSample, elapsed_s: float, now: float) -> bool:
    known = sample.wanted_s is not None and last.seen_wanted_s is not None
    wanted_s = (sample.wanted_s or 0.0) - (last.seen_wanted_s or 0.0) if known else 0.0
    if wanted_s > _WANTED_SHARE * elapsed_s:  # on a crowded machine, most of it is waiting
        return True
    if sample.cpu_s is None or last.cpu_s is None or last.seen_cpu_s is None:
        return False
    burst_s, all_s = sample.cpu_s - last.seen_cpu_s, sample.cpu_s - last.cpu_s
    return burst_s >= _BURST_S or all_s > _BURST_S + _IDLE_SHARE * (now - last.at)


def note_task_event(
    state: ClusterState, event: LineReached | Displayed | InputWanted | InputAnswered, now: float
) -> ClusterState:
    """Fold what a task reports by itself, or the user's answer to it."""
    for cell in state.cells.values():
        if event.task not in cell.request.commands:
            continue
        if not isinstance(event, InputAnswered) and event.cell != cell.number:
            continue
        last = cell.progress.get(event.task) or LastProgress(now)
        match event:
            case LineReached() if _has_moved(last.place, event):
                last = replace(last, place=event, at=now, asks=False)  # whatever became of a question
            case LineReached():
                last = replace(last, place=event)
            case Displayed():
                last = replace(last, at=now)
            case InputWanted():
                last = replace(last, at=now, asks=True)
            case InputAnswered():
                last = replace(last, at=now, asks=False)
        state = with_cell(state, replace(cell, progress={**cell.progress, event.task: last}))
    return state


def _has_moved(before: LineReached | None, event: LineReached) -> bool:
    """Check whether a task is at another line, or has left the call or the debugger in which it was."""
    if before is None or (before.filename, before.line) != (event.filename, event.line):
        return True
    if before.wait is Wait.DEBUGGER and event.wait is not Wait.DEBUGGER:
        return True
    return bool(before.inside) and before.inside != event.inside


def count_stalls(state: ClusterState, policy: Policy, now: float) -> ClusterState:
    """Note the tasks that are stalled; each time counts once."""
    for cell in [c for c in state.cells.values() if c.sent and c.progress]:
        activities = describe(state, cell, policy, now)
        stalled = tuple(task for task, activity in activities.items() if activity.doing is Doing.STALLED)
        for task in set(stalled) - set(cell.stalled):
            state = with_task(state, task, stalls=state.tasks[task].stalls + 1)
        if stalled != cell.stalled:
            state = with_cell(state, replace(cell, stalled=stalled))
    return state


# ---- what it means ------------------------------------------------------------------------------


def suspects(state: ClusterState, policy: Policy, now: float) -> set[TaskId]:
    """Return the tasks that can soon count as stalled: they get a closer look."""
    return {
        task
        for cell in state.cells.values()
        for task, last in cell.progress.items()
        if task not in cell.outcomes and now - last.at > policy.stall_s / 2
    }


class Reason(enum.Enum):
    """Why a task makes no progress, with its clause: (verb for one task, for several, what follows)."""

    NONE = ("runs", "run", "")
    BARRIER = ("waits", "wait", "at {what}")
    STRATEGY = ("waits", "wait", "for the others to make their strategy")
    PEERS = ("waits", "wait", "for the others to start")
    CALL = ("waits", "wait", "in {what}")
    DATASET = ("waits", "wait", "for the next batch")
    INPUT = ("waits", "wait", "for your input")
    DEBUGGER = ("stands", "stand", "in the debugger")
    SILENT = ("gives", "give", "no sign of progress")
    INSIDE = ("is", "are", "in {what}")  # a call that is not known to wait
    STOPPED = ("is", "are", "stopped")
    HOST = ("is", "are", "out of reach: {what} does not answer")

    def clause(self, tasks: list[TaskId], what: str, hosts: Mapping[TaskId, str]) -> str:
        """Return "worker-0 waits in all_reduce", or "worker-0 on 10.0.0.2 waits in all_reduce"."""
        one, several, rest = self.value
        verb = one if len(tasks) == 1 else several
        return f"{name_tasks(tasks, hosts)} {verb} {rest.format(what=what)}".rstrip()


FOR_OTHERS = (Reason.BARRIER, Reason.STRATEGY, Reason.PEERS, Reason.CALL)
WAITS = (*FOR_OTHERS, Reason.DATASET, Reason.INPUT, Reason.DEBUGGER)
_WAIT_REASONS = {
    Wait.COLLECTIVE: Reason.CALL,
    Wait.RPC: Reason.CALL,
    Wait.STEP: Reason.CALL,
    Wait.DATASET: Reason.DATASET,
    Wait.PEERS: Reason.PEERS,
    Wait.DEBUGGER: Reason.DEBUGGER,
}


class TaskActivity(msgspec.Struct, frozen=True):
    """What a task of a cell does now.

    Attributes:
        what: The barrier or the call in which it is; "" where the reason needs none.
        note: The same for people, with the tasks that it waits for; "" while it runs.
        still_s: For how long it has given no sign of progress, in seconds.
    """

    doing: Doing = Doing.RUNNING
    reason: Reason = Reason.NONE
    what: str = ""
    note: str = ""
    still_s: float = 0.0


def describe(state: ClusterState, cell: CellState, policy: Policy, now: float) -> dict[TaskId, TaskActivity]:
    """Return the activity of each task that has no outcome yet."""
    meetings = barriers.describe_waits(state) if state.barriers else {}
    found = {task: _activity(state, cell, task, policy, now, meetings) for task in cell.waiting_for}
    waiting = {task for task in found if waits_for_peers(cell, task, meetings)}
    can_come = [task for task in cell.waiting_for if task not in waiting]
    others_can = others_can_come(state, cell)
    for task in waiting:
        activity = found[task]
        if can_come and activity.reason is not Reason.BARRIER and not may_read_data(cell, task):
            found[task] = replace(activity, note=f"{activity.note} for {name_tasks(can_come)}".strip())
        elif not can_come and not others_can and activity.still_s >= policy.stall_s:
            note = f"{activity.note}: no task can come"
            found[task] = replace(activity, doing=Doing.STALLED, note=note)
    return found


def others_can_come(state: ClusterState, cell: CellState) -> bool:
    """Check whether a task that is not awaited runs another cell, where it can come to a collective."""
    return any(
        other is not cell and other.sent and not set(other.waiting_for) <= set(cell.waiting_for)
        for other in state.cells.values()
    )


def _activity(
    state: ClusterState,
    cell: CellState,
    task: TaskId,
    policy: Policy,
    now: float,
    meetings: Mapping[TaskId, tuple[str, str]],
) -> TaskActivity:
    last = cell.progress.get(task)
    if last is None or not cell.sent:
        return TaskActivity()
    if host := state.tasks[task].silent_host:
        note = f"its host {host} does not answer"
        return TaskActivity(Doing.STALLED, Reason.HOST, host, note, max(now - last.at, 0.0))
    # up to the last look: what has happened since is not known
    still_s = max((now if state.observed_at is None else state.observed_at) - last.at, 0.0)
    inside, wait = ("", Wait.NONE) if last.place is None else (last.place.inside, last.place.wait)
    if last.stopped:
        note = f"its process is stopped (SIGSTOP){features.propose('let go on', '; {} lets it go on', task)}"
        return TaskActivity(Doing.STALLED, Reason.STOPPED, "", note, still_s)
    if (meeting := meetings.get(task)) is not None:
        barrier, note = meeting
        if barrier.startswith(FIRST_STRATEGY):
            return TaskActivity(Doing.WAITING, Reason.STRATEGY, "", note, still_s)
        return TaskActivity(Doing.WAITING, Reason.BARRIER, barrier, note, still_s)
    if last.asks:
        return TaskActivity(Doing.WAITING, Reason.INPUT, "", "for your input")
    if wait is not Wait.NONE:
        call = inside or wait.value
        notes = {Wait.DATASET: "for its data set", Wait.PEERS: "", Wait.DEBUGGER: "in the debugger"}
        note = notes.get(wait, f"in {call}")
        reason = _WAIT_REASONS[wait]
        return TaskActivity(Doing.WAITING, reason, call if reason is Reason.CALL else "", note, still_s)
    if still_s < policy.stall_s:
        return TaskActivity(still_s=still_s)
    if not inside:
        return TaskActivity(Doing.STALLED, Reason.SILENT, "", "no sign of progress", still_s)
    return TaskActivity(Doing.STALLED, Reason.INSIDE, inside, f"in {inside}", still_s)


def may_read_data(cell: CellState, task: TaskId) -> bool:
    place = cell.place(task)
    return place is not None and place.wait is Wait.STEP


def waits_for_peers(cell: CellState, task: TaskId, meetings: Collection[TaskId]) -> bool:
    last = cell.progress.get(task)
    if last is None or last.stopped:
        return False
    return task in meetings or (last.place is not None and last.place.wait in _PEER_WAITS)


def name_tasks(tasks: Iterable[TaskId], hosts: Mapping[TaskId, str] | None = None) -> str:
    """Return "worker-0, worker-1 and worker-2", or some of them and how many more."""
    names = [f"{task} on {hosts[task]}" if hosts and task in hosts else task.name for task in sorted(tasks)]
    if len(names) > _NAMED + 1:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
