"""Print a hint when `fit` trains a model that has no part in the strategy of this process.

A model that was made outside of ``strategy.scope()`` is trained by each task alone. The copies drift apart,
and neither TensorFlow nor Keras reports it: a model has the strategy of its creation.
"""

import functools
from collections.abc import Callable
from typing import Any

from tfmagic.task.tensorflow import collectives

HINT = (
    "tfmagic: hint: fit trains this model on each task by itself, and the copies drift apart: its variables "
    "are not of the strategy. Create and compile the model inside  with strategy.scope():"
)


def looking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look at each model that `fit` begins to train."""

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
