"""The cells of real clusters, exported and run again in processes of their own by run_local.sh."""

import os
import re
import subprocess
import sys

import pytest
from snippets import snippets

from tfmagic.errors import TfmagicError

FIT = """%%tfcluster --workers 2 --out checksum
%time import keras
import tensorflow as tf
import tfmagic

keras.utils.set_random_seed(SEED)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
data = tf.data.Dataset.from_tensor_slices((features, labels(features))).batch(8)
model.fit(data, epochs=2, verbose=0)
tfmagic.barrier()
[round(float(abs(weights).sum()), 5) for weights in model.get_weights()]"""

PS = """%%tfcluster --workers 1 --ps 1 --cluster served --out sums
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)

@tf.function
def add():
    total.assign_add(STEP)

for _ in range(5):
    coordinator.schedule(add)
coordinator.join()
float(total)"""


def run_local(folder):
    """Run the program that was exported to folder/train as the docs say; return what each task has printed last."""
    (snippet,) = snippets("docs/export.md", "bash")
    environ = {**os.environ, "PYTHON": sys.executable, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        ["bash", "-c", snippet.code], cwd=folder, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout and "--no-keras-fix" not in done.stdout  # into a pipe, by a program
    lines = re.findall(r"^\[(\w+-\d)\] (.*)$", done.stdout, re.MULTILINE)
    return {task: line for task, line in lines if line[:1] in "[0123456789"}


def test_fit_gives_the_weights_that_it_gave_on_the_cluster(notebook, tmp_path):
    notebook.run(
        "import numpy as np\nSEED = 3\nfeatures = np.random.default_rng(0).normal(size=(64, 4))\n"
        "def labels(x):\n    return x.sum(1, keepdims=True) * SEED"
    )
    notebook.run("%%tfcluster --workers 2\nbefore_the_restart = 1")
    notebook.run("%tfcluster restart")  # forgets that cell
    notebook.run(FIT)
    with pytest.raises(ZeroDivisionError):
        notebook.run("%%tfcluster\n1 / 0")
    shown = notebook.run(f"%tfcluster export {tmp_path / 'train'}")
    assert shown.startswith("tfmagic: wrote main.py, ") and "tfmagic: left out: cell" in shown
    assert "before_the_restart" not in (tmp_path / "train" / "main.py").read_text()
    checksum = notebook.shell.user_ns["checksum"]
    assert run_local(tmp_path) == {task: repr(value) for task, value in checksum.items()}
    with pytest.raises(TfmagicError, match="no such cell has run on this cluster"):
        notebook.run(f"%tfcluster export {tmp_path / 'train'} --cells 900-901")


def test_the_coordinator_of_a_ps_ends_the_local_run(notebook, tmp_path):
    notebook.run("STEP = 2.0")
    notebook.run(PS)
    exported = notebook.cluster("served").export(tmp_path / "train")
    assert exported.left_out == () and "run_local.sh" in exported.files
    assert run_local(tmp_path) == {"chief-0": repr(notebook.shell.user_ns["sums"]["chief-0"])}
