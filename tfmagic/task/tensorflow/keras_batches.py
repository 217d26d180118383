"""Let `predict` and `predict_on_batch` of Keras 3 work for any number of rows under a multi-worker strategy.

Keras gathers the rows of all replicas, since `predict` divides its data between them. The batch of
`predict_on_batch` is not divided: each worker gave its own rows, and got those of all. Without the
collectives a worker can also predict alone.

Both take a batch outside of the graph, which knows its size then. A worker that gets none of its rows makes a
graph of no rows, whose shapes Keras takes for others (``ops.add`` calls ``BiasAdd``, so an LSTM fails).
So one graph takes parts of any size. Read on Keras 3.10 to 3.16.0.dev.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

from tfmagic.task.tensorflow import keras_repair
from tfmagic.task.tensorflow.keras_steps import is_multi_worker


class _Predicting(threading.local):
    """Whether this thread is in `predict_on_batch`."""

    one_batch = False


_PREDICTING = _Predicting()


def install() -> None:
    """Let `predict_on_batch` return its own rows in this process."""
    from keras.src.backend.tensorflow import trainer

    cls = keras_repair.trainer_class(trainer)
    cls.predict_on_batch = _predicting(cls.predict_on_batch)
    cls.make_predict_function = _making(cls.make_predict_function)
    trainer.reduce_per_replica = _keeping(trainer.reduce_per_replica)


def _predicting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def predict_on_batch(self: Any, x: Any) -> Any:
        _PREDICTING.one_batch = True
        try:
            return original(self, x)
        finally:
            _PREDICTING.one_batch = False

    return predict_on_batch


def _making(original: Callable[..., None]) -> Callable[..., None]:
    """Make two functions: a graph that gathers rows is not to be used for a batch that is not divided."""

    @functools.wraps(original)
    def make_predict_function(self: Any, force: bool = False) -> None:
        is_new = force or self.predict_function is None
        original(self, force)
        if is_new and is_multi_worker(self.distribute_strategy):
            divided = _of_any_size(self.predict_function, self.distribute_strategy)
            original(self, True)
            of_batch = _of_any_size(self.predict_function, self.distribute_strategy)
            self.predict_function = lambda data: (of_batch if _PREDICTING.one_batch else divided)(data)

    return make_predict_function


def _of_any_size(function: Any, strategy: Any) -> Callable[[Any], Any]:
    """Let one graph take batches of any number of rows, where this worker has one replica."""
    import tensorflow as tf

    if not hasattr(function, "get_concrete_function"):  # it runs eagerly
        return function
    traced = tf.function(function, autograph=False)

    def predict(data: Any) -> Any:
        parts = list(map(strategy.experimental_local_results, tf.nest.flatten(data)))
        flat = [local[0] for local in parts]
        if any(len(local) > 1 for local in parts) or not all(map(_has_rows, flat)):
            return function(data)
        specs = [tf.TensorSpec([None, *it.shape[1:]], it.dtype) for it in flat]
        graph = traced.get_concrete_function(tf.nest.pack_sequence_as(data, specs))
        return graph(tf.nest.pack_sequence_as(data, flat))

    return predict


def _has_rows(value: Any) -> bool:
    import tensorflow as tf

    return isinstance(value, tf.Tensor) and bool(value.shape.rank)


def _keeping(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if not _PREDICTING.one_batch or reduction != "concat" or not is_multi_worker(strategy):
            return original(values, strategy, reduction)
        from keras.src import tree

        return tree.map_structure(lambda value: strategy.experimental_local_results(value)[0], values)

    return reduce_per_replica
