"""The interface of a view, and what a view can read: logs by offset, displays, and the cluster's state.

text    prefixed lines as they come; in terminals, and in notebooks that ask for it
panel   one display for the whole cell: a live widget or html, and at the end the static form
quiet   nothing
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Protocol

import msgspec

from tfmagic.runs.cell_records import ErrorRecord
from tfmagic.runs.folder import RunFolder
from tfmagic.supervisor.cell_controls import CellControls
from tfmagic.supervisor.running_cell import RunningCell
from tfmagic.supervisor.state import CellState, ClusterState, Policy
from tfmagic.system.usage import Usage
from tfmagic.views.task_widgets import TaskWidgets


class View(Protocol):
    """Called by the thread that waits for the cell: `update` every `interval_s`, and `finish` once.

    `show_now` puts a detached cell at its place at once, since what is displayed while other cells run can
    stand there. It is called once more when a later cell has waited for the end: programs that run notebooks
    drop what arrives when no cell waits. `add_note` follows `finish` where something happens to the cell's
    tasks before the next cell.
    """

    @property
    def interval_s(self) -> float: ...

    def show_now(self) -> None: ...

    def update(self) -> None: ...

    def finish(self, cell: CellState | None) -> None: ...

    def add_note(self, text: str) -> None: ...


class _Backend(Protocol):
    @property
    def runs_here(self) -> bool: ...


class SupervisorFacts(Protocol):
    """What a view can read of the supervisor."""

    policy: Callable[[], Policy]

    @property
    def state(self) -> ClusterState: ...

    @property
    def usage(self) -> Mapping[Hashable, Usage]: ...

    @property
    def warning(self) -> str: ...

    @property
    def backend(self) -> _Backend: ...


class ViewContext(msgspec.Struct, frozen=True):
    """What a view can read of a running cell, and what its buttons can do."""

    cluster: str
    shape: str
    folder: RunFolder
    run: RunningCell
    supervisor: SupervisorFacts
    controls: CellControls
    failures: Callable[[CellState], Mapping[str, ErrorRecord]]  #: Returns those of a cell, by task name.
    source: str = ""  #: The cell's text, with the notebook's line numbers; "" for a call.
    filename: str = ""  #: The file name in the cell's tracebacks.
    prompt: int = 0  #: The number that the notebook shows for the cell, or 0.
    notifies: bool = False  #: Whether the page tells the user when the cell is done.
    widgets: TaskWidgets | None = None  #: The widgets of the cluster's tasks, on the notebook's page.

    @property
    def cell(self) -> CellState | None:
        """The cell's present state; None before the supervisor has seen it, and after its end."""
        return self.supervisor.state.cells.get(self.run.request.cell)

    def has_begun(self) -> bool:
        """Check whether the cell was sent to its tasks: before, others can write to their logs."""
        return self.run.done.is_set() or ((cell := self.cell) is not None and cell.sent)
