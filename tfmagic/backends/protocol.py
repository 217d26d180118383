"""The interface of a backend, which starts task processes, carries messages and reports ends.

A backend decides nothing. Only the supervisor calls `launch`, `send`, `signal`, `take_events` and `close`,
from one thread at a time. To write a backend, begin with ``docs/backends.md``, and let it pass
``tests/contract/test_backend.py``.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import Command, TaskBoot
from tfmagic.protocol.events import Event
from tfmagic.system.usage import Usage


class Backend(Protocol):
    """The methods that the supervisor and the cluster call.

    Attributes:
        runs_here: Whether the tasks are processes of this machine, which the system's ways can look at.
        has_ended: Whether all processes have ended, and it can start no more; a new one can.
    """

    @property
    def runs_here(self) -> bool: ...

    @property
    def has_ended(self) -> bool: ...

    def allocate(self, tasks: Iterable[TaskId]) -> Mapping[TaskId, str]:
        """Return an address (``host:port``) for each task, held until the next call or `close`.

        Called before the other methods, from any thread.
        """

    def launch(self, boot: TaskBoot) -> None:
        """Start a process, without waiting. Its last event is one `TaskExited` or `TaskLost`."""

    def send(self, task: TaskId, command: Command) -> None:
        """Queue a command for the task's present process; dropped if that has ended."""

    def signal(self, task: TaskId, number: int) -> None:
        """Signal the task's present process, as soon as it has one."""

    def wait(self, timeout_s: float | None) -> None:
        """Send what is queued; wait for an event, for `wake`, or for the time."""

    def take_events(self) -> Sequence[Event]:
        """Return the events since the last call, without waiting."""

    def usage(self, closely: Collection[TaskId]) -> Mapping[TaskId, Usage]:
        """Return the recent use of tasks on other machines; of those in `closely` with `wanted_s`."""

    def own_pids(self) -> Mapping[str, int]:
        """Return the processes on this machine that the backend itself needs: pid by role."""

    def wake(self) -> None:
        """Make `wait` return; callable from any thread."""

    def close(self) -> None:
        """End every process and release the addresses."""
