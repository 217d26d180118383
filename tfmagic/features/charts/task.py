"""Track what `model.fit` reports, without a line of the user's: loss and metrics by step.

A callback is added to the list that `fit` makes of its callbacks, in Keras 3 and in tf_keras. It reads the
values at most ten times a second, since they can be on a device, and at the end of each epoch.
"""

import contextlib
import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfmagic.protocol import task_context
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.task.cell_parts import CellPart
from tfmagic.task.tensorflow import patch_rows

_EVERY_S = 0.1


class FitCharts(CellPart):
    """Whether the user wants it in this cell."""

    is_on = True

    def begin(self, cell: RunCell) -> None:
        """Take the setting that the cell was sent with."""
        self.is_on = "charts" not in cell.extras


PART = FitCharts()
PATCHES = patch_rows.in_both(
    "charts of fit",
    "{callbacks}:CallbackList.__init__(callbacks, add_history)",
    "the panel draws loss and metrics",
    "no charts of fit: use tfmagic.track in a callback of your own",
    f"{__name__}:tracking",
)


def make(boot: TaskBoot) -> CellPart:
    """Return the part of a task."""
    return PART


def tracking(original: Callable[..., None]) -> Callable[..., None]:
    """Add the callback to each list of callbacks that `fit` makes."""

    def __init__(  # noqa: N807
        self: Any, callbacks: Any = None, add_history: bool = False, *rest: Any, **more: Any
    ) -> None:
        if add_history and PART.is_on:  # of `fit`, not of evaluate or predict
            given = callbacks if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []
            package = importlib.import_module(f"{original.__module__.partition('.')[0]}.callbacks")
            callbacks = [*given, _make_callback(package.Callback)]
        original(self, callbacks, add_history, *rest, **more)

    return __init__


def _make_callback(base: Any) -> Any:
    class TrackFit(base):  # Keras is untyped
        """Reports loss and metrics to `tfmagic.track`."""

        def __init__(self) -> None:
            super().__init__()
            self._supports_tf_logs = True  # of tf_keras: values stay tensors until they are read
            self._step, self._read_at = 0, 0.0

        def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
            self._step += 1
            if time.monotonic() - self._read_at >= _EVERY_S:
                self._read_at = time.monotonic()
                self._track(logs)

        def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
            self._track(logs)

        def _track(self, logs: Mapping[str, Any] | None) -> None:
            with contextlib.suppress(TypeError):  # a metric that is no number
                task_context.track(self._step, **dict(logs or {}))

    return TrackFit()
