"""The buttons of a cell: all that a view can change. Any thread can call them."""

from collections.abc import Iterable

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import Cause, SignalAsked, StopRequested
from tfmagic.supervisor.state import SIGKILL, SIGUSR1
from tfmagic.supervisor.supervisor import Supervisor


class CellControls:
    """Asks the supervisor on behalf of a user who looks at the cell with this number."""

    def __init__(self, supervisor: Supervisor, cell: int):
        self._supervisor, self._cell = supervisor, cell

    def interrupt(self, tasks: tuple[TaskId, ...] = ()) -> None:
        """Interrupt the cell; with `tasks`, only on these."""
        self._supervisor.interrupt(tasks, self._cell)

    def kill(self, tasks: Iterable[TaskId]) -> None:
        """Kill the processes of these tasks."""
        for task in tasks:
            self._supervisor.ask(SignalAsked(task, SIGKILL, Cause.USER))

    def stop(self) -> None:
        """End the cluster."""
        self._supervisor.ask(StopRequested())

    def write_stacks(self, task: TaskId) -> None:
        """Let the task append its stacks to its file in the run folder."""
        self._supervisor.ask(SignalAsked(task, SIGUSR1))
