"""Let an optimizer of Keras 3 see the gradients of the whole batch, as in one process.

    apply(gradients of one replica) ──→ sum over the replicas ──→ finite? scale, accumulate, clip ──→ update

Keras sums the gradients last, in the update itself, so that whatever an optimizer does before is done to
those of one replica: `clipnorm`, `global_clipnorm` and `clipvalue` clip each of them (two opposed gradients
leave weights at 0 where one process moves), and `LossScaleOptimizer` decides for each replica whether
gradients are finite, so that two of them can wait in different collectives for ever. In a step of `fit` the
gradients are summed first. A sum that would not have fit into float16 counts as infinite, as in one process.

Some optimizers decide in a `cond` whether replicas meet (`gradient_accumulation_steps`,
`LossScaleOptimizer`, `ema_overwrite_frequency`), which TensorFlow refuses inside a replica: "`merge_call`
called while defining a new graph". Under a multi-worker strategy such a `cond` stands outside the replicas,
and its branches run on each.

In a loop of the user's own plain processes train, so no value changes there: `loop_hints` has the hints.
Read on Keras 3.10 to 3.16.0.dev.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tfmagic.task.tensorflow import keras_steps
from tfmagic.task.tensorflow.keras_steps import STEPS, within


def sum_first() -> None:
    """Sum the gradients of a step of `fit` before the optimizer does anything with them."""
    from keras.src.backend.tensorflow import optimizer as backend
    from keras.src.optimizers import base_optimizer, loss_scale_optimizer

    for owner in (base_optimizer.BaseOptimizer, loss_scale_optimizer.LossScaleOptimizer):
        owner.apply = _applying(owner.apply)
    backend.TFOptimizer._all_reduce_sum_gradients = _summing_once(
        backend.TFOptimizer._all_reduce_sum_gradients
    )


def decide_outside() -> None:
    """Let conditions of optimizers stand outside of the replicas, and the loss scale be one decision."""
    from keras.src.optimizers import base_optimizer, loss_scale_optimizer

    for module in (base_optimizer, loss_scale_optimizer):
        if hasattr(module, "ops"):
            module.ops = _Operations(module.ops)
        else:  # from Keras 3.16 on it is backend.ops
            module.backend = _Backend(module.backend)
    scaling = loss_scale_optimizer.LossScaleOptimizer
    scaling._tf_apply = _applying_commonly(scaling._tf_apply)
    scaling.check_finite = _deciding_commonly(scaling.check_finite)


def _applying(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        step = STEPS.current
        context = None if step is None or step.is_summed else keras_steps.replica_context()
        if step is None or context is None:
            return original(self, grads, trainable_variables)
        grads = list(grads)
        variables = None if trainable_variables is None else list(trainable_variables)
        summed = _sum(context, grads, variables or [])
        if hasattr(self, "inner_optimizer"):  # it scales the loss for float16
            summed = [_as_large_as(grad, whole) for grad, whole in zip(grads, summed, strict=True)]
        with within(replace(step, is_summed=True)):
            return original(self, summed, variables)

    return apply


def _sum(context: Any, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
    """Sum gradients over the replicas, but those that replace a variable's value (of float8)."""
    import tensorflow as tf

    def is_value(index: int) -> bool:
        return index < len(variables) and bool(getattr(variables[index], "overwrite_with_gradient", False))

    places = [index for index, grad in enumerate(grads) if grad is not None and not is_value(index)]
    summed = (
        context.all_reduce(tf.distribute.ReduceOp.SUM, [grads[index] for index in places]) if places else []
    )
    of_all = dict(zip(places, summed, strict=True))
    return [of_all.get(index, grad) for index, grad in enumerate(grads)]


def _as_large_as(grad: Any, whole: Any) -> Any:
    """Return the sum of gradients; infinite where they are of float16, which could not hold it."""
    import tensorflow as tf

    if not tf.is_tensor(grad) or isinstance(grad, tf.IndexedSlices) or not _is_of_float16(grad):
        return whole
    return tf.where(tf.abs(whole) > tf.float16.max, tf.constant(float("inf"), whole.dtype), whole)


def _is_of_float16(grad: Any) -> bool:
    """Check whether a gradient in a graph was a float16 one before it was cast."""
    made_by = getattr(grad, "op", None) if not hasattr(grad, "numpy") else None
    if made_by is None or made_by.type not in ("Cast", "AddN", "AddV2"):
        return False
    if made_by.type == "Cast":
        return bool(made_by.inputs[0].dtype == "float16")
    return any(map(_is_of_float16, made_by.inputs))


def _summing_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _all_reduce_sum_gradients(self: Any, grads_and_vars: Any) -> Any:
        step = STEPS.current
        return list(grads_and_vars) if step and step.is_summed else original(self, grads_and_vars)

    return _all_reduce_sum_gradients


class _Backend:
    """Keras' backend, with other operations, for the modules of optimizers."""

    def __init__(self, backend: Any) -> None:
        self._backend, self.ops = backend, _Operations(backend.ops)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class _Operations:
    """Keras' operations, with another `cond`, for the modules of optimizers."""

    def __init__(self, operations: Any) -> None:
        self._operations = operations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operations, name)

    def cond(self, pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
        """Run one of two functions without a value; on all replicas of a multi-worker strategy."""
        context, step = keras_steps.replica_context(), STEPS.current
        if context is None:
            return self._operations.cond(pred, true_fn, false_fn)

        def on_replica(function: Callable[[], Any]) -> None:
            with within(step):
                function()

        def decide(strategy: Any, pred: Any, *functions: Any) -> None:
            run = strategy.extended.call_for_each_replica
            one, other = (lambda each=each: run(on_replica, args=(each,)) and None for each in functions)
            self._operations.cond(strategy.experimental_local_results(pred)[0], one, other)

        return context.merge_call(decide, args=(pred, true_fn, false_fn))


def _applying_commonly(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let `LossScaleOptimizer` decide by the `cond` above."""

    @functools.wraps(original)
    def _tf_apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if keras_steps.replica_context() is None:
            return original(self, grads, trainable_variables)
        return self._common_apply(grads, trainable_variables)

    return _tf_apply


def _deciding_commonly(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let gradients be finite where they are so on all replicas."""

    @functools.wraps(original)
    def check_finite(self: Any, grads: Any) -> Any:
        import tensorflow as tf

        finite, step, context = original(self, grads), STEPS.current, keras_steps.replica_context()
        if context is None or (step and step.is_summed):
            return finite
        infinite = context.all_reduce(tf.distribute.ReduceOp.SUM, 1.0 - tf.cast(finite, tf.float32))
        return tf.equal(infinite, 0.0)

    return check_finite
