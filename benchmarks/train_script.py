"""An ordinary training script: MultiWorkerMirroredStrategy, a custom loop, its own clock.

`training` runs this text unchanged as plain processes with TF_CONFIG and as a cell. It prints the steps a
second of its median block, so that a block that another process disturbed does not count, the last loss, and
a checksum of the weights.
"""

import json
import os
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

BLOCK_STEPS = 50
WARM_UP_BLOCKS = 2  # tracing, first collectives, and the caches
BLOCKS = int(os.environ["BENCH_TRAINING_BLOCKS"])
LOCAL_BATCH = 64

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
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
my_index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
# The data differ: only a real all-reduce keeps the workers equal.
rng = np.random.default_rng(my_index)
images = tf.constant(rng.random((LOCAL_BATCH, 28, 28, 1), dtype=np.float32))
labels = tf.constant(rng.integers(0, 10, LOCAL_BATCH))


def replica_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True)) / (LOCAL_BATCH * strategy.num_replicas_in_sync)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    return loss


@tf.function
def step(x, y):
    return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)


block_seconds = []
for _ in range(WARM_UP_BLOCKS + BLOCKS):
    began = time.perf_counter()
    for _ in range(BLOCK_STEPS):
        last_loss = float(step(images, labels))
    block_seconds.append(time.perf_counter() - began)
steps_per_s = BLOCK_STEPS / statistics.median(block_seconds[WARM_UP_BLOCKS:])
checksum = float(sum(np.abs(weights).sum() for weights in model.get_weights()))
print(json.dumps({"steps_per_s": steps_per_s, "last_loss": last_loss, "checksum": checksum}), flush=True)
