"""Real tasks that raise, die, or wait for a failed one, and what the notebook shows."""

import os
import re
import signal
import time
import traceback

import pytest
from conftest import ENDED_S, wait_until

import tfmagic
from tfmagic.backends import local
from tfmagic.errors import RemoteError, TaskDied, TaskTimeoutError

PROMPT_S = 2.0  # after the grace, the notebook must get its prompt back within this time


def make_strategy():
    """Create a strategy, a step that all-reduces, and a variable that must survive."""
    import tensorflow as tf

    import __main__

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def replica():
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([3]))

    @tf.function
    def step():
        return strategy.reduce("SUM", strategy.run(replica), axis=None)

    __main__.step, __main__.replica, __main__.strategy, __main__.kept = step, replica, strategy, 7
    return float(step()[0])


def step():
    import __main__

    return float(__main__.step()[0])


def kept():
    import __main__

    return __main__.kept


@pytest.fixture(scope="module")
def cluster_of_module():
    with tfmagic.Cluster(workers=3, name="failures") as cluster:
        yield cluster


def divide(a, b):
    return (
        (a) + len("a long line, of which the part that has failed is far to the right of its begin") + (a / b)
    )


def test_pythons_own_traceback_marks_no_wrong_characters_in_a_line_of_a_task(cluster_of_module):
    with pytest.raises(ZeroDivisionError) as caught:
        cluster_of_module.run(divide, 1, 0)
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    (at,) = [n for n, line in enumerate(lines) if "a long line, of which" in line]
    marks = lines[at + 1]
    if set(marks) <= set(" ~^"):
        assert lines[at][marks.index(marks.strip()) : len(marks)] in ("a / b", "(a / b)")


@pytest.fixture
def cluster(cluster_of_module):
    """Start three workers with a strategy that works."""
    assert set(cluster_of_module.run(make_strategy, view="quiet").values()) == {9.0}
    return cluster_of_module


def attempts(cluster):
    return [row["pid"] for row in cluster.status()]


@pytest.mark.parametrize("eager", [False, True], ids=["in a tf.function", "eager"])
def test_a_failure_frees_the_others_from_their_collective_at_once_and_they_keep_their_state(cluster, eager):
    def fail_on_one():
        import __main__
        import tfmagic

        if tfmagic.current_task().index == 1:
            raise ValueError("bad batch")
        if eager:
            __main__.strategy.run(__main__.replica)
        __main__.step()

    before = attempts(cluster)
    began = time.monotonic()
    with pytest.raises(ValueError, match="bad batch") as caught:
        cluster.run(fail_on_one, view="quiet")
    assert time.monotonic() - began < cluster.setting("failure_grace_s")
    assert caught.value.__notes__[0].startswith("raised on worker-1 (pid")
    assert "worker-1 raised ValueError" in caught.value.__notes__[1]
    assert sorted(caught.value.failures) == ["worker-0", "worker-1", "worker-2"]
    assert attempts(cluster) == before
    assert set(cluster.run(kept, view="quiet").values()) == {7}


def test_after_that_a_cell_with_the_old_strategy_explains_its_failure_and_a_new_one_works(cluster):
    def fail_on_one():
        import __main__
        import tfmagic

        if tfmagic.current_task().index == 1:
            raise ValueError("bad batch")
        __main__.step()

    with pytest.raises(ValueError, match="bad batch"):
        cluster.run(fail_on_one, view="quiet")
    told = "".join(cluster.run(kept, view="quiet").output.values())
    assert "tfmagic" not in told and "strategy" not in told  # it uses none; TensorFlow can log the abort late
    with pytest.raises(ValueError, match="no batch"):
        cluster.run(raise_without_tensorflow, view="quiet")
    with pytest.raises(
        Exception, match="worker-1 raised ValueError|were stopped in an earlier cell"
    ) as caught:
        cluster.run(step, view="quiet")
    (hint,) = [note for note in caught.value.__notes__ if note.startswith("hint: ")]
    assert "had been stopped on this task" in hint and "Create it again on every task" in hint
    assert len(caught.value.failures) == 3, "it ends on all tasks; none waits for another one"
    assert set(cluster.run(make_strategy, view="quiet").values()) == {9.0}
    assert set(cluster.run(step, view="quiet").values()) == {9.0}


def test_variables_of_keras_that_a_failed_cell_left_half_initialized_are_forgotten(cluster_of_module):
    def build(ends_well):
        import keras

        class NoValue(keras.initializers.Zeros):
            def __call__(self, *args, **kwargs):
                raise OSError("no value")

        with keras.StatelessScope():  # as `fit` does; its variables are initialized at the end
            keras.layers.Dense(1).build((None, 1))
            if not ends_well:
                keras.layers.Dense(1, kernel_initializer=NoValue()).build((None, 1))
        return "built"

    with pytest.raises(OSError, match="no value"):
        cluster_of_module.run(build, False, view="quiet")
    assert set(cluster_of_module.run(build, True, view="quiet").values()) == {"built"}


def raise_without_tensorflow():
    raise ValueError("no batch")


def test_a_task_that_needs_no_collective_any_more_keeps_its_strategy(cluster, tmp_path):
    flag = tmp_path / "failed"

    def fail_after_the_work(flag):
        import os
        import time

        import tfmagic

        if tfmagic.current_task().index == 1:
            open(flag, "w").close()
            raise KeyError("summary")
        while not os.path.exists(flag):
            time.sleep(0.005)
        until = time.monotonic() + 0.3  # long enough for a look at a task that waits
        while time.monotonic() < until:
            time.sleep(0.005)

    with pytest.raises(KeyError, match="summary"):
        cluster.run(fail_after_the_work, str(flag), view="quiet")
    assert set(cluster.run(step, view="quiet").values()) == {9.0}


def test_a_task_that_comes_to_the_collective_later_is_freed_too(cluster):
    def come_late():
        import time

        import __main__
        import tfmagic

        if tfmagic.current_task().index == 1:
            raise ValueError("bad batch")
        until = time.monotonic() + 0.4
        while time.monotonic() < until:
            pass
        __main__.step()

    began = time.monotonic()
    with pytest.raises(ValueError, match="bad batch"):
        cluster.run(come_late, view="quiet")
    assert time.monotonic() - began < cluster.setting("failure_grace_s")


def test_a_death_in_a_collective_frees_the_others_with_its_name(cluster):
    def die_on_one():
        import os
        import signal

        import __main__
        import tfmagic

        if tfmagic.current_task().index == 2:
            print("last words")
            os.kill(os.getpid(), signal.SIGKILL)
        __main__.step()

    with pytest.raises(
        TaskDied, match=r"worker-2 was ended by SIGKILL \(killed from outside; its peak"
    ) as caught:
        cluster.run(die_on_one, view="quiet")
    assert "    last words" in str(caught.value)
    notes = "\n".join(caught.value.__notes__)
    assert "worker-0" in notes and "worker-1" in notes and "worker-2 died" in notes
    cluster.restart()


def test_a_crash_in_native_code_carries_the_python_stack():
    def crash():
        import ctypes

        import tfmagic

        if tfmagic.current_task().index == 1:
            ctypes.string_at(0)

    with tfmagic.Cluster(workers=2, name="crash") as cluster:
        with pytest.raises(TaskDied, match="worker-1 was ended by SIGSEGV") as caught:
            cluster.run(crash, view="quiet")
        text = str(caught.value)
        assert "in string_at" in text and "in crash" in text and "program.py" not in text


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("os._exit(3)", "exited with code 3"),
        ("os.abort()", "SIGABRT"),
        ("os.kill(os.getpid(), 10)", None),
        (
            "os.closerange(3, 200)",
            "was ended by tfmagic: its own part in the task failed with OSError.*Bad file",
        ),
        (
            "import socket, stat\nfor fd in range(3, 100):\n"
            "    try:\n        if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, b'x' * 100)\n"
            "    except OSError: pass",
            "was ended by tfmagic: the control channel carries bytes that tfmagic did not write; the cell wrote",
        ),
    ],
    ids=["exit", "abort", "usr1", "closed", "written"],
)
def test_ends_of_every_kind_are_described(notebook, how, words):
    cell = f"%%tfcluster --workers 1\nimport os\n{how}"
    if words is None:  # SIGUSR1 asks for stacks and ends nothing
        notebook.run(cell)
        return
    with pytest.raises(TaskDied, match=words):
        notebook.run(cell)
    if words == "SIGABRT":
        assert "at line 3 of the cell:  os.abort()" in "\n".join(notebook.cluster().errors().values())


def test_a_task_that_nothing_reaches_is_named_with_its_stack_and_replaced(tmp_path):
    def wait_in_native_code(flag):
        import os
        import time

        import tensorflow as tf

        import tfmagic

        if tfmagic.current_task().index == 1:
            while not os.path.exists(flag):
                time.sleep(0.005)
            raise ValueError("bad batch")
        tf.queue.FIFOQueue(1, tf.float32).dequeue()

    flag = tmp_path / "go"
    with tfmagic.Cluster(workers=2, name="stuck", failure_grace_s=0.2) as cluster:
        future = cluster.submit(wait_in_native_code, str(flag))
        wait_until(lambda: "dequeue" in cluster.stacks("worker-0").get("worker-0", ""))
        began = time.monotonic()
        flag.touch()
        with pytest.raises(ValueError, match="bad batch") as caught:
            future.result(ENDED_S)
        assert time.monotonic() - began < 0.2 + PROMPT_S + 2  # and what a busy machine adds
        assert "also on worker-0: killed, since it waited for the failed task" in caught.value.__notes__
        assert "worker-0 could not be reached" in caught.value.__notes__[-1]
        assert "in wait_in_native_code" in caught.value.__notes__[-1]
        assert set(cluster.run(int, view="quiet")) == {"worker-0", "worker-1"}


def test_the_earliest_of_several_failures_is_raised_and_the_others_can_be_read(notebook):
    with pytest.raises(KeyError, match="first") as caught:
        notebook.run(
            "%%tfcluster --workers 2\nimport tfmagic, time\n"
            "if tfmagic.current_task().index == 1:\n    raise KeyError('first')\n"
            "end = time.monotonic() + 0.05\nwhile time.monotonic() < end: pass\n"
            "raise TypeError('second')"
        )
    assert "also on worker-0: TypeError: second" in caught.value.__notes__
    assert isinstance(caught.value.failures["worker-0"], TypeError)
    shown = notebook.run("%tfcluster errors")
    assert "---- worker-1 ----" in shown and "KeyError: 'first'" in shown
    assert "---- worker-0 ----" in shown and "TypeError: second" in shown
    assert "worker-1" not in notebook.run("%tfcluster errors worker-0")
    notebook.run("%%tfcluster\npass")
    assert "no task failed" in notebook.run("%tfcluster errors")


def test_keep_going_leaves_the_others_alone(notebook):
    with pytest.raises(ValueError, match="one"):
        notebook.run(
            "%%tfcluster --workers 2 --keep-going\nimport tfmagic, time\n"
            "if tfmagic.current_task().index == 1:\n    raise ValueError('one')\n"
            "end = time.monotonic() + 0.2\nwhile time.monotonic() < end: time.sleep(0.01)\n"
            "finished = True"
        )
    notebook.run("%%tfcluster --on worker-0 --out r\nfinished")
    assert notebook.ns["r"]["worker-0"] is True


def test_an_error_of_autograph_arrives_as_its_class(notebook):
    with pytest.raises(ValueError, match="shape is wrong") as caught:
        notebook.run(
            "%%tfcluster --workers 1\nimport tensorflow as tf\n@tf.function\ndef f(x):\n"
            "    if tf.reduce_sum(x) > 0:\n        raise ValueError('shape is wrong')\n    return x\n"
            "f(tf.ones([2]))"
        )
    assert type(caught.value) is ValueError


def test_a_time_limit_names_the_tasks_that_wait_and_their_collective(cluster):
    def mismatch():
        import __main__
        import tfmagic

        if tfmagic.current_task().index != 1:
            __main__.step()

    with pytest.raises(TaskTimeoutError, match="stopped on worker-0, worker-2") as caught:
        cluster.run(mismatch, view="quiet", timeout=1.5)
    assert "worker-0, worker-2:" in str(caught.value) and "in mismatch" in str(caught.value)
    waits = r"\nBefore that, worker-0 and worker-2 wait in .*reduce.* \(.* line \d+\); worker-1 has ended the cell\."
    assert re.search(waits, str(caught.value))
    assert set(cluster.run(kept, view="quiet").values()) == {7}


def test_input_in_a_call_without_a_keyboard_fails_with_a_message():
    with tfmagic.Cluster(workers=1, name="background") as cluster:
        future = cluster.submit(lambda: input("name? "))
        with pytest.raises(Exception, match="has no keyboard") as caught:
            future.result(20)
        assert type(caught.value).__name__ == "StdinNotImplementedError"


def test_a_killed_task_that_is_asked_for_input_ends_the_question(monkeypatch, tmp_path):
    """Kill a task that asks for input: the notebook must not wait for an answer."""
    import builtins

    def wait_for_ever(prompt):
        (tmp_path / "asked").write_text(prompt)
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(builtins, "input", wait_for_ever)
    with tfmagic.Cluster(workers=1, name="asked") as cluster:
        import threading

        pid = cluster.status()[0]["pid"]

        def kill():
            wait_until((tmp_path / "asked").exists)
            os.kill(pid, signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        with pytest.raises(TaskDied, match="worker-0 was ended by SIGKILL"):
            cluster.run(lambda: input("name? "), view="quiet")
        thread.join()
        assert (tmp_path / "asked").read_text() == "[worker-0] name? "


def test_a_cell_that_breaks_the_streams_and_takes_the_signals_breaks_no_later_cell(notebook):
    notebook.run(
        "%%tfcluster --workers 1\nimport signal, sys\n"
        "class Broken:\n    def write(self, text): raise ValueError('closed')\n    flush = write\n"
        "sys.stdout = sys.stderr = Broken()\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nkept = 1"
    )
    with pytest.raises(TaskTimeoutError):
        notebook.run("%%tfcluster --timeout 0.1\nwhile True: pass")
    notebook.run("%%tfcluster --out r\nkept")
    assert notebook.ns["r"]["worker-0"] == 1


@pytest.mark.parametrize("cell", ["del sys.stdout", "del sys.stderr, sys.stdout", "sys.stdout = None"])
def test_a_cell_that_takes_the_streams_away_costs_no_later_cell(notebook, cell):
    notebook.run(f"%%tfcluster --workers 1\nimport sys\nkept = 1\n{cell}")
    notebook.run("%%tfcluster --out r\nkept")
    assert notebook.ns["r"]["worker-0"] == 1
    if cell.startswith("del"):
        with pytest.raises(RuntimeError, match=r"lost sys\.stdout"):
            notebook.run("%%tfcluster\nprint(1)")


def test_a_cell_that_closes_the_event_loop_costs_no_later_cell(notebook):
    notebook.run("%%tfcluster --workers 1\nimport asyncio\nawait asyncio.sleep(0)\nkept = 1")
    notebook.run("%%tfcluster\nasyncio.get_event_loop().close()")
    notebook.run("%%tfcluster --out r\nawait asyncio.sleep(0, kept)")
    assert notebook.ns["r"]["worker-0"] == 1


def test_a_process_that_has_closed_its_channel_and_runs_on_is_ended(notebook, monkeypatch):
    monkeypatch.setattr(local, "_SILENT_S", 0.2)
    with pytest.raises(TaskDied, match="was ended by tfmagic: its control channel was closed from inside"):
        notebook.run(
            "%%tfcluster --workers 1\nimport os, socket, stat, time\none, other = socket.socketpair()\n"
            "mine = {one.fileno(), other.fileno()}\n"
            "for fd in set(map(int, os.listdir('/proc/self/fd'))) - mine:\n"
            "    if os.path.exists(f'/proc/self/fd/{fd}') and stat.S_ISSOCK(os.fstat(fd).st_mode):\n"
            "        os.dup2(other.fileno(), fd)\ntime.sleep(600)"
        )


def test_a_fork_that_a_cell_makes_is_not_the_task(notebook):
    out = notebook.run(
        "%%tfcluster --workers 1 --out r\nimport os\npid = os.fork()\nif pid == 0:\n    raise ValueError('in child')\n"
        "_, status = os.waitpid(pid, 0)\nos.waitstatus_to_exitcode(status), os.getpid()"
    )
    code, pid = notebook.ns["r"]["worker-0"]
    assert code == 1 and pid == notebook.cluster().status()[0]["pid"]
    assert "line 5, in <module>" in out and "ValueError: in child" in out
    assert "program.py" not in out and "shell.py" not in out


@pytest.mark.parametrize("timeout", ["'x'", "True", "-1", "float('nan')"])
def test_a_barrier_refuses_a_timeout_that_is_none(notebook, timeout):
    with pytest.raises((TypeError, ValueError), match="a barrier's timeout is"):
        notebook.run(f"%%tfcluster --workers 2\nimport tfmagic\ntfmagic.barrier(timeout={timeout})")
    notebook.run("%%tfcluster\ntfmagic.barrier(timeout=30)")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_call_refuses_a_time_limit_that_is_none(cluster_of_module, timeout):
    with pytest.raises(ValueError, match="timeout is a number of seconds above 0"):
        cluster_of_module.run(int, timeout=timeout)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("quit()", ""),
        ("exit()", ""),
        ("import sys; sys.exit(3)", "3"),
        ("import sys; sys.exit(0)", "0"),
        ("import sys; sys.exit('')", "''"),
        ("raise SystemExit([])", r"\[\]"),
    ],
)
def test_leaving_a_cell_keeps_the_task(notebook, call, told):
    notebook.run("%%tfcluster --workers 1\nkept = 1")
    with pytest.raises(
        RemoteError, match=rf"called sys\.exit\({told}\); the task and its variables are kept"
    ):
        notebook.run(f"%%tfcluster\n{call}")
    notebook.run("%%tfcluster --out r\nkept")
    assert notebook.ns["r"]["worker-0"] == 1


def test_the_last_output_of_a_dead_task_is_that_of_its_cell(notebook):
    notebook.run("%%tfcluster --workers 1\nprint('of an earlier cell')")
    with pytest.raises(TaskDied) as caught:
        notebook.run("%%tfcluster\nimport os\nprint('of this cell')\nos._exit(3)")
    assert "of this cell" in str(caught.value) and "earlier" not in str(caught.value)
