"""A cell that was given to the supervisor, as it and the views see it."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from tfmagic.protocol import commands
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellRequested, Displayed, InputWanted
from tfmagic.protocol.payload import release
from tfmagic.supervisor.state import CellState


class RunningCell:
    """A cell that was given to the supervisor, as it and the views see it.

    `tfmagic.clusters.cells.job.Job` is the same object for those who start the cell, show it and wait for it.
    The supervisor's thread appends to `displays` and `inputs`; the thread that waits for the cell takes from
    them.

    Args:
        request: The commands, one for each task.
        starts: The length of each task's log before the cell, in bytes.
        may_begin: Called for each task as its command is sent. If it returns False, the task gets the
            variables of the command, on which later cells count, but runs nothing.

    Attributes:
        done: Set when the cell has ended.
        outcome: How it ended; None before, and if the cluster was stopped meanwhile.
        has_records: Whether features of tasks might have recorded something.
        has_hints: Whether there might be hints.
        dumps: Where in its file the last stacks begin that a task was asked for, in bytes.
    """

    def __init__(
        self,
        request: CellRequested,
        starts: Mapping[TaskId, int],
        may_begin: Callable[[], bool] | None = None,
    ):
        self.request = request
        self.starts = dict(starts)
        self.dumps: dict[TaskId, int] = {}
        self.has_records = self.has_hints = False
        self.requested_at = time.monotonic()
        self.displays: deque[Displayed] = deque()
        self.inputs: deque[InputWanted] = deque()
        self.done = threading.Event()
        self.outcome: CellState | None = None
        self._may_begin = may_begin
        self._callbacks: list[Callable[[], object]] = []

    @property
    def is_in_background(self) -> bool:
        """Whether it is a call that can be taken back as long as it has not begun, as of `Cluster.submit`."""
        return self._may_begin is not None

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the cell has ended, on the supervisor's thread or at once; possibly twice."""
        self._callbacks.append(callback)
        if self.done.is_set():
            callback()

    def command_to_send(self, command: commands.RunCell) -> commands.RunCell:
        """Return the message sent to a task instead of `command`. The supervisor calls it."""
        if self._may_begin is None or self._may_begin():
            return command
        return msgspec.structs.replace(command, source="", call=None, want_value=False)

    def finish(self, outcome: CellState | None) -> None:
        """Note that the cell has ended. The supervisor calls it."""
        self.outcome = outcome
        sent = {id(command): command for command in self.request.commands.values()}  # mostly one for all
        release(packed for command in sent.values() for packed in command.packs)
        self.done.set()
        for callback in self._callbacks:
            callback()
