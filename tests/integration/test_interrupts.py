"""Ctrl-C while real tasks run Python, a tf.function, a collective, or native code."""

import asyncio
import contextlib
import os
import signal
import threading
from pathlib import Path

import psutil
import pytest
from conftest import wait_until

import tfmagic
from tfmagic.protocol.events import LaunchRequested


@pytest.fixture(scope="module")
def started():
    with tfmagic.Cluster(workers=2, name="interrupts") as cluster:
        yield cluster


@pytest.fixture
def cluster_of_module(started):
    """The cluster, with the tasks that an earlier test has lost: that one has failed, and it alone."""
    lost = [row["task"] for row in started.status() if row["state"] == "dead"]
    if lost:
        started.restart(*lost)
    return started


@pytest.fixture
def folder(tmp_path):
    return tmp_path


class Presses:
    """Sends the real signal to this process once every task has made its file, and `ready()` is true."""

    def __init__(self, folder, tasks=2, presses=1, act=None, ready=lambda: True):
        self.folder, self.tasks, self.presses, self.ready = folder, tasks, presses, ready
        self.act = act or (lambda: os.kill(os.getpid(), signal.SIGINT))
        self.thread = threading.Thread(target=self._press)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.thread.join()

    def _press(self):
        wait_until(lambda: len(list(self.folder.iterdir())) >= self.tasks and self.ready())
        for _ in range(self.presses):
            self.act()


def in_python(folder):
    import pathlib
    import time

    import tfmagic

    pathlib.Path(folder, tfmagic.current_task().name).touch()
    while True:
        time.sleep(0.01)


def in_a_queue(folder):
    import pathlib

    import tensorflow as tf

    import tfmagic

    queue = tf.queue.FIFOQueue(1, tf.float32)

    @tf.function
    def take():
        return queue.dequeue()

    pathlib.Path(folder, tfmagic.current_task().name).touch()
    take()


def in_an_endless_dataset(folder):
    import pathlib

    import tensorflow as tf

    import tfmagic

    numbers = iter(tf.data.Dataset.range(1 << 60).filter(lambda x: x < 0))

    @tf.function
    def take():
        return next(numbers)

    pathlib.Path(folder, tfmagic.current_task().name).touch()
    take()


def in_a_while_loop(folder):
    import pathlib

    import tensorflow as tf

    import tfmagic

    @tf.function
    def spin():
        i = tf.constant(0)
        while i >= 0:
            i = (i + 1) % 1000
        return i

    pathlib.Path(folder, tfmagic.current_task().name).touch()
    spin()


def in_a_barrier(folder):
    import pathlib
    import time

    import tfmagic

    pathlib.Path(folder, tfmagic.current_task().name).touch()
    if tfmagic.current_task().index == 0:
        tfmagic.barrier()
    while True:
        time.sleep(0.01)


def in_a_strategy_whose_peer_never_comes(folder):
    import pathlib
    import time

    import tensorflow as tf

    import tfmagic

    pathlib.Path(folder, tfmagic.current_task().name).touch()
    if tfmagic.current_task().index == 0:
        tf.distribute.MultiWorkerMirroredStrategy()
    while True:
        time.sleep(0.01)


def in_a_child_process(folder):
    import os
    import pathlib

    import tfmagic

    pathlib.Path(folder, tfmagic.current_task().name).touch()
    os.system("exec sleep 1000")
    while True:
        pass


WAITS = [
    in_python,
    in_a_queue,
    in_an_endless_dataset,
    in_a_while_loop,
    in_a_barrier,
    in_a_strategy_whose_peer_never_comes,
    in_a_child_process,
]


def remember(value):
    import __main__

    __main__.kept = value


def recall():
    import __main__

    return __main__.kept


@pytest.mark.parametrize("wait", WAITS, ids=lambda f: f.__name__)
def test_an_interrupt_reaches_the_tasks_and_they_keep_their_variables(cluster_of_module, folder, wait):
    cluster_of_module.run(remember, wait.__name__, view="quiet")
    with Presses(folder), pytest.raises(KeyboardInterrupt) as caught:
        cluster_of_module.run(wait, str(folder), view="quiet")
    assert "could not be reached" not in "".join(getattr(caught.value, "__notes__", ()))
    assert set(cluster_of_module.run(recall, view="quiet").values()) == {wait.__name__}


def in_a_queue_and_goes_on(folder):
    import pathlib

    import tensorflow as tf

    import tfmagic

    queue = tf.queue.FIFOQueue(1, tf.float32)
    take = tf.function(lambda: queue.dequeue())
    pathlib.Path(folder, tfmagic.current_task().name).touch()
    while True:
        try:
            take()
        except Exception as error:
            print(type(error).__name__)


def in_a_py_function_and_goes_on(folder):
    import pathlib
    import time

    import tensorflow as tf

    import tfmagic

    def wait():
        while True:
            time.sleep(0.01)

    pathlib.Path(folder, tfmagic.current_task().name).touch()
    try:
        tf.py_function(wait, [], tf.float32)
    except Exception as error:
        print(type(error).__name__)
    wait()


@pytest.mark.parametrize(
    ("wait", "call", "made"),
    [
        (in_a_queue_and_goes_on, "in execute_with_cancellation", "CancelledError"),
        (in_a_py_function_and_goes_on, "in wait", "UnknownError"),
    ],
)
def test_an_error_that_tensorflow_makes_of_an_interrupt_does_not_end_it(
    cluster_of_module, folder, capfd, wait, call, made
):
    """A program with an `except Exception` takes that for a failure, and goes on."""
    cluster_of_module.run(remember, 8, view="quiet")

    def is_there():
        return all(call in stack for stack in cluster_of_module.stacks().values())

    with Presses(folder, ready=is_there), pytest.raises(KeyboardInterrupt) as caught:
        cluster_of_module.run(wait, str(folder), timeout=20)
    assert made in capfd.readouterr().out
    assert "could not be reached" not in "".join(getattr(caught.value, "__notes__", ()))
    assert set(cluster_of_module.run(recall, view="quiet").values()) == {8}


def test_interrupts_at_any_moment_do_not_end_the_task(cluster_of_module):
    """TensorFlow's C++ aborts a process that gets one while it reads the context, as plain Python does."""

    def press_often():
        import os
        import random
        import signal
        import threading
        import time

        import tensorflow as tf

        import __main__

        def press():
            end = time.monotonic() + 3
            while time.monotonic() < end:
                time.sleep(0.002 * random.random())
                os.kill(os.getpid(), signal.SIGINT)

        if not hasattr(__main__, "presses"):
            __main__.caught, __main__.presses = [], threading.Thread(target=press)
            __main__.presses.start()
        while __main__.presses.is_alive():
            try:
                while __main__.presses.is_alive():
                    tf.py_function(lambda: 1.0, [], tf.float32)
            except (Exception, KeyboardInterrupt) as error:  # the former is what TensorFlow makes of it
                __main__.caught.append(type(error))
        return len(__main__.caught)

    def caught():
        """Run it again if a press came between two `try`, as in one of some twenty runs: that ends the cell."""
        with contextlib.suppress(KeyboardInterrupt):
            return cluster_of_module.run(press_often, on="worker-0", view="quiet", timeout=60)["worker-0"]

    before = cluster_of_module.attempts()
    assert wait_until(caught) > 0
    assert cluster_of_module.attempts() == before


@pytest.mark.parametrize(
    "eager", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["in a tf.function", "eager"]
)
def test_an_interrupted_collective_keeps_the_state_and_taints_the_strategy(cluster_of_module, folder, eager):
    def make():
        import tensorflow as tf

        import __main__

        strategy = tf.distribute.MultiWorkerMirroredStrategy()

        def replica():
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([3]))

        def step():
            return strategy.reduce("SUM", strategy.run(replica), axis=None)

        __main__.step = step if eager else tf.function(step)
        return float(__main__.step()[0])

    def mismatch(folder):
        import pathlib
        import time

        import __main__
        import tfmagic

        pathlib.Path(folder, tfmagic.current_task().name).touch()
        while tfmagic.current_task().index == 1:
            time.sleep(0.01)
        __main__.step()

    cluster_of_module.run(remember, 5, view="quiet")
    assert set(cluster_of_module.run(make, view="quiet").values()) == {4.0}

    def is_in_the_collective():
        return cluster_of_module.status()[0]["doing"] == "waiting"

    with Presses(folder, ready=is_in_the_collective), pytest.raises(KeyboardInterrupt):
        cluster_of_module.run(mismatch, str(folder), view="quiet")
    told = cluster_of_module.run(recall, view="quiet")
    assert set(told.values()) == {5} and "tfmagic" not in str(told.output)
    with pytest.raises(Exception, match=".") as failed:  # on both: none waits for the other one
        cluster_of_module.run(lambda: __import__("__main__").step(), view="quiet")
    assert any("had been stopped on this task" in note for note in failed.value.__notes__), failed.value
    assert len(failed.value.failures) == 2
    assert set(cluster_of_module.run(make, view="quiet").values()) == {4.0}


def wait_in_native_code(folder):
    import pathlib

    import tensorflow as tf

    import tfmagic

    if tfmagic.current_task().index == 0:
        pathlib.Path(folder, "worker-0").touch()
        tf.queue.FIFOQueue(1, tf.float32).dequeue()


@pytest.mark.parametrize("patient", [True, False], ids=["patient", "at once"])
def test_a_task_that_nothing_reaches_is_killed_only_by_a_second_press(
    cluster_of_module, folder, capfd, patient
):
    cluster_of_module.run(remember, 6, view="quiet")
    supervisor, before, news = cluster_of_module._latest.supervisor, cluster_of_module.attempts(), []

    def press():
        wait_until(lambda: "dequeue" in cluster_of_module.stacks("worker-0").get("worker-0", ""))
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: all(c.presses for c in supervisor.state.cells.values()))
        try:
            if patient:
                wait_until(lambda: "kills it" in capfd.readouterr().err)
                news.append(
                    wait_until(lambda: "worker-0 in tf.queue" in (n := cluster_of_module.news()) and n)
                )
                assert cluster_of_module.attempts() == before
                news.append("no task was killed")
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    with Presses(folder, 1, 1, press), pytest.raises(KeyboardInterrupt) as caught:
        cluster_of_module.run(wait_in_native_code, str(folder), view="quiet")
    if patient:
        assert news[0].startswith("worker-0 did not stop yet (worker-0 in tf.queue.FIFOQueue"), news
        assert len(news) == 2, news
    (note,) = caught.value.__notes__
    assert note.startswith("worker-0 could not be reached (in native code, ") and "dequeue" in note
    assert note.count("in wait_in_native_code") == 1 and "worker-1" not in note
    assert cluster_of_module.run(recall, on="worker-1", view="quiet")["worker-1"] == 6
    with pytest.raises(AttributeError):
        cluster_of_module.run(recall, on="worker-0", view="quiet")


def test_a_second_press_interrupts_code_that_has_caught_the_first(cluster_of_module, folder):
    def catch_one(folder):
        import pathlib
        import time

        import tfmagic

        pathlib.Path(folder, tfmagic.current_task().name).touch()
        for _ in range(2):
            try:
                while True:
                    time.sleep(0.01)
            except KeyboardInterrupt as error:
                caught = error
        raise caught

    cluster_of_module.run(remember, 9, view="quiet")

    def press():
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: "code that catches KeyboardInterrupt" in cluster_of_module.news())
        os.kill(os.getpid(), signal.SIGINT)

    with Presses(folder, 2, 1, press), pytest.raises(KeyboardInterrupt):
        cluster_of_module.run(catch_one, str(folder), view="quiet")
    assert set(cluster_of_module.run(recall, view="quiet").values()) == {9}


def test_one_task_alone_can_be_interrupted(cluster_of_module, folder):
    def wait(folder):
        import pathlib
        import time

        import tfmagic

        pathlib.Path(folder, tfmagic.current_task().name).touch()
        while tfmagic.current_task().index == 1 or not pathlib.Path(folder, "go").exists():
            time.sleep(0.005)
        return "finished"

    def interrupt_one():
        cluster_of_module.interrupt("worker-1")
        supervisor = cluster_of_module._latest.supervisor
        wait_until(lambda: any(t.index == 1 for c in supervisor.state.cells.values() for t in c.outcomes))
        (folder / "go").touch()

    with Presses(folder, 2, 1, interrupt_one), pytest.raises(KeyboardInterrupt):
        cluster_of_module.run(wait, str(folder), view="quiet", keep_going=True)
    outcomes = cluster_of_module._latest.last[0].outcomes
    assert {t.name: type(o).__name__ for t, o in outcomes.items()} == {
        "worker-0": "CellReturned",
        "worker-1": "CellRaised",
    }


def test_an_interrupt_before_the_task_has_begun_the_cell_is_not_lost(cluster_of_module):
    """Messages are ordered, signals are not: a later cell is not interrupted."""
    supervisor = cluster_of_module._latest.supervisor
    cluster_of_module.run(int, view="quiet")
    for _ in range(20):
        future = cluster_of_module.submit(in_python, "/")
        wait_until(lambda: supervisor.state.cells)
        cluster_of_module.interrupt()
        with pytest.raises((KeyboardInterrupt, PermissionError, FileExistsError)):
            future.result(10)
    assert set(cluster_of_module.run(int, view="quiet").values()) == {0}


def test_an_interrupt_while_tasks_are_starting_gives_the_cell_up(cluster_of_module, monkeypatch):
    supervisor = cluster_of_module._latest.supervisor
    (launcher,) = psutil.Process(supervisor.backend.launcher.process.pid).children()
    monkeypatch.setattr(supervisor, "_resume_own", lambda starts: None)
    launcher.suspend()
    try:
        supervisor.ask(LaunchRequested(cluster_of_module.tasks[:1]))
        wait_until(lambda: supervisor.state.tasks[cluster_of_module.tasks[0]].phase.value != "ready")
        future = cluster_of_module.submit(int)
        wait_until(lambda: any(not c.sent for c in supervisor.state.cells.values()))
        cluster_of_module.interrupt()
        with pytest.raises(KeyboardInterrupt):
            future.result(10)
    finally:
        launcher.resume()
    assert set(cluster_of_module.run(int, view="quiet").values()) == {0}


def test_a_keyboard_interrupt_of_the_cells_own_is_one_in_the_notebook(cluster_of_module):
    def raise_it():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        cluster_of_module.run(raise_it, view="quiet")
    assert "raised on worker-" in caught.value.__notes__[0]


def test_a_strategys_thread_that_has_missed_its_event_ends_all_the_same(cluster_of_module):
    def join():
        import threading
        import time

        from tensorflow.python.training import coordinator

        class Replica(threading.Thread):
            should_run = threading.Event()

            def run(self):
                self.should_run.wait(60)

        stopped, thread, began = coordinator.Coordinator(), Replica(), time.monotonic()
        thread.start()
        stopped.request_stop()
        stopped.join([thread])
        return time.monotonic() - began

    assert max(cluster_of_module.run(join, view="quiet").values()) < 10


def test_scopes_that_an_interrupt_left_entered_are_left_for_it():
    def leave_entered():
        import tensorflow as tf

        tf.device("CPU:0").__enter__()
        tf.Graph().as_default().__enter__()
        tf.distribute.MirroredStrategy(["CPU:0"]).scope().__enter__()
        raise KeyboardInterrupt

    def look():
        import tensorflow as tf
        from tensorflow.python.eager import context

        return context.context().device_name, tf.executing_eagerly(), tf.distribute.has_strategy()

    with tfmagic.Cluster(workers=1) as cluster:
        for _ in range(2):  # before TensorFlow's context exists, and after
            with pytest.raises(KeyboardInterrupt):
                cluster.run(leave_entered, view="quiet")
            assert cluster.run(look, view="quiet")["worker-0"] == ("", True, False)


async def wait_for_ever(gate, ends):
    """Wait; at a cancellation clean up, and go on or let it pass."""
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.run_in_executor, None, Path(gate).touch)  # when this waits
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        print("cancelled")
        await asyncio.sleep(0)
        if ends:
            raise
    finally:
        print("cleaned up")
    print("went on")


@pytest.mark.parametrize("ends", [True, False])
def test_an_interrupted_await_runs_its_except_and_finally_in_its_own_cell(tmp_path, ends):
    with tfmagic.Cluster(workers=1) as cluster:
        call = cluster.submit(wait_for_ever, str(tmp_path / "gate"), ends)
        wait_until((tmp_path / "gate").exists)
        cluster.interrupt()
        assert isinstance(call.exception(20), KeyboardInterrupt)
        assert cluster.logs()["worker-0"] == ["cancelled", "cleaned up", *([] if ends else ["went on"])]
