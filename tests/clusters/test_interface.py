"""Calls in the background, over items and awaited, on real tasks."""

import asyncio
import functools
import itertools
import os
import pathlib
import signal
import threading
import time
from concurrent.futures import CancelledError

import pytest
from conftest import wait_until

import tfmagic
from tfmagic.errors import CaptureError, ClusterSpecError, TaskDied, TaskTimeoutError, TfmagicError


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
    assert [future.result(20)["worker-1"] for future in futures] == [None] * 40


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


def test_a_call_that_waited_for_a_process_that_died_names_what_is_missing(tmp_path):
    main = {}
    exec("def ask(): return 7", main)
    main["ask"].__module__ = "__main__"
    gate = tmp_path / "gate"

    def die():
        wait_for_file(str(gate))
        os.kill(os.getpid(), signal.SIGKILL)

    with tfmagic.Cluster(workers=1, name="dying", namespace=main, auto_restart=1) as cluster:
        assert cluster.run(main["ask"]) == {"worker-0": 7}
        dying, waiting = cluster.submit(die), cluster.submit(main["ask"])
        gate.touch()
        assert isinstance(dying.exception(20), TaskDied)
        with pytest.raises(NameError, match="no 'ask' here: the process is another one than when"):
            waiting.result(20)
        assert cluster.run(main["ask"]) == {"worker-0": 7}


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


# ---- map ----------------------------------------------------------------------------------------


def who(item):
    return item, tfmagic.current_task().name


def sleep_for_ever(*_):
    time.sleep(1000)


def press_when(condition):
    """Ctrl-C in the main thread, as soon as the condition holds."""

    def press():
        wait_until(condition)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    return presser


def test_map_gives_results_in_the_order_of_the_items(cluster_of_module):
    assert cluster_of_module.map(pow, range(20), itertools.repeat(2)) == [n * n for n in range(20)]
    assert cluster_of_module.map(functools.partial(int, base=2), ["10", "11"]) == [2, 3]
    assert cluster_of_module.map(who, "ab") == [("a", "worker-0"), ("b", "worker-1")]
    assert cluster_of_module.map(who, "ab", on="worker-1") == [("a", "worker-1"), ("b", "worker-1")]
    assert cluster_of_module.map(who, []) == []


def test_a_free_task_takes_the_next_item_and_none_is_taken_before(cluster_of_module, tmp_path):
    taken = []

    def items():
        for n in range(6):
            taken.append(n)
            yield n

    def work(n, gate, first):
        if n == 0:
            wait_for_file(gate, first)
        elif n == 5:
            pathlib.Path(gate).touch()
        return tfmagic.current_task().index

    gate, first = str(tmp_path / "gate"), str(tmp_path / "first")
    got = cluster_of_module.map(work, items(), itertools.repeat(gate), itertools.repeat(first))
    assert got == [0, 1, 1, 1, 1, 1] and taken == list(range(6))


def test_an_endless_iterable_ends_with_the_first_failure(cluster_of_module):
    def fail_at_ten(n):
        if n == 10:
            raise ZeroDivisionError("ten")

    with pytest.raises(ZeroDivisionError, match="ten") as caught:
        cluster_of_module.map(fail_at_ten, itertools.count())
    notes = "\n".join(caught.value.__notes__)
    assert "raised on worker-" in notes and "item 10 of map()" in notes


def test_the_first_failure_stops_the_other_items(cluster_of_module, tmp_path):
    began = str(tmp_path / "began")

    def work(n):
        if n == 0:
            wait_for_file(str(tmp_path / "never"), began)
        wait_for_file(began)
        raise KeyError(n)

    with pytest.raises(KeyError) as caught:
        cluster_of_module.map(work, [0, 1])
    assert "item 1 of map()" in caught.value.__notes__
    assert cluster_of_module.run(int, view="quiet") == {"worker-0": 0, "worker-1": 0}


def test_a_task_that_dies_fails_the_map_and_names_the_item():
    with tfmagic.Cluster(workers=2, name="dying", auto_restart=1) as cluster:

        def work(n):
            if n == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1000)

        with pytest.raises(TaskDied, match="worker-1 was ended by SIGKILL") as caught:
            cluster.map(work, range(2))
        assert "item 1 of map()" in caught.value.__notes__
        assert cluster.map(who, "a") == [("a", "worker-0")]


def test_a_map_out_of_time_shows_where_its_items_were(cluster_of_module):
    with pytest.raises(TaskTimeoutError, match="item 0 on worker-0, item 1 on worker-1") as caught:
        cluster_of_module.map(sleep_for_ever, range(10), timeout=0.5)
    assert "in sleep_for_ever" in str(caught.value)
    with pytest.raises(ValueError, match="timeout is a number of seconds"):
        cluster_of_module.map(who, [], timeout=0)
    assert cluster_of_module.map(who, "a") == [("a", "worker-0")]


def test_ctrl_c_ends_a_map_and_leaves_the_cluster_usable(cluster_of_module, tmp_path):
    began = tmp_path / "began"
    presser = press_when(began.exists)
    with pytest.raises(KeyboardInterrupt):
        cluster_of_module.map(wait_for_file, [str(tmp_path / "never")], [str(began)])
    presser.join()
    assert cluster_of_module.map(who, "a") == [("a", "worker-0")]


def test_ctrl_c_ends_a_map_whose_iterable_hangs(cluster_of_module):
    hangs = threading.Event()

    def items():
        yield 0
        hangs.set()
        time.sleep(1000)

    presser = press_when(hangs.is_set)
    with pytest.raises(KeyboardInterrupt):
        cluster_of_module.map(who, items())
    presser.join()


def test_the_iterables_own_failure_is_raised_and_nothing_runs_on(cluster_of_module):
    with pytest.raises(ZeroDivisionError):
        cluster_of_module.map(sleep_for_ever, (1 // n for n in [1, 0]))
    assert cluster_of_module.run(int, view="quiet") == {"worker-0": 0, "worker-1": 0}


def test_map_prints_what_the_tasks_print(cluster_of_module, capsys):
    cluster_of_module.map(print, ["one", "two"])
    told = sorted(capsys.readouterr().out.splitlines())
    assert told == ["[worker-0]:    one", "[worker-1]:    two"]


# ---- arun ---------------------------------------------------------------------------------------


def test_arun_leaves_the_event_loop_free(cluster_of_module, tmp_path):
    gate, began = tmp_path / "gate", tmp_path / "began"

    async def main():
        call = asyncio.create_task(cluster_of_module.arun(wait_for_file, str(gate), str(began)))
        while not began.exists():
            await asyncio.sleep(0.005)
        gate.touch()
        return await call

    assert asyncio.run(main()) == {"worker-0": "worker-0", "worker-1": "worker-1"}


def test_two_aruns_run_at_once_on_different_tasks_and_queue_on_the_same(cluster_of_module, tmp_path):
    first, second = str(tmp_path / "first"), str(tmp_path / "second")

    async def main():
        return await asyncio.gather(
            cluster_of_module.arun(wait_for_file, second, first, on="worker-0"),
            cluster_of_module.arun(wait_for_file, first, second, on="worker-1"),
            *(cluster_of_module.arun(pow, 2, n) for n in range(3)),
        )

    got = asyncio.run(main())
    assert [dict(r) for r in got[:2]] == [{"worker-0": "worker-0"}, {"worker-1": "worker-1"}]
    assert [r["worker-1"] for r in got[2:]] == [1, 2, 4]


def test_arun_starts_the_cluster_and_raises_what_the_tasks_raise():
    cluster = tfmagic.Cluster(workers=1, name="awaited")
    ticks = []

    async def tick():
        while True:
            ticks.append(cluster.running)
            await asyncio.sleep(0)

    async def main():
        ticking = asyncio.create_task(tick())
        with pytest.raises(ValueError, match="invalid literal"):
            await cluster.arun(int, "x")
        ticking.cancel()

    try:
        asyncio.run(main())
        assert len(ticks) > 10  # while it was started, too
    finally:
        cluster.stop()


@pytest.mark.parametrize("limit", ["wait_for", "cancel"])
def test_a_cancelled_arun_interrupts_its_tasks_alone(cluster_of_module, tmp_path, limit):
    gate, began = tmp_path / "gate", tmp_path / "began"

    async def main():
        other = asyncio.create_task(cluster_of_module.arun(wait_for_file, str(gate), on="worker-1"))
        hanging = cluster_of_module.arun(wait_for_file, str(tmp_path / "never"), str(began), on="worker-0")
        if limit == "wait_for":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(hanging, 0.5)
        else:
            task = asyncio.create_task(hanging)
            while not began.exists():
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        gate.touch()
        assert await other == {"worker-1": "worker-1"}
        return await cluster_of_module.arun(int)

    assert asyncio.run(main()) == {"worker-0": 0, "worker-1": 0}


def test_ctrl_c_under_asyncio_interrupts_the_tasks(cluster_of_module, tmp_path):
    began = tmp_path / "began"
    presser = press_when(began.exists)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cluster_of_module.arun(wait_for_file, str(tmp_path / "never"), str(began)))
    presser.join()
    assert cluster_of_module.run(int, view="quiet") == {"worker-0": 0, "worker-1": 0}


# ---- looks --------------------------------------------------------------------------------------


def test_logs_finds_lines(cluster_of_module):
    cluster_of_module.run(lambda: print("a needle\nhay\nanother needle"), view="quiet", on="worker-0")
    assert cluster_of_module.logs("worker-0", grep="n..dle$", tail=1) == {"worker-0": ["another needle"]}
    assert cluster_of_module.logs("worker-0", tail=None)["worker-0"][-2:] == ["hay", "another needle"]


# ---- the decorator and current_task() -----------------------------------------------------------


@tfmagic.cluster
def on_two(factor, index=0):
    """Doc."""
    return factor * tfmagic.current_task().num_tasks


@tfmagic.cluster(workers=2, on="worker-1", view="quiet")
def factorial(n):
    return n * factorial(n - 1) if n > 1 else 1


@tfmagic.cluster(workers=1)
async def awaited(n):
    await asyncio.sleep(0)
    return n


class Model:
    def __init__(self):
        self.weight = 3

    @tfmagic.cluster(workers=1)
    def scale(self, on):
        return self.weight * on


def test_a_decorated_function_runs_on_a_cluster_of_its_own():
    assert on_two(3) == {"worker-0": 6, "worker-1": 6}
    assert (on_two.__name__, on_two.__doc__) == ("on_two", "Doc.")
    with pytest.raises(TypeError, match="'nope'"):
        on_two(3, nope=1)


def test_a_decorated_function_may_call_itself():
    assert factorial(5) == {"worker-1": 120}


def test_a_decorated_coroutine_function_is_one_still():
    assert asyncio.iscoroutinefunction(awaited)
    assert asyncio.run(awaited(4)) == {"worker-0": 4}


def test_a_decorated_method_takes_its_object_along():
    assert Model().scale(on=2) == {"worker-0": 6}


def test_a_decorated_function_keeps_its_limit():
    with pytest.raises(TaskTimeoutError, match=r"not done within 0\.5 s"):
        tfmagic.cluster(workers=1, timeout=0.5)(sleep_for_ever)()


def test_outside_of_tasks_there_is_no_current_task():
    with pytest.raises(TfmagicError, match="current_task\\(\\) is for code that runs on a task"):
        tfmagic.current_task()
    with pytest.raises(TfmagicError, match="barrier\\(\\) is for code that runs on a task"):
        tfmagic.barrier()


def test_tasks_may_be_named_by_a_list(cluster_of_module):
    def who():
        return tfmagic.current_task().name

    assert list(cluster_of_module.run(who, on=["worker-1"], view="quiet")) == ["worker-1"]
    assert cluster_of_module.map(who_of, "ab", on=["worker-1"], view="quiet") == ["worker-1", "worker-1"]
    assert list(cluster_of_module.submit(who, on=("worker-1", "worker-0")).result(20)) == [
        "worker-0",
        "worker-1",
    ]
    cluster_of_module.push(listed=3, on=["worker-0"])
    assert cluster_of_module.pull("listed", on=["worker-0"]) == {"listed": {"worker-0": 3}}
    with pytest.raises(ClusterSpecError, match="tasks are named by text"):
        cluster_of_module.run(who, on=[0])


def who_of(item):
    return tfmagic.current_task().name
