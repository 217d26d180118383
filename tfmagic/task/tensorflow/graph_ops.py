"""Questions on the operations of a graph: from what a number was made. Eager tensors have no answer.

The hints on losses and gradients of the user's own code ask them: `loop_hints`, `compared_rows`,
`changed_gradients`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from tfmagic.task.tensorflow import scope_hint

DIVISIONS = ("RealDiv", "DivNoNan")
_READS = (  # the rows of a step that takes them from an iterator
    *("IteratorGetNext", "IteratorGetNextAsOptional", "MultiDeviceIteratorGetNextFromShard"),
    *("OptionalGetValue",),
)
_OVER_REPLICAS = ("Collective", "Nccl", "AllReduce")
_OPS = 300  # looked at, at most


def in_graph(value: Any) -> Any:
    """Return a tensor of a graph, such as the values of IndexedSlices; None for other values."""
    tensor = getattr(value, "values", value)
    return tensor if hasattr(tensor, "value_index") and not hasattr(tensor, "numpy") else None


def op_of(value: Any) -> Any:
    """Return the operation that has made a tensor of a graph, else None."""
    tensor = in_graph(value)
    return None if tensor is None else tensor.op


def made_from(
    start: Any,
    is_end: Callable[[Any], bool] = lambda op: False,
    *,
    follows: Callable[[Any], bool] = lambda tensor: True,
    most: int = _OPS,
) -> Iterator[Any]:
    """Yield the operation of a tensor, or this one, and what has made its inputs, up to and with ends."""
    is_tensor = hasattr(start, "value_index")
    waiting = [(start.op, _inputs_of(start)) if is_tensor else (start, start.inputs)]
    seen, followed = set[str](), set[str]()
    while waiting and len(seen) < most:
        one, inputs = waiting.pop()
        if one.name not in seen:
            seen.add(one.name)
            yield one
        new = [] if is_end(one) else [it for it in inputs if follows(it) and it.name not in followed]
        followed.update(it.name for it in new)
        waiting += [(it.op, _inputs_of(it)) for it in new]


def _inputs_of(tensor: Any) -> Any:
    """Return what a tensor was made from: of a custom gradient's results each is one input alone."""
    op = tensor.op
    return [op.inputs[tensor.value_index]] if op.type == "IdentityN" else op.inputs


def is_of_replicas(op: Any) -> bool:
    """Check for a number of all replicas: a sum, or what they have gathered."""
    return bool(op.type.startswith(_OVER_REPLICAS))


def is_argument(op: Any) -> bool:
    """Check for an argument of a graph, or a batch that it takes from an iterator."""
    return op.type in _READS or (op.type == "Placeholder" and op.outputs[0].dtype != "resource")


def is_batch(op: Any) -> bool:
    """Check for what takes a batch from an iterator, in a condition if the last one can be smaller."""
    is_if = op.type in ("If", "StatelessIf")
    return op.type in _READS or (is_if and any(it.op.type in _READS for it in op.inputs))


def is_divided(op: Any, replicas: int) -> bool:
    """Check for a division by the number of replicas, as a strategy's program or Keras writes it.

    Also by their number times that of the rows, which `tf.nn.compute_average_loss` takes by default.
    """
    if op.type not in ("Mul", *DIVISIONS):
        return False
    if op.type == "Mul":
        return _has_constant(op.inputs, 1 / replicas)
    counts = made_from(op.inputs[1], follows=lambda tensor: tensor.shape.rank == 0)
    return _has_constant(op.inputs[1:], replicas) or any(
        one.type == "Mul" and _has_constant(one.inputs, replicas) for one in counts
    )


def _has_constant(tensors: Iterable[Any], wanted: float) -> bool:
    values = map(constant, tensors)
    return any(value is not None and abs(value - wanted) < 1e-6 for value in values)


def is_draw(op: Any) -> bool:
    """Check for random numbers, but those of a seed and a fixed shape, which are equal on all tasks."""
    return is_any_draw(op) and not is_equal_draw(op)


def is_equal_draw(op: Any) -> bool:
    has_shape = op.type.startswith("Stateless") and value_of(op.inputs[0]) is not None
    return has_shape and is_any_draw(op) and not any(one.type == "RngReadAndSkip" for one in made_from(op))


def is_any_draw(op: Any) -> bool:
    return bool(scope_hint.DRAWS.match(op.type))


def is_of_weights(start: Any, is_source: Callable[[Any], bool] = lambda op: False) -> bool:
    """Check whether something depends on variables, or other sources, but on no arguments of the step."""
    are_read = False
    for count, one in enumerate(made_from(start, most=_OPS + 1)):
        if count == _OPS or is_argument(one):
            return False
        are_read = are_read or one.type == "ReadVariableOp" or is_source(one)
    return are_read


def constant(tensor: Any) -> float | None:
    """Return the number that a scalar tensor of a graph always is, or None."""
    value = value_of(tensor) if tensor.shape.rank == 0 else None
    return None if value is None else float(value)


def value_of(tensor: Any) -> Any:
    """Return the array that a tensor of a graph always is, or None."""
    import tensorflow as tf

    value, rule = tf.get_static_value(tensor), _FOLDS.get(tensor.op.type)
    if value is None and rule is not None:  # an order of axes, such as that of a softmax over the first one
        inputs = [value_of(it) for it in tensor.op.inputs]
        return None if any(it is None for it in inputs) else rule(*inputs)
    return value


_FOLDS: dict[str, Callable[..., Any]] = {
    "AddV2": np.add,
    "Pack": lambda *values: np.array(values),
    "ConcatV2": lambda *values: np.concatenate(values[:-1], values[-1]),
    "Range": np.arange,
    "Sub": np.subtract,
}
