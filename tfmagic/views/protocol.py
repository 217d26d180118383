"""What shows a cell. Views only read: logs by offset, displays, and the cluster's state.

text    prefixed lines as they come; terminals, and notebooks that ask for it
panel   one display for the whole cell: a live widget or html, and at its end the static form
quiet   nothing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.folder import RunFolder
from tfmagic.supervisor.state import CellState, ClusterState
from tfmagic.supervisor.supervisor import RunningCell, Supervisor


class View(Protocol):
    """Called by the waiting thread: `update` every `interval_s`, `finish` once, then perhaps `add_note`."""

    @property
    def interval_s(self) -> float: ...

    def update(self) -> None: ...

    def finish(self, cell: CellState | None) -> None: ...

    def add_note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ViewContext:
    """What a view can see of a cell under way.

    Attributes:
        texts: The failures of a cell in full, by task name.
        source: The cell's own text, its lines numbered as in the notebook; "" for a call.
        filename: Under which its lines are known.
        prompt: The number that the notebook shows of the cell, or 0.
    """

    cluster: str
    shape: str
    folder: RunFolder
    run: RunningCell
    supervisor: Supervisor
    texts: Callable[[CellState], Mapping[str, str]]
    source: str = ""
    filename: str = ""
    prompt: int = 0

    def state(self) -> ClusterState:
        return self.supervisor.state

    def has_begun(self) -> bool:
        """Whether the cell has been sent to its tasks, and is not queued behind others."""
        return has_begun(self.run, self.supervisor)

    @property
    def starts(self) -> Mapping[TaskId, int]:
        """Where in its log each task's part begins; for a cell that is queued, where it may begin."""
        return self.run.starts


def has_begun(run: RunningCell, supervisor: Supervisor) -> bool:
    """Whether a cell has been sent to its tasks: before, others may write to their logs."""
    cell = supervisor.state.cells.get(run.request.cell)
    return run.done.is_set() or (cell is not None and cell.sent)
