"""Which of a task's two threads reads the control channel: never both, and nobody for ten milliseconds.

    main thread reads ── a cell comes: it runs it; nobody reads
                              ├── it has ended before the alarm: the main thread reads on
                              └── the alarm, or the cell waits for an answer: the side thread reads
    side thread reads ── a cell comes: it hands it over, and reads no more

The main thread reads between cells since to hand a short cell over costs more than to run it. Who is to read,
and which cells have come, changes together, under one lock.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable

from tfmagic.protocol.commands import EndTask, RunCell
from tfmagic.system.processes import Alarm

_ALONE_S = 0.01  # what comes for a cell sooner, such as an interrupt, waits for the rest of it


class Turns:
    """See the module. `side_reads` is set and cleared here, and read by the side thread."""

    def __init__(self) -> None:
        self.side_reads = False
        self._cells: queue.SimpleQueue[RunCell | EndTask] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._alarm = Alarm()
        self._last_cell = 0

    def is_busy(self, ended_cell: int) -> bool:
        """Whether a later cell than this one has come."""
        return ended_cell < self._last_cell

    def bring(self, cell: RunCell | EndTask) -> None:
        """A cell has come. By the thread that reads, which stops reading."""
        with self._lock:
            self.side_reads, self._last_cell = False, cell.cell
            self._cells.put(cell)
        self._alarm.set(_ALONE_S)

    def next_cell(self) -> RunCell | EndTask | None:
        """The next cell, having waited for it; None where the caller, the main thread, is to read."""
        with self._lock:
            if not self.side_reads and self._cells.empty():
                return None
        return self._cells.get()

    def wait_for_alarm(self, ended_cell: Callable[[], int]) -> None:
        """Let the caller, the side thread, read if a cell still runs when the alarm goes off."""
        self._alarm.wait()
        with self._lock:
            self.side_reads = self.is_busy(ended_cell())

    def leave(self) -> None:
        """The caller, the main thread, reads no more: the side thread does, as long as there is a process."""
        with self._lock:
            self._last_cell, self.side_reads = sys.maxsize, True
        self._alarm.set(0)

    def call_side(self) -> None:
        """The cell waits for an answer."""
        if not self.side_reads:
            self._alarm.set(0)
