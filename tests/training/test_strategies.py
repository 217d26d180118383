"""Real multi-worker TensorFlow: each strategy, a second time in the same cluster, and after a restart."""

import numpy as np
import pytest

from tfmagic.clusters.launch import task_settings

ALL_REDUCE = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = tf.Variable(tf.ones([2]))

@tf.function
def step():
    def replica():
        context = tf.distribute.get_replica_context()
        w.assign_add(context.all_reduce('SUM', tf.ones([2])))
    strategy.run(replica)

for _ in range(10):
    step()
w.numpy().tolist()
"""

COORDINATOR = """
import tensorflow as tf
strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

@tf.function
def step():
    total.assign_add(1.0)

for _ in range(50):
    coordinator.schedule(step)
coordinator.join()
float(total.numpy())
"""


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_mirrored_strategy_again_and_after_a_restart(notebook, workers):
    expected = [1.0 + 10 * workers] * 2
    notebook.run(f"%tfcluster start --workers {workers}")
    shown = ""
    for _ in range(2):
        shown += notebook.run("%%tfcluster --out r\n" + ALL_REDUCE)
        assert notebook.ns["r"].of("worker") == [expected] * workers
    assert shown.count("INFO:tensorflow:Using MirroredStrategy") >= 2 * workers
    assert shown.count("INFO:tensorflow:Collective all_reduce") == workers  # plain TensorFlow: at each trace
    notebook.run("%tfcluster restart")
    notebook.run("%%tfcluster --out r\n" + ALL_REDUCE)
    assert notebook.ns["r"].of("worker") == [expected] * workers


@pytest.mark.soak  # one of ten cells: two strategies, one after the other, are above
def test_many_strategies_one_after_the_other_do_not_lose_each_other(notebook):
    """Without the meeting around a further strategy one of ten such cells failed or hung."""
    burn = "import threading\nthreading.Thread(target=lambda: [i * i for i in range(3_000_000)]).start()\n"
    notebook.run("%tfcluster start --workers 3")
    for _ in range(40):
        notebook.run("%%tfcluster --timeout 60 --view quiet --out r\n" + burn + ALL_REDUCE)
        assert notebook.ns["r"].of("worker") == [[31.0, 31.0]] * 3


def test_mirrored_strategy_with_a_chief_and_processes_of_a_cell(notebook):
    """TensorFlow takes SIGTERM from processes that are forked after a strategy."""
    notebook.run("%%tfcluster --workers 1 --chief --out r\n" + ALL_REDUCE)
    assert dict(notebook.ns["r"]) == {"chief-0": [21.0, 21.0], "worker-0": [21.0, 21.0]}
    notebook.run("%%tfcluster --timeout 60 --out r\n" + FORKS)
    assert notebook.ns["r"].of("worker") == [[-15, [1, 4, 9], []]]


FORKS = """
import multiprocessing, time
child = multiprocessing.Process(target=time.sleep, args=(1000,))
child.start()
child.terminate()
child.join()
with multiprocessing.Pool(3) as pool:
    squares = pool.starmap(pow, [(1, 2), (2, 2), (3, 2)])
pool.join()
[child.exitcode, squares, multiprocessing.active_children()]
"""


def test_a_strategy_can_be_made_after_other_ops_and_the_seed_is_kept(notebook):
    seeded = "\nimport tensorflow as tf\ntf.random.set_seed(7)\n"
    notebook.run("%%tfcluster --workers 2\n" + seeded + "before = tf.Variable([1.0, 2.0]) + 1")
    notebook.run(
        "%%tfcluster --out r\n" + ALL_REDUCE + "\nfloat(tf.random.uniform([])), before.numpy().tolist()"
    )
    first, second = notebook.ns["r"].of("worker")
    assert first == second and first[1] == [2.0, 3.0]


DROPPED = """
import gc, time
import tensorflow as tf

data = tf.data.Dataset.range(8).batch(2).map(tf.identity, num_parallel_calls=tf.data.AUTOTUNE)
strategy, took = tf.distribute.MultiWorkerMirroredStrategy(), []
for _ in range(3):
    held = [iter(strategy.experimental_distribute_dataset(data))]
    next(held[0])
    time.sleep(2.7)  # TensorFlow's thread looks 1.3, 2.5, 5.1 s after its start, and so on
    held.append(held)
    del held
    began = time.monotonic()
    gc.collect()
    took.append(time.monotonic() - began)
max(took)
"""


def test_an_iterator_of_a_strategy_is_dropped_at_once(notebook):
    """TensorFlow alone waits mostly until its thread looks again, 2.4 s, and holds Python's lock meanwhile."""
    notebook.run("%%tfcluster --workers 2 --out r\n" + DROPPED)
    assert max(notebook.ns["r"].values()) < 2


def test_what_a_reset_would_lose_is_named_with_the_way_out(notebook):
    table = (
        "import tensorflow as tf\n"
        "t = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), -1)\n"
    )
    notebook.run("%%tfcluster --workers 2\n" + table)
    with pytest.raises(RuntimeError, match=r"StaticHashTable would be lost[\s\S]*tfcluster.restart"):
        notebook.run("%%tfcluster\n" + ALL_REDUCE)
    notebook.run("%tfcluster restart")
    notebook.run("%%tfcluster\n" + ALL_REDUCE)


def test_a_strategy_on_some_tasks_only_is_told_whom_it_waits_for(notebook):
    with pytest.raises(Exception, match="worker-1 does not run this cell"):
        notebook.run("%%tfcluster --workers 2 --on worker-0\n" + ALL_REDUCE)


def test_parameter_servers_start_by_themselves(notebook):
    notebook.run("%tfcluster start --workers 2 --ps 1")
    for _ in range(2):
        notebook.run("%%tfcluster --out r\n" + COORDINATOR)
        assert dict(notebook.ns["r"]) == {"chief-0": 50.0}
    notebook.run("%tfcluster restart")
    notebook.run("%%tfcluster --out r\n" + COORDINATOR)
    assert dict(notebook.ns["r"]) == {"chief-0": 50.0}


def test_a_sidecar_evaluator_reads_the_checkpoints_of_the_workers(notebook, tmp_path):
    notebook.ns["folder"] = str(tmp_path)
    train = (
        ALL_REDUCE.rsplit("w.numpy", 1)[0]
        + "checkpoint = tf.train.Checkpoint(w=w)\n"
        + "import tfmagic\nname = 'ckpt' if tfmagic.current_task().is_chief else 'tmp'\n"
        + "checkpoint.save(f'{folder}/{name}/c')"
    )
    evaluate = (
        "import os, json, tensorflow as tf\n"
        "v = tf.Variable(tf.zeros([2]))\n"
        "tf.train.Checkpoint(w=v).restore(tf.train.latest_checkpoint(f'{folder}/ckpt')).expect_partial()\n"
        "v.numpy().tolist(), json.loads(os.environ['TF_CONFIG'])['task']"
    )
    notebook.run("%tfcluster start --workers 2 --evaluator")
    for round_ in range(2):
        notebook.run("%%tfcluster\n" + train)
        notebook.run("%%tfcluster --on evaluator --out r\n" + evaluate)
        assert notebook.ns["r"]["evaluator-0"] == ([21.0, 21.0], {"type": "evaluator", "index": 0}), round_
    notebook.run("%tfcluster restart")
    notebook.run("%%tfcluster --on evaluator --out r\n" + evaluate)
    assert notebook.ns["r"]["evaluator-0"][0] == [21.0, 21.0]


FIT = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 8)).astype('float32')
y = (x.sum(1, keepdims=True) > 0).astype('float32')

def compiled():
    model = keras.Sequential([keras.layers.Dense(16, activation='relu'), keras.layers.Dense(1)])
    model.compile('sgd', keras.losses.BinaryCrossentropy(from_logits=True), metrics=['accuracy'])
    return model

if distributed:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = compiled()
else:
    model = compiled()
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16).with_options(options)
history = model.fit(data, epochs=3, verbose=0)
loss, accuracy = model.evaluate(data, verbose=0)
[w.tolist() for w in model.get_weights()], history.history['loss'], loss, accuracy
"""


def test_keras_3_fit_equals_a_single_process_on_the_same_global_batches(notebook):
    notebook.run("distributed = True")
    out = notebook.run("%%tfcluster --workers 2 --out many\n" + FIT)
    assert out.count("repaired Keras") == 2
    notebook.run("distributed = False")
    notebook.run("%%tfcluster --fresh --workers 1 --out one\n" + FIT)
    weights, losses, loss, accuracy = notebook.ns["many"]["worker-0"]
    assert notebook.ns["many"]["worker-0"] == notebook.ns["many"]["worker-1"]
    single = notebook.ns["one"]["worker-0"]
    for ours, theirs in zip(weights, single[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose([*losses, loss, accuracy], [*single[1], single[2], single[3]], rtol=1e-3)


def test_keras_3_without_the_repair_is_as_upstream_and_one_line_says_so(notebook, capsys):
    task_settings._tell_what_fails.cache_clear()
    notebook.run("distributed = True")
    for _ in range(2):
        with pytest.raises(Exception, match="PerReplica|Invalid reduction"):
            notebook.run("%%tfcluster --workers 2 --no-keras-fix --fresh\n" + FIT)
    assert capsys.readouterr().err.count(task_settings.NOT_REPAIRED) == 1


def test_keras_2_fits_on_its_own(notebook):
    notebook.run("distributed = True")
    cell = FIT.replace("import keras, numpy", "import tf_keras as keras, numpy") + "\ntf.keras.__name__"
    notebook.run("%%tfcluster --workers 2 --keras 2 --out r\n" + cell + ", model.get_weights()[0].sum()")
    names, sums = zip(*notebook.ns["r"].of("worker"), strict=True)
    assert sums[0] == sums[1]
    assert "tf_keras" in names[0]
