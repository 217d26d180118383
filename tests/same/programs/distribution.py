"""Strategies over several processes. The title ends with the shape; the last line gives what both sides must share.

Run by plain processes with TF_CONFIG, and by a cell. `folder` is a folder that the tasks share. A cell titled
`evaluator` is the evaluator's.
"""

# %% MultiWorkerMirroredStrategy in a custom loop: --workers 2
import numpy as np, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.arange(32, dtype="float32").reshape(-1, 1) / 32
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = tf.data.Dataset.from_tensor_slices((x, 3 * x + 1)).batch(8).with_options(options)
data = strategy.experimental_distribute_dataset(data)
with strategy.scope():
    w, b = tf.Variable([[0.0]]), tf.Variable([0.0])

@tf.function
def step(batch):
    def replica(bx, by):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((bx @ w + b - by) ** 2) / 8
        gradients = tape.gradient(loss, [w, b])
        gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
        w.assign_sub(0.1 * gradients[0])
        b.assign_sub(0.1 * gradients[1])
        return loss
    return strategy.reduce("SUM", strategy.run(replica, args=batch), axis=None)

losses = []
for epoch in range(2):
    for batch in data:
        losses.append(float(step(batch)))
[strategy.num_replicas_in_sync, losses, w.numpy().tolist(), b.numpy().tolist()]

# %% Keras 2 fit under MultiWorkerMirroredStrategy: --workers 2 --keras 2
import numpy as np, tensorflow as tf, tf_keras
strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf_keras.utils.set_random_seed(1)
x = np.arange(32, dtype="float32").reshape(-1, 1) / 32
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = tf.data.Dataset.from_tensor_slices((x, 2 * x)).batch(8).with_options(options)
with strategy.scope():
    model = tf_keras.Sequential([tf_keras.layers.Dense(4, "relu"), tf_keras.layers.Dense(1)])
    model.compile("sgd", "mse")
history = model.fit(data, epochs=2, verbose=0).history["loss"]
[history, [weights.tolist() for weights in model.get_weights()]]

# %% ParameterServerStrategy with a coordinator: --workers 2 --ps 1
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

@tf.function
def step(iterator):
    total.assign_add(next(iterator))
    return tf.constant(1)

@tf.function
def per_worker():
    return strategy.distribute_datasets_from_function(lambda _: tf.data.Dataset.from_tensors(2.0).repeat())

iterator = iter(coordinator.create_per_worker_dataset(per_worker))
values = [coordinator.schedule(step, args=(iterator,)) for _ in range(20)]
coordinator.join()
[float(total), sum(int(v.fetch()) for v in values)]

# %% an evaluator beside the workers: --workers 2 --evaluator
import os, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = tf.Variable(tf.ones([2]))

@tf.function
def step():
    def replica():
        w.assign_add(tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([2])))
    strategy.run(replica)

for _ in range(5):
    step()
resolver = strategy.cluster_resolver
name = "kept" if resolver.task_id == 0 else "temporary"
tf.train.Checkpoint(w=w).save(os.path.join(folder, name, "ckpt"))
w.numpy().tolist()
# %% (evaluator)
import json, os, time, tensorflow as tf
while not (latest := tf.train.latest_checkpoint(os.path.join(folder, "kept"))):
    time.sleep(0.05)
w = tf.Variable(tf.zeros([2]))
tf.train.Checkpoint(w=w).restore(latest).expect_partial()
[w.numpy().tolist(), json.loads(os.environ["TF_CONFIG"])["task"]["type"]]
