"""After a death: messages, restarts, and the state that the others keep. Real tasks, real SIGKILLs."""

import os
import signal
import threading
import time

import psutil
import pytest
from conftest import wait_until

import tfmagic
from tfmagic.errors import TaskDied, TfmagicError


def all_reduce(amount):
    """Run one all-reduce of a new strategy; return it with what this process kept of the earlier ones."""
    import tensorflow as tf

    global seen
    seen = [*globals().get("seen", []), amount]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        variable = tf.Variable(float(amount))
    step = tf.function(lambda: strategy.reduce("sum", strategy.run(lambda: variable + 0.0), axis=None))
    return float(step()), list(seen)


def values(results, place):
    return {name: value[place] for name, value in results.items()}


@pytest.fixture
def workers():
    with tfmagic.Cluster(workers=3, failure_grace_s=1) as cluster:
        yield cluster


def test_revive_keeps_the_survivors_variables_and_collectives_work_anew(workers):
    assert values(workers.run(all_reduce, 1, view="quiet"), 0) == dict.fromkeys(workers_of(workers), 3.0)
    for round_number, victim in enumerate(("worker-1", "worker-0"), 2):  # the leader too
        pids = {row["task"]: row["pid"] for row in workers.status()}
        before = workers.spec.addresses
        workers.kill(victim)
        assert workers.revive() == (victim,)
        assert not set(before.values()) & set(workers.spec.addresses.values())
        results = workers.run(all_reduce, round_number, view="quiet")
        assert values(results, 0) == dict.fromkeys(workers_of(workers), 3.0 * round_number)
        assert results[victim][1] == [round_number]
        assert results["worker-2"][1] == list(range(1, round_number + 1))
        now = {row["task"]: row["pid"] for row in workers.status()}
        assert {task for task in now if now[task] != pids[task]} == {victim}


def fit():
    """Train a model of a new strategy."""
    import keras
    import numpy as np
    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.ones([12, 1]), np.ones([12]))).batch(6)
    return model.fit(data, verbose=0).history["loss"]


def test_keras_trains_in_a_new_strategy_after_a_revive(workers):
    """Its random numbers too, for which each process has a variable."""
    workers.run(fit, view="quiet")
    for victim in ("worker-1", "worker-0"):
        workers.kill(victim)
        workers.revive()
        losses = workers.run(fit, view="quiet")
        assert len(set(map(str, losses.values()))) == 1


def test_a_task_that_was_just_told_to_go_on_is_not_taken_for_a_stopped_one(workers):
    workers.run(all_reduce, 1.0, view="quiet")
    workers.faults.pause("worker-0")
    wait_until(lambda: workers.status()[0]["doing"] == "paused")  # by the last look at the processes
    workers.faults.kill("worker-1")
    workers.faults.resume("worker-0")
    assert workers.revive() == ("worker-1",)
    found = values(workers.run(all_reduce, 1.0, view="quiet"), 0)
    assert found == dict.fromkeys(workers_of(workers), 3.0)


def workers_of(cluster):
    return [task.name for task in cluster.tasks]


def test_revive_of_a_cluster_without_a_strategy_keeps_the_addresses(workers):
    before = workers.spec.addresses
    workers.kill("worker-1")
    assert workers.revive() == ("worker-1",)
    assert workers.spec.addresses == before
    assert workers.revive() == ()


def test_a_restarted_task_meets_the_others_in_a_new_strategy(workers):
    workers.run(all_reduce, 1, view="quiet")
    workers.restart("worker-1")
    results = workers.run(all_reduce, 2, view="quiet")
    assert values(results, 0) == dict.fromkeys(workers_of(workers), 6.0)
    assert results["worker-1"][1] == [2] and results["worker-0"][1] == [1, 2]


def test_a_cell_with_a_strategy_from_before_a_revival_explains_its_failure(workers, capfd):
    def make():
        import tensorflow as tf

        global step
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        step = tf.function(lambda: strategy.reduce("sum", strategy.run(lambda: tf.ones([])), axis=None))
        step()

    workers.run(make, view="quiet")
    workers.kill("worker-1")
    workers.revive()
    workers.run(lambda: None)
    assert capfd.readouterr().out == ""
    with pytest.raises(Exception, match=".") as caught:
        workers.run(lambda: step(), on="worker-0,worker-2", view="quiet")
    assert any("(the tasks have new addresses)" in note for note in caught.value.__notes__), caught.value


def test_many_revivals_in_one_process_are_warned_of(workers, capfd, monkeypatch):
    monkeypatch.setattr("tfmagic.clusters.cells.rejoining._MANY_RESETS", 2)
    for number in (1, 2):
        workers.run(all_reduce, number, view="quiet")
        workers.kill("worker-1")
        workers.revive()
        told = capfd.readouterr().err
        assert ("got new peers 2 times" in told) == (number == 2)


def test_what_would_not_survive_a_revival_is_named(workers, capfd):
    def hold():
        import tensorflow as tf

        global queue
        all_reduce(1)
        queue = tf.queue.FIFOQueue(3, tf.float32)

    def remember():
        return "queue" in globals()

    workers.run(hold, view="quiet")
    workers.kill("worker-1")
    with pytest.raises(RuntimeError, match="its FIFOQueue would be lost"):
        workers.revive()
    assert workers.run(remember, on="worker-0", view="quiet")["worker-0"] is True  # cells go on without
    assert "FIFOQueue" in capfd.readouterr().err


def test_revive_does_not_wait_for_a_cell_that_runs(workers):
    workers.run(all_reduce, 1, view="quiet")
    workers.kill("worker-1")
    future = workers.submit(time.sleep, 60, on="worker-0")
    wait_until(lambda: workers.status()[0]["state"] == "running")
    with pytest.raises(TfmagicError, match="a cell runs on worker-0.*interrupt"):
        workers.revive()
    assert workers.run(lambda: 5, on="worker-1", view="quiet")["worker-1"] == 5
    workers.interrupt()
    with pytest.raises(KeyboardInterrupt):
        future.result(30)


def test_a_death_between_cells_is_known_at_once_and_the_next_cell_reports_it(workers):
    pid = workers.status()[1]["pid"]
    workers.run(print, "an earlier cell", view="quiet")
    workers.run(print, "the last cell", view="quiet")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: workers.status()[1]["state"] == "dead")
    with pytest.raises(TaskDied, match=r"worker-1 was ended by SIGKILL.*(?s:.*)tfcluster.revive") as caught:
        workers.run(lambda: None, view="quiet")
    assert "Its last line of output:\n    the last cell\n" in str(caught.value)
    with pytest.raises(TaskDied, match=r"worker-1 still has no process.*as reported before") as caught:
        workers.run(lambda: None, view="quiet")
    assert "output" not in str(caught.value) and "revive" in str(caught.value)
    workers.revive()
    assert len(workers.run(lambda: 1, view="quiet")) == 3


def test_a_policy_brings_a_dead_task_back_and_collectives_go_on():
    with tfmagic.Cluster(workers=2, auto_restart=2, restart_delay_s=0.05, failure_grace_s=1) as cluster:
        cluster.run(all_reduce, 1, view="quiet")
        for number in (2, 3):
            os.kill(cluster.status()[1]["pid"], signal.SIGKILL)
            wait_until(lambda: cluster.status()[1]["restarts"] == number - 1)  # noqa: B023
            wait_until(lambda: cluster.status()[1]["state"] == "ready")
            results = cluster.run(all_reduce, number, view="quiet")
            assert values(results, 0) == {"worker-0": 2.0 * number, "worker-1": 2.0 * number}
            assert results["worker-0"][1] == list(range(1, number + 1))
        os.kill(cluster.status()[1]["pid"], signal.SIGKILL)
        wait_until(lambda: cluster.status()[1]["state"] == "dead")
        with pytest.raises(TaskDied):
            cluster.run(lambda: None, view="quiet")


def test_a_cell_finds_its_names_on_a_task_that_comes_back_meanwhile():
    def die():
        if tfmagic.current_task().index == 1:
            os._exit(3)

    with tfmagic.Cluster(workers=2, auto_restart=2, restart_delay_s=0.5, failure_grace_s=1) as cluster:
        for number in (1, 2):
            cluster.run(all_reduce, number, view="quiet")
            with pytest.raises(TaskDied, match="exited with code 3"):
                cluster.run(die, view="quiet")
            assert cluster.status()[1]["state"] != "ready"
        results = cluster.run(all_reduce, 3, view="quiet")  # sent before the new process exists
        assert values(results, 0) == {"worker-0": 6.0, "worker-1": 6.0}
        assert results["worker-0"][1] == [1, 2, 3] and results["worker-1"][1] == [3]


def test_a_chief_that_ends_ends_the_cluster_by_policy():
    with tfmagic.Cluster(workers=2, chief=True, dependence_on_chief=True, failure_grace_s=30) as cluster:

        def leave():
            import os
            import time

            import tfmagic

            if tfmagic.current_task().type == "chief":
                os._exit(0)
            time.sleep(60)

        began = time.monotonic()
        with pytest.raises(TaskDied, match="chief-0 exited with code 0"):
            cluster.run(leave, view="quiet")
        assert time.monotonic() - began < 20
        assert {row["state"] for row in cluster.status()} == {"dead"}
        cluster.restart()
        assert len(cluster.run(lambda: 1, view="quiet")) == 3


def coordinate(steps):
    """Count on a parameter server; each step takes a moment, so that a task can die meanwhile."""
    import tensorflow as tf

    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function
    def step():
        x = tf.random.normal([200, 200])
        for _ in range(5):
            x = x @ x / 100.0
        return total.assign_add(1.0 + 0.0 * tf.reduce_sum(tf.clip_by_value(x, -1.0, 1.0)))

    for number in range(steps):
        coordinator.schedule(step)
        if number == steps // 10:
            print("under way", flush=True)
    coordinator.join()
    return float(total.numpy())


# a policy alone: test_a_policy_brings_a_dead_task_back_and_collectives_go_on
@pytest.mark.parametrize("how", ["restart", pytest.param("policy", marks=pytest.mark.soak)])
def test_a_parameter_server_cluster_goes_on_without_a_lost_step(how):
    steps = 600
    restarts = 3 if how == "policy" else 0
    with tfmagic.Cluster(workers=2, ps=1, auto_restart=restarts, restart_delay_s=0.05) as cluster:
        before = cluster.spec.addresses
        future = cluster.submit(coordinate, steps)
        log = cluster.run_folder.log_path(cluster.tasks[0])
        wait_until(lambda: b"under way" in log.read_bytes(), 60)
        os.kill(cluster.status()[2]["pid"], signal.SIGKILL)
        if how == "restart":
            wait_until(lambda: cluster.status()[2]["state"] == "dead")
            cluster.restart("worker-1")
        # TensorFlow runs again the steps that the killed worker had not confirmed: they might have been added already
        assert future.result(60)["chief-0"] - steps in (0, 1)
        wait_until(lambda: cluster.status()[2]["state"] == "ready")
        assert cluster.status()[2]["restarts"] == 1
        assert cluster.spec.addresses == before


def test_a_task_can_be_restarted_while_a_cell_of_others_runs(workers):
    done = threading.Event()

    def wait():
        import time

        time.sleep(1)
        return 7

    future = workers.submit(wait, on="worker-0,worker-2")
    future.add_done_callback(lambda _: done.set())
    workers.restart("worker-1")
    assert future.result(30)["worker-0"] == 7


def test_a_killed_launcher_loses_its_tasks_and_a_restart_brings_all_back():
    with tfmagic.Cluster(workers=2, name="launcher") as cluster:
        launcher = psutil.Process(cluster.status()[0]["pid"]).ppid()
        os.kill(launcher, signal.SIGKILL)
        wait_until(lambda: not any(row["pid"] for row in cluster.status()))
        with pytest.raises(TaskDied, match="its launcher process was killed"):
            cluster.run(int)
        cluster.restart()
        assert len(cluster.run(int, view="quiet")) == 2
