"""A backend without processes: for tests of the supervisor, and as an example for a new backend.

    backend = FakeBackend(script)
    supervisor = Supervisor(backend, tasks, ...)
    supervisor.start()          # launch → TaskStarted, TaskReady; RunCell → the events that `script` returns
    backend.report(TaskExited(tasks[0], 1, -9))     # whatever else is to happen, and when

It follows the rules of `Backend`, so that the supervisor behaves as with real processes: events arrive in the
order in which they were reported, `wait` returns when one is there, and a task that was sent SIGKILL exits.
"""

import contextlib
import queue
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import Command, RunCell, TaskBoot
from tfmagic.protocol.events import CellReturned, Event, TaskExited, TaskReady, TaskStarted
from tfmagic.system.usage import Usage

_SIGKILL = 9
Script = Callable[[TaskId, Command], Iterable[Event]]


def return_at_once(task: TaskId, command: Command) -> Iterable[Event]:
    """Return the events of a task that returns None from every cell in no time."""
    return [CellReturned(task, 1, command.cell, 0.0, 0)] if isinstance(command, RunCell) else []


class FakeBackend:
    """A `tfmagic.backends.protocol.Backend` that runs a script instead of processes.

    Args:
        script: Called with each command that is sent, on the thread that sends it; returns what the
            task reports.

    Attributes:
        sent: The commands that were sent, with their task, in order.
    """

    runs_here = True
    has_ended = False

    def __init__(self, script: Script = return_at_once) -> None:
        self.script = script
        self.sent: list[tuple[TaskId, Command]] = []
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._taken: list[Event] = []

    def report(self, *events: Event) -> None:
        """Let these events happen, in this order. Callable from any thread."""
        for event in events:
            self._events.put(event)

    def allocate(self, tasks: Iterable[TaskId]) -> Mapping[TaskId, str]:
        return {task: f"127.0.0.1:{port}" for port, task in enumerate(tasks, 1024)}

    def launch(self, boot: TaskBoot) -> None:
        started = TaskStarted(boot.task, boot.attempt, pid=0, fresh=False)
        self.report(started, TaskReady(boot.task, boot.attempt, pid=0, host="nowhere"))

    def send(self, task: TaskId, command: Command) -> None:
        self.sent.append((task, command))
        self.report(*self.script(task, command))

    def signal(self, task: TaskId, number: int) -> None:
        if number == _SIGKILL:
            self.report(TaskExited(task, 1, -_SIGKILL))

    def wait(self, timeout_s: float | None) -> None:
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=timeout_s)
            while True:
                if event is not None:  # of `wake`
                    self._taken.append(event)
                event = self._events.get_nowait()

    def take_events(self) -> Sequence[Event]:
        taken, self._taken = self._taken, []
        return taken

    def usage(self, closely: Collection[TaskId]) -> Mapping[TaskId, Usage]:
        return {}

    def own_pids(self) -> Mapping[str, int]:
        return {}

    def wake(self) -> None:
        self._events.put(None)

    def close(self) -> None:
        self.wake()
