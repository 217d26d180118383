"""What `tfmagic.track` collects on a task, and sends in batches, however often it is called.

    track(loss=0.4) ── points by name ──→ each 0.2 s, and at the end of the cell: FeatureRecorded ──→ kernel

The side thread sends what is due while the cell is busy with something else.
"""

import json
import math
import numbers
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfmagic.features.track import names
from tfmagic.features.track.names import NAME, Points
from tfmagic.protocol import task_context
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.task.cell_parts import Attempt, CellPart
from tfmagic.task.tensorflow import interrupts, patch_rows

SEND_S = 0.2


class Tracker(CellPart):
    """The points of the cell that runs. Any thread can call `track`.

    Args:
        send: Called with the points of each name, as JSON of ``{name: [[step, value], ...]}``, and the cell.

    Attributes:
        tracks_fit: Whether the user wants what `fit` reports in this cell.
    """

    def __init__(self, send: Callable[[bytes, int], None]):
        self._send = send
        self._lock = threading.Lock()
        self._cell = 0
        self.tracks_fit = True
        self._points: Points = {}
        self._steps: dict[str, float] = {}  # the last one of each name
        self._sent_at = 0.0

    def begin(self, cell: RunCell) -> None:
        """Count steps from 0 again, and take the setting that the cell was sent with."""
        self.tracks_fit = NAME not in cell.extras
        with self._lock:
            self._cell, self._points, self._steps = cell.cell, {}, {}

    def end(self, cell: RunCell, attempt: Attempt) -> None:
        """Send all points."""
        self.flush()

    def track(self, step: float | None, values: Mapping[str, Any]) -> None:
        """Add a point to each name. Without a step, it is the one after the last of that name.

        Raises:
            TypeError: A value is no number.
        """
        if step is not None:
            step = _number("step", step)
        found = {name: _number(name, value) for name, value in values.items()}
        with self._lock:
            for name, value in found.items():
                at = self._steps.get(name, -1) + 1 if step is None else step
                self._steps[name] = at
                self._points.setdefault(name, []).append((at, value))
        if time.monotonic() - self._sent_at >= SEND_S:
            self.flush()

    def tick(self) -> None:
        """Send what has waited long enough."""
        if self._points and time.monotonic() - self._sent_at >= SEND_S:
            self.flush()

    def flush(self) -> None:
        """Send all points."""
        with self._lock:
            points, self._points, self._sent_at = self._points, {}, time.monotonic()
            if points:
                self._send(json.dumps(points, separators=(",", ":")).encode(), self._cell)


def _send(points: bytes, cell: int) -> None:
    record = task_context.services().record
    assert record is not None
    record(NAME, cell, points)


TRACKER = Tracker(_send)
PATCHES = patch_rows.in_both(
    "charts of fit",
    "{callbacks}:CallbackList.__init__(callbacks, add_history)",
    "the panel draws loss and metrics",
    "no charts of fit: use tfmagic.track in a callback of your own",
    "tfmagic.features.track.fit:tracking",
)
interrupts.never_inside(__file__)


def make(boot: TaskBoot) -> CellPart:
    """Return the part of a task, which gets what `tfmagic.track` is called with."""
    names.give_to(TRACKER.track)
    return TRACKER


def _number(name: str, value: Any) -> float:
    """Return a number, also of numpy's or TensorFlow's scalars; short, since each point is sent as text."""
    try:
        found = float(value)
    except Exception:  # of the user's classes, and of TensorFlow's symbolic tensors
        raise TypeError(
            f"track() takes numbers, and {name} is of type {type(value).__name__}, which float() refuses. "
            "Inside a tf.function a value is not known yet: return it, and track it outside"
        ) from None
    if isinstance(value, numbers.Integral) or not math.isfinite(found):
        return found
    return float(f"{found:.7g}")
