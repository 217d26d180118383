"""Let the losses of `fit` weigh the rows of all replicas alike, in Keras 3 under a multi-worker strategy.

Keras divides each replica's mean by the number of replicas, and adds the gradients up. That is the mean of
one process where all parts weigh alike. They do not with a global batch that cannot be divided evenly, with
``reduction="mean_with_sample_weight"``, and under a mask. Keras also leaves a loss that is divided by the
number of replicas to a `train_step` of the user's own, and does not divide a loss function's scalar at all.

A loss of Keras that a layer adds (`add_loss`) gets its share in the layer, and not once more in the step.
Here the value of a loss stays as it is, and its gradient is multiplied by the replica's share of the rows.
Weights and masks are made relative to those of all replicas. Read on Keras 3.10 to 3.16.0.dev.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tfmagic.task.tensorflow import keras_steps, loop_hints, notices, row_axes
from tfmagic.task.tensorflow.keras_steps import STEPS, TrainStep

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
SCALAR_HINT = (
    "a loss function returns one number for the whole batch, not one for each row: it is "
    "taken for a mean over the rows of this task. If it is a sum, return one for each row, in a "
    'keras.losses.Loss whose reduction is "sum".'
)


SUM_HINT = (
    "an added loss (add_loss) is a sum over the rows: it is taken for a mean over the rows of this task, so "
    "it counts less than in one process. Add a mean, or a sum that is divided by the rows of its batch."
)
_SHARED = "share_of_rows"


def install() -> None:
    """Repair the losses in this process."""
    from keras.src.losses import loss
    from keras.src.trainers.compile_utils import CompileLoss

    loss.scale_loss_for_distribution = _scaling(loss.scale_loss_for_distribution)
    loss.unscale_loss_for_distribution = _unscaling(loss.unscale_loss_for_distribution)
    loss.reduce_values = _reducing(loss.reduce_values)
    loss.apply_mask = _masking(loss.apply_mask)
    CompileLoss.call = _compiling(CompileLoss.call)


def _scaling(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def scale_loss_for_distribution(value: Any) -> Any:
        step = STEPS.current
        if step is None:
            return original(value)
        if not step.in_compiled_loss and loop_hints.is_sum(value, _SHARED):
            notices.hint_once("added-sum", SUM_HINT)
        return value if loop_hints.comes_from(value, _SHARED) else _with_gradient(value, step.share)

    return scale_loss_for_distribution


def _unscaling(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def unscale_loss_for_distribution(value: Any) -> Any:
        return original(value) if STEPS.current is None else value

    return unscale_loss_for_distribution


def _compiling(original: Callable[..., Any]) -> Callable[..., Any]:
    """Note that Keras computes the losses of `compile`, none of which is an added one."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        step = STEPS.current
        with keras_steps.within(step and replace(step, in_compiled_loss=True)):
            return original(self, *args, **kwargs)

    return call


def _reducing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reduce_values(values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size") -> Any:
        import tensorflow as tf

        step = STEPS.current
        if step is not None and tuple(values.shape) == (0,):  # no rows: Keras would return them as they are
            values = tf.reshape(tf.reduce_sum(values), [1])
            sample_weight = None if sample_weight is None else tf.zeros([1])  # the others add theirs up
        reduced = original(values, sample_weight, reduction)
        if step is not None and reduction == "sum":  # the sum of all replicas, which share it
            return _with_gradient(_of_all_rows(reduced, step), step.share)
        if step is None or reduction not in _MEANS:
            return reduced
        if tuple(values.shape) == ():
            notices.hint_once("scalar-loss", SCALAR_HINT)
            return _with_gradient(reduced, step.share)
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            return _with_gradient(reduced * _weight_of(sample_weight, step, reduced.dtype), 1.0)
        return reduced

    return reduce_values


def _masking(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply_mask(sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
        import tensorflow as tf

        weights = original(sample_weight, mask, dtype, reduction)
        step = STEPS.current
        if step is None or mask is None or reduction not in ("mean", "sum_over_batch_size"):
            return weights
        weighted = weights * _weight_of(mask, step, weights.dtype)
        return tf.identity(weighted, name=row_axes.MARK)  # relative to the rows of all replicas

    return apply_mask


def adding(original: Callable[..., None]) -> Callable[..., None]:
    """Take an activity regularizer for a sum over the rows, where this Keras does not divide it by them."""
    from keras.src.layers.layer import Layer

    call = inspect.unwrap(Layer.__call__).__code__  # only of these losses it adds one itself
    if "divide_no_nan" in call.co_names:
        return original

    @functools.wraps(original)
    def add_loss(self: Any, loss: Any) -> None:
        step = STEPS.current
        if step is not None and sys._getframe(1).f_code is call:
            loss = _of_all_rows(loss, step)
        original(self, loss)

    return add_loss


def _of_all_rows(value: Any, step: TrainStep) -> Any:
    """Return a sum over a replica's rows so that the mean over the replicas, by rows, is that of all rows."""
    import tensorflow as tf

    return tf.math.divide_no_nan(value, tf.cast(step.share, value.dtype))


def _weight_of(parts: Any, step: TrainStep, dtype: Any) -> Any:
    """Return the factor of a replica's mean that makes it relative to the parts of all replicas."""
    import tensorflow as tf

    own = tf.reduce_sum(tf.cast(parts, tf.float32))
    context = keras_steps.replica_context()
    if context is None:
        return tf.ones([], dtype)
    of_all = context.all_reduce(tf.distribute.ReduceOp.SUM, own)
    return tf.cast(tf.math.divide_no_nan(own, of_all * step.share), dtype)


def _with_gradient(value: Any, factor: Any) -> Any:
    """Return the value, with a gradient that is multiplied by the factor; 0 for the mean of no rows."""
    import tensorflow as tf

    @tf.custom_gradient
    def with_gradient(x: Any) -> Any:
        return tf.identity(x, name=_SHARED), lambda above: above * tf.cast(factor, above.dtype)

    value = tf.convert_to_tensor(value)
    if tf.is_tensor(factor):
        value = tf.where(factor > 0, value, tf.zeros_like(value))
    return with_gradient(value)
