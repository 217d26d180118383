"""The table of docs/cells.md: which batch size is the global one, and how many rows a worker gets of it."""

import pytest

import tfmagic


def rows_of_64(kind, under_strategy):
    """Return how many rows this worker has in a step, and how many steps 256 rows make."""
    import keras
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy() if under_strategy else tf.distribute.get_strategy()
    seen = []

    class Sizes(keras.layers.Layer):
        def call(self, x):
            tf.py_function(lambda rows: seen.append(int(rows)), [tf.shape(x)[0]], [])
            return x

    x, y = np.ones((256, 1), "float32"), np.ones((256, 1), "float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((1,)), Sizes(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
    if kind == "fit, arrays":
        model.fit(x, y, batch_size=64, verbose=0)
    elif kind == "evaluate":
        model.evaluate(x, y, batch_size=64, verbose=0)
    elif kind == "predict":
        model.predict(x, batch_size=64, verbose=0)
    elif kind == "fit, data set":
        model.fit(dataset.batch(64), verbose=0)
    elif kind == "train_on_batch":
        model.train_on_batch(x[:64], y[:64])
    else:
        if kind == "distribute":
            parts = strategy.experimental_distribute_dataset(dataset.batch(64))
        elif kind == "from function":
            parts = strategy.distribute_datasets_from_function(lambda context: dataset.batch(64))
        else:
            parts = strategy.distribute_datasets_from_function(
                lambda context: dataset.batch(context.get_per_replica_batch_size(64))
            )
        seen += [int(strategy.run(lambda batch: tf.shape(batch[0])[0], args=(part,))) for part in parts]
    return sorted(set(seen)), len(seen)


@pytest.fixture(scope="module")
def cluster():
    with tfmagic.Cluster(workers=2) as started:
        yield started


@pytest.mark.parametrize(
    ("kind", "rows", "steps"),
    [
        ("fit, arrays", 32, 4),
        ("evaluate", 32, 4),
        ("predict", 32, 4),
        ("fit, data set", 32, 4),
        ("distribute", 32, 4),
        ("from function", 64, 4),
        ("from function, of each", 32, 8),
        ("train_on_batch", 64, 1),
    ],
)
def test_the_rows_of_a_worker(cluster, kind, rows, steps):
    found = cluster.run(rows_of_64, kind, True, view="quiet")
    assert {name: (sizes, n) for name, (sizes, n) in found.items()} == dict.fromkeys(found, ([rows], steps))


def test_without_a_strategy_a_task_takes_all_rows(cluster):
    found = cluster.run(rows_of_64, "fit, arrays", False, view="quiet")
    assert dict(found) == dict.fromkeys(found, ([64], 4))
