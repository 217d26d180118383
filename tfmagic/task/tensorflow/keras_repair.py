"""Repair `model.fit` of Keras 3 under MultiWorkerMirroredStrategy, broken since TensorFlow 2.16.

keras-team/keras#20585, open; read and measured on Keras 3.15.1. Two places of
``keras/src/backend/tensorflow/trainer.py`` are wrong:

1. ``TensorFlowTrainer._maybe_symbolic_build`` passes a whole batch (a tuple of PerReplica) to
   ``strategy.reduce``, only to learn its shapes:
   "Attempt to convert a value (PerReplica:{...}) with an unsupported type".
   Here: the shapes come from the dataset's element spec. No batch is consumed either.
2. ``reduce_per_replica`` reduces scalar metrics with ``axis=0``:
   "Invalid reduction dimension 0 for input with 0 dimensions".
   Here: scalars are reduced across replicas only.

Both repairs act only under a multi-worker collective strategy and on versions known to be broken; the first
use prints one line. ``--no-keras-fix`` leaves Keras alone. `keras_saving` repairs saves.
"""

from typing import Any

from tfmagic.task.tensorflow import keras_saving

BROKEN_FROM, BROKEN_BEFORE = (3, 0), (3, 16)
NOTICE = (
    "\x1b[2mtfmagic: repaired Keras {version}'s fit/evaluate under multi-worker strategies "
    "(keras#20585); --no-keras-fix switches it off\x1b[0m"
)


def install() -> bool:
    """Repair Keras in this process.

    Return False if its version is not known to be broken, or lacks one of the places (Keras before 3.5 has no
    `_maybe_symbolic_build`).
    """
    import keras

    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if not BROKEN_FROM <= version < BROKEN_BEFORE or keras.backend.backend() != "tensorflow":
        return False
    from keras.src.backend.tensorflow import trainer

    places = [(trainer, "reduce_per_replica"), (trainer, "_collective_all_reduce_multi_worker")]
    if not all(hasattr(*at) for at in [*places, (trainer.TensorFlowTrainer, "_maybe_symbolic_build")]):
        return False
    _repair_build(trainer)
    _repair_reduction(trainer)
    keras_saving.install()
    return True


def _repair_build(trainer: Any) -> None:
    import keras

    original = trainer.TensorFlowTrainer._maybe_symbolic_build

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self._distribute_strategy
        if iterator is None or not trainer._collective_all_reduce_multi_worker(strategy):
            original(self, iterator=iterator, data_batch=data_batch)
            return
        keras_saving.print_once(NOTICE, version=keras.__version__)
        with strategy.scope():
            self._symbolic_build(data_batch=_batch_spec(iterator))

    trainer.TensorFlowTrainer._maybe_symbolic_build = _maybe_symbolic_build


def _repair_reduction(trainer: Any) -> None:
    import tensorflow as tf

    original = trainer.reduce_per_replica

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if reduction not in ("auto", "mean") or not trainer._collective_all_reduce_multi_worker(strategy):
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
