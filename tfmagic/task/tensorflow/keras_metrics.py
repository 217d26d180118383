"""Metrics of Keras 3 under a multi-worker strategy: numbers of a batch, and a hint on those that are no sums.

    MetricsList.update_state ──→ a metric of the user's own is noted, with the shapes of its arguments
    end of the epoch ──→ of drawn rows: is the metric of two halves, added up, that of the whole?

Keras adds up the variables of a metric over the replicas, which is right for sums over rows. A maximum, the
root of a batch's mean, and a number of pairs of rows have other values than in one process, without a word.
The metrics of Keras itself are sums. What is drawn here changes no variable: Keras runs it in a scope of its
own, in a graph, so that it takes no random numbers from the program. Read on Keras 3.10 to 3.16.0.dev.

A number that a metric gets for a whole batch counts as one of this batch: each replica has its share of it.
"""

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import numpy as np

from tfmagic.task.tensorflow import notices
from tfmagic.task.tensorflow.keras_steps import STEPS

HINT = (
    "{metrics} has another value on several tasks than in one process: Keras adds up the variables of a "
    "metric over the tasks, and for the halves of a batch that gives another value than for the whole. Let "
    "its variables be sums over the rows, and compute the rest in result(): the root of a sum of squares "
    "divided by a sum of rows, for example."
)
_ROWS, _UNKNOWN = 8, 3  # of the drawn arrays: rows, and the size of a dimension that is not known
_Spec = tuple[tuple[int | None, ...], str]  # shape and dtype

_LOOKED: "WeakSet[Any]" = WeakSet()
_WAITING: list[tuple[Any, _Spec, _Spec]] = []  # y and the predictions; noted by the thread of a replica


def sharing(original: Callable[..., None]) -> Callable[..., None]:
    """Let a mean take a number without a weight for the share of this replica in that of the batch."""

    @functools.wraps(original)
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> None:
        import tensorflow as tf

        step = STEPS.current
        is_number = np.isscalar(values) or (tf.is_tensor(values) and values.shape.rank == 0)
        if step is not None and sample_weight is None and is_number:
            values = tf.convert_to_tensor(values)
            values, sample_weight = tf.where(step.share > 0, values, tf.zeros_like(values)), step.share
        original(self, values, sample_weight)

    return update_state


def noting(original: Callable[..., None]) -> Callable[..., None]:
    """Note each metric of the user's own that a step updates."""

    @functools.wraps(original)
    def update_state(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        original(self, y_true, y_pred, sample_weight)
        for metric in self.metrics if STEPS.current is not None else ():
            if metric not in _LOOKED and _is_own(metric):
                _LOOKED.add(metric)
                _WAITING.append((metric, _spec(y_true), _spec(y_pred)))

    return update_state


def looking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look at the metrics that were noted."""

    @functools.wraps(original)
    def _get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        looks = [_WAITING.pop() for _ in tuple(_WAITING)]
        if names := sorted(metric.name for metric, y, predicted in looks if differs(metric, y, predicted)):
            notices.hint_once("unsummed-metric", HINT, metrics=", ".join(names))
        return original(self, logs)

    return _get_metrics_result_or_logs


def _is_own(metric: Any) -> bool:
    """Check for a metric, or a function of one, that is not of Keras."""
    parts = (type(metric), getattr(metric, "_fn", type(metric)))
    return not all(str(getattr(part, "__module__", "")).startswith("keras.") for part in parts)


def _spec(value: Any) -> _Spec:
    return tuple(value.shape), getattr(value.dtype, "name", value.dtype)


def differs(metric: Any, *specs: _Spec) -> bool:
    """Check whether a metric has another value for two halves of some rows, added up, than for all."""
    import tensorflow as tf

    if any(isinstance(value, tf.Variable) for value in vars(metric).values()):
        return False  # which no scope of Keras keeps from changes
    try:
        return any(_differs_for(metric, specs, np.random.RandomState(seed)) for seed in range(2))
    except Exception:  # a metric that takes other values than those that are drawn
        return False


def _differs_for(metric: Any, specs: tuple[_Spec, ...], draw: np.random.RandomState) -> bool:
    import tensorflow as tf

    arrays = [_drawn(shape, dtype, draw) for shape, dtype in specs]

    @tf.function(autograph=False)
    def values() -> Any:
        rows = [tf.constant(array) for array in arrays]
        half = _ROWS // 2
        parts = [_state(metric, [it[part] for it in rows], 2) for part in (slice(half), slice(half, _ROWS))]
        added = [_added(*each) for each in zip(metric.variables, *parts, strict=True)]
        return _result(metric, _state(metric, rows, 1)), _result(metric, added)

    pairs = zip(*values(), strict=True)
    return not all(np.allclose(one, other, 1e-3, 1e-5, equal_nan=True) for one, other in pairs)


def _result(metric: Any, state: list[Any]) -> list[Any]:
    """Return the numbers of a metric whose variables have these values; it can return a variable itself."""
    import tensorflow as tf
    from keras import StatelessScope, tree

    with StatelessScope(state_mapping=list(zip(metric.variables, state, strict=True))):
        return [tf.convert_to_tensor(value) for value in tree.flatten(metric.result())]


def _state(metric: Any, rows: list[Any], replicas: int) -> list[Any]:
    """Return the variables of a metric after these rows, on one of some replicas."""
    import tensorflow as tf

    begin = [
        tf.cast(value / replicas, value.dtype) if variable.aggregation == "sum" else value
        for variable, value in zip(metric.variables, _begin(metric), strict=True)
    ]
    return list(metric.stateless_update_state(begin, *rows, sample_weight=None))


def _begin(metric: Any) -> list[Any]:
    """Return the values that the metric's `reset_state` gives its variables."""
    import tensorflow as tf

    values = metric.stateless_reset_state()
    if any(hasattr(value, "assign") for value in values):
        raise ValueError("a variable that is not reset")
    return [tf.convert_to_tensor(value) for value in values]


def _added(variable: Any, one: Any, other: Any) -> Any:
    """Return the value of a variable that has these values on two replicas."""
    return {"sum": one + other, "mean": (one + other) / 2}.get(variable.aggregation, one)


def _drawn(shape: tuple[int | None, ...], dtype: str, draw: np.random.RandomState) -> Any:
    sizes = [_ROWS, *(size or _UNKNOWN for size in shape[1:])]
    drawn = draw.uniform(size=sizes) if np.dtype(dtype).kind == "f" else draw.randint(0, 2, sizes)
    return drawn.astype(dtype)
