"""Find what a program does to the gradients of one replica before they are added up.

A sum, a multiple or another shape of gradients adds up over the replicas. A sign, a square or a limit does
not, nor does what is added to each replica's gradients.
"""

from collections.abc import Iterable, Set
from typing import Any, Literal

from tfmagic.task.tensorflow import graph_ops
from tfmagic.task.tensorflow.graph_ops import DIVISIONS

Change = Literal["bent", "added", "drawn"]

_BENDS = {
    *("Abs", "Ceil", "ClipByValue", "EuclideanNorm", "Exp", "Floor", "Log", "Log1p", "Max", "Maximum"),
    *("Min", "Minimum", "Pow", "Relu", "Rint", "Round", "Rsqrt", "Sigmoid", "Sign", "Softmax", "Sqrt"),
    *("Square", "Tanh"),
}
_SUMS = {"Add", "AddN", "AddV2", "Sub"}
_PRODUCTS = {"MatMul", "BatchMatMulV2", "Mul"}


def changes(grads: Iterable[Any], noted: Set[str], replicas: int) -> dict[Change, str]:
    """Return how gradients were changed since they were noted, each with the operation that has done so.

    Args:
        noted: The names of the operations that made the gradients of a replica.
    """
    found: dict[Change, str] = {}
    for grad in map(graph_ops.in_graph, grads):
        made = [] if grad is None else graph_ops.made_from(grad, lambda it: _is_end(it, noted))
        for op in made:
            if change := _change_by(op, noted, replicas):
                found.setdefault(change, op.type)
    return found


def _change_by(op: Any, noted: Set[str], replicas: int) -> Change | None:
    if graph_ops.is_draw(op):
        return "drawn"
    if op.type == "IdentityN" or _is_end(op, noted):
        return None
    are_own = [_is_of_replica(it, noted) for it in op.inputs]
    is_divisor = op.type in DIVISIONS and are_own[1]
    if (op.type in _BENDS and any(are_own)) or is_divisor or (op.type in _PRODUCTS and all(are_own)):
        return "bent"
    if op.type not in _SUMS or not any(are_own):
        return None
    rest = [it for it, is_own in zip(op.inputs, are_own, strict=True) if not is_own]
    return "added" if any(_counts_often(it, replicas) for it in rest) else None


def _counts_often(tensor: Any, replicas: int) -> bool:
    """Check for what each replica adds, such as a decay, that is not divided by their number."""
    is_divided = any(graph_ops.is_divided(one, replicas) for one in graph_ops.made_from(tensor))
    return graph_ops.is_of_weights(tensor, graph_ops.is_equal_draw) and not is_divided


def _is_of_replica(tensor: Any, noted: Set[str]) -> bool:
    """Check whether a tensor depends on a noted gradient, with no sum over the replicas between them."""
    return any(one.name in noted for one in graph_ops.made_from(tensor, graph_ops.is_of_replicas))


def _is_end(op: Any, noted: Set[str]) -> bool:
    return op.name in noted or graph_ops.is_of_replicas(op)
