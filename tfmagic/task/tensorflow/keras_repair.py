"""Repair `model.fit` of Keras 3 under MultiWorkerMirroredStrategy, broken since TensorFlow 2.16.

keras-team/keras#20585, open; read and measured on Keras 3.10 to 3.16.0.dev. Two places of
``keras/src/backend/tensorflow/trainer.py`` are wrong:

1. `_maybe_symbolic_build` of the trainer passes a whole batch (a tuple of PerReplica) to
   ``strategy.reduce``, only to learn its shapes:
   "Attempt to convert a value (PerReplica:{...}) with an unsupported type".
   Here: the shapes come from the dataset's element spec. No batch is consumed either. A model with a
   `train_step` of its own, as a GAN, needs no `call` for it, as in one process.
2. ``reduce_per_replica`` reduces scalar metrics with ``axis=0``:
   "Invalid reduction dimension 0 for input with 0 dimensions".
   Here: scalars are reduced across replicas only.

Both repairs act only under a multi-worker collective strategy, and only where a probe has seen that this
Keras does the wrong thing: its function runs once with a strategy that records what it is given. The first
use of a repair prints one line. ``--no-keras-fix`` leaves Keras alone.
"""

import contextlib
import functools
from types import SimpleNamespace
from typing import Any

from tfmagic.task.tensorflow import notices

NOTICE = "tfmagic: repaired Keras {version}'s fit/evaluate under multi-worker strategies (keras#20585)"


def install() -> None:
    """Repair `fit` of Keras in this process."""
    from keras.src.backend.tensorflow import trainer

    _repair_build(trainer)
    _repair_reduction(trainer)


def trainer_class(trainer: Any) -> Any:
    """Return the class that trains, from Keras' module of that name: `Trainer` from Keras 3.16 on."""
    return getattr(trainer, "TensorFlowTrainer", getattr(trainer, "Trainer", None))


# -- probes --


def _recording_strategy(calls: list[tuple[Any, Any]]) -> Any:
    """Return a multi-worker strategy that reduces nothing, and records the values and axes that it gets."""
    import tensorflow as tf

    class Recording(tf.distribute.MultiWorkerMirroredStrategy):  # TensorFlow is untyped
        def __init__(self) -> None:
            self._extended = SimpleNamespace(_in_multi_worker_mode=lambda: True)

        def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
            calls.append((value, axis))
            return value

        def scope(self) -> Any:
            return contextlib.nullcontext()

    return Recording()


def _replica_value() -> Any:
    """Return a value that counts as one of a replica, without TensorFlow's context."""
    import tensorflow as tf

    return type("ReplicaValue", (tf.distribute.DistributedValues,), {})()


def _reduces_whole_batches(original: Any) -> bool:
    """Check whether Keras passes a whole batch, a tuple, to ``strategy.reduce`` as if it were one value."""
    calls: list[tuple[Any, Any]] = []
    strategy = _recording_strategy(calls)
    model = SimpleNamespace(
        _distribute_strategy=strategy, distribute_strategy=strategy, _symbolic_build=lambda data_batch: None
    )
    for step in ((0, 0), (0,)):  # of its iterator: from Keras 3.11 on, and before
        with contextlib.suppress(Exception):  # a Keras that does otherwise is left alone
            original(model, iterator=[(*step, iter([(_replica_value(),)]))])
    return any(isinstance(value, tuple) for value, _ in calls)


def _reduces_scalars_over_an_axis(original: Any) -> bool:
    """Check whether Keras asks ``strategy.reduce`` for the mean of a scalar over its first dimension."""
    calls: list[tuple[Any, Any]] = []
    with contextlib.suppress(Exception):  # as above
        original(_replica_value(), _recording_strategy(calls), "mean")
    return any(axis is not None for _, axis in calls)


# -- repairs --


def _repair_build(trainer: Any) -> None:
    import keras

    cls = trainer_class(trainer)
    original = cls._maybe_symbolic_build
    is_broken = functools.cache(lambda: _reduces_whole_batches(original))

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self._distribute_strategy
        is_multi_worker = trainer._collective_all_reduce_multi_worker(strategy)
        if iterator is None or not is_multi_worker or not is_broken():
            original(self, iterator=iterator, data_batch=data_batch)
            return
        notices.print_repair(NOTICE, version=keras.__version__)
        try:
            with strategy.scope():
                self._symbolic_build(data_batch=_batch_spec(iterator))
        except RuntimeError:  # its step calls other models, or itself with other arguments: that builds them
            if type(self).train_step is cls.train_step:
                raise

    cls._maybe_symbolic_build = _maybe_symbolic_build


def _repair_reduction(trainer: Any) -> None:
    import tensorflow as tf

    original = trainer.reduce_per_replica
    is_broken = functools.cache(lambda: _reduces_scalars_over_an_axis(original))

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        is_multi_worker = trainer._collective_all_reduce_multi_worker(strategy)
        if reduction not in ("auto", "mean") or not is_multi_worker or not is_broken():
            return original(values, strategy, reduction)
        return tf.nest.map_structure(lambda value: _mean(strategy, value), values)

    def _mean(strategy: Any, value: Any) -> Any:
        local = strategy.experimental_local_results(value)[0]
        return strategy.reduce("MEAN", value, axis=0 if local.shape.rank else None)

    trainer.reduce_per_replica = reduce_per_replica


def _batch_spec(iterator: Any) -> Any:
    """Return shapes and dtypes of one replica's batch, as Keras' data adapter yields it."""
    import tensorflow as tf

    def first(spec: Any) -> Any:
        values = getattr(spec, "_value_specs", None)  # PerReplicaSpec
        return values[0] if values else spec

    spec = iterator._distributed_dataset.element_spec
    return tf.nest.map_structure(first, spec)
