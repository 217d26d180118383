"""The training of `train_script` by `fit` of Keras 2, which runs on several workers without tfmagic, too.

`training` runs this text unchanged as plain processes with TF_CONFIG and as a cell. It prints the same as
`train_script`, where a block is an epoch, and the steps a second with what lies between epochs: the end of an
iterator and the start of the next.
"""

import json
import os
import statistics
import time

import numpy as np
import tensorflow as tf
import tf_keras as keras

BLOCK_STEPS = 50
WARM_UP_BLOCKS = 2  # tracing, first collectives, and the caches
BLOCKS = int(os.environ["BENCH_TRAINING_BLOCKS"])
BATCH = 128  # of both workers

keras.utils.set_random_seed(0)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
began, ended = [], []


class Clock(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        began.append(time.perf_counter())

    def on_epoch_end(self, epoch, logs=None):
        ended.append(time.perf_counter())


# The data differ: only a real all-reduce keeps the workers equal.
rng = np.random.default_rng(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
batch = rng.random((BATCH, 28, 28, 1), dtype=np.float32), rng.integers(0, 10, BATCH)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
data = tf.data.Dataset.from_tensors(batch).cache().repeat(BLOCK_STEPS).with_options(options)
history = model.fit(data, epochs=WARM_UP_BLOCKS + BLOCKS, verbose=0, callbacks=[Clock()])
blocks = [end - begin for begin, end in zip(began, ended, strict=True)][WARM_UP_BLOCKS:]
steps_per_s = BLOCK_STEPS / statistics.median(blocks)
all_steps_per_s = BLOCK_STEPS * BLOCKS / (ended[-1] - began[WARM_UP_BLOCKS])
last_loss = float(history.history["loss"][-1])
checksum = float(sum(np.abs(weights).sum() for weights in model.get_weights()))
print(
    json.dumps(
        {
            "steps_per_s": steps_per_s,
            "all_steps_per_s": all_steps_per_s,
            "last_loss": last_loss,
            "checksum": checksum,
        }
    ),
    flush=True,
)
