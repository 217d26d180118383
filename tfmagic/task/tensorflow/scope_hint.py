"""Give a hint when `fit` begins with what neither TensorFlow nor Keras reports: copies or rows get lost.

- A model that was made outside of ``strategy.scope()`` is trained by each task alone, and the copies drift
  apart: a model has the strategy of its creation.
- BatchNormalization of Keras 3 keeps the moving statistics of the rows of its own task. Loss and weights are
  equal on all tasks; what the trained model says is not. (That of Keras 2 uses their mean.)
- A layer such as Dropout draws other numbers for the rows of several tasks than for those of one process.
- With the policy OFF a strategy divides each batch by the number of replicas, and Keras makes as many steps
  as the data have batches: the rest of the rows is never read.
"""

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

from tfmagic.task.tensorflow import collectives, notices

HINT = (
    "fit trains this model on each task by itself, and the copies drift apart: its variables "
    "are not of the strategy. Create and compile the model inside  with strategy.scope():"
)
STATISTICS_HINT = (
    "{layers} keeps moving statistics of this task's own rows: they differ between tasks, and "
    "a saved model has those of the task that saved it. With synchronized=True they are of the rows of all "
    "tasks."
)
RANDOM_HINT = (
    "{layers} draws other random numbers on several tasks than in one process, so the weights differ from "
    "those of one process, as with another seed."
)
DRAWS_HINT = (
    "the step of {model} draws other random numbers on several tasks than in one process, so the weights "
    "differ from those of one process, as with another seed."
)
ROWS_HINT = (
    "1/{replicas} of the rows of these data are used: with the policy OFF each step takes "
    "1/{replicas} of a batch, and Keras makes {steps} steps, one for each batch. Give it data.repeat() and "
    "the number of steps (steps_per_epoch={all_steps} in fit), the same on all tasks."
)
DRAWS = re.compile(
    "(Stateless)?(Random|TruncatedNormal|ParameterizedTruncatedNormal|Multinomial)(?!Get)|"
    "Stateful(Random|StandardNormal|TruncatedNormal|Uniform)"
)


def looking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look at each model that `fit` begins to train: is it of the strategy?"""
    return _before_the_first_step(
        original, "model-outside-scope", lambda model: HINT if _trains_alone(model) else ""
    )


def looking_at_statistics(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look at the layers of each model that `fit` begins to train, in Keras 3."""
    return _before_the_first_step(original, "own-statistics", _statistics_hint)


def looking_at_random_layers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look for layers that draw random numbers in each model that `fit` begins to train, in Keras 3."""
    return _before_the_first_step(original, "random-layers", _random_hint)


def look_at_draws(model: Any) -> None:
    """Look for random numbers in the graph of a step: a layer or a `train_step` of the user's has them."""
    import tensorflow as tf

    if tf.executing_eagerly() or _random_hint(model):
        return
    if any(map(DRAWS.match, (op.type for op in tf.compat.v1.get_default_graph().get_operations()))):
        notices.hint_once("random-layers", DRAWS_HINT, model=model.name)


def _before_the_first_step(
    original: Callable[..., Any], name: str, hint_on: Callable[[Any], str]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_train_function(self: Any, force: bool = False) -> Any:
        if (force or self.train_function is None) and (hint := hint_on(self)):
            notices.hint_once(name, hint)
        return original(self, force)

    return make_train_function


def _trains_alone(model: Any) -> bool:
    """Check for a model without a strategy, in a process that has one with other tasks."""
    if not collectives.have_peers() or model.distribute_strategy.num_replicas_in_sync > 1:
        return False
    # tf_keras raises an error for the variables of a model that is not built
    return not (model.built and any(map(has_strategy, model.trainable_variables)))


def _statistics_hint(model: Any) -> str:
    return _hint_on_layers(STATISTICS_HINT, model, _has_own_statistics)


def _has_own_statistics(layer: Any) -> bool:
    return layer.trainable and not getattr(layer, "synchronized", True) and hasattr(layer, "moving_mean")


def _random_hint(model: Any) -> str:
    return _hint_on_layers(RANDOM_HINT, model, _is_random)


def _is_random(layer: Any) -> bool:
    parts = ("rate", "dropout", "recurrent_dropout", "stddev", "factor")
    return hasattr(layer, "seed_generator") and any(getattr(layer, part, None) for part in parts)


def _hint_on_layers(hint: str, model: Any, is_meant: Callable[[Any], bool]) -> str:
    """Return the hint with the layers of the model that are meant; "" if there are none, or no peers."""
    if not collectives.have_peers() or model.distribute_strategy.num_replicas_in_sync < 2:
        return ""
    layers = [layer.name for layer in model._flatten_layers() if is_meant(layer)]
    more = f" and {len(layers) - 1} more layers" if len(layers) > 1 else ""
    return hint.format(layers=layers[0] + more) if layers else ""


def has_strategy(variable: Any) -> bool:
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
        notices.hint_once("unused-rows", ROWS_HINT, **words)


def _is_undivided(given: Iterable[Any]) -> bool:
    """Check for a data set of tf.data with the policy OFF."""
    policies = (
        value.options().experimental_distribute.auto_shard_policy
        for value in given
        if hasattr(value, "element_spec") and callable(getattr(value, "options", None))
    )
    return any(getattr(policy, "name", "") == "OFF" for policy in policies)
