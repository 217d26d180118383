"""Which tasks make no progress, and who waits for whom. Pure, as the lifecycle.

    TasksObserved, LineReached, … → the task's `LastProgress`: when it gave its last sign of progress
    marks + outcomes + barriers   → a word for each task, and one sentence about all of them

A sign of progress is output, another line of the cell, a display, or computing, in a child process too. A
task that gives none for `Policy.stall_s` is *stalled*, unless it waits for something that may still come: a
peer that goes on, its data set, the user. One that computes is never stalled, however long one step takes,
nor one that would if it got a core. Time in which nobody looked (a laptop that slept, a kernel that stood
still) counts for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import (
    FIRST_STRATEGY,
    CellReturned,
    Displayed,
    InputAnswered,
    InputWanted,
    LineReached,
    ProcessSample,
    TasksObserved,
    Wait,
)
from tfmagic.supervisor import barriers
from tfmagic.supervisor.barriers import Meeting
from tfmagic.supervisor.state import (
    COMING,
    CellState,
    ClusterState,
    LastProgress,
    Policy,
    with_cell,
    with_task,
)

# A task that only waits, with TensorFlow's servers and heartbeats in it, was measured at 0.004 to 0.006
# of a core (2.21, up to 109 threads); a clock tick is 0.01 s.
_IDLE_SHARE = 0.02
_BURST_S = 0.03
_WANTED_SHARE = 0.5  # of the time between two looks; one that only waits wakes up now and then
_GAP_S = 3.0  # between two looks of 0.5 s: nobody looked meanwhile
_NAMED = 3  # tasks that are named in one clause
_PEER_WAITS = (Wait.COLLECTIVE, Wait.PEERS)


# ---- folding what is seen -----------------------------------------------------------------------


def observe(state: ClusterState, event: TasksObserved, now: float) -> ClusterState:
    """Fold a look from outside into the marks of the tasks that run a cell."""
    gap_s = 0.0 if state.observed_at is None else now - state.observed_at
    asleep_s = gap_s if gap_s > _GAP_S else 0.0
    for cell in [c for c in state.cells.values() if c.sent]:
        marks = dict(cell.marks)
        for task in cell.waiting_for:
            mark = marks.get(task) or LastProgress(cell.started)
            if asleep_s:
                mark = replace(mark, at=min(mark.at + asleep_s, now))
            sign = event.signs.get(task)
            marks[task] = mark if sign is None else _fold_sign(mark, sign, max(gap_s, 1e-3), now)
        state = with_cell(state, replace(cell, marks=marks))
    return replace(state, observed_at=now)


def _fold_sign(mark: LastProgress, sign: ProcessSample, elapsed_s: float, now: float) -> LastProgress:
    is_first = mark.log_bytes < 0  # from here on differences count
    seen = (sign.cpu_s, sign.wanted_s, sign.stopped, mark.asks, mark.place)
    if is_first or sign.log_bytes != mark.log_bytes or _computes(mark, sign, elapsed_s, now):
        return LastProgress(now, sign.cpu_s, sign.log_bytes, *seen)
    return LastProgress(mark.at, mark.cpu_s, mark.log_bytes, *seen)


def _computes(mark: LastProgress, sign: ProcessSample, elapsed_s: float, now: float) -> bool:
    known = sign.wanted_s is not None and mark.seen_wanted_s is not None
    wanted_s = (sign.wanted_s or 0.0) - (mark.seen_wanted_s or 0.0) if known else 0.0
    if wanted_s > _WANTED_SHARE * elapsed_s:  # on a crowded machine, most of it is waiting
        return True
    if sign.cpu_s is None or mark.cpu_s is None or mark.seen_cpu_s is None:
        return False
    burst_s, all_s = sign.cpu_s - mark.seen_cpu_s, sign.cpu_s - mark.cpu_s
    return burst_s >= _BURST_S or all_s > _BURST_S + _IDLE_SHARE * (now - mark.at)


def hear(
    state: ClusterState, event: LineReached | Displayed | InputWanted | InputAnswered, now: float
) -> ClusterState:
    """Fold what a task says by itself, or the user to it."""
    for cell in state.cells.values():
        if event.task not in cell.request.commands:
            continue
        if not isinstance(event, InputAnswered) and event.cell != cell.number:
            continue
        mark = cell.marks.get(event.task) or LastProgress(now)
        match event:
            case LineReached() if _has_moved(mark.place, event):
                mark = replace(mark, place=event, at=now, asks=False)  # whatever became of a question
            case LineReached():
                mark = replace(mark, place=event)
            case Displayed():
                mark = replace(mark, at=now)
            case InputWanted():
                mark = replace(mark, at=now, asks=True)
            case InputAnswered():
                mark = replace(mark, at=now, asks=False)
        state = with_cell(state, replace(cell, marks={**cell.marks, event.task: mark}))
    return state


def _has_moved(before: LineReached | None, event: LineReached) -> bool:
    """Whether it is another line, or has left the call in which it was; not that it is still in one."""
    if before is None or (before.filename, before.line) != (event.filename, event.line):
        return True
    return bool(before.inside) and before.inside != event.inside


def count_stalls(state: ClusterState, policy: Policy, now: float) -> ClusterState:
    """Note the tasks that are stalled, once for each time that they are."""
    for cell in [c for c in state.cells.values() if c.sent and c.marks]:
        standings = describe(state, cell, policy, now)
        stalled = tuple(task for task, standing in standings.items() if standing.word == "stalled")
        for task in set(stalled) - set(cell.stalled):
            state = with_task(state, task, stalls=state.tasks[task].stalls + 1)
        if stalled != cell.stalled:
            state = with_cell(state, replace(cell, stalled=stalled))
    return state


# ---- saying what it means -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskActivity:
    """What a task of a cell does now.

    Attributes:
        word: running, waiting or stalled.
        note: What it waits for, or is in; "" while it runs.
        verbs: What it does, for one task and for several: ("waits", "wait").
        rest: What follows the verb, before the place.
        still_s: For how long it has given no sign of progress.
    """

    word: str = "running"
    note: str = ""
    verbs: tuple[str, str] = ("runs", "run")
    rest: str = ""
    still_s: float = 0.0


def describe(state: ClusterState, cell: CellState, policy: Policy, now: float) -> dict[TaskId, TaskActivity]:
    """The standing of each task that has no outcome yet."""
    at = barriers.describe_waits(state) if state.barriers else {}
    found = {task: _look_at(state, cell, task, policy, now, at) for task in cell.waiting_for}
    waits = {task for task in found if _waits_for_peers(cell, task, at)}
    may_come = [task for task in cell.waiting_for if task not in waits]
    for task in waits:
        standing = found[task]
        if may_come and not standing.rest.startswith("at "):  # a barrier's note has it already
            whom = _names(may_come)
            found[task] = replace(standing, note=f"{standing.note} for {whom}".strip())
        elif may_come:
            continue
        elif standing.still_s >= policy.stall_s:  # all wait, each in a place of its own, or have ended
            found[task] = replace(standing, word="stalled", note=f"{standing.note}: nobody can come")
    return found


def explain(state: ClusterState, cell: CellState, policy: Policy, now: float) -> str:
    """Who waits for whom, in one sentence; "" as long as all goes well.

    "worker-0 and worker-2 wait in all_reduce (cell line 14); worker-1 is in time.sleep (line 9)"
    """
    if not cell.sent:
        coming = [t for t in cell.request.commands if state.tasks[t].phase in COMING]
        is_late = bool(coming) and not cell.queued and now - cell.started >= policy.stall_s
        return f"the cell waits for a new process of {_names(coming)}" if is_late else ""
    if not cell.marks:
        return ""
    standings = describe(state, cell, policy, now)
    told = [task for task, standing in standings.items() if _is_news(standing, policy)]
    if not told or all(_may_wait_for_data(cell, task) for task in cell.request.commands):
        return ""
    clauses: dict[tuple[tuple[str, str], str, str], list[TaskId]] = {}
    order = sorted(standings, key=lambda task: (standings[task].word == "running", task))
    order.sort(key=lambda task: standings[task].verbs[0] != "waits")
    for task in order:
        standing = standings[task]
        clauses.setdefault((standing.verbs, standing.rest, _place(cell, task)), []).append(task)
    parts = [_clause(tasks, *said) for said, tasks in clauses.items()]
    parts += _absent(cell)
    return "; ".join([*parts[:1], *(part.replace("(cell line ", "(line ") for part in parts[1:])])


def _look_at(
    state: ClusterState,
    cell: CellState,
    task: TaskId,
    policy: Policy,
    now: float,
    at: Mapping[TaskId, Meeting],
) -> TaskActivity:
    mark = cell.marks.get(task)
    if mark is None or not cell.sent:
        return TaskActivity()
    # at the last look: nobody knows what has happened since
    still_s = max((now if state.observed_at is None else state.observed_at) - mark.at, 0.0)
    if mark.stopped:
        note = f"its process is stopped (SIGSTOP); %tfcluster resume {task} lets it go on"
        return TaskActivity("stalled", note, ("is", "are"), "stopped", still_s)
    if (meeting := at.get(task)) is not None:
        is_first = meeting.barrier.startswith(FIRST_STRATEGY)
        rest = "for the others to make their strategy" if is_first else f"at {meeting.barrier}"
        return TaskActivity("waiting", meeting.note, ("waits", "wait"), rest, still_s)
    if mark.asks:
        return TaskActivity("waiting", "for your input", ("waits", "wait"), "for your input")
    inside, wait = ("", Wait.NONE) if mark.place is None else (mark.place.inside, mark.place.wait)
    match wait:
        case Wait.COLLECTIVE | Wait.RPC | Wait.STEP:
            where = f"in {inside or wait.value}"
            return TaskActivity("waiting", where, ("waits", "wait"), where, still_s)
        case Wait.DATASET:
            return TaskActivity(
                "waiting", "for its data set", ("waits", "wait"), "for the next batch", still_s
            )
        case Wait.PEERS:
            return TaskActivity("waiting", "", ("waits", "wait"), "for the others to start", still_s)
    if still_s < policy.stall_s:
        return TaskActivity(still_s=still_s)
    if not inside:
        return TaskActivity(
            "stalled", "no sign of progress", ("gives", "give"), "no sign of progress", still_s
        )
    return TaskActivity("stalled", f"in {inside}", ("is", "are"), f"in {inside}", still_s)


def _waits_for_peers(cell: CellState, task: TaskId, at: Mapping[TaskId, Meeting]) -> bool:
    mark = cell.marks.get(task)
    if mark is None or mark.stopped:
        return False
    return task in at or (mark.place is not None and mark.place.wait in _PEER_WAITS)


def _is_news(standing: TaskActivity, policy: Policy) -> bool:
    """Whether somebody should be told: not of a data set that is slow, nor of a question to the user."""
    if standing.word == "stalled":
        return True
    waits_for_others = standing.rest.startswith(("in ", "at ", "for the others"))
    return standing.word == "waiting" and waits_for_others and standing.still_s >= policy.stall_s


def _may_wait_for_data(cell: CellState, task: TaskId) -> bool:
    mark = cell.marks.get(task)
    return mark is not None and mark.place is not None and mark.place.wait in (Wait.STEP, Wait.DATASET)


def _place(cell: CellState, task: TaskId) -> str:
    mark = cell.marks.get(task)
    if mark is None or mark.place is None:
        return ""
    file, line = mark.place.filename, mark.place.line
    here = file == cell.request.commands[task].filename
    return f" (cell line {line})" if here else f" ({file.rpartition('/')[2]} line {line})"


def _clause(tasks: list[TaskId], verbs: tuple[str, str], rest: str, place: str) -> str:
    verb = verbs[0] if len(tasks) == 1 else verbs[1]
    return f"{_names(tasks)} {verb}{' ' if rest else ''}{rest}{place}"


def _absent(cell: CellState) -> Iterable[str]:
    """Those that will not come: what they did, said of all that did the same."""
    ended = [task for task, outcome in cell.outcomes.items() if isinstance(outcome, CellReturned)]
    failed = [task for task in cell.outcomes if task not in ended]
    if ended:
        yield f"{_names(ended)} {'has' if len(ended) == 1 else 'have'} ended the cell"
    if failed:
        yield f"{_names(failed)} failed"


def _names(tasks: Iterable[TaskId]) -> str:
    names = [task.name for task in sorted(tasks)]
    if len(names) > _NAMED + 1:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
