"""The repair of Keras 3 acts where Keras does the wrong thing, whatever its version."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfmagic.task.tensorflow import keras_saving

# Keras is imported once, and each case runs in a fork.
RUN = """
import json, os, sys
import keras
from keras.src.backend.tensorflow import trainer
from keras.src.saving import saving_lib
from tfmagic.task.tensorflow import keras_repair, patches
cls = keras_repair.trainer_class(trainer)
original, save = trainer.reduce_per_replica, saving_lib.save_model
for name, code in json.loads(sys.argv[1]).items():
    print(f"--- {name}", flush=True)
    if os.fork() == 0:
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0
"""
WITHOUT = """
del cls._maybe_symbolic_build
print(patches.TABLE.install("fit under multi-worker strategies"), trainer.reduce_per_replica is original)
print(patches.TABLE.install("whole .keras files"), saving_lib.save_model is save)
"""
RIGHT = """
def build(self, iterator=None, data_batch=None):  # each value of the batch is reduced by itself
    for _, _, batches in iterator:
        for value in next(batches):
            self.distribute_strategy.reduce("MEAN", value, axis=None)
    print("Keras' own build")
def reduce(values, strategy, reduction):
    strategy.reduce("MEAN", values, axis=None)
    return "Keras' own reduction"
cls._maybe_symbolic_build, trainer.reduce_per_replica = build, reduce
"""
USE = """
import tensorflow as tf
from types import SimpleNamespace
strategy = keras_repair._recording_strategy([])
strategy._extended._local_results = lambda value: [tf.constant(1.0)]
value = keras_repair._replica_value()
dataset = SimpleNamespace(element_spec=tf.TensorSpec([4]))
class Batches(list):
    _distributed_dataset = dataset
model = SimpleNamespace(
    _distribute_strategy=strategy, distribute_strategy=strategy, _symbolic_build=lambda data_batch: print(data_batch)
)
assert patches.TABLE.install("fit under multi-worker strategies")
cls._maybe_symbolic_build(model, iterator=Batches([(0, 0, iter([(value,)]))]))
print(trainer.reduce_per_replica(value, strategy, "mean") is value)
"""


@pytest.fixture(scope="module")
def shown():
    """Return what each case prints."""
    cases = {"without": WITHOUT, "wrong": "keras.__version__ = '9.0'" + USE, "right": RIGHT + USE}
    command = [sys.executable, "-c", RUN, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(part.split("\n", 1) for part in done.stdout.split("--- ")[1:])


def test_a_keras_without_the_place_to_repair_is_left_alone_and_saves_whole_files(shown):
    """Keras 3.0 to 3.4: with them no task could start."""
    assert shown["without"] == "False True\nTrue False\n"


def test_a_keras_that_does_the_wrong_thing_is_repaired_whatever_its_version(shown):
    assert "keras#20585" in shown["wrong"]
    assert shown["wrong"].endswith("TensorSpec(shape=(4,), dtype=tf.float32, name=None)\nTrue\n")


def test_a_keras_that_does_the_right_thing_is_not_repaired(shown):
    assert shown["right"] == 2 * "Keras' own build\n" + "False\n"  # the first one is the probe


def test_a_half_written_model_of_another_container_is_not_deleted(tmp_path):
    """Both have one host name, and pids of their own: ours is none in the container."""
    mine = tmp_path / keras_saving._beside_name("m.keras")
    mine.touch()
    code = (
        "import sys; from tfmagic.task.tensorflow import keras_saving as k; k._clear_leftovers(sys.argv[1])"
    )
    container = ["unshare", "-rpf", "--mount-proc"]
    subprocess.run([*container, sys.executable, "-c", code, tmp_path / "m.keras"], check=True)
    assert mine.exists()


def test_a_model_is_on_the_disk_before_it_replaces_another(tmp_path, synced):
    save = keras_saving.saving_whole(lambda model, path: Path(path).write_text(model))
    save("first", tmp_path / "m.keras")
    assert synced == []
    save("second", tmp_path / "m.keras")
    assert synced == [os.stat(tmp_path / "m.keras").st_ino]
