"""What can be saved and restored: objects, steps, models without variables."""

# ruff: noqa: F401, F811 - fixtures are imported by name
import pytest
from log_folders import _tensorflow, saves, small_files, variable

from tfmagic import logdir


@pytest.mark.parametrize("bad", [3, "x", None, b"", {"a": 1}, {}, {1: 2}, object(), len])
def test_an_object_that_cannot_be_saved_is_a_type_error(tmp_path, bad):
    with pytest.raises(TypeError, match=r"checkpoints\(\) takes"):
        logdir.checkpoints(bad, tmp_path)


def test_a_model_with_a_call_of_its_own_is_restored_when_it_is_built_and_refused_before(tmp_path):
    import keras
    import numpy as np

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = keras.layers.Dense(1, name="inner")
            self.drop = keras.layers.Dropout(0.1)  # has no variables, built or not

        def call(self, x):
            return self.drop(self.inner(x))

    def make():
        model = Own()
        model.compile("adam", "mse")
        return model

    data = np.ones([8, 2])
    first, second = make(), make()
    first.fit(data, data[:, :1], verbose=0)
    with saves(tmp_path, first) as kept:
        kept.save(1)
    told = "has variables for inner, which have none yet.*Build the model"
    with pytest.raises(logdir.CheckpointError, match=told):
        logdir.checkpoints(second, tmp_path).restore_or_initialize()
    second(data)
    assert logdir.checkpoints(second, tmp_path).restore() == 1
    np.testing.assert_array_equal(first.get_weights()[0], second.get_weights()[0])


def test_a_sequential_model_may_be_built_after_it_was_restored(tmp_path):
    import keras
    import numpy as np

    first, second = (keras.Sequential([keras.layers.Dense(1)]) for _ in range(2))
    first(np.ones([8, 2]))
    with saves(tmp_path, first) as kept:
        kept.save(1)
    assert logdir.checkpoints(second, tmp_path).restore() == 1
    second(np.ones([8, 2]))
    np.testing.assert_array_equal(first.get_weights()[0], second.get_weights()[0])


def test_a_step_is_a_whole_number_also_of_a_variable(tmp_path):
    import tensorflow as tf

    with saves(tmp_path, variable()) as kept:
        assert kept.save(tf.Variable(3, dtype=tf.int64)) == 3 and kept.save(tf.constant(4)) == 4
        for bad in (9.5, "x", -1):
            with pytest.raises(ValueError, match="a step is a whole number of 0 or more, not"):
                kept.save(bad)
        assert kept.steps == [3, 4]


def test_the_error_of_a_full_disk_comes_without_names_of_tensorflows_functions(tmp_path, small_files):
    kept = saves(tmp_path)
    small_files()
    with kept, pytest.raises(logdir.LogdirError, match=r"could not be written to [^ ]*: /[^ ]*/ckpt-1_temp/"):
        kept.save()


@pytest.mark.parametrize("package", ["tensorflow", "keras"])
def test_a_variable_of_a_strategy_is_a_step(tmp_path, package):
    """The iterations of an optimizer are one, under a MultiWorkerMirroredStrategy and others."""
    import keras
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        step = (
            tf.Variable(7) if package == "tensorflow" else keras.Variable(7, dtype="int64", trainable=False)
        )
    with saves(tmp_path) as kept:
        assert kept.save(step) == 7
        with pytest.raises(ValueError, match="a step is a whole number"):
            kept.save(float("inf"))
