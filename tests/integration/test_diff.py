"""`%tfcluster diff` and `--watch`, on real tasks with real models."""

import numpy as np
import pytest
from IPython.core.error import UsageError

SETUP = """%%tfcluster --workers 2
import numpy as np
import tensorflow as tf
import tfmagic
me = tfmagic.current_task()
tf.keras.utils.set_random_seed(1)
layers = tf.keras.layers
model = tf.keras.Sequential([layers.Input((4,)), layers.Dense(3, name="first"), layers.Dense(2, name="second")])
same = [layer.get_weights() for layer in model.layers]
if me.index == 1:
    kernel = model.layers[-1].kernel.numpy()
    kernel[1, 1] += 0.5
    model.layers[-1].kernel.assign(kernel)
batch = np.arange(12.0).reshape(6, 2) + 2 * me.index
ds = tf.data.Dataset.range(10).batch(2 + me.index)
"""


def test_a_variable_is_compared_over_tasks(notebook):
    notebook.run(SETUP)
    cluster = notebook.cluster()
    found = cluster.diff("model")
    (part,) = found.differing
    assert part.path.endswith("second/kernel") and part.groups == (("worker-0",), ("worker-1",))
    assert part.what.startswith("norm 0.5, at most 0.5, in 1 of 6 places, first at [1, 1]: ")
    assert found.parts == 4 and not found.equal
    assert cluster.diff("same").equal
    assert cluster.diff("model", on="worker-1").equal, "one task agrees with itself"
    (size,) = cluster.diff("ds").differing
    assert (size.path, size.what) == ("cardinality", "'5' | '4'")
    with pytest.raises(NameError, match="absent"):
        cluster.diff("absent")
    assert cluster.errors() == {}, "the last cell is the user's, which did not fail"
    assert "cell" in notebook.run("%tfcluster timeline").splitlines()[0], "and the timeline is that cell's"

    notebook.ns["all_rows"] = np.arange(16.0).reshape(8, 2)
    shown = notebook.run("%tfcluster diff batch --rows --of all_rows")
    assert "5 of 7 different rows were read by more than one task" in shown
    assert "1 of 8 rows were read by nobody: 7" in shown
    with pytest.raises(UsageError, match="no variable 'nothing'"):
        notebook.run("%tfcluster diff batch --of nothing")


def test_the_step_at_which_the_tasks_parted_is_said_also_of_a_cell_that_fails(notebook):
    notebook.run("%%tfcluster --workers 2\nimport tfmagic\nme = tfmagic.current_task()")
    loop = """%%tfcluster --watch w
import tensorflow as tf
w = tf.Variable(1.0)

@tf.function
def step(x):
    w.assign_add(x)

for number in range(10):
    step({})
"""
    assert "w was the same on all tasks in all 10 steps" in notebook.run(loop.format("1.0"))
    parted = loop.format("2.0 if number == 6 and me.index == 1 else 1.0")
    assert "w: the tasks parted in step 7: worker-0 | worker-1" in notebook.run(parted)
    with pytest.raises(UsageError, match="not a variable name"):
        notebook.run("%%tfcluster --watch w-1\n1")


def test_weights_that_one_task_alone_has_set_are_noticed_after_fit(notebook, capsys):
    train = """%%tfcluster --workers 2
import keras
import numpy as np
import tensorflow as tf
import tfmagic

me = tfmagic.current_task()
strategy = strategy if "strategy" in globals() else tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(me.index)
with strategy.scope():
    layers = [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    model.compile("adam", "mse")
if CONDITION:
    model.set_weights([np.full(weights.shape, 0.5) for weights in model.get_weights()])
rows = np.random.default_rng(0).normal(size=[32, 4])
data = tf.data.Dataset.from_tensor_slices((rows, np.ones(32))).batch(8)
losses = model.fit(data, epochs=2, verbose=0, shuffle=False).history["loss"]
"""
    hint = "hint: fit has left different weights on worker-0 and worker-1"
    assert hint not in notebook.run(train.replace("CONDITION", "True")), "statistics alone are no weights"
    assert hint in notebook.run(train.replace("CONDITION", "me.index == 0"))
    assert notebook.cluster().diff("losses").equal, "nothing else says so"
    assert hint not in notebook.run("%%tfcluster\nmodel.predict(rows, verbose=0)"), "said once"
    assert "differ" in notebook.run("%tfcluster explain different-weights")
    capsys.readouterr()
    fit = "model.fit(data, verbose=0, shuffle=False)"
    notebook.cluster().run(lambda: exec(fit, vars(__import__("__main__"))))
    assert hint in capsys.readouterr().out
