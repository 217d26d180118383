"""One order of the rows on all workers, where `fit` of Keras 3 shuffles arrays under a multi-worker strategy.

Each worker would shuffle with a seed of its own, and take every second batch then: with two workers a
quarter of the rows is read twice, and a quarter never. Here they shuffle with the seed of the first one, so
that each row is read once in an epoch. A data set of the user's own that shuffles without a seed gets a
hint."""

import functools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tfmagic.task.tensorflow import keras_steps, notices

SHUFFLE_HINT = (
    "the data are shuffled without a seed: each task has an order of its own, and takes its "
    "part of that, so some rows are read twice in an epoch, and some never. Seed it alike on all "
    "tasks: shuffle(n, seed=1), or tf.random.set_seed(1) before it."
)


class _Making(threading.local):
    """The strategy for which `fit` makes a data set of arrays."""

    strategy: Any = None


_MAKING = _Making()


def install() -> None:
    """Let all workers shuffle arrays alike."""
    from keras.src.backend.tensorflow import trainer
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    trainer.TFEpochIterator.__init__ = _noting_strategy(trainer.TFEpochIterator.__init__)
    ArrayDataAdapter.get_tf_dataset = _seeding(ArrayDataAdapter.get_tf_dataset)


def _noting_strategy(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, distribute_strategy: Any = None, *rest: Any, **more: Any) -> None:  # noqa: N807
        _MAKING.strategy = distribute_strategy
        try:
            original(self, distribute_strategy, *rest, **more)
        finally:
            _MAKING.strategy = None

    return __init__


def _seeding(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_tf_dataset(self: Any) -> Any:
        from tensorflow.python.eager import context as eager

        if not self._shuffle or not keras_steps.is_multi_worker(_MAKING.strategy):
            return original(self)
        context = eager.context()
        own = context._seed
        seed = _first_of_all(_MAKING.strategy, random.SystemRandom().getrandbits(31) if own is None else own)
        try:
            context._seed = seed  # the functions of the data set take it when they are made
            return original(self)
        finally:
            context._seed = own

    return get_tf_dataset


def _first_of_all(strategy: Any, number: int) -> int:
    """Return the number of the first replica."""
    import tensorflow as tf

    def send() -> Any:
        context = tf.distribute.get_replica_context()
        is_first = tf.equal(tf.cast(context.replica_id_in_sync_group, tf.int32), 0)
        own = tf.where(is_first, tf.constant(number, tf.int64), tf.constant(0, tf.int64))
        return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

    sent = strategy.run(tf.function(send))  # TensorFlow warns of the cost of a run without a graph
    return int(strategy.experimental_local_results(sent)[0])


def looking_at_data(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look at each data set that a strategy divides: is it shuffled without a seed?"""

    @functools.wraps(original)
    def experimental_distribute_dataset(self: Any, dataset: Any, options: Any = None) -> Any:
        if keras_steps.is_multi_worker(self) and _is_divided(dataset) and _has_unseeded_shuffle(dataset):
            notices.hint_once("unseeded-shuffle", SHUFFLE_HINT)
        return original(self, dataset, options)

    return experimental_distribute_dataset


def _is_divided(dataset: Any) -> bool:
    policy = (
        dataset.options().experimental_distribute.auto_shard_policy if hasattr(dataset, "options") else None
    )
    return policy is not None and getattr(policy, "name", "") != "OFF"


def _has_unseeded_shuffle(dataset: Any) -> bool:
    """Check the data set, and those of which it is made."""
    return any(
        type(one).__name__ == "_ShuffleDataset" and int(one._seed) == int(one._seed2) == 0
        for one in _made_of(dataset)
    )


def _made_of(dataset: Any) -> Iterator[Any]:
    yield dataset
    for one in dataset._inputs():
        yield from _made_of(one)
