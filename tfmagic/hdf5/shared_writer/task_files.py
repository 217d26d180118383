"""The listener through which a cluster uses this package: it opens files for tasks, and notes when tasks end.

The supervisor's thread calls `hear` for every event, and `finish` when its loop ends; the thread that waits
for a cell calls `settle`, the one that stops the cluster `close`.
"""

import itertools
from collections.abc import Iterable
from typing import Any

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


class TaskFiles:
    """The shared files of the tasks of one cluster."""

    def __init__(self) -> None:
        self._origin = next(sessions.origins)
        self._owners: dict[int, sessions.Owner] = {}  # by the number of the cell, or of its group
        self._threads = itertools.count(1)

    def hear(self, event: Event, state: Any) -> None:
        """Note which task opens a file, and which has ended its part; `state` is that before the event.

        Only the cells under way (`state.cells`) and the ended tasks of groups of cells (`.groups`) are read.
        """
        match event:
            case WriterWanted():
                self._request_open(event, state)
            case CellReturned(task, _, cell) | CellRaised(task, _, cell) if cell in self._owners:
                sessions.note_ended(self._owners[cell], [task])
            case GroupChanged(group, gone) if group in self._owners:  # its processes can be started anew
                sessions.note_ended(self._owners[group], gone)
            case TaskExited(task) | TaskLost(task):
                for number, owner in self._owners.items():
                    if number not in state.groups:
                        sessions.note_ended(owner, [task], are_dead=True)

    def settle(self, cell: int) -> list[str]:
        """Wait until the files of an ended cell have their names. Return why files could not be written."""
        owner = self._owners.get(cell)
        return [] if owner is None else sessions.settle(owner)

    def finish(self) -> None:
        """Let all files get their names. Does not wait."""
        sessions.finish_all(self._origin)

    def close(self) -> list[str]:
        """Close the files that tasks have left open, and wait. Return why files could not be written."""
        return sessions.end_all(self._origin)

    def _request_open(self, event: WriterWanted, state: Any) -> None:
        cell, members = state.cells.get(event.cell), event.members
        ended: Iterable[TaskId] = ()
        if cell is not None and event.task in members:
            number = event.group or event.cell
            owner = self._owners[number] = sessions.Owner(self._origin, number)
            ended = state.groups.get(event.group) or cell.outcomes
        else:  # a thread that a cell has left behind: its file is of this task alone
            owner, members = sessions.Owner(self._origin, -next(self._threads)), (event.task,)
        sessions.request_open(
            sessions.OpenRequest(
                event.path,
                event.mode,
                owner,
                task=event.task.name,
                members=tuple(task.name for task in members),
                fd=event.handle.take(),
                copy_of=event.copy_of,
            )
        )
        sessions.note_ended(owner, ended)
