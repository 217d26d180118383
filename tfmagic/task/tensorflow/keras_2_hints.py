"""Hints on data that tf_keras trains otherwise on several workers than in one process.

Plain processes train so, too, so no value is changed: arrays are shuffled with a seed of each worker's own,
and the parts of a batch that cannot be divided evenly weigh alike, although they have unequal rows.
"""

import functools
from collections.abc import Callable
from typing import Any

from tfmagic.task.tensorflow import keras_shuffles, keras_steps, notices

UNEVEN_HINT = (
    "batches of {size} rows cannot be divided evenly by {replicas} replicas, whose parts weigh alike: the "
    "rows of a smaller part count more than in one process. Take a multiple of {replicas}, with "
    "batch(n, drop_remainder=True), or Keras 3, whose fit is repaired."
)


def looking_at_data(original: Callable[..., None]) -> Callable[..., None]:
    """Look at the data that `fit` of tf_keras begins to read."""

    @functools.wraps(original)
    def __init__(self: Any, x: Any, *rest: Any, **more: Any) -> None:  # noqa: N807
        import tensorflow as tf

        original(self, x, *rest, **more)
        strategy = tf.distribute.get_strategy()
        if "shuffle" in more and keras_steps.is_multi_worker(strategy):  # it is `fit` that shuffles
            _look(self._adapter, strategy.num_replicas_in_sync, shuffles=bool(more["shuffle"]))

    return __init__


def _look(adapter: Any, replicas: int, *, shuffles: bool) -> None:
    from tensorflow.python.data.experimental.ops import distribute
    from tensorflow.python.eager import context

    size = adapter.batch_size()
    if size is None:  # a data set
        sizes = [int(distribute.compute_batch_size(adapter.get_dataset()))]
    else:
        sizes = [size, adapter.partial_batch_size() or 0]
        if shuffles and context.context()._seed is None:
            notices.hint_once("unseeded-shuffle", keras_shuffles.SHUFFLE_HINT)
    uneven = next((found for found in sizes if found > 0 and found % replicas), None)
    if uneven:
        notices.hint_once("uneven-batches", UNEVEN_HINT, size=uneven, replicas=replicas)
