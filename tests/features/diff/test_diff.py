"""`%tfcluster diff`, on real tasks with real models."""

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


def test_weights_are_compared_by_their_place_after_a_task_was_started_again(notebook):
    make = """%%tfcluster --workers 2
import keras, numpy as np, tensorflow as tf
me = tfmagic.current_task().index
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(3), keras.layers.Dense(1, name="head_7")])
model.compile("adam", "mse")
model.layers[0].kernel.assign(tf.ones([2, 3]))
model.layers[1].kernel.assign([[1.0], [2.0], [3.0 + me]])
table = {"w_1": tf.Variable(0.0, name="w")} if me else {"w_2": tf.Variable(0.0, name="w")}
kept = model.layers[0]"""
    notebook.run("import tfmagic")
    notebook.run(make)
    notebook.run("%tfcluster kill worker-0")
    notebook.run("%tfcluster revive")
    notebook.run(make)
    names = notebook.cluster().run(lambda: [w.path for w in __import__("__main__").model.weights])
    assert names["worker-0"] != names["worker-1"], "Keras counts in each process"
    found = notebook.cluster().diff("model")
    (part,) = found.differing
    assert part.path == "sequential/head_7/kernel" and "in 1 of 3 places" in part.what and found.parts == 4
    assert notebook.cluster().diff("kept").equal and notebook.cluster().diff("model.optimizer").equal
    assert len(notebook.cluster().diff("table").differing) == 2, "keys are the user's names"
