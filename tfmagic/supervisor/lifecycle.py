"""The rules of a cluster, as two pure functions over `tfmagic.supervisor.state`.

    apply(state, event, now) → state          folds an event into the state
    decide(state, policy, now) → Decision     chooses the actions, and the time of the next decision

There is no process, clock or thread here: the supervisor brings events and the time, and carries out actions.
The event that follows from an action changes the state.

Several cells can run at a time. A task serves them in the order of request, and a cell is sent when all of
its tasks are free for it. It ends when each of them has an outcome. As soon as one has failed, the others are
released from the collectives in which they wait for it, and so are those that wait for a task that has ended
the cell: see `tfmagic.supervisor.deserted`. Tasks that still have no outcome after a grace
period, after the time limit, or after Ctrl-C escalate: see `tfmagic.supervisor.escalation`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import assert_never

from msgspec import structs

from tfmagic.protocol import events
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import AbortCollectives, Rejoin
from tfmagic.supervisor import barriers, deserted, escalation, restarts, stall_sentences, stalls
from tfmagic.supervisor.state import (
    ALIVE,
    COMING,
    LOST,
    Action,
    CellState,
    ClusterState,
    Decision,
    FinishCell,
    Outcome,
    Phase,
    Policy,
    Send,
    TaskState,
    are_needed,
    replace,
    with_cell,
    with_cut_off,
    with_task,
)


def new_state(tasks: tuple[TaskId, ...]) -> ClusterState:
    """Return the state of a cluster before its first process."""
    return ClusterState({task: TaskState() for task in tasks})


# ---- folding events -----------------------------------------------------------------------------


def runs_of(arrived: Iterable[events.Event]) -> Iterator[list[events.Event]]:
    """Divide events into runs for `fold`: outcomes that came together are one change, any other event is one.

    With many tasks, each change copies as many entries.
    """
    run: list[events.Event] = []
    for event in arrived:
        if type(event) is events.CellReturned:
            run.append(event)
            continue
        if run:
            yield run
            run = []
        yield [event]
    if run:
        yield run


def fold(state: ClusterState, run: list[events.Event], now: float) -> ClusterState:
    """Return the state after a run of events, as `apply` of each would."""
    if type(run[0]) is events.CellReturned:
        return _apply_outcomes(state, run, now)  # type: ignore[arg-type]  # all of one class
    return apply(state, run[0], now)


def apply(state: ClusterState, event: events.Event, now: float) -> ClusterState:
    """Return the state after `event`. Events of an earlier attempt of a task change nothing."""
    match event:
        case events.CellReturned() | events.CellRaised():
            return _apply_outcomes(state, (event,), now)
        case events.BarrierReached(task, attempt):  # frequent: each class before it costs a look
            if task in state.tasks and state.tasks[task].attempt != attempt:
                return state
            return barriers.arrive(state, event, now)
        case events.LaunchRequested(tasks):
            return _apply_launch(state, tasks)
        case events.CellRequested():
            cell = CellState(event, now, queued=are_needed(state, event.commands))
            return with_cut_off(with_cell(state, cell))
        case events.GroupChanged(group, gone):
            return replace(state, groups={**state.groups, group: gone})
        case events.InterruptPressed():
            return _apply_press(state, event)
        case events.StopRequested():
            stop_at = state.stop_at if state.stopping else now + restarts.GOODBYE_S
            return replace(state, stopping=True, stop_at=stop_at)
        case events.TaskStarted(task, attempt, pid, fresh, obstacle):
            if state.tasks[task].attempt != attempt:
                return state
            # says nothing about the phase: on another channel, it may come after the task is ready
            return with_task(state, task, pid=pid, fresh=fresh, obstacle=obstacle)
        case events.TaskReady(task, attempt, pid, host):
            if state.tasks[task].attempt != attempt:
                return state
            return with_task(state, task, phase=Phase.READY, pid=pid, host=host)
        case events.TaskExited(task) | events.TaskLost(task):
            return _apply_end(state, event, now)
        case events.HostSilent(tasks, host, silent):
            for task in tasks:
                if task in state.tasks:
                    state = with_task(state, task, silent_host=host if silent else "")
            return state
        case events.HostCutOff(tasks, cut):
            for task in [task for task in tasks if task in state.tasks]:
                state = with_task(state, task, cut_off=cut)
            return with_cut_off(state)
        case events.TasksSlowed(factors):
            return replace(state, slowdowns=factors)
        case events.TasksObserved():
            return stalls.observe(state, event, now)
        case events.Displayed() | events.LineReached() | events.InputWanted() | events.InputAnswered():
            return stalls.note_task_event(state, event, now)
        case events.SignalAsked(task, number, cause):
            return state if cause is events.Cause.NONE else restarts.note_signal(state, task, number, cause)
        case events.FloodAsked() | events.SocketSent() | events.HintGiven():
            return state
        case events.CommsSent() | events.CommAnswered() | events.FeatureRecorded():
            return state
        case _:
            assert_never(event)


def _apply_press(state: ClusterState, press: events.InterruptPressed) -> ClusterState:
    for cell in state.cells.values():
        if press.cell in (0, cell.number):
            state = _press_cell(state, cell, press)
    return state


def _press_cell(state: ClusterState, cell: CellState, press: events.InterruptPressed) -> ClusterState:
    # a task that has ended its part can run another cell by now: a press that names it is for that cell
    tasks = press.tasks or tuple(cell.request.commands)
    if press.tasks:
        tasks = tuple(t for t in tasks if t in cell.waiting_for)
    if not tasks:
        return state
    is_ending = cell.timed_out or (cell.failed_at is not None and not cell.request.keep_going)
    if press.insists or (is_ending and not cell.presses):
        cell = replace(cell, insists=True)
    again = set(tasks) & set(cell.pressed_tasks)
    pressed = tuple(dict.fromkeys((*cell.pressed_tasks, *tasks)))
    presses = cell.presses + 1 if again else max(cell.presses, 1)
    return with_cell(state, replace(cell, presses=presses, pressed_tasks=pressed))


def _apply_launch(state: ClusterState, tasks: tuple[TaskId, ...]) -> ClusterState:
    for task in tasks:
        if task not in state.tasks:
            state = replace(state, tasks={**state.tasks, task: TaskState()})
        elif state.tasks[task].phase in ALIVE:
            state = with_task(state, task, replace=True, restarts=0)
        else:
            state = with_task(state, task, phase=Phase.PLANNED, since=0.0, restarts=0)
    return state


def _apply_outcomes(
    state: ClusterState, ended: Iterable[events.CellReturned | events.CellRaised], now: float
) -> ClusterState:
    tasks, added = dict(state.tasks), dict[int, dict[TaskId, Outcome]]()
    for event in ended:
        task, cell, seen = event.task, state.cells.get(event.cell), tasks[event.task]
        if seen.attempt != event.attempt:
            continue
        if state.barriers:
            state = barriers.forget_task(state, task)
        joined = seen.joined
        if cell is not None and task not in cell.outcomes:
            added.setdefault(event.cell, {}).setdefault(task, event)
            if not isinstance(event, events.CellReturned):
                joined = dict.fromkeys(joined, LOST) if event.lost_peers else joined
            elif isinstance(cell.request.commands[task].kind, Rejoin):
                joined = {}  # it has forgotten its peers
        tasks[task] = replace(seen, phase=Phase.READY, joined=joined)
    cells = {number: _with_outcomes(state.cells[number], new, now) for number, new in added.items()}
    return replace(state, tasks=tasks, cells={**state.cells, **cells})


def _with_outcomes(cell: CellState, new: Mapping[TaskId, Outcome], now: float) -> CellState:
    failed = [end for end in new.values() if not isinstance(end, events.CellReturned)]
    failed_at = cell.failed_at
    if failed_at is None and failed:
        failed_at = min(getattr(failed[0], "raised_at", 0.0) or now, now)
    return replace(
        cell,
        outcomes={**cell.outcomes, **new},
        ended_at={**cell.ended_at, **dict.fromkeys(new, now)},
        failed_at=failed_at,
    )


def _apply_end(state: ClusterState, event: events.TaskExited | events.TaskLost, now: float) -> ClusterState:
    task = event.task
    old = state.tasks[task]
    if old.attempt != event.attempt:
        return state
    phase = Phase.STOPPED if state.stopping else Phase.PLANNED if old.replace else Phase.DEAD
    if isinstance(event, events.TaskExited):
        event = structs.replace(event, cause=old.signals.get(-event.exit_code, events.Cause.NONE))
    cleared = {"pid": 0, "replace": False, "kill_at": None, "silent_host": ""}
    state = with_task(state, task, phase=phase, end=event, since=now, **cleared)
    state = barriers.forget_task(state, task)
    for cell in state.cells.values():
        if cell.sent and task in cell.waiting_for:
            state = with_cell(state, _with_outcomes(cell, {task: event}, now))
    return state


# ---- deciding -----------------------------------------------------------------------------------


def is_over(state: ClusterState, now: float) -> bool:
    """Check whether the cluster was stopped, and its processes have ended or had the time to do so."""
    return state.stopping and (
        now >= state.stop_at or not any(seen.phase in ALIVE for seen in state.tasks.values())
    )


def conclude(
    state: ClusterState,
    arrived: Collection[events.Event],
    policy: Policy,
    wake_at: float | None,
    now: float,
) -> Decision:
    """Return what is to be done after these events, which are folded into the state.

    Args:
        wake_at: When a decision is due even without an event, as the last one has said.
    """
    is_due = wake_at is not None and now >= wake_at
    if arrived and not is_due and demands_nothing(arrived, state):
        return Decision((), state, wake_at)
    return decide(state, policy, now)


def demands_nothing(arrived: Iterable[events.Event], state: ClusterState) -> bool:
    """Check whether nothing must be done after these events: some tasks of the only cell have returned.

    With many tasks, their outcomes arrive one after the other, and a decision looks at each task.
    """
    if state.barriers or state.stopping or len(state.cells) != 1:
        return False
    (cell,) = state.cells.values()
    is_well = cell.sent and cell.failed_at is None and cell.escalation is None and not cell.presses
    return (
        is_well
        and not cell.has_ended
        and all(type(e) is events.CellReturned and not state.tasks[e.task].replace for e in arrived)
    )


def decide(state: ClusterState, policy: Policy, now: float) -> Decision:
    """Return the actions that are due in `state` at the time `now`."""
    actions: list[Action] = []
    if state.stopping:
        for task, seen in state.tasks.items():
            if seen.phase in ALIVE and seen.phase is not Phase.ENDING:
                state = restarts.end_task(state, task, now, actions, events.Cause.STOP)
        return Decision(tuple(actions), state, state.stop_at)
    state, due = restarts.decide_processes(state, policy, now, actions)
    times = [due]
    needed: set[TaskId] = set()  # by earlier cells: one that finishes now frees its tasks
    for number, cell in state.cells.items():
        is_waiting = cell.queued and not cell.sent and not cell.presses
        if is_waiting and not needed.isdisjoint(cell.request.commands):
            needed.update(cell.request.commands)
            continue
        state, wake_at = _decide_cell(state, cell, policy, now, actions)
        times.append(wake_at)
        if len(state.cells) > 1 and number in state.cells:
            needed.update(state.cells[number].waiting_for)
    if state.observed_at == now:
        state = stalls.count_stalls(state, policy, now)
    state = barriers.decide_barriers(state, now, actions)
    times.append(barriers.next_deadline(state))
    return Decision(tuple(actions), state, min((t for t in times if t is not None), default=None))


def _decide_cell(
    state: ClusterState, cell: CellState, policy: Policy, now: float, actions: list[Action]
) -> tuple[ClusterState, float | None]:
    if not cell.sent:
        if cell.presses:  # its tasks were starting, or another cell needs them
            return _finish_cell(state, cell, actions), None
        if any(state.tasks[task].phase in COMING for task in cell.request.commands):
            limit = None if cell.request.timeout_s is None else cell.started + cell.request.timeout_s
            if limit is None or now < limit:
                return state, limit
            return _finish_cell(state, replace(cell, timed_out=True), actions), None
        state, cell = _send_cell(state, cell, actions, now)
    if cell.has_ended:
        return _finish_cell(state, cell, actions), None
    cell = _release_deserted(state, cell, policy, now, actions)
    if cell.failed_at is None and cell.request.timeout_s is None and not cell.presses:  # mostly
        return with_cell(state, cell), None
    cell = _release_waiting(cell, actions)
    had_time = not cell.timed_out
    cell = escalation.start(cell, policy, now, actions)
    if cell.timed_out and had_time:
        cell = replace(cell, waits=stall_sentences.explain(state, cell, policy, now, after_s=0.0))
    return escalation.escalate(state, cell, policy, now, actions)


def _finish_cell(state: ClusterState, cell: CellState, actions: list[Action]) -> ClusterState:
    _stop_strategies(state, cell, actions)
    actions.append(FinishCell(cell))
    return replace(state, cells={n: other for n, other in state.cells.items() if n != cell.number})


def _stop_strategies(state: ClusterState, cell: CellState, actions: list[Action]) -> None:
    """Stop the collectives of tasks that would wait for another one's, which were stopped in this cell."""
    if cell.failed_at is None:
        return
    raised = {t: o for t, o in cell.outcomes.items() if isinstance(o, events.CellRaised)}
    stopped = [task for task, outcome in raised.items() if outcome.stopped]
    if not stopped:
        return
    names = ", ".join(task.name for task in stopped)
    message = f"the collectives of {names} were stopped in an earlier cell"
    for task in cell.outcomes:
        if task not in stopped and state.tasks[task].phase is Phase.READY:
            actions.append(Send(task, AbortCollectives(message)))


def _send_cell(
    state: ClusterState, cell: CellState, actions: list[Action], now: float
) -> tuple[ClusterState, CellState]:
    """Send the cell; a task without a process has its outcome at once."""
    tasks = dict(state.tasks)
    for task, command in cell.request.commands.items():
        seen = tasks[task]
        if seen.phase is Phase.READY:
            actions.append(Send(task, command))
            tasks[task] = replace(seen, phase=Phase.RUNNING)
        else:
            end = seen.end or events.TaskLost(task, seen.attempt, "it has no process")
            cell = _with_outcomes(cell, {task: end}, now)
    cell = replace(cell, sent=True, started=now if cell.queued else cell.started)
    return replace(state, tasks=tasks), cell


def _release_deserted(
    state: ClusterState, cell: CellState, policy: Policy, now: float, actions: list[Action]
) -> CellState:
    """Free tasks from a collective to which no task can come, since the others have ended the cell."""
    waiting = deserted.find_deserted(state, cell, policy, now)
    if not waiting:
        return cell
    why = stall_sentences.explain(state, cell, policy, now, after_s=0.0)
    actions += [Send(task, AbortCollectives(why, when_stuck_in=cell.number)) for task in waiting]
    return replace(cell, released=True)


def _release_waiting(cell: CellState, actions: list[Action]) -> CellState:
    """Free tasks from collectives in which they wait for a failed task.

    A dead task breaks every collective for good. A task that raised breaks those in which a task waits: a
    task that needs no collective any more keeps its strategy whole.
    """
    if cell.request.keep_going or cell.failed_at is None:
        return cell
    dead = [t.name for t, o in cell.outcomes.items() if isinstance(o, events.TaskExited | events.TaskLost)]
    raised = [
        f"{t} raised {o.error.type_name}"
        for t, o in cell.outcomes.items()
        if isinstance(o, events.CellRaised)
    ]
    if dead and not cell.aborted:
        message = f"{', '.join(dead)} died"
        actions += [Send(t, AbortCollectives(message)) for t in cell.waiting_for]
        return replace(cell, aborted=True, released=True)
    if raised and not cell.released:
        abort = AbortCollectives(raised[0], when_stuck_in=cell.number)
        actions += [Send(t, abort) for t in cell.waiting_for]
        return replace(cell, released=True)
    return cell
