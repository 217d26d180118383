"""Print a hint when `fit` begins with what neither TensorFlow nor Keras reports: copies or rows get lost.

- A model that was made outside of ``strategy.scope()`` is trained by each task alone, and the copies drift
  apart: a model has the strategy of its creation.
- BatchNormalization of Keras 3 keeps the moving statistics of the rows of its own task. Loss and weights are
  equal on all tasks; what the trained model says is not. (That of Keras 2 uses their mean.)
- With the policy OFF a strategy divides each batch by the number of replicas, and Keras makes as many steps
  as the data have batches: the rest of the rows is never read.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from tfmagic.task.tensorflow import collectives, keras_saving

HINT = (
    "tfmagic: hint: fit trains this model on each task by itself, and the copies drift apart: its variables "
    "are not of the strategy. Create and compile the model inside  with strategy.scope():"
)
STATISTICS_HINT = (
    "tfmagic: hint: {layers} keeps moving statistics of this task's own rows: they differ between tasks, and "
    "a saved model has those of the task that saved it. With synchronized=True they are of the rows of all "
    "tasks."
)
ROWS_HINT = (
    "tfmagic: hint: 1/{replicas} of the rows of these data are used: with the policy OFF each step takes "
    "1/{replicas} of a batch, and Keras makes {steps} steps, one for each batch. Give it data.repeat() and "
    "the number of steps (steps_per_epoch={all_steps} in fit), the same on all tasks."
)


def looking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look at each model that `fit` begins to train: is it of the strategy?"""
    return _before_the_first_step(original, lambda model: HINT if _trains_alone(model) else "")


def looking_at_statistics(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look at the layers of each model that `fit` begins to train, in Keras 3."""
    return _before_the_first_step(original, _statistics_hint)


def _before_the_first_step(original: Callable[..., Any], hint_on: Callable[[Any], str]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_train_function(self: Any, force: bool = False) -> Any:
        if (force or self.train_function is None) and (hint := hint_on(self)):
            print(hint, flush=True)
        return original(self, force)

    return make_train_function


def _trains_alone(model: Any) -> bool:
    """Check for a model without a strategy, in a process that has one with other tasks."""
    if not collectives.have_peers() or model.distribute_strategy.num_replicas_in_sync > 1:
        return False
    return not any(map(_has_strategy, model.trainable_variables))


def _statistics_hint(model: Any) -> str:
    layers = [
        layer.name
        for layer in model._flatten_layers()
        if layer.trainable and not getattr(layer, "synchronized", True) and hasattr(layer, "moving_mean")
    ]
    if not layers or not collectives.have_peers() or model.distribute_strategy.num_replicas_in_sync < 2:
        return ""
    more = f" and {len(layers) - 1} more layers" if len(layers) > 1 else ""
    return STATISTICS_HINT.format(layers=layers[0] + more)


def _has_strategy(variable: Any) -> bool:
    """Check the variable of TensorFlow, which Keras 3 wraps."""
    return bool(getattr(getattr(variable, "_value", variable), "_distribute_strategy", None))


def counting_rows(original: Callable[..., None]) -> Callable[..., None]:
    """Count the rows of each data set that Keras 3 begins to read by itself."""

    @functools.wraps(original)
    def __init__(self: Any, distribute_strategy: Any = None, *rest: Any, **more: Any) -> None:  # noqa: N807
        original(self, distribute_strategy, *rest, **more)
        if not self.steps_per_epoch:
            _count_rows(distribute_strategy, self.data_adapter.num_batches, (*rest, *more.values()))

    return __init__


def counting_rows_of_keras_2(original: Callable[..., None]) -> Callable[..., None]:
    """Count the rows of each data set that tf_keras begins to read by itself."""

    @functools.wraps(original)
    def __init__(self: Any, x: Any, *rest: Any, **more: Any) -> None:  # noqa: N807
        import tensorflow as tf

        original(self, x, *rest, **more)
        if self._steps_per_epoch is None and more.get("distribute", True):  # False: `adapt` reads all rows
            _count_rows(tf.distribute.get_strategy(), self._inferred_steps, (x,))

    return __init__


def _count_rows(strategy: Any, steps: int | None, given: Iterable[Any]) -> None:
    replicas = strategy.num_replicas_in_sync
    if replicas > 1 and steps and _is_undivided(given):
        words = {"replicas": replicas, "steps": steps, "all_steps": replicas * steps}
        keras_saving.print_once(ROWS_HINT, **words)


def _is_undivided(given: Iterable[Any]) -> bool:
    """Check for a data set of tf.data with the policy OFF."""
    policies = (
        value.options().experimental_distribute.auto_shard_policy
        for value in given
        if hasattr(value, "element_spec") and callable(getattr(value, "options", None))
    )
    return any(getattr(policy, "name", "") == "OFF" for policy in policies)
