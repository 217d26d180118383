"""A story in words: a line for each thing that the loop saw, and for each that it did then.

18:42:07.123  saw   worker-1: process 2 (4711) exited with code -9
18:42:07.123  did   start worker-1 as process 3
"""

import time
from collections.abc import Collection, Iterable, Iterator

from tfmagic.protocol import commands, events
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.supervisor.state import Action, FinishCell, Launch, Send, Signal
from tfmagic.supervisor.story import Entry
from tfmagic.system.signal_handlers import name_signal


def lines(entries: Iterable[Entry], clock: float, tasks: Collection[TaskId] = ()) -> list[str]:
    """Return entries of a story in words; with `tasks`, only what concerns one of them.

    Args:
        clock: As of `Told`.
    """
    chosen = set(tasks)
    found = []
    for entry in entries:
        at = entry.at + clock
        when = f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at % 1 * 1000):03}"
        for event in entry.arrived:
            if (text := _seen(event)) and (not chosen or chosen & set(_tasks_of(event))):
                found.append(f"{when}  saw   {text}")
        for action in entry.actions:
            if not chosen or chosen & set(_tasks_of(action)):
                found.append(f"{when}  did   {_done(action)}")
    return found


def _tasks_of(what: events.Event | Action) -> Iterator[TaskId]:
    match what:
        case events.CellRequested(commands=sent):
            yield from sent
        case FinishCell(cell):
            yield from cell.ended_at
        case _:
            if (task := getattr(what, "task", None)) is not None:
                yield task
            yield from getattr(what, "tasks", ())


def _names(tasks: Collection[TaskId]) -> str:
    return ", ".join(map(str, tasks)) or "every task"


def _seen(event: events.Event) -> str:
    """Return what happened; "" for what is not worth a line."""
    match event:
        case events.TaskStarted(task, attempt, pid, fresh):
            return f"{task}: process {attempt} ({pid}) {'started' if fresh else 'was forked'}"
        case events.TaskReady(task, attempt, pid, host):
            return f"{task}: process {attempt} ({pid}) is ready on {host}"
        case events.TaskExited(task, attempt, code, reason=reason):
            how = f"was ended by {name_signal(-code)}" if code < 0 else f"exited with code {code}"
            return f"{task}: process {attempt} {how}{_because(reason)}"
        case events.TaskLost(task, attempt, reason):
            return f"{task}: process {attempt} was lost{_because(reason)}"
        case events.CellRequested(number, sent, timeout_s):
            limit = "" if timeout_s is None else f", time limit {timeout_s:g} s"
            prompt = next(
                (f" ([{each.prompt}] in the notebook)" for each in sent.values() if each.prompt), ""
            )
            return f"cell {number}{prompt} was requested on {_names(sent)}{limit}"
        case events.CellReturned(task, cell=number, seconds=seconds):
            return f"{task}: cell {number} returned after {seconds:.3f} s"
        case events.CellRaised(task, cell=number, seconds=seconds, error=error):
            return f"{task}: cell {number} raised {error.type_name} after {seconds:.3f} s"
        case events.LineReached(task, cell=number, line=line, inside=inside, wait=wait):
            where = f" in {inside}" * bool(inside) + f", waits for {wait.value}" * bool(wait.value)
            return f"{task}: cell {number} is at line {line}{where}"
        case events.BarrierReached(task, barrier=name, members=members):
            return f"{task}: waits at barrier {name!r} for {_names(members)}"
        case events.InterruptPressed(tasks, number, insists):
            return f"interrupt of cell {number or 'each'} on {_names(tasks)}{', which insists' * insists}"
        case events.LaunchRequested(tasks):
            return f"a new process was requested for {_names(tasks)}"
        case events.SignalAsked(task, number, cause):
            return f"{name_signal(number)} was requested for {task}{_because(cause.value)}"
        case events.InputWanted(task, cell=number):
            return f"{task}: cell {number} asks for input"
        case events.HintGiven(task, cell=number, name=name):
            return f"{task}: cell {number} has the hint {name}"
        case events.HostSilent(tasks, host, silent):
            return f"host {host} of {_names(tasks)} {'does not answer' if silent else 'answers again'}"
        case events.HostCutOff(tasks, cut):
            return f"the host of {_names(tasks)} {'was cut off' if cut else 'has joined again'}"
        case events.TasksSlowed(factors):
            return "slowed down: " + (", ".join(f"{t} to {f:g}" for t, f in factors.items()) or "no task")
        case events.GroupChanged(number, gone):
            return f"{_names(gone)} will not come to barriers of group {number}"
        case events.StopRequested():
            return "the stop of the cluster was requested"
        case events.TasksObserved(samples):
            stopped = [task for task, sample in samples.items() if sample.stopped]
            return f"{_names(stopped)}: stopped, as by SIGSTOP" if stopped else ""
        case events.FloodAsked(task):
            return f"a flood was requested of {task}"
        case _:  # displays, points, widgets, answers: output, not a state
            return ""


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _done(action: Action) -> str:
    match action:
        case Launch(task, attempt):
            return f"start {task} as process {attempt}"
        case Signal(task, number):
            return f"send {name_signal(number)} to {task}"
        case Send(task, command):
            return f"tell {task}: {_told(command)}"
        case FinishCell(cell):
            late = ", its time limit has passed" * cell.timed_out
            return f"finish cell {cell.number}{late}"


def _told(command: commands.Command) -> str:
    match command:
        case commands.RunCell(cell=number):
            return f"run cell {number}"
        case commands.InterruptCell(number):
            return f"interrupt cell {number}"
        case commands.CancelOps():
            return "cancel the functions that run"
        case commands.AbortCollectives(message, number):
            when = f" when it is stuck in cell {number}" if number else ""
            return f"abort collectives{when}{_because(message)}"
        case commands.ReleaseBarrier(name):
            return f"barrier {name!r} is open"
        case commands.BreakBarrier(name, reason):
            return f"barrier {name!r} is broken{_because(reason)}"
        case _:
            return type(command).__name__
