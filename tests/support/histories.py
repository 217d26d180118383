"""Run the supervisor's rules on lists of events and times, and keep their actions. No process, no clock."""

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import (
    AbortCollectives,
    BreakBarrier,
    CancelOps,
    EndTask,
    InterruptCell,
    ReleaseBarrier,
    RunCell,
)
from tfmagic.protocol.events import (
    BarrierReached,
    CellRaised,
    CellRequested,
    CellReturned,
    LineReached,
    ProcessSample,
    TaskReady,
    TasksObserved,
    TaskStarted,
    Wait,
)
from tfmagic.protocol.payload import PackedError
from tfmagic.supervisor.lifecycle import apply, decide, new_state
from tfmagic.supervisor.state import Policy, Send

A, B, C, D = (TaskId("worker", i) for i in range(4))


class History:
    """A state that gets events at given times, and every action that followed, in order."""

    def __init__(self, *tasks, policy=None):
        self.policy = policy or Policy()
        self.state = new_state(tasks)
        self.tasks, self.now, self.actions, self.wake_at = tasks, 0.0, [], None
        self.tick()

    def tick(self, now=None):
        """Set the time to `now` and return the actions that follow."""
        self.now = self.now if now is None else now
        decision = decide(self.state, self.policy, self.now)
        self.state, self.wake_at = decision.state, decision.wake_at
        self.actions += decision.actions
        return list(decision.actions)

    def happen(self, *events, now=None):
        self.now = self.now if now is None else now
        for event in events:
            self.state = apply(self.state, event, self.now)
        return self.tick()

    def ready(self):
        for task in self.tasks:
            attempt = self.state.tasks[task].attempt
            self.happen(TaskStarted(task, attempt, 100 + task.index, False))
            self.happen(TaskReady(task, attempt, 100 + task.index, "host"))
        self.actions.clear()
        return self

    def run(self, *tasks, cell=1, now=None, source="", **how):
        commands = {t: RunCell(cell=cell, tasks=tasks, source=source) for t in tasks}
        return self.happen(CellRequested(cell, commands, **how), now=now)

    def phase(self, task):
        return self.state.tasks[task].phase


def returned(task, attempt=1, cell=1):
    return CellReturned(task, attempt, cell, 0.1, 0)


def raised(task, kind="ValueError", interrupted=False, attempt=1, message="bad", at=0.0, cell=1):
    error = PackedError(kind, message, "", None, task.name, ((kind, message),))
    return CellRaised(task, attempt, cell, 0.1, 0, error, interrupted, raised_at=at)


def reached(task, barrier, members, timeout_s=None, cell=1):
    return BarrierReached(task, 1, barrier, members, timeout_s, cell)


def started(*tasks, policy=None):
    return History(*tasks, policy=policy).ready()


def at_line(task, line, inside="", wait=Wait.NONE, cell=1, attempt=1, filename=""):
    return LineReached(task, attempt, cell, filename, line, inside, wait)


def observed(cpu_s, log_bytes=None, stopped=()):
    """Return a sample of tasks: their CPU seconds, the lengths of their logs, and which are stopped."""
    logs = log_bytes or {}
    return TasksObserved({t: ProcessSample(s, logs.get(t, 0), t in stopped) for t, s in cpu_s.items()})


# ---- actions: commands that are sent to a task --------------------------------------------------


def end(task):
    return Send(task, EndTask())


def interrupt(task, cell):
    return Send(task, InterruptCell(cell))


def cancel(task, cell):
    """A cancellation has no cell: the channel keeps its order, so that it reaches the present one."""
    return Send(task, CancelOps())


def abort(task, message, cell, when_stuck=False):
    return Send(task, AbortCollectives(message, cell if when_stuck else 0))


def answer(task, barrier, reason="", place=0):
    return Send(task, BreakBarrier(barrier, reason) if reason else ReleaseBarrier(barrier, place))


def commands_of(action, kinds):
    """Return whether the action sends a command of these kinds."""
    return isinstance(action, Send) and isinstance(action.command, kinds)
