"""``--compare`` in a notebook, on real clusters."""

CLIPPED_FIT = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(1)
with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, clipnorm=1.0), "mse")
model.fit(np.ones([8, 1]), np.array([10.0, 10, -1, -1, 10, 10, -1, -1]), batch_size=4, shuffle=False, verbose=0)
"""


def test_compare_says_whether_the_models_ended_with_equal_weights(notebook):
    notebook.run(f"%%tfcluster --compare workers=1,2 --out sizes{CLIPPED_FIT}")
    assert "The models ended with equal weights." in repr(notebook.ns["sizes"])


def test_compare_runs_the_cell_at_each_size(notebook):
    notebook.run(
        "%%tfcluster --compare workers=1,2 --out sizes\nimport tfmagic\ntfmagic.current_task().num_tasks"
    )
    assert {n: r["worker-0"] for n, r in notebook.ns["sizes"].items()} == {1: 1, 2: 2}
    bundle = notebook.ns["sizes"]._repr_mimebundle_()
    assert "speed-up" in bundle["text/plain"] and "2 workers" in bundle["text/html"]
