"""The repair of Keras 3 with a version of Keras for which it was not written."""

import subprocess
import sys

WITHOUT = """
import keras
from keras.src.backend.tensorflow import trainer
from tfmagic.task.tensorflow import keras_repair
original = trainer.reduce_per_replica
del trainer.TensorFlowTrainer._maybe_symbolic_build
print(keras_repair.install(), trainer.reduce_per_replica is original)
"""


def test_a_keras_without_the_place_to_repair_is_left_alone():
    """Keras 3.0 to 3.4: with them no task could start."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False True\n", done.stderr
