"""The Python interface on real tasks."""

import contextlib
import gc
import os
import re
import shutil
import signal
import threading
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
from conftest import wait_until

import tfmagic
from tfmagic.errors import CaptureError, LaunchError, TaskDied, TfmagicError
from tfmagic.runs import orphans
from tfmagic.system.advice import FrontEnd, set_front_end


@pytest.fixture(scope="module")
def cluster_of_module():
    with tfmagic.Cluster(workers=2, name="module") as started:
        yield started


def test_run_returns_values_by_task(cluster_of_module):
    def fn(a, *, b):
        return tfmagic.current_task().index * a + b

    assert dict(cluster_of_module.run(fn, 10, b=1, view="quiet")) == {"worker-0": 1, "worker-1": 11}


def test_a_task_is_killed_for_lack_of_memory_before_its_kernel(cluster_of_module):
    def score():
        return int(Path("/proc/self/oom_score_adj").read_text())

    assert set(cluster_of_module.run(score, view="quiet").values()) == {min(score() + 500, 1000)}


def test_the_text_of_results_is_what_a_terminal_shows(cluster_of_module):
    results = cluster_of_module.run(
        lambda: print("\x1b[31mred\x1b[0m\n1/2\r2/2"), on="worker-0", view="quiet"
    )
    assert results.text == {"worker-0": "red\n2/2\n"}
    assert results.output == {"worker-0": "\x1b[31mred\x1b[0m\n1/2\r2/2\n"}


def test_run_prints_prefixed_output(cluster_of_module, capsys):
    cluster_of_module.run(print, "hello")
    assert sorted(capsys.readouterr().out.splitlines()) == ["[worker-0]:    hello", "[worker-1]:    hello"]


def test_push_and_pull_of_big_arrays(cluster_of_module):
    array = np.arange(3 * 10**6, dtype=np.float64).reshape(3, -1)
    cluster_of_module.push({"big": array}, small=[1])
    got = cluster_of_module.pull("big", "small")
    np.testing.assert_array_equal(got["big"]["worker-1"], array)
    got["big"]["worker-1"][0, 0] = 5
    assert got["small"] == {"worker-0": [1], "worker-1": [1]}


def test_scatter_divides_in_the_order_of_the_tasks_and_gather_joins_again(cluster_of_module):
    cluster = cluster_of_module
    frame = pd.DataFrame({"a": [1, 2, 3]}, index=[5, 5, 6])
    for values in ([1, 2, 3], (1,), np.arange(10.0).reshape(5, 2), frame, frame["a"], []):
        cluster.scatter("x", values)
        first, second = cluster.pull("x")["x"].values()
        assert 0 <= len(first) - len(second) <= 1 and type(first) is type(values)
        joined = cluster.gather("x")
        assert type(joined) is type(values)
        np.testing.assert_array_equal(joined, values)
    cluster.scatter("x", range(5), on="worker-1")
    assert cluster.gather("x", on="worker-1") == [0, 1, 2, 3, 4]
    with pytest.raises(TypeError, match="int on worker-0, int on worker-1"):
        cluster.push(x=1)
        cluster.gather("x")
    with pytest.raises(CaptureError, match="lock"):
        cluster.scatter("x", [7, threading.Lock()])
    assert cluster.pull("x")["x"] == {"worker-0": 1, "worker-1": 1}, "nothing was sent"
    for wrong in ({"a": 1}, {1, 2}, "text", 3):
        with pytest.raises(TypeError, match="scatter"):
            cluster.scatter("x", wrong)


def test_futures_and_results_have_start_end_and_seconds_by_task(cluster_of_module, tmp_path):
    def wait_for_file():
        (tmp_path / f"here-{tfmagic.current_task().index}").touch()
        while tfmagic.current_task().index and not (tmp_path / "go").exists():
            pass
        return 1 / tfmagic.current_task().index

    before = datetime.now().astimezone()
    future = cluster_of_module.submit(wait_for_file, keep_going=True)
    wait_until(lambda: "worker-0" in future.ended and (tmp_path / "here-1").exists())
    assert set(future.started) == {"worker-0", "worker-1"} and set(future.seconds) == {"worker-0"}
    (tmp_path / "go").touch()
    with pytest.raises(ZeroDivisionError):
        future.result(timeout=20)
    for task in ("worker-0", "worker-1"):
        lasted = (future.ended[task] - future.started[task]).total_seconds()
        assert lasted == pytest.approx(future.seconds[task], abs=1e-4)
        assert before <= future.started[task] <= future.ended[task] <= datetime.now().astimezone()
    results = cluster_of_module.run(os.getpid)
    lasted = results.ended["worker-1"] - results.started["worker-1"]
    assert lasted.total_seconds() == pytest.approx(results.seconds["worker-1"], abs=1e-4)


def test_arrays_that_are_pulled_without_a_copy_are_read_only(cluster_of_module):
    for count in (20_000, 1_000_000):  # read, and mapped
        cluster_of_module.push({"x": np.arange(count)})
        views, arrays = cluster_of_module.pull("x", copy=False)["x"], cluster_of_module.pull("x")["x"]
        for task, view in views.items():
            assert not view.flags.writeable and arrays[task].flags.writeable
            assert np.array_equal(view, np.arange(count))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


@contextlib.contextmanager
def peak_growth():
    """Yield a list, to which the bytes by which the memory of this process has grown at most are added."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before, grown = memory_bytes("VmRSS"), []
    yield grown
    grown.append(memory_bytes("VmHWM") - before)


def memory_bytes(field):
    return 1024 * int(re.search(rf"^{field}:\s+(\d+)", Path("/proc/self/status").read_text(), re.M)[1])


def test_a_large_array_is_in_the_notebook_once(cluster_of_module):
    array = np.ones(200 * 2**20 // 8)
    size = array.nbytes
    with peak_growth() as grown:
        cluster_of_module.push({"x": array}, on="worker-0")
    assert grown[0] < 0.1 * size
    del array
    for copy in (True, False):
        with peak_growth() as grown:
            pulled = cluster_of_module.pull("x", on="worker-0", copy=copy)["x"]["worker-0"]
            assert pulled.sum() == pulled.size  # each page is there
            del pulled
        assert 0.9 * size < grown[0] < 1.1 * size
    cluster_of_module.push({"x": None})


def test_pull_of_a_missing_or_unpicklable_name_names_it(cluster_of_module):
    with pytest.raises(NameError, match="nope: there is no such variable"):
        cluster_of_module.pull("nope")
    cluster_of_module.run(make_generator, view="quiet")
    with pytest.raises(CaptureError, match="generator"):
        cluster_of_module.pull("stuck", on="worker-0")


def make_generator():
    import __main__

    __main__.stuck = (i for i in "ab")


def test_a_result_that_cannot_travel_is_an_error(cluster_of_module):
    with pytest.raises(CaptureError, match="what worker-0 returned cannot travel: generator"):
        cluster_of_module.run(lambda: (i for i in "ab"))


def test_submit_gives_a_future(cluster_of_module):
    futures = [cluster_of_module.submit(pow, 2, n) for n in range(4)]
    assert [f.result(20)["worker-1"] for f in futures] == [1, 2, 4, 8]
    assert isinstance(cluster_of_module.submit(int, "x").exception(20), ValueError)


def test_a_cell_ends_whatever_stands_in_the_place_of_its_files(cluster_of_module, capsys):
    """Pipes that nothing writes to, and links to a file of ours, which must not grow."""
    run = cluster_of_module.run_folder.folder
    (run / "victim").write_text("as it was\n")
    names = [
        "worker-0.log",
        "worker-1.log",
        "worker-0.displays",
        "worker-1.displays",
        "cells.jsonl",
        "status.json",
    ]
    with contextlib.ExitStack() as undone:
        for name in names:
            if (run / name).exists():
                (run / name).rename(run / f"kept-{name}")
                undone.callback((run / f"kept-{name}").rename, run / name)
            if name.startswith("worker-1"):
                (run / name).symlink_to("victim")
            else:
                os.mkfifo(run / name)
        assert set(cluster_of_module.run(show_and_print).values()) == {"returned"}
        cluster_of_module.stacks()
        with pytest.raises(LaunchError, match=r"could not be started: .* symbolic links: .*worker-1\.log"):
            cluster_of_module.restart("worker-1")
    assert (run / "victim").read_text() == "as it was\n"
    assert capsys.readouterr().out == ""
    cluster_of_module.restart("worker-1")
    cluster_of_module.run(print, "again")
    assert sorted(capsys.readouterr().out.splitlines()) == ["[worker-0]:    again", "[worker-1]:    again"]


def show_and_print():
    from IPython.display import HTML, display

    print("into the log")
    display(HTML("<b>bold</b>"))
    return "returned"


def test_a_barrier_breaks_when_a_task_is_killed(tmp_path):
    with tfmagic.Cluster(workers=2, name="barrier") as cluster:
        flag = tmp_path / "flag"

        def wait(path):
            import pathlib

            if tfmagic.current_task().index == 0:
                pathlib.Path(path).touch()
                tfmagic.barrier()
            else:
                import time

                time.sleep(1000)

        future = cluster.submit(wait, str(flag))
        wait_until(flag.exists)
        cluster.kill("worker-1")
        with pytest.raises(TaskDied, match=r"worker-1 was killed by you \(SIGKILL\)") as caught:
            future.result(20)
        assert "also on worker-0: BrokenBarrierError: barrier 1: worker-1 died" in caught.value.__notes__
        cluster.restart("worker-1")
        assert len(cluster.run(int, view="quiet")) == 2


def test_a_barrier_opens_and_times_out():
    with tfmagic.Cluster(workers=2, name="barrier") as cluster:

        def meet():
            for _ in range(50):
                tfmagic.barrier()
            return True

        assert all(cluster.run(meet).values())

        def late():
            if tfmagic.current_task().index == 0:
                tfmagic.barrier(timeout=0.05)
            else:
                while not done():
                    pass

        def done():
            import time

            return time.monotonic() > began + 0.3

        began = __import__("time").monotonic()
        with pytest.raises(threading.BrokenBarrierError, match=r"worker-1 did not come within 0\.05 s"):
            cluster.run(late)


def test_a_death_in_a_collective_is_the_root_cause():
    with tfmagic.Cluster(workers=2, name="collective") as cluster:

        def train():
            import os
            import signal

            import tensorflow as tf

            strategy = tf.distribute.MultiWorkerMirroredStrategy()

            @tf.function
            def step():
                return strategy.run(
                    lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([2]))
                )

            for n in range(100):
                step()
                if n == 5 and tfmagic.current_task().index == 1:
                    os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(TaskDied, match="worker-1 was ended by SIGKILL") as caught:
            cluster.run(train, view="quiet")
        assert any("also on worker-0" in note for note in caught.value.__notes__)


def test_auto_restart_brings_a_task_back():
    with tfmagic.Cluster(workers=1, name="auto", auto_restart=1) as cluster:
        (task,) = cluster.tasks
        with pytest.raises(TaskDied, match="SIGSEGV"):
            cluster.run(lambda: __import__("os").kill(__import__("os").getpid(), signal.SIGSEGV))
        assert cluster.run(int, view="quiet")["worker-0"] == 0
        assert cluster.status()[0]["restarts"] == 1


def test_stacks_of_a_task_that_sleeps(tmp_path):
    with tfmagic.Cluster(workers=1, name="stacks") as cluster:
        flag = tmp_path / "flag"

        def sleep_forever(path):
            import pathlib
            import time

            pathlib.Path(path).touch()
            time.sleep(1000)

        future = cluster.submit(sleep_forever, str(flag))
        wait_until(flag.exists)
        assert "sleep_forever" in cluster.stacks()["worker-0"]
        cluster.interrupt()
        with pytest.raises(KeyboardInterrupt):
            future.result(20)
        with pytest.raises(tfmagic.TaskTimeoutError, match="in sleep_forever"):
            cluster.run(sleep_forever, str(flag), timeout=1)


def test_a_cluster_that_is_stopped_while_a_call_runs_does_not_hang(tmp_path):
    cluster = tfmagic.Cluster(workers=1, name="stopped").start()
    flag = tmp_path / "flag"
    future = cluster.submit(
        lambda p: (__import__("pathlib").Path(p).touch(), __import__("time").sleep(999)), str(flag)
    )
    wait_until(flag.exists)
    cluster.stop()
    with pytest.raises(TfmagicError, match="was stopped while"):
        future.result(20)


def test_the_decorator_runs_a_function_on_a_cluster_of_its_own():
    @tfmagic.cluster(workers=2)
    def add(a, b):
        return a + b

    assert add(1, b=2).of("worker") == [3, 3]


def test_a_paused_task_that_must_be_released_is_killed_and_replaced(tmp_path):
    begun = tmp_path / "begun"
    with tfmagic.Cluster(workers=2, name="paused", failure_grace_s=0.1) as cluster:

        def stop_one():
            if tfmagic.current_task().index == 1:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # one between two stops would end the cell
                begun.touch()
                while True:  # also when a look has found it, and it was continued
                    os.kill(os.getpid(), signal.SIGSTOP)
            while not begun.exists():
                time.sleep(0.01)
            raise ValueError("from worker-0")

        with pytest.raises(ValueError, match="from worker-0") as caught:
            cluster.run(stop_one, view="quiet")
        notes = caught.value.__notes__
        assert any("also on worker-1: killed, since it waited" in note for note in notes), notes
        assert len(cluster.run(int, view="quiet")) == 2


@pytest.fixture
def words_of_python():
    """Word the next steps as a script gets them: tests before this one can have made a shell."""
    set_front_end(FrontEnd.PYTHON)
    yield
    set_front_end(None)


def test_nothing_of_a_stopped_cluster_can_be_asked():
    cluster = tfmagic.Cluster(workers=1)
    with pytest.raises(TfmagicError, match="does not run; start it"):
        cluster.pull("a")
    with pytest.raises(TfmagicError, match="never been started"):
        cluster.logs()
    cluster.stop()


def test_a_cluster_is_started_again_after_its_with_block_only_if_one_says_so(words_of_python):
    with tfmagic.Cluster(workers=1) as cluster:
        cluster.push(a=1)
    for call in (lambda: cluster.run(int), lambda: cluster.push(a=2), lambda: cluster.submit(int).result()):
        with pytest.raises(TfmagicError, match=r"`with` block .*ended.*anew with .*cluster.start\(\)"):
            call()
        assert not cluster.running
    assert cluster.logs() == {"worker-0": []}
    cluster.start()
    assert cluster.run(int, view="quiet")["worker-0"] == 0
    cluster.stop()


def test_a_full_disk_loses_text_with_a_warning_and_not_the_work(capfd):
    with tfmagic.Cluster(workers=1, name="full") as cluster:

        def flood():
            import resource
            import signal

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
            for _ in range(1000):
                print("x" * 99)
            return "done"

        for _ in range(3):  # from the second time on, equal amounts are lost
            assert cluster.run(flood, view="quiet")["worker-0"] == "done"
            warning = capfd.readouterr().err
            assert re.search(r"worker-0: \d+ KiB of output could not be written", warning), warning


def delete(folder):
    """Delete a folder in which a kernel writes files meanwhile: first out of its way, as one step."""
    gone = folder.rename(folder.with_name("deleted"))
    shutil.rmtree(gone)


def test_a_run_folder_that_is_deleted_is_made_anew_and_costs_no_task(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(tmp_path / "state"))

    def speak(words):
        import os

        print(words)
        return os.getpid()

    with tfmagic.Cluster(workers=2, name="lost") as cluster:
        pids = cluster.run(speak, "early", view="quiet")
        supervisor, log = cluster._latest.supervisor, cluster.run_folder.log_path(cluster.tasks[0])
        flag = tmp_path / "go"

        def speak_later(flag):
            import os
            import time

            print("before")
            while not os.path.exists(flag):
                time.sleep(0.01)
            print("after")

        future = cluster.submit(speak_later, str(flag))
        wait_until(lambda: "before" in log.read_text())
        delete(tmp_path / "state")
        wait_until(lambda: log.exists() and "before" in log.read_text())
        flag.touch()
        future.result(20)
        assert cluster.logs("worker-0")["worker-0"] == ["early", "before", "after"]
        assert (cluster.run_folder.folder / "run.json").exists() and not orphans.find(tmp_path / "state")
        assert capfd.readouterr().err.count("was deleted meanwhile") == 1

        cluster.kill("worker-1")
        delete(tmp_path / "state")
        assert cluster.revive() == ("worker-1",)
        again = cluster.run(speak, "later", view="quiet")
        assert again["worker-0"] == pids["worker-0"] and again["worker-1"] != pids["worker-1"]
        assert capfd.readouterr().err.count("was deleted meanwhile") == 1
        wait_until(lambda: cluster.logs()["worker-0"] == ["early", "before", "after", "later"])
        assert cluster.logs()["worker-1"] == ["later"]
        assert set(supervisor.own_pids()) == {"kernel", "reaper", "launcher"}
        launcher = psutil.Process(supervisor.own_pids()["launcher"])
        launcher.suspend()
        cluster.restart("worker-1")  # no task would start
        assert launcher.status() != psutil.STATUS_STOPPED


@pytest.mark.parametrize("mib", [256, pytest.param(1024, marks=pytest.mark.soak)])
def test_a_large_array_travels_without_a_copy_in_the_channel(mib):
    with tfmagic.Cluster(workers=1, name="big") as cluster:
        got = cluster.run(lambda: np.ones(mib << 17), view="quiet")["worker-0"]
        assert got.nbytes == mib << 20 and got[-1] == 1


def test_an_error_that_cannot_even_be_printed_still_arrives():
    def boom():
        class E(Exception):
            def __str__(self):
                raise RuntimeError("no str")

            def __reduce__(self):
                raise RuntimeError("no reduce")

        raise E

    with tfmagic.Cluster(workers=1, name="odd") as cluster, pytest.raises(tfmagic.RemoteError, match="str"):
        cluster.run(boom)


def test_a_second_interrupt_ends_a_task_that_ignores_the_first(tmp_path):
    with tfmagic.Cluster(workers=1, name="stubborn", interrupt_grace_s=60) as cluster:
        flag = tmp_path / "flag"

        def stubborn(path):
            import pathlib
            import time

            signal.signal(signal.SIGINT, signal.SIG_IGN)
            pathlib.Path(path).touch()
            while True:
                time.sleep(1)

        def press_twice():
            wait_until(flag.exists)
            supervisor = cluster._running_cluster().supervisor
            os.kill(os.getpid(), signal.SIGINT)
            supervisor.wait_for(lambda s: [c.presses for c in s.cells.values()] == [1], 10)
            os.kill(os.getpid(), signal.SIGINT)

        presser = threading.Thread(target=press_twice)
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            cluster.run(stubborn, str(flag), view="quiet")
        presser.join()
        assert cluster.run(int, view="quiet")["worker-0"] == 0
