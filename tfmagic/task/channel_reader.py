"""Decide which of a task's two threads reads the control channel: never both, and none for 10 ms of a cell.

    main thread reads ── a cell comes: it runs the cell; no thread reads
                              ├── the cell ends before the alarm: the main thread reads again
                              └── the alarm, or the cell waits for an answer: the side thread reads
    side thread reads ── a cell comes: it hands the cell over, and stops reading

The main thread reads between cells, since handing over a short cell takes longer than running it: with a side
thread that always reads, an empty cell on 4 tasks took three times as long. One lock guards which thread
reads and which cells have come.

While one short cell follows another, the alarm of an earlier cell stays set, since setting and stopping it
takes a tenth of an empty cell. The side thread sets it again when it wakes for a cell that is younger.
"""

import queue
import sys
import threading
import time
from collections.abc import Callable

from tfmagic.protocol.commands import EndTask, HandleComm, RunCell
from tfmagic.system.processes import Alarm

Work = RunCell | EndTask | HandleComm
_ALONE_S = 0.01  # an interrupt that comes sooner waits until then
_BURST_S = 0.002  # between two cells; from here on, waking the side thread takes as long as what is saved


class ChannelReader:
    """The turns of the two threads. `side_reads` is written here and read by the side thread.

    Args:
        clock: That of the alarm, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.side_reads = False
        self._work: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._alarm = Alarm()
        self._alarm_at = 0.0  # when it wakes the side thread; 0 if it is not set
        self._began_at = 0.0  # the last cell, or a callback
        self._is_called = self._is_burst = False
        self._last_cell = 0
        self._in_callback = False

    def is_busy(self, ended_cell: int) -> bool:
        """Check whether a later cell than this one has come."""
        return ended_cell < self._last_cell

    def deliver(self, cell: RunCell | EndTask) -> None:
        """Hand over a cell that has come. The caller, the thread that reads, stops reading."""
        with self._lock:
            self.side_reads, self._last_cell = False, cell.cell
            self._work.put(cell)
            self._begin()

    def _begin(self) -> None:
        """Let the alarm wake the side thread when what begins now takes long, or before."""
        now = self._clock()
        self._is_burst, self._began_at, self._is_called = now - self._began_at < _BURST_S, now, False
        if self._alarm_at <= now:
            self._set_alarm(_ALONE_S)

    def _set_alarm(self, after_s: float) -> None:
        self._alarm_at = self._clock() + after_s
        self._alarm.set(after_s)

    def forward(self, message: HandleComm) -> None:
        """Hand over a message for a widget. The thread that reads goes on reading."""
        self._work.put(message)

    def next_work(self) -> Work | None:
        """Wait for the next cell or message and return it; None if the caller, the main thread, must read."""
        with self._lock:
            if not self.side_reads and self._work.empty():
                if not self._is_burst:  # with many tasks, a thread of each would wake for nothing
                    self._alarm.stop()
                    self._alarm_at = 0.0
                return None
        return self._work.get()

    def begin_callback(self) -> None:
        """Let the side thread read if a callback of a widget takes longer than a short cell."""
        with self._lock:
            self._in_callback = True
            self._begin()

    def end_callback(self) -> None:
        """End what `begin_callback` began."""
        with self._lock:
            self._in_callback = False

    def wait_for_alarm(self, ended_cell: Callable[[], int]) -> None:
        """Wait for the alarm. Let the caller, the side thread, read if a cell still runs then."""
        self._alarm.wait()
        with self._lock:
            self._alarm_at = 0.0
            is_busy = self._in_callback or self.is_busy(ended_cell())
            early_s = 0.0 if self._is_called else self._began_at + _ALONE_S - self._clock()
            if is_busy and early_s > 0:  # the alarm was set for an earlier cell
                self._set_alarm(early_s)
            else:
                self.side_reads = is_busy

    def leave(self) -> None:
        """Let the side thread read until the process ends. Called by the main thread."""
        with self._lock:
            self._last_cell, self.side_reads = sys.maxsize, True
            self._call()

    def call_side_thread(self) -> None:
        """Let the side thread read at once, since the cell waits for an answer."""
        if not self.side_reads:
            self._call()

    def _call(self) -> None:
        self._is_called = True
        self._set_alarm(0)
