"""A tf.function that fails on a task does not affect later ones of its cell."""

import textwrap


def test_a_function_that_failed_leaves_later_ones_alone(notebook):
    body = """
        import tensorflow as tf

        @tf.function
        def divide(x, by):
            tf.debugging.assert_none_equal(by, 0)
            return x // by

        seen = []
        for by in (0, 2, 0, 5):
            try:
                seen.append(int(divide(tf.constant(10), tf.constant(by))))
            except tf.errors.InvalidArgumentError:
                seen.append(None)
        seen
    """
    notebook.run("%%tfcluster --workers 1 --out found\n" + textwrap.dedent(body))
    assert notebook.ns["found"]["worker-0"] == [None, 5, None, 2]


def test_the_end_of_an_iterator_in_a_function_ends_only_its_loop(notebook):
    body = """
        import tensorflow as tf

        data = tf.data.Dataset.range(3)

        @tf.function
        def step(iterator):
            return next(iterator) + 1

        seen = []
        for epoch in range(2):
            iterator = iter(data)
            try:
                while True:
                    seen.append(int(step(iterator)))
            except tf.errors.OutOfRangeError:
                seen.append("end")
        seen
    """
    notebook.run("%%tfcluster --workers 1 --out found\n" + textwrap.dedent(body))
    assert notebook.ns["found"]["worker-0"] == [1, 2, 3, "end"] * 2


def test_fit_goes_through_a_data_set_of_unknown_size_again(notebook):
    body = """
        import keras
        import numpy as np
        import tensorflow as tf

        def rows():
            for n in range(8):
                yield np.full((2,), n, np.float32), np.float32(n)

        specs = tf.TensorSpec((2,), tf.float32), tf.TensorSpec((), tf.float32)
        data = tf.data.Dataset.from_generator(rows, output_signature=specs).batch(4)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        len(model.fit(data, epochs=3, verbose=0).history["loss"])
    """
    notebook.run("%%tfcluster --workers 1 --out found\n" + textwrap.dedent(body))
    assert notebook.ns["found"]["worker-0"] == 3
