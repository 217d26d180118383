"""What each operation of a graph does to the axis of the rows: rules for `row_axes`.

A rule gets the axes of an operation's inputs, at least one of which has rows or a total, and none of which is
unknown.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tfmagic.task.tensorflow import graph_ops

# depends on no rows; on all of them, as a sum does; cannot be told
FREE, TOTAL, UNKNOWN = "free", "total", "unknown"
Axis = int | str  # that of the rows, or one of these

_MAPS = {
    *("Abs", "Acos", "Acosh", "Add", "AddN", "AddV2", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "BiasAdd"),
    *("BroadcastTo", "Cast", "Ceil", "CheckNumerics", "ClipByValue", "Cos", "Cosh", "Digamma", "Div"),
    *("DivNoNan", "Elu", "Equal", "Erf", "Erfc", "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "Greater"),
    *("GreaterEqual", "Identity", "Inv", "IsFinite", "IsInf", "IsNan", "LeakyRelu", "Less", "LessEqual"),
    *("Lgamma", "Log", "Log1p", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mul"),
    *("MulNoNan", "Neg", "NotEqual", "Pow", "PreventGradient", "RealDiv", "Reciprocal", "Relu", "Relu6"),
    *("Rint", "Round", "Rsqrt", "Select", "SelectV2", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus"),
    *("Softsign", "Sqrt", "Square", "SquaredDifference", "StopGradient", "Sub", "Tan", "Tanh", "Xdivy"),
    *("Xlog1py", "Xlogy"),
}
_BENDS = {
    *("Abs", "Exp", "Log", "Log1p", "Maximum", "Minimum", "Pow", "Relu", "Rsqrt", "Sigmoid", "Softplus"),
    *("Sqrt", "Square", "SquaredDifference", "Tanh"),
}
_REDUCTIONS = {"All", "Any", "ArgMax", "ArgMin", "EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum"}
_PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}
_BY_ROW = {  # of a first argument whose first axis has the rows
    *("AvgPool", "AvgPool3D", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "LRN", "MaxPool", "MaxPool3D"),
    *("MirrorPad", "Pad", "PadV2", "ResizeBilinear", "ResizeNearestNeighbor", "Split", "SplitV", "Tile"),
}
OF_ONE = {
    *("Cumprod", "Cumsum", "ExpandDims", "Reshape", "Squeeze", "StridedSlice", "Transpose"),
    *_REDUCTIONS,
}
_NORMS = {"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"}


@dataclass(slots=True)
class Found:
    """What a look at a graph has found.

    Attributes:
        comparing: The first operation that computes with several rows of a batch, else None.
        drawing: One that gives each row other random numbers, which are equal on all tasks.
    """

    comparing: Any = None
    drawing: Any = None


class Look(Protocol):
    """A look at a graph.

    Attributes:
        drawn: The names of operations whose results are random numbers that are equal on all tasks.
    """

    found: Found
    drawn: set[str]

    def compare(self, op: Any) -> "Axis":
        """Note that an operation compares rows."""


def _map(look: Look, op: Any, axes: list[Axis]) -> Axis:
    ranks = [it.shape.rank for it in op.inputs]
    if None in ranks or op.outputs[0].shape.rank is None:
        return UNKNOWN
    ends = {axis - rank for axis, rank in zip(axes, ranks, strict=True) if isinstance(axis, int)}
    if len(ends) > 1 or (ends and TOTAL in axes):
        return look.compare(op)
    if not ends:
        return _total(look, op, axes)
    [end] = ends
    if any(it.op.name in look.drawn and _has_rows(it, end) for it in op.inputs):
        look.found.drawing = look.found.drawing or op
    return int(op.outputs[0].shape.rank + end)


def _total(look: Look, op: Any, axes: list[Axis]) -> Axis:
    """Take arrays of totals, of which a sum adds up over the replicas, and nothing else."""
    arrays = [
        axis
        for axis, it in zip(axes, op.inputs, strict=True)
        if axis == TOTAL and it.shape.num_elements() != 1
    ]
    is_ratio = op.type in graph_ops.DIVISIONS and axes[1] == TOTAL
    is_bent = op.type in _BENDS or (len(arrays) > 1 and op.type == "Mul") or is_ratio
    return look.compare(op) if arrays and is_bent else TOTAL


def _reduce(look: Look, op: Any, axes: list[Axis]) -> Axis:
    axis, rank = axes[0], op.inputs[0].shape.rank
    given = graph_ops.value_of(op.inputs[1])
    if not isinstance(axis, int) or rank is None or given is None:
        return UNKNOWN
    reduced = {int(it) % rank for it in given.ravel()}
    if axis in reduced:
        return TOTAL
    keeps = op.type not in ("ArgMax", "ArgMin") and op.get_attr("keep_dims")
    return axis if keeps else axis - sum(it < axis for it in reduced)


def _accumulate(look: Look, op: Any, axes: list[Axis]) -> Axis:
    place, rank = graph_ops.value_of(op.inputs[1]), op.inputs[0].shape.rank
    if place is None or rank is None:
        return UNKNOWN
    return look.compare(op) if place % rank == axes[0] else axes[0]


def _multiply(look: Look, op: Any, axes: list[Axis]) -> Axis:
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    first, second = (op.get_attr(name) for name in names)
    if TOTAL in axes:
        return TOTAL if FREE in axes else look.compare(op)
    ranks = [it.shape.rank for it in op.inputs]
    if None in ranks:
        return UNKNOWN
    ends = [axis - rank if isinstance(axis, int) else None for axis, rank in zip(axes, ranks, strict=True)]
    summed = (-2 if first else -1, -1 if second else -2)  # the axes that the product sums over
    results = {
        None if end == at else end if end < -2 else place
        for end, at, place in zip(ends, summed, (-2, -1), strict=True)
        if end is not None
    }
    if len(results) > 1:
        return look.compare(op)
    [end] = results
    return TOTAL if end is None else int(op.outputs[0].shape.rank + end)


def _einsum(look: Look, op: Any, axes: list[Axis]) -> Axis:
    given, _, made = op.get_attr("equation").decode().replace(" ", "").partition("->")
    parts = given.split(",")
    if TOTAL in axes:
        return TOTAL if FREE in axes or len(axes) == 1 else look.compare(op)
    labels = {_label(part, axis, it) for part, axis, it in zip(parts, axes, op.inputs, strict=True)}
    labels.discard(FREE)
    if UNKNOWN in labels or ("..." in made and not made.startswith("...")):
        return UNKNOWN
    if len(labels) > 1:
        return look.compare(op)
    [label] = labels
    if label == "...":
        return 0 if made.startswith("...") else UNKNOWN
    place = made.find(label)
    shift = op.outputs[0].shape.rank - len(made.replace("...", ".")) if "..." in made else 0
    return TOTAL if place < 0 else place if "..." not in made else place - 2 + shift


def _reshape(look: Look, op: Any, axes: list[Axis]) -> Axis:
    before, after = op.inputs[0].shape, op.outputs[0].shape
    if axes[0] != 0 or not after.rank:
        return UNKNOWN
    if after[0] == 1 and before[0] != 1:
        return 1 if after.rank == 2 and before.rank == 1 else UNKNOWN
    return 0 if after[0] in (None, before[0]) or after.rank == 1 else UNKNOWN


def _expand(look: Look, op: Any, axes: list[Axis]) -> Axis:
    place, rank = graph_ops.value_of(op.inputs[1]), op.outputs[0].shape.rank
    if not isinstance(axes[0], int) or place is None or rank is None:
        return UNKNOWN
    return axes[0] + (int(place) % rank <= axes[0])


def _squeeze(look: Look, op: Any, axes: list[Axis]) -> Axis:
    shape = op.inputs[0].shape
    if not isinstance(axes[0], int) or shape.rank is None:
        return UNKNOWN
    given = op.get_attr("squeeze_dims") or [place for place, size in enumerate(shape) if size == 1]
    places = {place % shape.rank for place in given}
    return UNKNOWN if axes[0] in places else axes[0] - sum(place < axes[0] for place in places)


def _transpose(look: Look, op: Any, axes: list[Axis]) -> Axis:
    order = graph_ops.value_of(op.inputs[1])
    return UNKNOWN if order is None else list(order).index(axes[0])


def _join(look: Look, op: Any, axes: list[Axis]) -> Axis:
    is_stack = op.type == "Pack"
    parts = {axis for axis in (axes if is_stack else axes[:-1]) if axis != FREE}
    place = op.get_attr("axis") if is_stack else graph_ops.value_of(op.inputs[-1])
    rank = op.outputs[0].shape.rank
    if TOTAL in parts or place is None or rank is None:
        return TOTAL if parts == {TOTAL} else UNKNOWN
    if len(parts) > 1:
        return look.compare(op)
    [axis] = parts
    place = int(place) % rank
    if is_stack:
        return int(axis) + (place <= int(axis))
    return UNKNOWN if place == axis and FREE in axes[:-1] else axis


def _slice(look: Look, op: Any, axes: list[Axis]) -> Axis:
    if not isinstance(axes[0], int):
        return UNKNOWN
    places = _places_of_slices(op)
    return UNKNOWN if places is None else places.get(axes[0], UNKNOWN)


def _gather(look: Look, op: Any, axes: list[Axis]) -> Axis:
    if axes[0] != FREE or not isinstance(axes[1], int):
        return UNKNOWN
    place = graph_ops.value_of(op.inputs[2]) if op.type == "GatherV2" else 0
    return UNKNOWN if place is None or op.get_attr("batch_dims") else int(place) + axes[1]


def _one_hot(look: Look, op: Any, axes: list[Axis]) -> Axis:
    is_last = op.get_attr("axis") == -1
    return axes[0] if is_last and isinstance(axes[0], int) else UNKNOWN


def _normalize(look: Look, op: Any, axes: list[Axis]) -> Axis:
    """Take a softmax, or the cross entropy of one, over the last axis."""
    if TOTAL in axes:
        return look.compare(op)
    rank = op.inputs[0].shape.rank
    if rank is None:
        return UNKNOWN
    return look.compare(op) if axes[0] == rank - 1 else next(it for it in axes if it != FREE)


def _by_row(look: Look, op: Any, axes: list[Axis]) -> Axis:
    data = axes[1] if op.type == "Split" else axes[0]
    others = [axis for axis in axes if axis is not data and axis != FREE]
    return 0 if data == 0 and not others else UNKNOWN


def _statistics(look: Look, op: Any, axes: list[Axis]) -> Axis:
    return look.compare(op) if op.get_attr("is_training") else axes[0]


def _square_sum(look: Look, op: Any, axes: list[Axis]) -> Axis:
    return TOTAL if axes[0] != TOTAL else look.compare(op)


def _fill(look: Look, op: Any, axes: list[Axis]) -> Axis:
    return axes[1] if axes[0] == FREE else UNKNOWN


def _has_rows(tensor: Any, end: int) -> bool:
    """Check whether an array has a size of its own at the place of the rows, counted from the last axis."""
    rank = tensor.shape.rank
    return rank is not None and rank >= -end and tensor.shape[rank + end] != 1


def _label(part: str, axis: Axis, tensor: Any) -> str:
    """Return the letter of the rows in a part of an equation of Einsum."""
    if not isinstance(axis, int):
        return FREE if axis == FREE else UNKNOWN
    if not part.startswith("..."):
        return UNKNOWN if "..." in part else part[axis]
    inner = tensor.shape.rank - len(part) + 3
    return "..." if axis == 0 and inner > 0 else UNKNOWN


def _places_of_slices(op: Any) -> dict[int, int] | None:
    """Return where a slice has put each axis of which it has taken the whole."""
    steps = graph_ops.value_of(op.inputs[3])
    rank = op.inputs[0].shape.rank
    if steps is None or rank is None:
        return None
    masks = {
        name: op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }

    def has(name: str, place: int) -> bool:
        return bool(masks[name] >> place & 1)

    places: dict[int, int] = {}
    count = len(steps)
    used = sum(not has("new_axis", place) and not has("ellipsis", place) for place in range(count))
    source, target = 0, 0
    for place in range(count):
        if has("ellipsis", place):
            for _ in range(rank - used):
                places[source], source, target = target, source + 1, target + 1
        elif has("new_axis", place):
            target += 1
        else:
            if has("begin", place) and has("end", place) and steps[place] == 1:
                places[source] = target
            source, target = source + 1, target + (not has("shrink_axis", place))
    for rest in range(source, rank):
        places[rest], target = target, target + 1
    return places


_Rule = Callable[[Look, Any, list[Axis]], Axis]
RULES: dict[str, _Rule] = {
    **dict.fromkeys(_MAPS, _map),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(_PRODUCTS, _multiply),
    **dict.fromkeys(_BY_ROW, _by_row),
    **dict.fromkeys(_NORMS, _statistics),
    **dict.fromkeys(("Pack", "ConcatV2"), _join),
    **dict.fromkeys(("GatherV2", "ResourceGather"), _gather),
    **dict.fromkeys(
        (
            "LogSoftmax",
            "Softmax",
            "SoftmaxCrossEntropyWithLogits",
            "SparseSoftmaxCrossEntropyWithLogits",
        ),
        _normalize,
    ),
    **dict.fromkeys(("Cumprod", "Cumsum"), _accumulate),
    "Einsum": _einsum,
    "ExpandDims": _expand,
    "Fill": _fill,
    "L2Loss": _square_sum,
    "OneHot": _one_hot,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "StridedSlice": _slice,
    "Transpose": _transpose,
}
