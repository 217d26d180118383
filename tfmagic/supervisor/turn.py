"""Which thread runs the loop of a cluster: its own one, or a thread that waits for a cell.

    own thread    serves ── a cell has ended that a thread waits for ──→ rests ── 20 ms without a cell,
                                                                          │       or another event ──→ serves
    waiting thread                             `run_here`: sends its cell, takes the outcomes

A cell that changes hands between two threads, twice, takes a fifth longer. So while one short cell follows
another, the thread that waits does the work. A cell that lasts longer is the own thread's again, since the
waiting thread shows output then and asks the user.

A thread runs the loop only where no exception can come out of nowhere: any thread but the main one, and the
main one while no signal handler can raise.
"""

import contextlib
import signal
import threading
from collections.abc import Callable

from tfmagic.system import signal_handlers

REST_S = 0.02
_OTHERS = sorted(signal.valid_signals() - {signal.SIGINT})


def may_drive() -> bool:
    """Check whether no signal handler can raise in this thread; that of SIGINT is tfmagic's own now."""
    is_main = threading.current_thread() is threading.main_thread()
    return not (is_main and any(map(callable, map(signal_handlers.handler_of, _OTHERS))))


class Turn:
    """The turn to run the loop. The loop's own thread has it first.

    Args:
        wake: Ends the wait of the thread that has the turn; a signal handler can call it.
    """

    def __init__(self, wake: Callable[[], object]):
        self._wake, self.is_resting = wake, False
        self._lock, self._alarm = threading.Lock(), threading.Lock()
        self._was_taken = False
        self._failure: BaseException | None = None
        self._lock.acquire()
        self._alarm.acquire()

    def rest(self, is_needed: Callable[[], bool]) -> None:
        """Let other threads run the loop until `end_rest`, until none has come for a while, or `is_needed`.

        Raises:
            BaseException: What the loop has raised in another thread.
        """
        self.is_resting = True
        self._lock.release()
        while not is_needed():
            self._was_taken = False
            if self._alarm.acquire(timeout=REST_S) or not self._was_taken:
                break
        self.is_resting = False  # before the lock: the other thread stops now
        self._wake()
        self._lock.acquire()
        if self._failure is not None:
            raise self._failure

    def end_rest(self) -> None:
        """Let the own thread go on. Any thread can call it, and a signal handler."""
        if self.is_resting:
            with contextlib.suppress(RuntimeError):  # another thread was faster
                self._alarm.release()

    def run_here(self, step: Callable[..., object], *arguments: object) -> bool:
        """Run a step of the loop in this thread, if the own thread rests; return whether it does."""
        if not self.is_resting or not self._lock.acquire(blocking=False):
            return False
        try:
            if not self.is_resting:
                return False
            self._was_taken = True
            step(*arguments)
        except BaseException as error:  # the own thread ends the cluster, as after a bug of its own
            self._failure = error
            self.end_rest()
            raise
        finally:
            self._lock.release()
        return True
