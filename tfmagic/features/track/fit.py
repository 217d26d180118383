"""Track what `model.fit` reports, without a line of the user's: loss and metrics by step.

A callback is added to the list that `fit` makes of its callbacks, in Keras 3 and in tf_keras. It reads the
values at most ten times a second, since they can be on a device, and at the end of each epoch.
"""

import contextlib
import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfmagic.features.track.task import TRACKER

_EVERY_S = 0.1


def tracking(original: Callable[..., None]) -> Callable[..., None]:
    """Add the callback to each list of callbacks that `fit` makes."""

    def __init__(  # noqa: N807
        self: Any, callbacks: Any = None, add_history: bool = False, *rest: Any, **more: Any
    ) -> None:
        if add_history and TRACKER.tracks_fit:  # of `fit`, not of evaluate or predict
            given = callbacks if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []
            package = importlib.import_module(f"{original.__module__.partition('.')[0]}.callbacks")
            callbacks = [*given, _make_callback(package.Callback)]
        original(self, callbacks, add_history, *rest, **more)

    return __init__


def _make_callback(base: Any) -> Any:
    class TrackFit(base):  # Keras is untyped
        """Tracks loss and metrics."""

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
                TRACKER.track(self._step, dict(logs or {}))

    return TrackFit()
