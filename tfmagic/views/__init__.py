"""What shows a running cell. Views only read: logs by offset, displays, and the cluster's state."""

from __future__ import annotations

from typing import Protocol

from tfmagic.states import CellState


class View(Protocol):
    """Called by the waiting thread: `update` every `interval_s`, `finish` once."""

    interval_s: float

    def update(self) -> None: ...

    def finish(self, cell: CellState | None) -> None: ...
