"""The files that the tasks of one cluster write together: brings their wishes to
`tfmagic.hdf5.shared_writer.sessions`.

Owned by a cluster's life. `hear` is called by the supervisor's thread, for every event once a task has opened
a file; `settle` by whoever waits for a cell. h5py is loaded by the writer's process alone.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable

from tfmagic.hdf5.shared_writer import sessions
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import (
    CellRaised,
    CellReturned,
    Event,
    GroupChanged,
    TaskExited,
    TaskLost,
    WriterWanted,
)
from tfmagic.supervisor.state import ClusterState
from tfmagic.supervisor.supervisor import Supervisor


class Sharing:
    """See the module."""

    def __init__(self, supervisor: Supervisor):
        self._number = next(sessions.places)
        self._owners: dict[
            int, sessions.Owner
        ] = {}  # of the files that a cell, or a group of them, has opened
        self._late = itertools.count(1)
        supervisor.listen(self.hear)
        supervisor.on_end(self._let_go)

    def hear(self, event: Event, state: ClusterState) -> None:
        """Note who wants a file, and who has ended; `state` is that before the event."""
        match event:
            case WriterWanted():
                self._place(event, state)
            case CellReturned(task, _, cell) | CellRaised(task, _, cell) if cell in self._owners:
                self._note_ended(self._owners[cell], [task])
            case GroupChanged(group, gone) if group in self._owners:  # its processes may be started anew
                self._note_ended(self._owners[group], gone)
            case TaskExited(task) | TaskLost(task):
                for number, owner in list(self._owners.items()):
                    if number not in state.groups:
                        self._note_ended(owner, [task], are_dead=True)

    def settle(self, cell: int) -> list[str]:
        """Wait until the files of this cell, which has ended, have their names; what went wrong with them."""
        owner = self._owners.get(cell)
        if owner is None:
            return []
        return sessions.settle(owner, _say)

    def close(self) -> list[str]:
        """Close every file that a task has left open, and wait for that; what went wrong with them."""
        if not self._owners:
            return []
        return sessions.end(self._number)

    def _place(self, event: WriterWanted, state: ClusterState) -> None:
        number = event.group or event.cell
        cell = state.cells.get(event.cell)
        owner = sessions.Owner(self._number, number)
        members, ended = event.members, state.groups.get(event.group) or (cell.outcomes if cell else ())
        if cell is None or event.task not in members:  # a thread that a cell has left behind
            owner, members, ended = sessions.Owner(owner.place, -next(self._late)), (event.task,), ()
        else:
            self._owners[number] = owner
        names = tuple(task.name for task in members)
        made = (event.path, event.mode, owner, event.task.name, names, event.handle.take(), event.copy_of)
        sessions.request_open(sessions.OpenRequest(*made))
        self._note_ended(owner, ended)

    def _note_ended(self, owner: sessions.Owner, tasks: Iterable[TaskId], are_dead: bool = False) -> None:
        sessions.note_ended(owner, [task.name for task in tasks], are_dead)

    def _let_go(self) -> None:
        """The loop has ended: files of tasks that are gone get their names without anybody waiting."""
        if self._owners:
            sessions.let_go(self._number)


def _say(text: str) -> None:
    print(f"tfmagic: {text}", file=sys.stderr)
