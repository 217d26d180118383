"""The looks at losses and metrics find what differs on several workers, and nothing in what takes each row alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import tfmagic

COMPARE = {
    "pairs of rows": "tf.reduce_sum(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)) * y)",
    "pairs, by Einsum": "tf.reduce_sum(tf.einsum('ab,cb->ac', x, x) ** 2)",
    "differences of rows": "tf.reduce_sum(tf.abs(x[:, None] - x[None]))",
    "differences, by Transpose": "tf.reduce_sum(tf.maximum(y - tf.transpose(y), 0.0))",
    "shapes that do not fit": "tf.reduce_sum((y - tf.squeeze(y, 1)) ** 2)",
    "softmax over rows": "tf.reduce_sum(tf.nn.softmax(x, axis=0) * y)",
    "weights over a batch": "tf.reduce_sum(y / tf.reduce_sum(y) * x)",
    "a mean of the batch": "tf.reduce_sum((x - tf.reduce_mean(x, axis=0)) ** 2)",
    "a covariance": "tf.reduce_sum((tf.matmul(x, x, transpose_a=True) - 1.0) ** 2)",
    "a sorted batch": "tf.reduce_sum(tf.cumsum(y) * y)",
    "two views": "tf.reduce_sum(tf.exp(tf.matmul(tf.concat([x, 2 * x], 0), tf.concat([x, x], 0), transpose_b=True)))",
    "a nested function": "tf.reduce_sum(tf.function(lambda it: it @ tf.transpose(it))(x) ** 2)",
    "batch statistics": "tf.reduce_sum(keras.layers.BatchNormalization()(x, training=True) ** 3)",
    "a layer of pairs": "tf.reduce_sum(keras.ops.matmul(x, keras.ops.transpose(x)) ** 2)",
    "an image's statistics": "tf.reduce_sum(keras.layers.BatchNormalization()(images, training=True) ** 3)",
    "pairs in a loop": "tf.while_loop(lambda i, _: i < 3, lambda i, it: (i + 1, it + tf.reduce_sum((x @ tf.transpose(x)) ** 2)), [0, 0.0])[1]",
    "a total that is carried": "tf.reduce_sum(x / tf.while_loop(lambda i, _: i < 3, lambda i, it: (i + 1, it + tf.reduce_sum(x)), [0, 0.0])[1])",
    "scaled in a loop": "tf.reduce_sum(tf.while_loop(lambda it: tf.reduce_max(it) > 1.0, lambda it: [it / tf.reduce_sum(it)], [abs(y)])[0] * x)",
    "pairs on a condition": "tf.cond(tf.reduce_sum(y) > 0.0, lambda: tf.reduce_sum((x @ tf.transpose(x)) ** 2), lambda: 0.0)",
    "Circle": "keras.losses.Circle()(tf.cast(y[:, 0] > 0, tf.int32), x)",
}
ALONE = {
    "squares": "tf.reduce_sum((model(x) - y) ** 2)",
    "a mean": "tf.reduce_mean(abs(x - y))",
    "a mean by hand": "tf.reduce_sum(x * y) / tf.cast(tf.shape(x)[0], tf.float32)",
    "totals of columns": "tf.reduce_sum(tf.reduce_mean(x, axis=0) * [1.0, 2.0, 3.0])",
    "each row's norm": "tf.reduce_sum(tf.norm(x, axis=1) / tf.norm(y, axis=-1))",
    "each row's softmax": "tf.reduce_sum(tf.nn.softmax(x) * x / tf.reduce_sum(x, axis=1, keepdims=True))",
    "distances to weights": "tf.reduce_sum(abs(x[:, None] - tf.ones([5, 3])[None]))",
    "likeness to weights": "tf.reduce_sum(tf.nn.softmax(tf.matmul(x, tf.ones([5, 3]), transpose_b=True)))",
    "outer products": "tf.reduce_sum(tf.einsum('ab,ac->abc', x, x) ** 2)",
    "attention": "tf.reduce_sum(keras.layers.MultiHeadAttention(2, 3)(words, words, use_causal_mask=True) ** 2)",
    "attention to masks": "tf.reduce_sum(keras.layers.Attention()([words, words]) ** 2)",
    "layer norms": "tf.reduce_sum(keras.layers.GroupNormalization(1)(keras.layers.LayerNormalization()(words)) ** 2)",
    "convolutions": "tf.reduce_sum(keras.layers.GlobalMaxPooling2D()(keras.layers.Conv2D(2, 3)(images)) ** 2)",
    "embeddings": "tf.reduce_sum(keras.layers.Flatten()(keras.layers.Embedding(9, 2)(tf.cast(x > 0, tf.int32))) ** 2)",
    "sequences": "tf.reduce_sum(keras.layers.LSTM(2)(words) ** 2)",
    "lengths": "tf.reduce_sum(tf.where(tf.sequence_mask(tf.cast(y[:, 0], tf.int32), 4), tf.reduce_sum(words, 2), 0.0))",
    "the longest": "tf.reduce_sum(tf.cast(tf.sequence_mask(tf.cast(abs(y[:, 0]), tf.int32)), tf.float32))",
    "weights of classes": "tf.reduce_sum(tf.gather(tf.constant([1.0, 2.0]), tf.cast(y[:, 0] > 0, tf.int32)) * x[:, 1])",
    "an argument of weights": "tf.reduce_sum(x * weights)",
    "time first": "tf.reduce_sum(tf.transpose(words, [1, 0, 2]) * x)",
    "all rows' mean": "tf.reduce_sum((x - tf.stop_gradient(all_reduce(tf.reduce_mean(x, 0)))) ** 2)",
    "each row, in a loop": "tf.reduce_sum(tf.while_loop(lambda i, _: i < 3, lambda i, it: (i + 1, tf.tanh(it @ tf.ones([3, 3]))), [0, x])[1])",
    "a sum that begins with zeros": "tf.while_loop(lambda i, _: i < 3, lambda i, it: (i + 1, it + tf.reduce_sum(x ** 2)), [0, 0.0])[1]",
    "each row by itself": "tf.reduce_sum(tf.map_fn(lambda row: tf.nn.softmax(row) * tf.reduce_sum(row), x))",
    "axes that turn": "tf.reduce_sum(tf.while_loop(lambda i, *_: i < 3, lambda i, a, b: (i + 1, tf.transpose(b), tf.transpose(a)), [0, x, x], shape_invariants=[tf.TensorShape(it) for it in ([], [None] * 2, [None] * 2)])[1])",
    "either of two sums": "tf.cond(tf.shape(x)[0] > 3, lambda: tf.reduce_sum(x ** 2), lambda: tf.reduce_sum(abs(y)))",
    "a masked GRU": "tf.reduce_sum(keras.layers.GRU(2, return_sequences=True)(keras.layers.Masking()(words)) ** 2)",
    "two losses": "tf.reduce_sum(tf.stack([tf.reduce_sum(x ** 2), tf.reduce_sum(abs(y))]))",
    "a frozen batch norm": "tf.reduce_sum(keras.layers.BatchNormalization()(images, training=False) ** 2)",
}


@pytest.fixture(scope="module")
def cluster_of_module() -> Iterator[tfmagic.Cluster]:
    with tfmagic.Cluster(workers=1, name="looks") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def looked(cluster_of_module) -> dict[str, str]:
    run = cluster_of_module.run(look_at_all, {**COMPARE, **ALONE}, timeout=200, view="quiet")
    return run["worker-0"]


@pytest.mark.parametrize("name", COMPARE)
def test_a_comparison_of_rows_is_found(name, looked):
    assert looked[name]


@pytest.mark.parametrize("name", ALONE)
def test_what_takes_each_row_alone_is_no_comparison(name, looked):
    assert looked[name] == ""


def test_no_loss_of_keras_compares_rows_but_circle(looked):
    losses = {name for name, op in looked.items() if name.startswith("losses.") and op}
    assert len([name for name in looked if name.startswith("losses.")]) > 20
    assert losses == {"losses.Circle"}


@pytest.mark.soak
def test_no_metric_of_keras_gets_a_hint(cluster_of_module):
    found = cluster_of_module.run(look_at_metrics, timeout=100, view="quiet")["worker-0"]
    assert len(found) > 40
    assert {name for name, differs in found.items() if differs} == set()
    assert {name for name, differs in found.items() if differs is None} == {"Mean", "Sum"}, "they take no y"


def look_at_all(texts: dict[str, str]) -> dict[str, str]:
    """Return for each text, and each loss of Keras, the operation that compares rows, or ""."""
    import keras
    import tensorflow as tf

    from tfmagic.task.tensorflow import row_axes

    def look(text: str) -> str:
        names = {
            "tf": tf,
            "keras": keras,
            "model": keras.Sequential([keras.Input([3]), keras.layers.Dense(1)]),
            "all_reduce": lambda it: tf.raw_ops.CollectiveReduceV2(
                input=it,
                group_size=1,
                group_key=1,
                instance_key=1,
                ordering_token=[],
                merge_op="Add",
                final_op="Id",
            ),
        }
        specs = {"x": [3], "y": [1], "words": [4, 3], "images": [6, 6, 2]}
        arguments = {it: tf.TensorSpec([None, *shape], name=it) for it, shape in specs.items()}
        arguments["weights"] = tf.TensorSpec([3], name="weights")
        made = eval(f"lambda {', '.join(arguments)}: {text}", names)
        with tf.__internal__.FuncGraph("look").as_default():
            given = [tf.compat.v1.placeholder(it.dtype, it.shape, it.name) for it in arguments.values()]
            op = row_axes.look_at(made(*given)).comparing
        return op.name if op is not None else ""

    found = {name: look(text) for name, text in texts.items()}
    for name, cls in inspect.getmembers(keras.losses, inspect.isclass):
        if issubclass(cls, keras.losses.Loss) and cls is not keras.losses.Loss and name != "CTC":
            y = "tf.cast(y > 0, tf.int32)" + "[:, 0]" * (not name.startswith("Sparse"))
            made = (
                y if name.startswith(("Sparse", "Circle", "CategoricalGeneralized")) else "tf.nn.softmax(x)"
            )
            found[f"losses.{name}"] = look(f"keras.losses.{name}()({made}, tf.nn.softmax(2 * x))")
    return found


def look_at_metrics() -> dict[str, bool | None]:
    """Return for each metric of Keras whether it differs; None where it cannot be looked at."""
    import keras

    classes = inspect.getmembers(keras.metrics, inspect.isclass)
    return {
        name: look_at_metric(cls)
        for name, cls in classes
        if issubclass(cls, keras.metrics.Metric) and cls is not keras.metrics.Metric
    }


def look_at_metric(cls: Any) -> bool | None:
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
