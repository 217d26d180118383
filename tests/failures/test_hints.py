"""Provokes every trap that tfmagic.failures.hints knows, with TensorFlow's own messages, never copies."""

import json
import re
import socket
import subprocess
import sys

import numpy as np
import pytest

import tfmagic
from tfmagic.failures.hints import HINTS, spelled
from tfmagic.runs.given_hints import Hint
from tfmagic.system.advice import Step
from tfmagic.task.tensorflow import scope_hint

GIVEN: set[str] = set()  # the advice that the tests of this file got
RAN: set[str] = set()


@pytest.fixture(autouse=True)
def _note_that_it_ran(request):
    RAN.add(request.node.originalname)


@pytest.fixture(scope="module")
def cluster_of_module():
    with tfmagic.Cluster(workers=2, name="hints") as started:
        yield started


def hint_of(cluster, fn, *args, on=None):
    """Return the advice in the notes of what the function raises on these tasks, or ""."""
    with pytest.raises(Exception) as caught:
        cluster.run(fn, *args, on=on, timeout=100, view="quiet")
    return advice_of(caught.value)


def advice_of(error):
    notes = getattr(error, "__notes__", [])
    advice = [note.removeprefix("hint: ") for note in notes if note.startswith("hint: ")]
    GIVEN.update(advice)
    assert len(advice) <= 1
    if not advice:
        print(f"no advice: {error!r}", *notes, sep="\n")  # pytest shows it if the test fails
    return "".join(advice)


# ---- Keras --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["fit", *(pytest.param(m, marks=pytest.mark.soak) for m in ("evaluate", "train_on_batch"))]
)
def test_keras_3_trains_under_several_workers_without_the_repair(method):
    def train(method):
        import keras
        import numpy as np
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
            model.compile("sgd", "mse", metrics=["mae"])
        getattr(model, method)(np.ones([8, 2]), np.ones([8, 1]))

    with tfmagic.Cluster(workers=2, keras_fix=False) as cluster:
        assert "keras#20585" in hint_of(cluster, train, method)


def fit_in_or_outside_of_the_scope(is_in_scope):
    import contextlib

    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf.keras.utils.set_random_seed(tfmagic.current_task().index)
    with strategy.scope() if is_in_scope else contextlib.nullcontext():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])  # not built
        model.compile("sgd", "mse")
    for _ in range(2):
        model.fit(np.ones([8, 2]), np.ones([8, 1]), batch_size=4, verbose=0)
    return model.get_weights()[0].tolist()


def check_the_hint_of_the_scope(cluster, capsys):
    weights = cluster.run(fit_in_or_outside_of_the_scope, False, timeout=100)
    assert weights["worker-0"] != weights["worker-1"], "they drift"
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"tfmagic: hint: {scope_hint.HINT} (worker-0, worker-1; "), "once, for both"
    weights = cluster.run(fit_in_or_outside_of_the_scope, True, timeout=100)
    assert weights["worker-0"] == weights["worker-1"]
    said = capsys.readouterr().out
    assert "hint:" not in said and "overhead" not in said, "nor does our repair make TensorFlow warn"


def test_fit_of_a_model_that_was_made_outside_of_the_scope(cluster_of_module, capsys):
    check_the_hint_of_the_scope(cluster_of_module, capsys)


@pytest.mark.parametrize("kind", [float, int, complex])
def test_a_variable_of_a_strategy_is_taken_for_a_number(kind, cluster_of_module):
    def convert(kind):
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            kind(tf.Variable(1.0))

    assert ".numpy()" in hint_of(cluster_of_module, convert, kind)


@pytest.mark.soak
def test_fit_of_keras_2_outside_of_the_scope(capsys):
    with tfmagic.Cluster(workers=2, keras=2) as cluster:
        check_the_hint_of_the_scope(cluster, capsys)


def fit_with_batch_normalization(is_synchronized):
    import keras
    import numpy as np
    import tensorflow as tf

    import __main__

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layers = [keras.layers.BatchNormalization(synchronized=is_synchronized), keras.layers.Dense(1)]
        __main__.model = model = keras.Sequential([keras.Input([2]), *layers])
        model.compile("sgd", "mse")
    rows = np.random.default_rng(0).normal(size=[16, 2])
    for _ in range(2):
        model.fit(rows, np.ones([16, 1]), batch_size=8, verbose=0, shuffle=False)
    return model.layers[0].moving_mean.numpy().tolist()


def test_statistics_of_batch_normalization_are_those_of_each_tasks_rows(cluster_of_module, capsys):
    means = cluster_of_module.run(fit_with_batch_normalization, False, timeout=100)
    assert means["worker-0"] != means["worker-1"]
    said = capsys.readouterr().out.splitlines()[-1]
    assert scope_hint.STATISTICS_HINT.partition("{layers} ")[2] in said and "worker-0, worker-1;" in said
    found = cluster_of_module.diff("model")
    assert not found.equal and str(found).endswith("but for 2 statistics that differ by design")
    assert "synchronized=True" in repr(found) and "kernel" not in repr(found)
    means = cluster_of_module.run(fit_with_batch_normalization, True, timeout=100)
    assert means["worker-0"] == means["worker-1"] and "hint:" not in capsys.readouterr().out
    assert cluster_of_module.diff("model").equal


@pytest.mark.parametrize("cure", [False, True])
def test_rows_that_fit_never_reads_are_counted(cluster_of_module, capsys, cure):
    def train(cure):
        import keras
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        data = tf.data.Dataset.from_tensor_slices((tf.ones([16, 1]), tf.ones([16, 1]))).batch(4)
        steps = []
        count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda number, logs: steps.append(number))
        more = {"steps_per_epoch": 8} if cure else {}
        data = data.repeat() if cure else data
        model.fit(data.with_options(options), callbacks=[count], verbose=0, shuffle=False, **more)
        return len(steps)

    steps = cluster_of_module.run(train, cure, timeout=100)
    said = capsys.readouterr().out
    if cure:
        assert set(steps.values()) == {8}, "8 steps of 2 rows: all 16"
        assert "hint:" not in said
    else:
        assert set(steps.values()) == {4}, "4 steps of 2 rows: 8 of 16"
        assert "hint: 1/2 of the rows" in said and "steps_per_epoch=8" in said, said


@pytest.mark.parametrize("keras", [3, 2])
def test_what_keras_does_not_say_is_said_in_scripts_and_with_both_versions(tmp_path, keras):
    """Keras 2 keeps one mean of the statistics of all tasks, so there it has nothing to say."""
    script = tmp_path / "train.py"
    script.write_text(
        """
import json, os
import numpy as np
import tensorflow as tf
import tfmagic

machines = {"worker": ["localhost:23456", "localhost:23457"]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": machines, "task": {"type": "worker", "index": 0}})
strategy = tf.distribute.MultiWorkerMirroredStrategy()
layers = tf.keras.layers
with strategy.scope():
    model = tf.keras.Sequential([layers.InputLayer([2]), layers.BatchNormalization(), layers.Dense(1)])
    model.compile("sgd", "mse")
    differs = tfmagic.current_task().index == 0
    model.set_weights([np.full(weights.shape, 0.5 + differs) for weights in model.get_weights()])
rows = np.random.default_rng(0).normal(size=[16, 2])
model.fit(rows, np.ones([16, 1]), batch_size=8, verbose=0, shuffle=False)
print("moving mean", model.layers[-2].moving_mean.numpy())
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
model.fit(tf.data.Dataset.from_tensor_slices((rows, np.ones([16, 1]))).batch(4).with_options(options), verbose=0)
import multiprocessing, time
multiprocessing.Process(target=time.sleep, args=(1000,), daemon=True).start()  # ended by its parent's end
"""
    )
    command = [sys.executable, "-m", "tfmagic", "run", "--workers", "2", "--keras", str(keras), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("this program has set TF_CONFIG to another cluster") == 2
    means = re.findall(r"moving mean (.*)", done.stdout)
    assert len(set(means)) == keras - 1 and len(means) == 2
    own = scope_hint.STATISTICS_HINT.partition("{layers} ")[2]
    at_end = done.stderr.splitlines()[-3 if keras == 3 else -2 :]
    assert "hint:" not in done.stdout and own in at_end[0] if keras == 3 else own not in done.stderr
    assert "hint: 1/2 of the rows" in at_end[-2] and "(worker-0, worker-1; " in at_end[-2], done.stderr
    assert "hint: fit has left different weights on worker-0 and worker-1" in at_end[-1]
    assert "explain different-weights" in done.stderr and "%" not in done.stderr


def test_keras_3_fits_under_parameter_servers():
    def train(data_of):
        import keras
        import numpy as np
        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        with strategy.scope():
            model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        x, y = np.ones([8, 2]), np.ones([8, 1])
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4).repeat()
        match data_of:
            case "a guide":
                data = strategy.distribute_datasets_from_function(lambda context: data)
            case "a coordinator":
                coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
                data = coordinator.create_per_worker_dataset(lambda: data)
            case "Keras 2":
                data = tf.keras.utils.experimental.DatasetCreator(lambda context: data)
        model.fit(data, steps_per_epoch=2, verbose=0)

    with tfmagic.Cluster(workers=1, ps=1) as cluster:
        for data_of in ("tf.data", "a guide", "a coordinator", "Keras 2"):
            assert "cannot fit under ParameterServerStrategy" in hint_of(cluster, train, data_of), data_of


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("tf.estimator.RunConfig()", "no Estimators since 2.16"),
        ("tf.compat.v1.estimator.train_and_evaluate", "no Estimators since 2.16"),
        ("tf.keras.estimator.model_to_estimator", "no Estimators since 2.16"),
        ("import tensorflow_estimator", "no Estimators since 2.16"),
        ("from tensorflow.estimator import RunConfig", "no Estimators since 2.16"),
        (
            "tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD()).get_scaled_loss(1.0)",
            "This is of Keras 2",
        ),
        ("tf.keras.optimizers.SGD().get_unscaled_gradients([])", "This is of Keras 2"),
        (
            "tf.keras.optimizers.SGD().apply_gradients([], experimental_aggregate_gradients=False)",
            "of Keras 2",
        ),
        ("tf.keras.layers.experimental.SyncBatchNormalization()", "This is of Keras 2"),
        ("tf.keras.utils.SidecarEvaluator", "This is of Keras 2"),
        ("from tensorflow.keras.utils.experimental import DatasetCreator", "DatasetCreator is of Keras 2"),
    ],
)
def test_a_program_uses_what_was_removed(cluster_of_module, line, advice):
    def run(line):
        import tensorflow as tf

        exec(line, {"tf": tf})

    assert advice in hint_of(cluster_of_module, run, line, on="worker-0")


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        pytest.param("arrays", None, marks=pytest.mark.soak),
        ("dataset", 20),
        pytest.param("arrays", 20, marks=pytest.mark.soak),
        pytest.param("dataset", None, marks=pytest.mark.soak),
    ],
)
def test_keras_2_fits_under_parameter_servers_with_less_data_than_steps(kind, steps):
    def train(kind, steps):
        import numpy as np
        import tensorflow as tf
        import tf_keras

        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        with tf.distribute.ParameterServerStrategy(resolver).scope():
            model = tf_keras.Sequential([tf_keras.Input([2]), tf_keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        x, y = np.ones([8, 2]), np.ones([8, 1])
        if kind == "arrays":
            model.fit(x, y, steps_per_epoch=steps, verbose=0)
        else:
            data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
            model.fit(data, steps_per_epoch=steps, verbose=0)

    with tfmagic.Cluster(workers=1, ps=1, keras=2) as cluster:
        assert "steps_per_epoch in fit" in hint_of(cluster, train, kind, steps)


def test_a_function_is_cancelled_since_the_one_before_it_failed():
    def fetch():
        import contextlib

        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        coordinator = tf.distribute.coordinator.ClusterCoordinator(
            tf.distribute.ParameterServerStrategy(resolver)
        )

        @tf.function
        def step():
            x = tf.zeros([100, 100])
            for _ in tf.range(2000):
                x = x @ x
            return tf.linalg.inv(x)

        scheduled = [coordinator.schedule(step) for _ in range(9)]
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            coordinator.join()
        coordinator.fetch(scheduled[-1])  # it waited, or it had begun: TensorFlow has a text for each

    with tfmagic.Cluster(workers=1, ps=1) as cluster:
        assert "A function that was scheduled earlier failed" in hint_of(cluster, fetch)


def test_a_loss_of_keras_2_reduces_by_itself_in_a_loop_of_ones_own():
    def train():
        import tensorflow as tf
        import tf_keras

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        loss = tf_keras.losses.MeanSquaredError()
        strategy.run(lambda: loss(tf.ones([2, 1]), tf.zeros([2, 1])))

    with tfmagic.Cluster(workers=2, keras=2) as cluster:
        assert "compute_average_loss" in hint_of(cluster, train)


# ---- strategies ---------------------------------------------------------------------------------


def test_a_table_lives_when_the_first_strategy_is_created():
    def create():
        import tensorflow as tf

        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), -1)
        tf.distribute.MultiWorkerMirroredStrategy()
        return table

    with tfmagic.Cluster(workers=2) as cluster:
        assert "Make look-up tables" in hint_of(cluster, create)


def create_strategy():
    import tensorflow as tf

    tf.distribute.MultiWorkerMirroredStrategy()


TUTORIAL = {
    "cluster": {"worker": ["localhost:23456", "localhost:23457"]},
    "task": {"type": "worker", "index": 0},
}


def train_with_tf_config(value):
    import json
    import os

    import tensorflow as tf

    import __main__

    __main__.kept = getattr(__main__, "kept", None) or tf.Variable(3.0)
    given = os.environ.pop("TF_CONFIG")
    try:
        if value:
            os.environ.update(TF_CONFIG=value)
        resolver = tf.distribute.MultiWorkerMirroredStrategy().cluster_resolver
        is_ours = os.environ.get("TF_CONFIG") == given
        read, write = os.pipe()
        if os.fork() == 0:  # a process of the program's own
            os.environ["TF_CONFIG"] = value or "{}"
            os.write(write, json.dumps(type(resolver)().cluster_spec().as_dict()).encode())
            os._exit(0)
        os.wait()
        workers = len(resolver.cluster_spec().as_dict().get("worker", ()))
        theirs = json.loads(os.read(read, 1 << 16))
        return workers, resolver.task_id, is_ours, theirs, float(__main__.kept)
    finally:
        os.environ["TF_CONFIG"] = given


def test_a_program_sets_tf_config_itself_as_tutorials_do(capsys):
    with tfmagic.Cluster(workers=2) as cluster:
        for alone in ("", "{}"):
            found = cluster.run(train_with_tf_config, alone, timeout=100)
            assert list(found.values()) == [(0, None, False, {}, 3.0)] * 2
        assert "TF_CONFIG" not in capsys.readouterr().out
        for notices in (2, 0):  # once on each task
            found = cluster.run(train_with_tf_config, json.dumps(TUTORIAL), timeout=100)
            assert list(found.values()) == [(2, i, True, TUTORIAL["cluster"], 3.0) for i in range(2)]
            said = capsys.readouterr().out
            assert (
                said.count("set TF_CONFIG to another cluster (localhost:23456, localhost:23457)") == notices
            )


def test_some_tasks_do_not_create_the_strategy(cluster_of_module):
    def create_on_one():
        import tensorflow as tf

        if tfmagic.current_task().is_chief:
            tf.distribute.MultiWorkerMirroredStrategy()

    def create_after_a_barrier_of_one():
        import tensorflow as tf

        if tfmagic.current_task().is_chief:
            tfmagic.barrier()
        tf.distribute.MultiWorkerMirroredStrategy()

    every = "when every worker creates it"
    assert every in hint_of(cluster_of_module, create_on_one)
    assert every in hint_of(cluster_of_module, create_strategy, on="worker-0")
    assert every in hint_of(cluster_of_module, create_after_a_barrier_of_one)


def test_a_strategy_without_parameter_servers_is_created_on_one():
    with tfmagic.Cluster(workers=1, ps=1) as cluster:
        assert "has no parameter servers" in hint_of(cluster, create_strategy, on="ps-0")


def test_a_strategy_with_parameter_servers_is_created_without_them(cluster_of_module):
    assert str(Step("reshape", workers=2, ps=1)) in hint_of(cluster_of_module, create_coordinator)


def test_model_and_optimizer_are_created_outside_the_scope(cluster_of_module):
    def compile_outside():
        import keras
        import numpy as np
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        model.fit(np.ones([8, 2]), np.ones([8, 1]), verbose=0)

    def optimizer_outside():
        import keras
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            weight = keras.Variable(1.0)
        optimizer = keras.optimizers.Adam()
        tf.function(lambda: strategy.run(lambda: optimizer.apply([tf.ones([])], [weight])))()

    def a_new_strategy():
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            weight = tf.Variable(1.0)
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        tf.function(lambda: strategy.run(lambda: weight.assign_add(1.0)))()

    def an_old_context():
        import tensorflow as tf

        context = tf.distribute.MultiWorkerMirroredStrategy().run(tf.distribute.get_replica_context)
        context.all_reduce("SUM", tf.ones([]))

    for fall in (compile_outside, optimizer_outside, a_new_strategy, an_old_context):
        assert "inside one `with strategy.scope():`" in hint_of(cluster_of_module, fall), fall


def test_model_and_metrics_of_keras_2_are_created_outside_the_scope():
    def compile_inside(what_is_outside):
        import tensorflow as tf
        import tf_keras

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        metric = tf_keras.metrics.MeanAbsoluteError()
        model = tf_keras.Sequential([tf_keras.Input([2]), tf_keras.layers.Dense(1)])
        with strategy.scope():
            if what_is_outside == "metric":
                model = tf_keras.Sequential([tf_keras.Input([2]), tf_keras.layers.Dense(1)])
            model.compile("sgd", "mse", metrics=[metric])

    with tfmagic.Cluster(workers=2, keras=2) as cluster:
        for what in ("model", "metric"):
            assert "inside one `with strategy.scope():`" in hint_of(cluster, compile_inside, what)


@pytest.mark.parametrize("what", ["run", "reduce", "gather", "scope"])
def test_a_replica_calls_what_is_for_all_of_them(cluster_of_module, what):
    def call_inside(what):
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()

        def replica():
            match what:
                case "run":
                    return strategy.run(lambda: tf.ones([]))
                case "reduce":
                    return strategy.reduce("SUM", tf.ones([]), axis=None)
                case "gather":
                    return strategy.gather(tf.ones([1]), axis=0)
                case "scope":
                    with strategy.scope():
                        return tf.ones([])

        strategy.run(replica)

    assert "belong outside the function" in hint_of(cluster_of_module, call_inside, what)


def test_what_is_for_a_replica_is_called_outside(cluster_of_module):
    def call_outside(what):
        import keras
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            if what == "optimizer":
                keras.optimizers.SGD().apply([tf.ones([])], [keras.Variable(1.0)])
            else:
                getattr(tf.distribute.get_replica_context(), what)("SUM", tf.ones([]))

    for what in ("optimizer", "all_reduce", "all_gather", "merge_call"):
        assert "There is no replica here" in hint_of(cluster_of_module, call_outside, what), what


def test_an_old_optimizer_of_keras_2_steps_outside_of_a_replica():
    def step():
        import tensorflow as tf
        import tf_keras

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            tf_keras.optimizers.legacy.SGD().apply_gradients([(tf.ones([]), tf.Variable(1.0))])

    with tfmagic.Cluster(workers=2, keras=2) as cluster:
        assert "There is no replica here" in hint_of(cluster, step)


def test_an_optimizer_steps_under_a_condition(cluster_of_module):
    def train():
        import keras
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            weight, optimizer = keras.Variable(1.0), keras.optimizers.SGD()
            optimizer.build([weight])

        @tf.function
        def step(is_good):
            def replica(is_good):
                if is_good:
                    optimizer.apply([tf.ones([])], [weight])

            strategy.run(replica, args=(is_good,))

        step(tf.constant(True))

    assert "Replicas cannot meet" in hint_of(cluster_of_module, train)


# ---- collectives --------------------------------------------------------------------------------


def make_step():
    """Create a strategy, and a step of all tasks together that outlives the call."""
    import tensorflow as tf

    import __main__

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def step():
        return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([2])))

    __main__.step = step
    step()


def take_step():
    import __main__

    __main__.step()


def test_a_strategy_is_used_again_after_a_failure_in_the_middle_of_a_step():
    def fail_on_one():
        if tfmagic.current_task().index == 1:
            raise ValueError("a bad batch")
        take_step()

    with tfmagic.Cluster(workers=2, failure_grace_s=0.2) as cluster:
        cluster.run(make_step, view="quiet")
        assert hint_of(cluster, fail_on_one) == ""
        assert "a strategy made before that cannot go on" in hint_of(cluster, take_step)
        cluster.run(make_step, view="quiet")  # as the advice says


@pytest.mark.parametrize("restarted", ["worker-0", pytest.param("worker-1", marks=pytest.mark.soak)])
def test_an_old_strategy_is_used_after_a_peer_was_restarted_alone(restarted):
    (other,) = {"worker-0", "worker-1"} - {restarted}
    with tfmagic.Cluster(workers=2, heartbeat_timeout_s=1) as cluster:
        cluster.run(make_step, view="quiet")
        cluster.restart(restarted)
        assert "a strategy made before that cannot go on" in hint_of(cluster, take_step, on=other)
        cluster.restart()  # as the advice says
        cluster.run(make_step, view="quiet")


def hold_queue():
    import tensorflow as tf

    global queue
    queue = tf.queue.FIFOQueue(3, tf.float32)


def test_a_peer_that_was_restarted_alone_comes_back_with_another_incarnation():
    with tfmagic.Cluster(workers=2) as cluster:
        cluster.run(make_step, view="quiet")
        cluster.run(hold_queue, on="worker-0", view="quiet")  # else all would get new addresses by themselves
        cluster.restart("worker-1")
        assert "died or was restarted alone" in hint_of(cluster, make_step)  # TensorFlow would wait for ever
        assert "died or was restarted alone" in hint_of(cluster, make_step)
        cluster.restart()
        cluster.run(make_step, view="quiet")


def test_tasks_bring_unlike_tensors_and_variables():
    def bring(unlike, what):
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()  # again: the former one has been aborted
        index = tfmagic.current_task().index
        shape = [2 + index] if unlike == "shape" else [2]
        dtype = (tf.float32, tf.float64)[index] if unlike == "dtype" else tf.float32
        if what == "variable":
            with strategy.scope():
                tf.Variable(tf.ones(shape, dtype))

        def replica():
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones(shape, dtype))

        tf.function(lambda: strategy.run(replica))()

    with tfmagic.Cluster(workers=2, failure_grace_s=0.2) as cluster:
        for unlike in ("shape", "dtype"):
            assert "unlike shape or dtype to one collective" in hint_of(cluster, bring, unlike, "tensor")
            assert "made variables of unlike shape" in hint_of(cluster, bring, unlike, "variable")


# ---- parameter servers --------------------------------------------------------------------------


def create_coordinator():
    """Create a coordinator and a variable that outlive the call."""
    import tensorflow as tf

    import __main__

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    __main__.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        __main__.total = tf.Variable(1.0)


def schedule_step():
    import tensorflow as tf

    import __main__

    __main__.coordinator.schedule(tf.function(lambda: __main__.total.assign_add(1.0)))
    __main__.coordinator.join()


@pytest.mark.parametrize("method", ["restart", "kill"])
def test_a_parameter_server_is_lost(method):
    with tfmagic.Cluster(workers=1, ps=1) as cluster:
        cluster.run(create_coordinator, view="quiet")
        getattr(cluster, method)("ps-0")
        assert "the variables on it" in hint_of(cluster, schedule_step)
        cluster.restart()  # as the advice says
        cluster.run(create_coordinator, view="quiet")
        cluster.run(schedule_step, view="quiet")


def test_a_worker_runs_out_of_data_before_the_scheduled_steps_end():
    def schedule_many():
        import tensorflow as tf

        import __main__

        create_coordinator()
        numbers = __main__.coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(2))
        iterator = iter(numbers)
        step = tf.function(lambda it: next(it))
        for _ in range(8):
            __main__.coordinator.schedule(step, args=(iterator,))
        __main__.coordinator.join()

    with tfmagic.Cluster(workers=1, ps=1) as cluster:
        assert "let the dataset repeat()" in hint_of(cluster, schedule_many)


# ---- servers and ports --------------------------------------------------------------------------


def test_a_second_server_is_started_on_a_port_that_is_taken(cluster_of_module):
    def start_server():
        import tensorflow as tf

        tf.distribute.MultiWorkerMirroredStrategy()
        me = tfmagic.current_task()
        tf.distribute.Server(me.cluster_spec, job_name=me.type, task_index=me.index)

    def start_dispatcher(port):
        import tensorflow as tf

        tf.data.experimental.service.DispatchServer(tf.data.experimental.service.DispatcherConfig(port=port))

    assert "Another server has this port" in hint_of(cluster_of_module, start_server)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "Another server has this port" in hint_of(cluster_of_module, start_dispatcher, port)


def test_a_coordinator_is_created_on_every_task():
    with tfmagic.Cluster(workers=1, ps=1) as cluster:
        assert "made on the chief alone" in hint_of(cluster, create_coordinator, on="all")


def test_tasks_listen_on_a_port_that_is_taken(cluster_of_module):
    def listen(port):
        import http.server

        http.server.HTTPServer(("127.0.0.1", port), http.server.SimpleHTTPRequestHandler)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "port 0" in hint_of(cluster_of_module, listen, taken.getsockname()[1])


# ---- data ---------------------------------------------------------------------------------------


def test_a_dataset_cannot_be_divided_by_files(cluster_of_module, tmp_path):
    def distribute(path):
        import tensorflow as tf

        data = tf.data.TextLineDataset([path]) if path else tf.data.Dataset.range(8)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        for _ in strategy.experimental_distribute_dataset(data.batch(4).with_options(options)):
            pass

    assert "AutoShardPolicy.DATA" in hint_of(cluster_of_module, distribute, "")
    (tmp_path / "lines").write_text("1\n2\n3\n4\n")
    assert "AutoShardPolicy.DATA" in hint_of(cluster_of_module, distribute, str(tmp_path / "lines"))


@pytest.mark.parametrize("use", ["function", "operator", "attribute", "model", "conversion"])
def test_what_a_distributed_dataset_yields_is_used_as_a_tensor(cluster_of_module, use):
    def add_up(use):
        import keras
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(1.0).repeat(8).batch(4))
        for x in data:
            match use:
                case "function":
                    tf.reduce_sum(x)
                case "operator":
                    x + 1.0
                case "attribute":
                    x.numpy()
                case "model":
                    keras.layers.Dense(1)(x)
                case "conversion":
                    float(x)

    assert "experimental_local_results" in hint_of(cluster_of_module, add_up, use)


@pytest.mark.parametrize("mode", ["w", "r"])
def test_two_tasks_open_an_hdf5_file_past_the_guard(cluster_of_module, tmp_path, mode):
    """Open files as PyTables and netCDF do: tfmagic.hdf5 guards only h5py.File, with a longer message."""

    def save(path, mode):
        import h5py

        if tfmagic.current_task().is_chief:
            with h5py.File(path, "w") as file:
                file["weights"] = [1.0]
                tfmagic.barrier()
                tfmagic.barrier()
        else:
            tfmagic.barrier()
            try:
                (h5py.h5f.create if mode == "w" else h5py.h5f.open)(path.encode())
            finally:
                tfmagic.barrier()

    assert "HDF5 lets one process write" in hint_of(cluster_of_module, save, str(tmp_path / "m.h5"), mode)


def test_a_file_of_records_is_read_before_its_writer_closed_it(cluster_of_module, tmp_path):
    def write_and_read(path):
        import os

        import tensorflow as tf

        if tfmagic.current_task().is_chief:
            with tf.io.TFRecordWriter(path) as writer:
                for _ in range(30):
                    writer.write(b"x" * 5000)
                tfmagic.barrier()
                tfmagic.barrier()
        else:
            tfmagic.barrier()
            try:
                for _ in tf.data.TFRecordDataset(path):
                    pass
            finally:
                tfmagic.barrier()
                while os.path.getsize(path) < 30 * 5016:  # closed, before the error is looked at
                    pass

    hint = hint_of(cluster_of_module, write_and_read, str(tmp_path / "r"))
    assert hint.startswith(f"{tmp_path / 'r'} ended at byte 145,464 within a record when it was read")
    assert "read before its writer closed it. Close the writer" in hint


def test_a_file_of_records_is_read_while_its_writer_is_open(cluster_of_module, tmp_path):
    def write(path):
        import os

        import tensorflow as tf

        tf.kept_writer = tf.io.TFRecordWriter(path)
        for _ in range(30):
            tf.kept_writer.write(b"x" * 5000)
        return os.getpid()

    def write_and_read(path):  # in one process, whose buffers are written out at the end of a cell
        import tensorflow as tf

        writer = tf.io.TFRecordWriter(path)
        tf.kept_writers = writer, tf.kept_writer
        for _ in range(30):
            writer.write(b"x" * 5000)
        for _ in tf.data.TFRecordDataset(path):
            pass

    def close():
        import tensorflow as tf

        for writer in tf.kept_writers:
            writer.close()

    other = str(tmp_path / "other")
    pid = cluster_of_module.run(write, other, on="worker-0", timeout=100, view="quiet")["worker-0"]
    hint = hint_of(cluster_of_module, write_and_read, str(tmp_path / "r"), on="worker-0")
    cluster_of_module.run(close, on="worker-0", timeout=100, view="quiet")
    assert hint.startswith(f"{tmp_path / 'r'} ended at byte 145,464 within a record when it was read")
    assert f"still being written, by process {pid}: it was read before its writer closed it" in hint


def test_two_tasks_write_the_same_file_of_records(cluster_of_module, tmp_path):
    def write_and_read(path):
        import tensorflow as tf

        index = tfmagic.current_task().index
        writer = tf.io.TFRecordWriter(path)
        tfmagic.barrier()
        for turn in range(2):  # one after the other, the second over what the first wrote
            if turn == index:
                for _ in range(3 - index):
                    writer.write(b"x" * (50 + 20 * index))
                writer.close()
            tfmagic.barrier()
        for _ in tf.data.TFRecordDataset(path):
            pass

    hint = hint_of(cluster_of_module, write_and_read, str(tmp_path / "r"))
    assert hint.startswith(
        f"{tmp_path / 'r'} is damaged at byte 172: the checksum of a record's length is wrong"
    )
    assert "Either two tasks wrote it, or bytes have changed" in hint


def test_a_damaged_file_of_records_is_gone_when_it_is_asked_about(cluster_of_module, tmp_path):
    def read(path):
        import os

        import tensorflow as tf

        import __main__

        for name in (path, f"{path}-of-an-earlier-cell"):
            with open(name, "wb") as file:
                file.write(b"no records at all")
        __main__.earlier = tf.data.TFRecordDataset(name)
        try:
            for _ in tf.data.TFRecordDataset(path):
                pass
        finally:
            os.unlink(path)

    assert "read before its writer closed it, or two" in hint_of(
        cluster_of_module, read, str(tmp_path / "r"), on="worker-0"
    )


def test_a_compressed_file_of_records_is_gone_when_it_is_asked_about(cluster_of_module, tmp_path):
    def read(path):
        import os

        import tensorflow as tf

        with open(path, "wb") as file:
            file.write(b"nothing that was compressed")
        try:
            for _ in tf.data.TFRecordDataset(path, "GZIP"):
                pass
        finally:
            os.unlink(path)

    hint = hint_of(cluster_of_module, read, str(tmp_path / "r"), on="worker-0")
    assert hint.startswith("A compressed TFRecord file was cut short")


def test_a_task_gets_no_row_of_a_batch(cluster_of_module):
    """Whether a convolution takes an empty batch depends on the processor: it does with AVX2 alone."""

    def train(is_distributed):
        import contextlib

        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(1)
        strategy = tf.distribute.MultiWorkerMirroredStrategy() if is_distributed else None
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = keras.Sequential([keras.layers.Conv2D(1, 3), keras.layers.ReLU(), keras.layers.Flatten()])
            model.compile("sgd", "mse")
        model.fit(tf.data.Dataset.from_tensors((tf.ones([1, 4, 4, 1]), tf.ones([1, 4]))), verbose=0)
        return [weights.tolist() for weights in model.get_weights()]

    alone = cluster_of_module.run(train, False, timeout=100, view="quiet")["worker-0"]
    try:
        trained = cluster_of_module.run(train, True, timeout=100, view="quiet")
    except Exception as error:
        assert advice_of(error).startswith("A task got no row of a batch")
    else:
        assert trained["worker-0"] == trained["worker-1"]
        assert np.allclose(trained["worker-0"][0], alone[0]) and np.allclose(trained["worker-0"][1], alone[1])


@pytest.mark.parametrize("part", ["LSTM(1)", "F1Score()"])
def test_an_eager_step_got_no_row(part, cluster_of_module):
    def train(part):
        import tensorflow as tf
        from keras import Sequential, layers, metrics

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = Sequential([layers.LSTM(1) if part == "LSTM(1)" else layers.GlobalMaxPooling1D()])
            model.compile("sgd", "mse", metrics=[metrics.F1Score()], run_eagerly=True)
        model.fit(tf.data.Dataset.from_tensors((tf.ones([1, 4, 1]), tf.ones([1, 1]))), verbose=0)

    assert hint_of(cluster_of_module, train, part).startswith("A task got no row of a batch")


@pytest.mark.parametrize("how", ["checkpoint", "manager", "saved model"])
def test_two_tasks_save_to_one_path(cluster_of_module, how, tmp_path):
    def save(folder):
        import tensorflow as tf

        import tfmagic

        module = tf.Module()
        module.variable = tf.Variable(1.0)
        checkpoint = tf.train.Checkpoint(module=module)
        manager = tf.train.CheckpointManager(checkpoint, folder, 2)
        while True:  # until they meet
            tfmagic.barrier()
            if how == "checkpoint":
                checkpoint.write(f"{folder}/saved")
            elif how == "manager":
                manager.save()
            else:
                tf.saved_model.save(module, folder)

    assert hint_of(cluster_of_module, save, str(tmp_path)).startswith("Several tasks save to one path")


def test_two_tasks_fill_one_cache_of_tf_data(tmp_path):
    def read(path, how):
        import contextlib
        import os

        import tensorflow as tf

        import __main__

        data = tf.data.Dataset.from_tensor_slices((tf.ones([4, 2]), tf.ones([4, 1]))).batch(1).cache(path)
        if how == "begin":
            __main__.iterator = iter(data)
            next(__main__.iterator)
        elif how == "fit":
            model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            model.fit(data, verbose=0)
        elif how == "go on":
            list(__main__.iterator)
        else:
            if how == "after the advice of TensorFlow":
                with contextlib.suppress(FileNotFoundError):  # TensorFlow can have deleted it by itself
                    os.unlink(f"{path}_0.lockfile")
            list(data)

    theirs = "worker-1"
    with tfmagic.Cluster(workers=2, name="cache") as cluster:
        for how in ("read", "fit"):  # a failed iterator deletes the lock, when the collector comes to it
            path = str(tmp_path / how)
            cluster.run(read, path, "begin", on="worker-0")
            assert "Several tasks write one path" in hint_of(cluster, read, path, how, on=theirs), how
        path = str(tmp_path / "cache")
        cluster.run(read, path, "begin", on="worker-0")
        cluster.run(read, path, "after the advice of TensorFlow", on=theirs)
        assert "makes it fail, too" in hint_of(cluster, read, path, "go on", on="worker-0")


# ---- the process --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting", ["visible devices", "logical devices", "threads inside", "threads between"]
)
def test_tensorflow_is_configured_after_the_first_op(cluster_of_module, setting):
    def configure(setting):
        import tensorflow as tf

        tf.ones([])
        match setting:
            case "visible devices":
                tf.config.set_visible_devices([], "CPU")
            case "logical devices":
                (cpu,) = tf.config.list_physical_devices("CPU")
                two = [tf.config.LogicalDeviceConfiguration()] * 2
                tf.config.set_logical_device_configuration(cpu, two)
            case "threads inside":
                tf.config.threading.set_intra_op_parallelism_threads(7)
            case "threads between":
                tf.config.threading.set_inter_op_parallelism_threads(7)

    assert "setting of tf.config" in hint_of(cluster_of_module, configure, setting)


def test_tensorflow_has_not_enough_memory(cluster_of_module):
    def make_zeros():
        import tensorflow as tf

        tf.zeros([1 << 20, 1 << 30])

    # waits ten seconds for other tasks' memory; without oneDNN it would not, in a launcher of its own
    assert "share its memory" in hint_of(cluster_of_module, make_zeros, on="worker-0")


def test_numpy_has_not_enough_memory(cluster_of_module):
    def make_ones():
        import numpy as np

        np.ones([1 << 20, 1 << 30])

    assert "share its memory" in hint_of(cluster_of_module, make_ones)


def test_a_summary_is_written_without_tensorboard(cluster_of_module, tmp_path):
    def summarize(folder):
        import sys

        import tensorflow as tf

        sys.modules["tensorboard"] = None  # as where it is not installed
        with tf.summary.create_file_writer(folder).as_default():
            tf.summary.scalar("loss", 1.0, step=1)

    assert "pip install tensorboard" in hint_of(cluster_of_module, summarize, str(tmp_path))


# ---- what is no trap ----------------------------------------------------------------------------


def test_a_trap_behind_an_exception_of_the_user_is_found(cluster_of_module):
    def make_ones(cause):
        import numpy as np

        try:
            np.ones([1 << 20, 1 << 30])
        except MemoryError as error:
            raise RuntimeError("no data") from (error if cause else None)

    assert "share its memory" in hint_of(cluster_of_module, make_ones, True)
    assert hint_of(cluster_of_module, make_ones, False) == ""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("the learning rate is negative"),
        ValueError("There must be at least one layer."),
        ValueError("a value (PerReplica) is missing, and the ps"),
        KeyError("ps"),
        MemoryError("the replay memory is full: OOM"),
        RuntimeError("restart the collective; a merge_call is not possible in cross-replica context"),
        AttributeError("'NoneType' object has no attribute 'shape'"),
        OSError("Unable to open file"),
        BlockingIOError(11, "Resource temporarily unavailable"),
        ConnectionError("failed to connect to all addresses"),
        ModuleNotFoundError("No module named 'tensorboard'"),
        StopIteration("End of sequence"),
    ],
    ids=repr,
)
def test_an_error_of_the_user_has_no_hint(cluster_of_module, error):
    def fail(error):
        raise error

    assert hint_of(cluster_of_module, fail, error) == ""


def test_an_ordinary_error_of_a_library_has_no_hint(cluster_of_module, tmp_path):
    def shapes():
        import tensorflow as tf

        tf.function(lambda: tf.reduce_sum(tf.ones([]), axis=0))()

    def end_of_data():
        import tensorflow as tf

        iterator = iter(tf.data.Dataset.range(1))
        step = tf.function(lambda: next(iterator))
        step()
        step()

    def no_file():
        import h5py

        h5py.File("/no/such/file", "r")

    def no_records():
        import tensorflow as tf

        for _ in tf.data.TFRecordDataset("/no/such/file"):
            pass

    def barrier_of_one():
        if tfmagic.current_task().is_chief:
            tfmagic.barrier()

    for fail in (shapes, end_of_data, no_file, no_records, barrier_of_one):
        assert hint_of(cluster_of_module, fail) == "", fail


def test_one_task_leaves_its_loop_alone_and_the_others_are_released(cluster_of_module):
    """Its peer would wait for ever in a collective."""

    def train():
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()

        def reduce():
            return tf.distribute.get_replica_context().all_reduce("sum", tf.ones(3))

        step = tf.function(lambda: strategy.run(reduce))
        for number in range(3):
            if number == 2 and tfmagic.current_task().index == 1:
                break
            step()

    def count():
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        return int(strategy.reduce("sum", tf.constant(1), axis=None))

    assert "a value that was reduced" in hint_of(cluster_of_module, train)
    assert set(cluster_of_module.run(count, view="quiet").values()) == {2}


@pytest.mark.judges_its_file
def test_every_hint_was_given_by_a_trap_above():
    tests = {name for name, test in globals().items() if name.startswith("test_")}
    tests -= {
        name for name in tests if any(m.name == "soak" for m in getattr(globals()[name], "pytestmark", ()))
    }
    if tests - RAN:
        pytest.skip("not every trap of this file was tried")
    given = {Hint(name, spelled(advice)).note.removeprefix("hint: ") for name, _, advice in HINTS}
    assert given <= GIVEN  # and more, where a task names the file
