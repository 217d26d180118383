"""Hints on what a training loop of the user's own, or a `train_step`, computes of one replica alone.

An optimizer under a strategy adds up the gradients of all replicas. Two habits of one process give other
weights then, without a word: the loss is the mean over the rows of one replica (each step is N times as
large), or the gradients are clipped before the optimizer has them. Plain processes train so, too, so no
value is changed.

    GradientTape.gradient ──→ is the loss a mean of one replica? a root or a maximum? of random numbers? of
           │                  rows that are compared?      └──→ noted: the gradients of this thread
    optimizer.apply ──→ were they clipped since, and not summed before that? does the optimizer clip?

Only graphs are looked at, which say from what a tensor was made, so steps that run eagerly get no hint. With
two replicas half of a mean is taken for a mean that is divided by their number.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tfmagic.task.tensorflow import changed_gradients, keras_steps, notices, row_axes, scope_hint
from tfmagic.task.tensorflow.graph_ops import (
    DIVISIONS,
    constant,
    is_argument,
    is_divided,
    is_draw,
    is_of_replicas,
    is_of_weights,
    made_from,
    op_of,
)
from tfmagic.task.tensorflow.keras_steps import STEPS

LOSS_HINT = (
    "the loss, or a part of it, is a mean over the rows of one replica, or is computed of weights alone, and "
    "the gradients of all {replicas} replicas are added up: it counts {replicas} times as much as in one "
    "process. Take  "
    "self.compute_loss  in a train_step, or divide the loss by strategy.num_replicas_in_sync."
)
CURVE_HINT = (
    "the loss is computed by {op} of a number of all rows of one replica: what that gives for a whole batch "
    "is no sum of what it gives for its parts, so the weights differ from those of one process. Take a loss "
    "that is a sum over the rows."
)
COMPARED_HINT = (
    "rows of one replica are compared with each other ({op}), and each replica has a part of a batch's rows, "
    "so the weights differ from those of one process. Compare with the rows of all:  "
    "tf.distribute.get_replica_context().all_gather(rows, axis=0)"
)
DRAWS_HINT = (
    "a step of the loop draws other random numbers on several tasks than in one process, so the weights "
    "differ from those of one process, as with another seed."
)
CLIP_HINT = (
    "the gradients of each replica are {how} before they are added up: in one "
    "process their sum is. Sum them first:  "
    "grads = tf.distribute.get_replica_context().all_reduce('SUM', grads)  then change them, and apply  "
    "[g / strategy.num_replicas_in_sync for g in grads]."
)
ADDED_HINT = (
    "what {op} adds to the gradients does not depend on the rows, and the gradients of all {replicas} "
    "replicas are added up: it counts {replicas} times as much as in one process. Divide it by "
    "strategy.num_replicas_in_sync."
)
_OPTIONS = ("clipnorm", "global_clipnorm", "clipvalue")
_CURVES = {
    *("Abs", "EuclideanNorm", "Exp", "Log", "Log1p", "Max", "Maximum", "Min", "Minimum", "Pow", "Prod"),
    *("Rsqrt", "Sigmoid", "Softplus", "Sqrt", "Square", "Tanh"),
}
_TOTALS = ("Sum", "L2Loss")
_ENDS = ("IdentityN", "Shape", "Size")  # the first is Keras' loss, with the gradient of `keras_losses`


class _Noted(threading.local):
    """The gradients that tapes have given to the replica of this thread, all of one graph."""

    names: frozenset[str] = frozenset()
    graph: "weakref.ref[Any] | None" = None
    replicas: int = 1

    def add(self, grads: Iterable[Any], replicas: int) -> None:
        """Note the gradients of one more tape: a step can have several, such as that of a GAN."""
        ops = [op for op in map(op_of, grads) if op is not None]
        graph = ops[0].graph if ops else None
        if graph is None or self.graph is None or self.graph() is not graph:
            self.names, self.graph = frozenset(), None if graph is None else weakref.ref(graph)
        self.names |= {op.name for op in ops}
        self.replicas = replicas


_NOTED = _Noted()


def looking_at_losses(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look at each loss whose gradients a tape computes on a replica."""

    @functools.wraps(original)
    def gradient(self: Any, target: Any, sources: Any, *rest: Any, **more: Any) -> Any:
        found = original(self, target, sources, *rest, **more)
        context = keras_steps.replica_context()
        if context is not None and _are_variables(sources):
            _NOTED.add(_flat(found), context.num_replicas_in_sync)
            _look_at_draws(target)
            _look_at_rows(target)
            if op := _curve_of(target):
                notices.hint_once("curved-loss", CURVE_HINT, op=op)
            elif _is_mean(target, context.num_replicas_in_sync):
                notices.hint_once("unscaled-loss", LOSS_HINT, replicas=context.num_replicas_in_sync)
        return found

    return gradient


def looking_at_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look at the gradients that an optimizer of Keras 3 gets on a replica."""

    @functools.wraps(original)
    def apply(self: Any, grads: Any, *rest: Any, **more: Any) -> Any:
        grads = list(grads)
        _look_at_changes(grads)
        return original(self, grads, *rest, **more)

    return apply


def looking_at_gradients_of_keras_2(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look at the gradients that an optimizer of tf_keras gets on a replica; it sums, then clips."""

    @functools.wraps(original)
    def apply_gradients(self: Any, grads_and_vars: Any, *rest: Any, **more: Any) -> Any:
        pairs = list(grads_and_vars)
        if not any(rest[1:]) and not more.get("skip_gradients_aggregation"):
            _look_at_changes([grad for grad, _ in pairs])
        return original(self, pairs, *rest, **more)

    return apply_gradients


def _look_at_changes(grads: Iterable[Any]) -> None:
    found = {}
    if _NOTED.names and not _are_summed():
        found = changed_gradients.changes(grads, _NOTED.names, _NOTED.replicas)
    if op := found.get("bent"):
        notices.hint_once("clipped-replicas", CLIP_HINT, how=f"clipped or changed ({op})")
    if op := found.get("added"):
        notices.hint_once("unscaled-loss", ADDED_HINT, op=op, replicas=_NOTED.replicas)
    if "drawn" in found:
        notices.hint_once("random-layers", DRAWS_HINT)


def looking_at_clips(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look whether an optimizer of Keras 3 clips the gradients of one replica."""

    @functools.wraps(original)
    def _clip_gradients(self: Any, grads: Any) -> Any:
        options = [f"{name}={value}" for name in _OPTIONS if (value := getattr(self, name, None))]
        if options and not _are_summed() and keras_steps.replica_context() is not None:
            notices.hint_once(
                "clipped-replicas", CLIP_HINT, how=f"clipped by {type(self).__name__}({', '.join(options)})"
            )
        return original(self, grads)

    return _clip_gradients


def _are_summed() -> bool:
    step = STEPS.current
    return step is not None and step.is_summed


def _flat(values: Any) -> Iterable[Any]:
    import tensorflow as tf

    return tf.nest.flatten(values)


def _are_variables(sources: Any) -> bool:
    return any(map(scope_hint.has_strategy, _flat(sources)))


def _is_mean(target: Any, replicas: int) -> bool:
    """Check whether a loss is computed of a mean of one replica, which is not divided by their number.

    A part that does not depend on the data, as a sum of squared weights, counts as well.
    """
    numbers = _numbers_of(target, lambda op: op.type in _ENDS or is_divided(op, replicas))
    return any(
        op.type == "Mean"
        or (_is_divided_by_rows(op) and not is_divided(op, replicas))
        or (op.type in _TOTALS and is_of_weights(op))
        for op in numbers
    )


def _curve_of(loss: Any) -> str:
    """Name what makes a loss of a number of all rows that does not add up for the parts of a batch, or ""."""
    numbers = _numbers_of(loss, lambda op: op.type in _ENDS or is_of_replicas(op))
    return next((op.type for op in numbers if _is_curved(op)), "")


def _is_curved(op: Any) -> bool:
    is_ratio = op.type in DIVISIONS and not _is_divided_by_rows(op)
    return (op.type in _CURVES and _is_of_rows(op)) or (is_ratio and _is_of_rows(op.inputs[1].op))


def _is_of_rows(op: Any) -> bool:
    """Check whether an operation depends on the arguments of the step, not only on their shapes or totals."""
    fixed = {inner.op.name for outer, inner in op.graph.captures if hasattr(outer, "numpy")}
    return any(
        is_argument(one) and one.name not in fixed
        for one in made_from(op, lambda one: one.type in ("Shape", "Size") or is_of_replicas(one))
    )


def _look_at_rows(target: Any) -> None:
    """Look for rows that are compared, and for random numbers of each row that are equal on all tasks."""
    found = row_axes.look_at(target)
    if found.drawing is not None and STEPS.current is None:
        notices.hint_once("random-layers", DRAWS_HINT)
    if found.comparing is not None and "own-statistics" not in notices.given():
        notices.hint_once("compared-rows", COMPARED_HINT, op=found.comparing.name)


def _look_at_draws(target: Any) -> None:
    """Look for random numbers in a loss of the user's own loop; `scope_hint` looks at the steps of `fit`."""
    op = op_of(target) if STEPS.current is None else None
    if op is not None and any(map(is_draw, made_from(op, most=len(op.graph.get_operations())))):
        notices.hint_once("random-layers", DRAWS_HINT)


def comes_from(loss: Any, name: str) -> bool:
    """Check whether a loss is computed of numbers that an operation of this name has made."""
    return any(_is_named(op, name) for op in _numbers_of(loss, lambda op: _is_named(op, name)))


def is_sum(loss: Any, name: str) -> bool:
    """Check whether a loss is a sum over data, but for the part that an operation of this name has made."""
    return any(
        op.type in _TOTALS and op.inputs[0].shape.rank != 0 and not is_of_weights(op) and not _has_mean(op)
        for op in _numbers_of(loss, lambda op: op.type in (*DIVISIONS, "Mean") or _is_named(op, name))
    )


def _is_named(op: Any, name: str) -> bool:
    return bool(op.type == "IdentityN" and op.inputs[0].op.name.rpartition("/")[2].startswith(name))


def _has_mean(op: Any) -> bool:
    """Check for a sum of means, which is one over features."""
    return any(one.type == "Mean" for one in made_from(op))


def _numbers_of(loss: Any, is_end: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield the operations that have made a loss, as far as their results are single numbers."""
    op = op_of(loss)
    return iter(()) if op is None else made_from(op, is_end, follows=_is_number)


def _is_number(tensor: Any) -> bool:
    """Check for one number, also where a sum keeps the dimensions, as that of `tf.norm`."""
    makers = made_from(tensor, lambda op: op.type in _TOTALS, follows=_has_one_element)
    keeps = _has_one_element(tensor) and any(
        op.type in _TOTALS[:1] and op.get_attr("keep_dims") for op in makers
    )
    return tensor.shape.rank == 0 or keeps


def _has_one_element(tensor: Any) -> bool:
    return bool(tensor.shape.rank != 0 and tensor.shape.num_elements() == 1)


def _is_divided_by_rows(op: Any) -> bool:
    return op.type in DIVISIONS and op.inputs[0].op.type in _TOTALS and constant(op.inputs[1]) is None
