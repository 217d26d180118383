"""``--profile`` and ``profile=True`` on real tasks: where the time went, and what happens when it cannot be known."""

import os
import re
from pathlib import Path

import pytest

import tfmagic
from tfmagic.errors import TaskDied
from tfmagic.frontends.notebook.options import UsageError

STEPS = """
import time
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = tf.Variable(tf.ones([64, 64]))

@tf.function
def step():
    def replica():
        gradient = tf.matmul(w, w) / 4096.0
        w.assign_sub(1e-6 * tf.distribute.get_replica_context().all_reduce('SUM', gradient))
    strategy.run(replica)

for _ in range(20):
    if tfmagic.current_task().index == 1:
        time.sleep(0.05)
    step()
"""
"""worker-1 sleeps for a second in all, and worker-0 waits for it."""

SLOW_INPUT = """
import time
import tensorflow as tf

def load(i):
    time.sleep(0.02)
    return tf.random.normal([32, 32])

def slow(i):
    return tf.ensure_shape(tf.py_function(load, [i], tf.float32), [32, 32])

@tf.function
def step(x):
    return tf.reduce_sum(tf.matmul(x, x))

data = tf.data.Dataset.range(40).map(slow)
step(tf.ones([32, 32]))
"""

COORDINATOR = """
import tensorflow as tf
strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    w = tf.Variable(tf.ones([400, 400]), aggregation=tf.VariableAggregation.MEAN)

@tf.function
def step():
    x = tf.convert_to_tensor(w)
    for _ in range(5):
        x = tf.tanh(tf.matmul(x, x) / 400.0)
    w.assign_add(1e-3 * x)

for _ in range(40):
    coordinator.schedule(step)
coordinator.join()
"""


def sleep_and_multiply(seconds):
    import time

    import tensorflow as tf

    x = tf.ones([500, 500])
    for _ in range(20):
        x = tf.tanh(tf.matmul(x, x))
    time.sleep(seconds)
    return float(x[0, 0])


def all_reduce(steps):
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = [tf.Variable(tf.ones([64, 64])) for _ in range(6)]

    @tf.function
    def step():
        def replica():
            for w in weights:
                gradient = tf.matmul(w, w) / 4096.0
                w.assign_sub(1e-6 * tf.distribute.get_replica_context().all_reduce("SUM", gradient))

        strategy.run(replica)

    for _ in range(steps):
        step()


def check_sums(profile):
    for share in profile.tasks.values():
        assert sum(share.shares.values()) == pytest.approx(1, abs=0.01)
        assert min(share.seconds.values()) >= 0


def test_the_task_that_the_others_wait_for_is_the_straggler(notebook):
    notebook.ns["tfmagic"] = tfmagic
    printed = notebook.run("%%tfcluster --workers 2 --profile --out r\nimport tfmagic" + STEPS)
    profile = notebook.ns["r"].profile
    check_sums(profile)
    first, second = (profile.tasks[name].seconds for name in ("worker-0", "worker-1"))
    assert first["waiting"] > 0.7 and first["waiting"] > 3 * second["waiting"]
    assert second["idle"] > 1.0
    assert profile.straggler.task == "worker-1"
    assert profile.straggler.last > 20 / 2 and profile.straggler.cost_s > 0.7
    assert first["compute"] > 0 and first["transferring"] > 0
    assert "worker-1 is the straggler" in printed and "slowest op" in printed
    # the traces are where TensorBoard's plugin looks for them
    traces = [Path(share.trace) for share in profile.tasks.values()]
    assert [trace.name for trace in traces] == ["worker-0.xplane.pb", "worker-1.xplane.pb"]
    assert all(trace.is_file() and trace.parts[-4:-2] == ("plugins", "profile") for trace in traces)
    assert str(traces[0].parents[3]) in printed


def test_a_slow_input_pipeline_is_seen_as_input(notebook):
    notebook.run("%%tfcluster --workers 1 --view quiet" + SLOW_INPUT)
    notebook.run("%%tfcluster --profile --out r --view quiet\nsum(float(step(x)) for x in data)")
    profile = notebook.ns["r"].profile
    check_sums(profile)
    share = profile.tasks["worker-0"]
    assert share.seconds["input"] > 0.5, profile
    assert share.shares["input"] == max(share.shares.values()), profile
    assert share.ops[0].type == "EagerPyFunc (input)"
    assert profile.straggler is None


def test_functions_have_a_profile_too_and_others_have_none():
    with tfmagic.Cluster(workers=1) as cluster:
        results = cluster.run(sleep_and_multiply, 0.5, profile=True, view="quiet")
        assert cluster.run(sleep_and_multiply, 0, view="quiet").profile is None
    (share,) = results.profile.tasks.values()
    assert share.seconds["idle"] >= 0.5 and share.seconds["compute"] > 0.01
    assert {op.type: op.calls for op in share.ops}["MatMul"] == 20
    assert not share.is_cut and share.events > 40


def test_parameter_servers_and_their_workers_are_traced_too(notebook):
    notebook.run("%%tfcluster --workers 2 --ps 1 --chief --profile --out r --view text\n" + COORDINATOR)
    profile = notebook.ns["r"].profile
    assert list(profile.tasks) == ["chief-0", "worker-0", "worker-1", "ps-0"]
    check_sums(profile)
    computed = {name: share.seconds["compute"] for name, share in profile.tasks.items()}
    assert computed["worker-0"] + computed["worker-1"] > 0.02
    calls = {
        name: sum(op.calls for op in share.ops if op.type == "MatMul")
        for name, share in profile.tasks.items()
    }
    assert calls["worker-0"] + calls["worker-1"] == 200


def test_no_trace_of_collectives_ends_its_task():
    """TensorFlow by itself ends the process at the end of every second such trace."""
    with tfmagic.Cluster(workers=2) as cluster:
        for _ in range(5):
            profile = cluster.run(all_reduce, 40, profile=True, view="quiet").profile
            assert len(profile.tasks) == 2 and not profile.problems
            assert all(share.seconds["transferring"] > 0 for share in profile.tasks.values())


@pytest.mark.parametrize("cell", ["x = 1 / 0", "raise KeyboardInterrupt"])
def test_a_cell_that_fails_ends_its_trace_and_shows_it(notebook, capsys, cell):
    with pytest.raises((ZeroDivisionError, KeyboardInterrupt)):
        notebook.shell.run_cell_magic(
            "tfcluster",
            "--workers 1 --profile --view text",
            f"import tensorflow as tf\ntf.ones([3]) + 1\n{cell}",
        )
    assert "slowest op" in capsys.readouterr().out
    notebook.run("%%tfcluster --profile --out r\ntf.ones([3]) * 2")
    assert notebook.ns["r"].profile.tasks and not notebook.ns["r"].profile.problems


def test_a_cell_with_a_profiler_of_its_own_keeps_it(notebook, tmp_path):
    printed = notebook.run(
        "%%tfcluster --workers 2 --profile --out r --view text\n"
        "import tensorflow as tf\n"
        f"with tf.profiler.experimental.Profile({str(tmp_path)!r}):\n"
        "    tf.ones([3]) + 1\n"
    )
    assert "worker-0 has no profile: the cell uses TensorFlow's profiler itself" in printed
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["worker-0.xplane.pb", "worker-1.xplane.pb"]
    notebook.run(f"%%tfcluster\ntf.profiler.experimental.start({str(tmp_path)!r})")
    printed = notebook.run("%%tfcluster --profile --view text\ntf.ones([3]) + 1")
    assert "runs there already, since an earlier cell" in printed
    notebook.run("%%tfcluster\ntf.profiler.experimental.stop()")
    notebook.run("%%tfcluster --profile --out r\ntf.ones([3]) + 1")
    assert notebook.ns["r"].profile.tasks


def test_a_long_cell_is_traced_up_to_the_limit(notebook):
    printed = notebook.run(
        "%%tfcluster --workers 1 --profile 0.5 --out r --view text\n"
        "import time\nimport tensorflow as tf\n"
        "end = time.time() + 3\n"
        "while time.time() < end:\n    tf.ones([100, 100]) @ tf.ones([100, 100])\n"
    )
    (share,) = notebook.ns["r"].profile.tasks.values()
    assert share.is_cut and 0.4 < share.total_s < 2
    assert "the trace was cut after" in printed
    assert notebook.ns["r"].seconds["worker-0"] > 2.9


def test_a_trace_that_cannot_be_written_costs_no_result(notebook):
    notebook.run("%tfcluster start --workers 1")
    folder = notebook.magics.clusters["default"].run_folder.folder
    (folder / "profile").write_text("in the way")
    printed = notebook.run("%%tfcluster --profile --out r --view text\n6 * 7")
    assert notebook.ns["r"]["worker-0"] == 42
    assert "worker-0 has no profile" in printed


def test_a_task_that_dies_has_no_profile_and_the_others_have_theirs(notebook, capsys):
    with pytest.raises(TaskDied):
        notebook.shell.run_cell_magic(
            "tfcluster",
            "--workers 2 --profile --view text --keep-going",
            "import os, signal\nimport tensorflow as tf\nimport tfmagic\ntf.ones([3]) + 1\n"
            "if tfmagic.current_task().index: os.kill(os.getpid(), signal.SIGKILL)\n",
        )
    shown = capsys.readouterr().out
    assert "worker-1 has no profile: its process ended" in shown and re.search("^worker-0 .* %", shown, re.M)


def test_lines_that_make_no_sense_start_nothing(notebook):
    with pytest.raises(UsageError, match="give --out NAME"):
        notebook.run("%%tfcluster --profile --detach\n1")
    with pytest.raises(UsageError, match="seconds"):
        notebook.run("%%tfcluster --profile soon\n1")
    assert not notebook.magics.clusters
    with tfmagic.Cluster(workers=1) as cluster, pytest.raises(ValueError, match="above 0"):
        cluster.run(os.getpid, profile=-1.0)
