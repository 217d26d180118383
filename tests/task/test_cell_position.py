"""The place of a cell as the side thread of a task reads it, from real frames of real threads."""

import gc
import linecache
import queue
import subprocess
import sys
import threading

import pytest
from conftest import wait_until

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.protocol.events import Wait
from tfmagic.task import cell_position, data_reading
from tfmagic.task.tensorflow import interrupts

A = TaskId("worker", 0)
NAME = "<tfcluster-77>"


def frame_in(source, **names):
    """Return a thread that runs `source` as a cell until `go` is set, and its innermost frame."""
    linecache.cache[NAME] = (len(source), None, source.splitlines(True), NAME)
    go = threading.Event()
    arrived = threading.Event()

    def wait():
        arrived.set()
        go.wait()

    names = {"wait": wait, "go": go, **names}
    thread = threading.Thread(target=exec, args=(compile(source, NAME, "exec"), names), daemon=True)
    thread.start()
    assert arrived.wait(10)
    frame = sys._current_frames()[thread.ident]
    return frame, lambda: (go.set(), thread.join(10))


@pytest.mark.parametrize(
    ("source", "name", "line"),
    [
        ("wait()", "wait", 1),
        ("x = [wait]\nx[0]()", "x[0]", 2),
        ("class C:\n    def m(self): return wait()\nC().m()", "wait", 2),
        ("print(\n    'a',\n    wait(\n    ),\n)", "wait", 3),
        ("(lambda: (wait(), 1)[1])()", "wait", 1),
        ("for _ in map(lambda _: wait(), [1]): pass", "wait", 1),
        (
            "class C:\n    def __enter__(self): wait()\n    def __exit__(self, *_): pass\nwith C(): pass",
            "wait",
            2,
        ),
        ("'äöü'.join(['ß' if wait() else 'x'])", "wait", 1),
    ],
)
def test_the_call_is_named_as_it_is_written(source, name, line):
    frame, end = frame_in(source)
    try:
        users = cell_position.find_frame(frame, NAME)
        assert (cell_position.called_in(users), users.f_lineno) == (name, line)
        assert cell_position.name_wait(frame, users) == (name, Wait.NONE)
    finally:
        end()


def test_what_is_no_call_and_what_has_no_source_has_no_name():
    source = "class C:\n    def __add__(self, other): exec('wait()', globals())\nC() + C()"
    frame, end = frame_in(source)
    try:
        users = cell_position.find_frame(frame, NAME)
        assert cell_position.called_in(users) == "exec"
        assert cell_position.called_in(users.f_back) == ""  # an addition
        linecache.cache.pop(NAME)
        assert cell_position.called_in(users) == ""
    finally:
        end()


def test_a_look_reports_a_place_once_and_a_call_after_a_while(monkeypatch):
    monkeypatch.setattr(cell_position, "_STILL_S", 0.05)
    numbers, told = queue.Queue(), []
    boot = TaskBoot(A, 1, "", (), "", {}, "", (), "", A, 0, False)
    place_watch, cell = cell_position.PlaceWatch(boot), RunCell(cell=3, filename=NAME)
    source = "numbers.get()\nnumbers.get()"
    linecache.cache[NAME] = (len(source), None, source.splitlines(True), NAME)
    over = threading.Event()

    def look():  # from another thread, as the side thread does
        while not over.is_set():
            if (place := place_watch.look(cell)) is not None:
                told.append((place.cell, place.line, place.inside))

    side = threading.Thread(target=look)
    side.start()

    def feed():
        wait_until(lambda: (3, 1, "numbers.get") in told)
        numbers.put(1)
        wait_until(lambda: (3, 2, "numbers.get") in told)
        numbers.put(2)

    hand = threading.Thread(target=feed)
    hand.start()
    try:
        exec(compile(source, NAME, "exec"), {"numbers": numbers})
    finally:
        hand.join()
        over.set()
        side.join()
    lines = [entry for entry in told if entry[1] in (1, 2)]
    lines = lines[: lines.index((3, 2, "numbers.get")) + 1]  # then it leaves the call, which is reported too
    assert lines == sorted(set(lines), key=lines.index), "nothing is told twice"
    assert lines.index((3, 1, "")) < lines.index((3, 1, "numbers.get")) < lines.index((3, 2, "numbers.get"))


def test_a_frame_without_a_line_has_no_place():
    watch = cell_position.PlaceWatch(TaskBoot(A, 1, "", (), "", {}, "", (), "", A, 0, False))
    found = []

    def look():  # from another thread, as the side thread does
        side = threading.Thread(target=lambda: found.append(watch.look(RunCell(cell=3, filename=NAME))))
        side.start()
        side.join()

    code = compile("look()", NAME, "exec")
    exec(code, {"look": look})
    exec(code.replace(co_linetable=b""), {"look": look})
    assert [place and place.line for place in found] == [1, None]


def test_code_that_a_cell_has_left_running_in_a_thread_is_seen():
    _, end = frame_in("wait()")
    assert cell_position.runs_in_threads()
    end()
    assert not cell_position.runs_in_threads()


def test_the_next_call_in_the_same_place_of_memory_is_another_one():
    here = (1, 140, 12, 150, 8)
    before = cell_position._Still(here, 10.0, 1.0)
    assert before.goes_on(cell_position._Still(here, 11.0, 1.001))
    assert not before.goes_on(cell_position._Still(here, 11.0, 1.5)), "the thread has computed"
    assert not before.goes_on(cell_position._Still((1, 140, 12, 150, 20), 11.0, 1.001)), (
        "another line of the cell"
    )
    assert not before.goes_on(cell_position._Still((2, 140, 12, 150, 8), 11.0, 1.001)), "another cell"


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("CollectiveReduceV2", "all_reduce"),
        ("CollectiveReduceV3", "all_reduce"),
        ("CollectiveReduceScatterV2", "reduce_scatter"),
        ("CollectiveGatherV2", "all_gather"),
        ("CollectiveBcastRecvV2", "broadcast"),
        ("CollectiveNew", "CollectiveNew"),
    ],
)
def test_collectives_have_their_names(op, name):
    assert cell_position._collective_name(op) == name


@pytest.mark.parametrize("look", ["place", "stuck"])
def test_no_garbage_is_collected_while_frames_of_another_thread_are_looked_at(look):
    """Objects that a collection deletes let the other thread run, and its frames end meanwhile."""
    boot = TaskBoot(A, 1, "", (), "", {}, "", (), "", A, 0, False)
    place_watch, watch, collected = cell_position.PlaceWatch(boot), interrupts.StuckWatch(), []

    def note(phase, info):
        frame = sys._getframe(1)
        while frame is not None:
            collected.append(frame.f_code.co_name)
            frame = frame.f_back

    def look_aside():
        gc.callbacks.append(note)
        gc.set_threshold(1)  # anything that is made sets off a collection
        try:
            place_watch.look(RunCell(cell=1)) if look == "place" else watch.is_stuck()
            [[] for _ in range(9)]
        finally:
            gc.set_threshold(*threshold)
            gc.callbacks.remove(note)

    threshold = gc.get_threshold()
    side = threading.Thread(target=look_aside)
    side.start()
    side.join()
    assert collected and gc.isenabled()
    assert not {"_look", "find_frame", "main_frame", "call_in_tensorflow"} & set(collected)


# ---- data sets at work in other threads ---------------------------------------------------------


def test_python_code_that_tensorflow_has_called_is_seen():
    assert not data_reading.runs_python()
    go, arrived = threading.Event(), threading.Event()
    code = compile("arrived.set(), go.wait()", "/x/tensorflow/python/ops/script_ops.py", "exec")
    thread = threading.Thread(target=exec, args=(code, {"arrived": arrived, "go": go}))
    thread.start()
    assert arrived.wait(10) and data_reading.runs_python()
    go.set()
    thread.join()
    assert not data_reading.runs_python()


READS = """
import _thread, os, threading, time
from tfmagic.task import data_reading
end, sender = os.pipe()
lock = threading.Lock()
lock.acquire()
_thread.start_new_thread(lambda: (lock.acquire(), os.read(end, 1)), ())  # which `threading` does not know
print(data_reading.reads())
lock.release()
while not data_reading.reads(): pass
os.write(sender, b"x")
while data_reading.reads(): pass
"""


def test_a_native_thread_that_reads_is_seen_and_one_that_waits_for_a_lock_is_not():
    """In a process of its own: pytest-xdist has such threads, too."""
    ended = subprocess.run([sys.executable, "-c", READS], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "False\n", "")
