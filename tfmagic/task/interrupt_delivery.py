"""Bring an interrupt to the main thread of a task: in the right cell, and where it does no damage.

    side thread: interrupt(cell) → SIGINT to the process group → main thread: on_signal → KeyboardInterrupt
                      └── not raised there, or lost: `free_main_thread`, every 20 ms, until the cell has ended

Numbers of cells begin with 1; 0 stands for none.
"""

import errno
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from tfmagic.protocol.commands import AbortCollectives
from tfmagic.task.tensorflow import collectives, interrupts


class InterruptDelivery:
    """The interrupt that is under way, and where it can arrive.

    Attributes:
        cell: The cell that the main thread runs, or ran last.
        running: Whether the user's code runs.
        in_callback: Whether that is the callback of a widget.
        interrupted: The cell that was interrupted last.
        pending: The cell whose interrupt has not arrived.
        release: What to obey as soon as the main thread is stuck, and what finds that out.
    """

    def __init__(self, give_up: Callable[[BaseException], NoReturn]):
        self._give_up = give_up
        self.cell = self.interrupted = self.pending = self._sending = 0
        self.running = self.in_callback = self._raised_inside = False
        self.release: tuple[AbortCollectives, interrupts.StuckWatch] | None = None
        self.side_thread: threading.Thread | None = None

    def on_signal(self, number: int, frame: Any) -> None:
        """Raise KeyboardInterrupt in the cell, if it can be raised here; else the side thread tries again."""
        meant = self._sending or self.cell  # 0: the signal is not from the side thread
        if not self.running or (meant != self.cell and not self.in_callback):
            return
        is_inside = interrupts.is_in_py_function(frame)  # there it is raised once, and then again outside
        if (is_inside and self._raised_inside) or not interrupts.can_interrupt(frame):
            self.pending = meant
            return
        self.pending = meant if is_inside else 0
        self._raised_inside = interrupts.STATE.is_late = is_inside
        interrupts.STATE.is_raised = True
        raise KeyboardInterrupt

    def note_unraisable(self, report: Callable[[Any], object], lost: Any) -> None:
        """Interrupt again if a finalizer got the KeyboardInterrupt, which no exception leaves.

        End this process if the side thread had no memory for its first frame: Python would wait for its start
        for ever.
        """
        if getattr(lost.object, "__self__", None) is self.side_thread:
            self._give_up(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
        if self.running and lost.exc_type is KeyboardInterrupt and self.interrupted == self.cell:
            self.pending = self.cell
        else:
            report(lost)

    def interrupt(self, cell: int) -> None:
        """Interrupt this cell and its child processes; a cell that has not begun does not begin."""
        self.interrupted = self.pending = cell
        self._raised_inside = False
        self._signal(cell, lambda: os.killpg(0, signal.SIGINT))

    @property
    def is_urgent(self) -> bool:
        """Whether the side thread should call `free_main_thread` often."""
        return self.release is not None or self.pending > 0

    def free_main_thread(self, ended_cell: int) -> None:
        """Repeat an interrupt that has not arrived, and free a main thread that waits for a failed peer."""
        if self.pending <= ended_cell:
            self.pending = 0
        if self.pending:  # os.system() ignores it; see also `on_signal`
            main = threading.main_thread().ident or 0
            self._signal(self.pending, lambda: signal.pthread_kill(main, signal.SIGINT))
        if self.release is not None:
            command, watch = self.release
            if command.when_stuck_in <= ended_cell:
                self.release = None
            elif watch.is_stuck():
                collectives.abort_collectives(command.message)
                self.release = None

    def _signal(self, cell: int, send: Callable[[], None]) -> None:
        """Signal the main thread for this cell, which can end at any moment."""
        self._sending = cell
        if self.running and (self.cell == cell or self.in_callback):
            send()
        self._sending = 0
