"""The hint on metrics that are no sums over rows speaks of no metric of Keras itself."""

from __future__ import annotations

import inspect
from typing import Any

import tfmagic


def test_no_metric_of_keras_gets_a_hint():
    with tfmagic.Cluster(workers=1, name="metrics") as cluster:
        found = cluster.run(look_at_all, timeout=100, view="quiet")["worker-0"]
    assert len(found) > 40
    assert {name for name, differs in found.items() if differs} == set()
    assert {name for name, differs in found.items() if differs is None} == {"Mean", "Sum"}, "they take no y"


def look_at_all() -> dict[str, bool | None]:
    """Return for each metric of Keras whether it differs; None where it cannot be looked at."""
    import keras

    classes = inspect.getmembers(keras.metrics, inspect.isclass)
    return {
        name: look_at(cls)
        for name, cls in classes
        if issubclass(cls, keras.metrics.Metric) and cls is not keras.metrics.Metric
    }


def look_at(cls: Any) -> bool | None:
    import keras
    import numpy as np

    from tfmagic.task.tensorflow import keras_metrics

    values = {
        "fn": keras.losses.mean_squared_error,
        "num_classes": 3,
        "target_class_ids": [0],
        **dict.fromkeys(("recall", "precision", "sensitivity", "specificity"), 0.5),
    }
    needed = [
        name
        for name, it in inspect.signature(cls).parameters.items()
        if it.default is it.empty and name in values
    ]
    metric = cls(**{name: values[name] for name in needed})
    predicted = ((None, 3), "float32")
    for y in (predicted, ((None,), "int32")):
        try:
            return keras_metrics._differs_for(metric, (y, predicted), np.random.RandomState(0))
        except (TypeError, ValueError):
            continue
    return None
