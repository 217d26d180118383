"""Send a sample of the weights that `fit` has trained; the kernel compares it with those of the other tasks.

Tasks that train one model apply equal gradients, and nothing compares their weights: a file that one task
alone has loaded leaves different models with equal losses, without a word. A sample is some numbers of each
variable, so it costs the same for all models, and no task waits for another.
"""

import contextlib
import functools
import struct
import weakref
import zlib
from collections.abc import Callable
from typing import Any

from tfmagic.protocol import task_context
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.task.cell_parts import Attempt, CellPart
from tfmagic.task.tensorflow import collectives, patch_rows

_VARIABLES, _NUMBERS = 64, 8  # at most: variables, and numbers of each


class TrainedWeights(CellPart):
    """The model that the cell trains. Its sample is a checksum of the shapes, then numbers."""

    def __init__(self) -> None:
        self._model: Callable[[], Any] = lambda: None

    def begin(self, cell: RunCell) -> None:
        """Forget the model of the last cell."""
        self._model = lambda: None

    def note(self, model: Any) -> None:
        """Note the model that `fit` begins to train, if all tasks of the cluster train it."""
        is_common = collectives.have_peers() and model.distribute_strategy.num_replicas_in_sync > 1
        if is_common or task_context.current_task().num_tasks == 1:  # which is compared with larger clusters
            self._model = weakref.ref(model)

    def end(self, cell: RunCell, attempt: Attempt) -> None:
        """Take the sample."""
        model = self._model()
        if model is not None and attempt.error is None:
            with contextlib.suppress(Exception):  # it must not cost the cell its results
                attempt.extras["different_weights"] = _sample_of(model.trainable_variables)


PART = TrainedWeights()
PATCHES = patch_rows.in_both(
    "a hint on weights",
    "{trainer}.make_train_function(force)",
    "weights that one task alone has loaded stay different, without a word",
    "different weights get no hint",
    f"{__name__}:noting",
)


def make(boot: TaskBoot) -> CellPart:
    """Return the part of a task."""
    return PART


def noting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Note each model that `fit` begins to train."""

    @functools.wraps(original)
    def make_train_function(self: Any, force: bool = False) -> Any:
        PART.note(self)
        return original(self, force)

    return make_train_function


def _sample_of(variables: list[Any]) -> bytes:
    import tensorflow as tf

    some = variables[:: -(-len(variables) // _VARIABLES) or 1]
    values = (variable.value() if callable(variable.value) else variable.value for variable in some)
    parts = [tf.cast(tf.reshape(value, [-1])[:_NUMBERS], tf.float32).numpy() for value in values]
    shapes = zlib.crc32(repr([tuple(variable.shape) for variable in variables]).encode())
    return struct.pack("<I", shapes) + b"".join(part.astype("<f4").tobytes() for part in parts)
