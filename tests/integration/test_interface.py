"""Calls in the background, over items and awaited, on real tasks."""

import os
import pathlib
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError

import pytest
from conftest import wait_until

import tfmagic
from tfmagic.errors import CaptureError, TfmagicError


@pytest.fixture(scope="module")
def cluster_of_module():
    with tfmagic.Cluster(workers=2, name="module") as started:
        yield started


def wait_for_file(path, announce=None):
    if announce:
        pathlib.Path(announce).touch()
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        assert time.monotonic() < deadline, "nobody made the file"
        time.sleep(0.005)
    return tfmagic.current_task().name


def note(path, word):
    with open(path, "a") as file:
        file.write(f"{word}\n")


# ---- submit -------------------------------------------------------------------------------------


def test_calls_run_in_the_order_of_submission(cluster_of_module, tmp_path):
    told = tmp_path / "told"
    futures = [cluster_of_module.submit(note, str(told), n, on="worker-1") for n in range(40)]
    cluster_of_module.run(note, str(told), "run", on="worker-1", view="quiet")
    assert told.read_text().split() == [*map(str, range(40)), "run"]
    assert all(future.done() for future in futures[:39])


def test_what_a_call_reads_is_as_it_was_at_its_submission(cluster_of_module, tmp_path):
    gate = tmp_path / "gate"
    blocking = cluster_of_module.submit(wait_for_file, str(gate))
    values, futures = [0], []
    for n in range(3):
        values[0] = n
        futures.append(cluster_of_module.submit(lambda: values[0]))
    gate.touch()
    assert [f.result(20)["worker-0"] for f in futures] == [0, 1, 2]
    assert blocking.result(20)


def test_calls_on_different_tasks_run_at_the_same_time(cluster_of_module, tmp_path):
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    futures = [
        cluster_of_module.submit(wait_for_file, second, first, on="worker-0"),
        cluster_of_module.submit(wait_for_file, first, second, on="worker-1"),
    ]
    assert [dict(f.result(20)) for f in futures] == [{"worker-0": "worker-0"}, {"worker-1": "worker-1"}]


def test_a_call_that_waits_can_be_cancelled_and_the_later_ones_run(cluster_of_module, tmp_path):
    gate, began, ran = tmp_path / "gate", tmp_path / "began", tmp_path / "ran"
    running = cluster_of_module.submit(wait_for_file, str(gate), str(began))
    wait_until(began.exists)
    waiting = [cluster_of_module.submit(note, str(ran), n, on="worker-0") for n in range(3)]
    assert waiting[1].cancel() and waiting[1].cancelled()
    assert not running.cancel() and running.running()
    gate.touch()
    assert waiting[2].result(20) == {"worker-0": None}
    assert ran.read_text().split() == ["0", "2"]
    with pytest.raises(CancelledError):
        waiting[1].result(20)


def test_variables_of_a_cancelled_call_reach_the_calls_after_it(tmp_path):
    main = {}
    exec("def helper(): return 7\ndef ask(): return helper()", main)
    for name in ("helper", "ask"):
        main[name].__module__ = "__main__"
    with tfmagic.Cluster(workers=1, name="cancelled", namespace=main) as cluster:
        gate = tmp_path / "gate"
        cluster.submit(wait_for_file, str(gate))
        first, second = cluster.submit(main["ask"]), cluster.submit(main["ask"])
        assert first.cancel()
        gate.touch()
        assert second.result(20) == {"worker-0": 7}


def test_the_failure_of_a_submitted_call_is_the_futures_alone(cluster_of_module):
    generator = (i for i in "ab")
    assert isinstance(cluster_of_module.submit(next, generator).exception(20), CaptureError)
    assert isinstance(cluster_of_module.submit(int, on="ps").exception(20), TfmagicError)
    assert isinstance(cluster_of_module.submit(int, timeout=-1).exception(20), ValueError)
    assert isinstance(cluster_of_module.submit(int, "x").exception(20), ValueError)
    assert cluster_of_module.submit(int).result(20) == {"worker-0": 0, "worker-1": 0}


def test_calls_that_wait_cost_no_thread_and_a_stop_fails_them_all(tmp_path):
    cluster = tfmagic.Cluster(workers=1, name="stopped").start()
    began = tmp_path / "began"
    futures = [cluster.submit(wait_for_file, str(tmp_path / "never"), str(began)) for _ in range(50)]
    wait_until(began.exists)
    assert sum(thread.name == "tfmagic-call" for thread in threading.enumerate()) == 1
    cluster.stop()
    told = {str(future.exception(20)) for future in futures}
    assert told == {"the cluster was stopped while the call ran or waited"}


def test_a_future_may_wait_for_another_in_its_callback(cluster_of_module):
    first, second = cluster_of_module.submit(int), cluster_of_module.submit(int, 5)
    seen = []
    first.add_done_callback(lambda done: seen.append(second.result(20)["worker-0"]))
    wait_until(lambda: seen == [5])


def test_an_interpreter_that_ends_with_pending_calls_does_not_hang(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import time, tfmagic\n"
        "if __name__ == '__main__':\n"
        "    cluster = tfmagic.Cluster(workers=1)\n"
        "    futures = [cluster.submit(time.sleep, 1000) for _ in range(5)]\n"
        "    print('submitted')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "submitted\n", "")
