"""Print a hint when `fit` trains a model that has no part in the strategy of this process.

A model that was made outside of ``strategy.scope()`` is trained by each task alone. The copies drift apart,
and neither TensorFlow nor Keras reports it: a model has the strategy of its creation.
"""

import functools
import sys
from typing import Any

from tfmagic.task.tensorflow import collectives, keras_repair

HINT = (
    "tfmagic: hint: fit trains this model on each task by itself, and the copies drift apart: its variables "
    "are not of the strategy. Create and compile the model inside  with strategy.scope():"
)


def install() -> None:
    """Look at each model that `fit` begins to train, in the versions of Keras that are imported."""
    of_keras_3 = sys.modules.get("keras.src.backend.tensorflow.trainer")
    of_keras_2 = sys.modules.get("tf_keras.src.engine.training")
    trainers: list[Any] = [keras_repair.trainer_class(of_keras_3), getattr(of_keras_2, "Model", None)]
    for trainer in trainers:
        if hasattr(trainer, "make_train_function"):
            trainer.make_train_function = _looking(trainer.make_train_function)


def _looking(original: Any) -> Any:
    @functools.wraps(original)
    def make_train_function(self: Any, force: bool = False) -> Any:
        if (force or self.train_function is None) and _trains_alone(self):
            print(HINT, flush=True)
        return original(self, force)

    return make_train_function


def _trains_alone(model: Any) -> bool:
    """Check for a model without a strategy, in a process that has one with other tasks."""
    if not collectives.have_peers() or model.distribute_strategy.num_replicas_in_sync > 1:
        return False
    # the variable of TensorFlow, which Keras 3 wraps
    variables = [getattr(variable, "_value", variable) for variable in model.trainable_variables]
    return not any(getattr(variable, "_distribute_strategy", None) for variable in variables)
