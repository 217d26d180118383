"""Find where a graph computes with several rows of a batch at once: which axis of each tensor has the rows?

    arguments of a step ──→ axis 0 ──→ each operation in turn: axis k, "free", "total" or "unknown"
                                          └─ two axes with rows meet, or rows and a total: rows are compared

A replica has a part of a batch's rows, so what compares rows (a contrastive loss, weights that add up to 1
over a batch, the statistics of a batch) gives other values than one process. An operation that is not listed
here, and an axis that only a run knows, make "unknown", of which nothing is said.
"""

from typing import Any

from tfmagic.task.tensorflow import graph_ops, row_rules
from tfmagic.task.tensorflow.row_rules import FREE, TOTAL, UNKNOWN, Axis, Found

MARK = "rows_of_all"  # begins the names of operations whose results are made of all replicas' rows by tfmagic
_FREE = {"OnesLike", "Range", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_CONDITIONS = {"If", "StatelessIf"}
_LOOPS = {"While", "StatelessWhile"}


def look_at(target: Any) -> Found:
    """Look at what a tensor of a graph was made of."""
    found, op = Found(), graph_ops.op_of(target)
    if op is not None:
        _Look(found, op.graph, _arguments(op.graph)).axes_of(op)
    return found


def _arguments(graph: Any) -> dict[str, Axis]:
    """Return the axes of rows in the arguments of a graph: the first ones, where these are of one size."""
    captured = {inner.op.name for _, inner in graph.captures}
    given = [
        op
        for op in graph.get_operations()
        if op.type == "Placeholder" and op.name not in captured and graph_ops.is_argument(op)
    ]
    arrays = [op for op in given if op.outputs[0].shape.rank != 0]
    sizes = {_size(op.outputs[0]) for op in arrays}
    # another array than a batch, such as weights of classes, has a known size
    of_rows = None if None in sizes else next(iter(sizes), None)
    if len(sizes - {None}) > 1 and of_rows is not None:
        return {op.name: UNKNOWN for op in arrays}
    return {op.name: 0 if _size(op.outputs[0]) == of_rows else FREE for op in arrays}


def _size(tensor: Any) -> int | None:
    size: int | None = tensor.shape[0] if tensor.shape.rank else None
    return size


class _Look:
    """A look at one graph."""

    def __init__(self, found: Found, graph: Any, given: dict[str, Axis]) -> None:
        self.found, self._given = found, given
        self._outer = {inner.op.name: outer for outer, inner in graph.captures}
        self._axes: dict[str, list[Axis]] = {}
        self.drawn: set[str] = set()

    def axes_of(self, op: Any) -> list[Axis]:
        """Return the axis of the rows in each result of an operation."""
        waiting = [op]
        while waiting:
            one = waiting[-1]
            inputs = () if self._is_end(one) else one.inputs
            missing = [it.op for it in inputs if it.op.name not in self._axes]
            if one.name in self._axes:
                waiting.pop()
            elif missing:
                waiting += missing
            else:
                self._axes[one.name] = self._results(one)
        return self._axes[op.name]

    def _is_end(self, op: Any) -> bool:
        is_given = op.name in self._given or op.name in self._outer
        is_given = is_given or op.type == "Merge" or graph_ops.is_batch(op)
        return is_given or op.name.rpartition("/")[2].startswith(MARK)

    def _results(self, op: Any) -> list[Axis]:
        if op.name in self._given:
            return [self._given[op.name]]
        if op.name in self._outer:
            outer = graph_ops.op_of(self._outer[op.name])
            return [FREE if outer is None or op.outputs[0].dtype == "resource" else UNKNOWN]
        if op.type == "Merge":  # of a loop of TensorFlow 1
            return [UNKNOWN] * len(op.outputs)
        if self._is_end(op):
            return [0 if it.shape.rank else FREE if it.shape.rank == 0 else UNKNOWN for it in op.outputs]
        axes = [self._axes[it.op.name][it.value_index] for it in op.inputs]
        if op.type == "IdentityN":
            return axes
        if graph_ops.is_any_draw(op) and graph_ops.is_equal_draw(op):
            self.drawn.add(op.name)
        if op.type in _LOOPS:
            return self._looped(op, axes)
        if op.type in _CONDITIONS and any(axis != FREE for axis in axes):
            return self._either(op, axes)
        if UNKNOWN in axes and op.type not in _FREE:
            return [UNKNOWN] * len(op.outputs)
        if op.type in _FREE or graph_ops.is_of_replicas(op) or all(axis == FREE for axis in axes):
            self.drawn |= {op.name} if any(it.op.name in self.drawn for it in op.inputs) else set()
            return [UNKNOWN if op.type in ("If", "StatelessIf") else FREE] * len(op.outputs)
        if op.type in _CALLS:
            return self._called(op, axes)
        if axes[0] == TOTAL and op.type in row_rules.OF_ONE:
            return [TOTAL] * len(op.outputs)
        rule = row_rules.RULES.get(op.type)
        result = UNKNOWN if rule is None else rule(self, op, axes)
        return [result] * len(op.outputs)

    def _called(self, op: Any, axes: list[Axis], function: str = "f") -> list[Axis]:
        try:
            graph = op.graph._get_function(op.get_attr(function).name).graph
            given = {it.op.name: axis for it, axis in zip(graph.inputs, axes, strict=True)}
            look = _Look(self.found, graph, given)
            return [look.axes_of(it.op)[it.value_index] for it in graph.outputs]
        except (AttributeError, ValueError):  # a function of another kind
            return [UNKNOWN] * len(op.outputs)

    def _either(self, op: Any, axes: list[Axis]) -> list[Axis]:
        first, second = (self._called(op, axes[1:], name) for name in ("then_branch", "else_branch"))
        return [_either(*both) for both in zip(first, second, strict=True)]

    def _looped(self, op: Any, axes: list[Axis]) -> list[Axis]:
        """Look at a loop as often as what it carries changes: from free to rows, and to unknown."""
        while True:
            after = [_either(*both) for both in zip(axes, self._called(op, axes, "body"), strict=True)]
            if after == axes:
                return axes
            axes = after

    def compare(self, op: Any) -> Axis:
        """Note that an operation compares rows."""
        self.found.comparing = self.found.comparing or op
        return UNKNOWN


def _either(one: Axis, other: Axis) -> Axis:
    """Return the axis of what is one or the other, such as a sum that begins with zeros."""
    return other if one == FREE else one if other in (FREE, one) else UNKNOWN
