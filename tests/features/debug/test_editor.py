"""The debugger of an editor: a client of its protocol attaches to a task and stops in cells."""

import contextlib
import inspect
import io
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from conftest import program, wait_until
from dap_client import DapClient
from kernels import text_of

import tfmagic
from tfmagic.errors import ClusterSpecError, TfmagicError

CELL = """%%tfcluster --out found
import tfmagic
def double(x):
    local = x * 2
    return local
me = tfmagic.current_task().index
total = double(me + 20)
tfmagic.barrier()
total + 1"""


@pytest.fixture
def kernel(shared_kernel):
    shared_kernel.run("%tfcluster restart")
    return shared_kernel


@pytest.fixture
def cluster():
    with tfmagic.Cluster(workers=2) as made:
        yield made


def read_place(text):
    """Return the port and the folder of cells that were printed."""
    return int(re.search(r"on 127\.0\.0\.1:(\d+)", text)[1]), Path(re.search(r"cells:  (.+)", text)[1])


def listen(cluster, task="worker-1"):
    """Return what `debug` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        cluster.debug(task, editor=True)
    return printed.getvalue()


@pytest.fixture
def adapters():
    """Return what finds the pids of the adapters that this test has started."""

    def find():
        below = psutil.Process().children(recursive=True)
        return {process.pid for process in below if is_adapter(process)} - before

    before = set()
    before = find()
    return find


def is_adapter(process):
    with contextlib.suppress(psutil.Error):  # it has ended
        return any(word.endswith("debugpy/adapter") for word in process.cmdline())
    return False


def file_of(cells, cell):
    """Return the file of a cell's source."""
    source = "\n" + cell.partition("\n")[2] + "\n"
    (file,) = [path for path in cells.glob("*.py") if path.read_text() == source]
    return file


def add(x):
    y = x + 1
    return y  # it stops here


HERE = Path(__file__)
STOP = inspect.getsourcelines(add)[1] + 2


# ---- cells of a notebook -----------------------------------------------------------------------------------


def test_a_breakpoint_in_a_cell_stops_the_task(kernel):
    kernel.run(CELL)
    port, cells = read_place(kernel.text("%tfcluster debug worker-1 --editor"))
    file = file_of(cells, CELL)
    assert (cells.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    with DapClient(port) as editor:
        assert editor.attach({str(file): [4]}) == [True]
        cell = kernel.start(CELL)
        thread, reason, frames = editor.stop()
        assert reason == "breakpoint"
        assert frames[:2] == [(str(file), 4, "double"), (str(file), 7, "<module>")]
        assert editor.variables(thread)["x"] == "21"
        said = "worker-1 stands in the debugger (cell line 4); the others wait for it"
        kernel.outputs(cell, lambda output: said in str(output))
        editor.request("next", threadId=thread)
        thread, _, frames = editor.stop()
        assert frames[0][1] == 5 and editor.evaluate("local", thread) == "42"
        lines = [5]
        while lines[-1] < 8:  # since Python 3.12 a step also stops where the call returns to
            editor.request("next", threadId=thread)
            thread, _, frames = editor.stop()
            lines.append(frames[0][1])
        assert lines in ([5, 8], [5, 7, 8])  # to the next statement, which is code by itself
        assert frames[0] == (str(file), 8, "<module>")
        editor.request("continue", threadId=thread)
        kernel.outputs(cell)
    assert "{'worker-0': 41, 'worker-1': 43}" in kernel.text("print(dict(found))")


def test_a_breakpoint_call_opens_the_editor_where_one_is_attached_else_the_input_box(kernel):
    port, cells = read_place(kernel.text("%tfcluster debug worker-1 --editor"))
    calls = "%%tfcluster --on worker-1\nn = 20\nbreakpoint()\nn += 1\nprint('n is', n)"
    assert "[worker-1]:    n is 21" in text_of(kernel.converse(calls, "c"))
    with DapClient(port) as editor:
        editor.attach()
        cell = kernel.start(calls)
        thread, _, frames = editor.stop()
        assert frames[0] in {(str(file_of(cells, calls)), line, "<module>") for line in (3, 4)}
        editor.request("setExpression", expression="n", value="70", frameId=editor.frames(thread)[0]["id"])
        editor.request("continue", threadId=thread)
        assert "n is 71" in text_of(kernel.outputs(cell))
        editor.detach()
    assert "n is 21" in text_of(kernel.converse(calls, "c"))


def test_tracebacks_of_a_task_that_listens_name_the_cell_as_ever(kernel):
    fails = "%%tfcluster --on worker-1\ndef f():\n    return 1 / 0\nf()"
    before = re.sub(r"In\[\d+\]", "In[N]", kernel.error(fails)[1])
    kernel.run("%%tfcluster --on worker-1\npass")
    kernel.run("%tfcluster debug worker-1 --editor")
    assert re.sub(r"In\[\d+\]", "In[N]", kernel.error(fails)[1]) == before
    shown = kernel.converse("%tfcluster debug worker-1", "q")
    assert re.search(r"> Cell In\[\d+\](?: \(\d+\))?\(3\)f\(\)", text_of(shown)), "pdb still looks at it"


def test_an_editor_looks_at_the_last_failure(kernel):
    fails = "%%tfcluster --on worker-1\ndef f(x):\n    y = x - 5\n    return 1 / y\nf(5)"
    kernel.run(fails)
    if "False" in kernel.text("import debugpy; print(hasattr(debugpy, 'trigger_exception_handler'))"):
        text = kernel.text("%tfcluster debug worker-1 --editor")
        assert "is too old to show its last failure; %tfcluster debug worker-1 opens pdb on it" in text
        return
    cell = kernel.start("%tfcluster debug worker-1 --editor")
    shown = text_of(kernel.outputs(cell, lambda output: "the source of its cells" in str(output)))
    assert "worker-1 waits for the editor, to show it where ZeroDivisionError was raised" in shown
    port, cells = read_place(shown)
    with DapClient(port) as editor:
        editor.attach()
        thread, reason, frames = editor.stop()
        assert reason == "exception" and frames[0][:2] == (str(file_of(cells, fails)), 4)
        assert editor.variables(thread)["y"] == "0"
        editor.request("continue", threadId=thread)
        kernel.outputs(cell)


def test_what_is_no_task_is_refused(kernel):
    assert "there is no task 'worker-7'" in kernel.text("%tfcluster debug worker-7 --editor")
    assert "'worker' means 2" in kernel.text("%tfcluster debug worker --editor")


# ---- calls -------------------------------------------------------------------------------------------------


def test_editors_attach_one_after_the_other_and_the_task_goes_on_without_one(cluster):
    port, _ = read_place(listen(cluster))
    for number in range(2):
        with DapClient(port) as editor:
            assert editor.attach({str(HERE): [STOP]}) == [True]
            assert f"worker-1 still has an editor attached on 127.0.0.1:{port}" in listen(cluster)
            future = cluster.submit(add, number)
            thread, _, frames = editor.stop()
            assert frames[0] == (str(HERE), STOP, "add") and editor.variables(thread)["y"] == str(number + 1)
            editor.detach()  # at the breakpoint
        assert dict(future.result(60)) == {"worker-0": number + 1, "worker-1": number + 1}
        assert f"worker-1 still listens for an editor on 127.0.0.1:{port}" in listen(cluster)


def test_a_killed_editor_lets_the_task_go_on(cluster):
    port, _ = read_place(listen(cluster))
    with DapClient(port) as editor:
        editor.attach({str(HERE): [STOP]})
        future = cluster.submit(add, 1)
        editor.stop()
        editor.close()
    assert dict(future.result(60)) == {"worker-0": 2, "worker-1": 2}


def test_two_tasks_stop_at_one_breakpoint(cluster):
    ports = [read_place(listen(cluster, task))[0] for task in ("worker-0", "worker-1")]
    with DapClient(ports[0]) as first, DapClient(ports[1]) as second:
        for editor in (first, second):
            editor.attach({str(HERE): [STOP]})
        future = cluster.submit(add, 1)
        threads = [editor.stop()[0] for editor in (first, second)]
        for editor, thread in zip((second, first), threads, strict=True):
            editor.request("continue", threadId=thread)
        assert dict(future.result(60)) == {"worker-0": 2, "worker-1": 2}


def wait_for(path):
    n = 0
    while not Path(path).exists():
        n += 1
    return n > 0


def test_an_editor_attaches_while_a_call_runs(cluster, tmp_path):
    port, _ = read_place(listen(cluster))
    future = cluster.submit(wait_for, str(tmp_path / "flag"), on="worker-1")
    wait_until(lambda: cluster.status()[1]["doing"] == "running")
    with DapClient(port) as editor:
        line = inspect.getsourcelines(wait_for)[1] + 3
        editor.attach({str(HERE): [line]})
        assert editor.stop()[2][0] == (str(HERE), line, "wait_for")
        (tmp_path / "flag").touch()
        editor.detach()
    assert dict(future.result(60)) == {"worker-1": True}


def test_an_interrupt_leaves_the_breakpoint_and_the_next_call_stops_again(cluster):
    port, _ = read_place(listen(cluster))
    pid = cluster.status()[1]["pid"]
    with DapClient(port) as editor:
        editor.attach({str(HERE): [STOP]})
        for _ in range(2):
            future = cluster.submit(add, 1)
            editor.stop()
            cluster.interrupt()
            with pytest.raises(KeyboardInterrupt):
                future.result(60)
            editor.event("continued")
        editor.set_breakpoints(str(HERE))
        assert dict(cluster.run(add, 2)) == {"worker-0": 3, "worker-1": 3}
    assert cluster.status()[1]["pid"] == pid, "it was not killed"


def reduce():
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    me = strategy.cluster_resolver.task_id
    if me == 1:
        me += 0  # it stops here
    sums = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0 + me)))
    return float(sums)


def test_a_peer_waits_in_its_collective_for_a_task_at_a_breakpoint(cluster):
    port, _ = read_place(listen(cluster))
    with DapClient(port) as editor:
        editor.attach({str(HERE): [inspect.getsourcelines(reduce)[1] + 6]})
        future = cluster.submit(reduce)
        thread = editor.stop()[0]
        wait_until(lambda: cluster.status()[0]["note"] == "in all_reduce for worker-1")
        shown = cluster.status()
        place = inspect.getsourcelines(reduce)[1] + 6
        assert [shown[1][key] for key in ("doing", "line", "note")] == ["waiting", place, "in the debugger"]
        assert [each["stalls"] for each in shown] == [0, 0]
        editor.request("next", threadId=thread)
        thread = editor.stop()[0]
        editor.request("continue", threadId=thread)
        assert dict(future.result(60)) == {"worker-0": 3.0, "worker-1": 3.0}


def add_in_a_child():
    import os

    pid = os.fork()
    if pid == 0:
        os._exit(add(6))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_child_process_passes_breakpoints(cluster):
    port, _ = read_place(listen(cluster))
    with DapClient(port) as editor:
        editor.attach({str(HERE): [STOP]})
        assert dict(cluster.run(add_in_a_child, on="worker-1")) == {"worker-1": 7}
        future = cluster.submit(add, 1, on="worker-1")
        thread = editor.stop()[0]  # the task itself still does
        editor.request("continue", threadId=thread)
        assert dict(future.result(60)) == {"worker-1": 2}


def has_trace_function():
    return sys.gettrace() is not None


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring is used instead of a trace function")
def test_only_an_attached_editor_costs_a_trace_function(cluster):
    port, _ = read_place(listen(cluster))
    assert not cluster.run(has_trace_function, on="worker-1")["worker-1"]
    with DapClient(port) as editor:
        editor.attach()
        assert cluster.run(has_trace_function, on="worker-1")["worker-1"]
        assert [each["name"] for each in editor.request("threads")["threads"]] == ["MainThread"]
        editor.detach()
    assert not cluster.run(has_trace_function, on="worker-1")["worker-1"]


def hide_debugpy():
    sys.modules["debugpy"] = None


def test_a_missing_debugpy_is_told_with_the_line_that_installs_it(cluster, adapters):
    cluster.run(hide_debugpy, on="worker-1")
    with pytest.raises(TfmagicError, match="worker-1 cannot import.*:  pip install debugpy"):
        listen(cluster)
    assert not adapters()
    with pytest.raises(ClusterSpecError, match="means 2"):
        listen(cluster, "all")


def break_pydevd():
    from debugpy.server import api  # it finds pydevd

    assert api
    import pydevd_file_utils

    del pydevd_file_utils.NORM_PATHS_AND_BASE_CONTAINER


def test_a_debugpy_without_a_private_part_is_told_and_listens(cluster):
    cluster.run(break_pydevd, on="worker-1")
    text = listen(cluster)
    assert re.search(
        r"no pydevd_file_utils:NORM_PATHS_AND_BASE_CONTAINER\): breakpoints in cells are not", text
    )
    assert re.search(r"\(debugpy 1\.\S+; 1\.8\.22 has all\)", text)
    with DapClient(read_place(text)[0]) as editor:
        assert editor.attach() == []


def test_the_adapter_ends_with_its_task(cluster, adapters):
    port, _ = read_place(listen(cluster))
    (first,) = adapters()
    with DapClient(port) as editor:
        editor.attach({str(HERE): [STOP]})
        future = cluster.submit(add, 1)
        editor.stop()
        cluster.restart("worker-1")  # at its breakpoint
        with pytest.raises(TfmagicError, match="worker-1"):
            future.result(60)
        editor.event("terminated")  # upon which editors disconnect
    wait_until(lambda: first not in adapters())
    assert dict(cluster.run(add, 1)) == {"worker-0": 2, "worker-1": 2}
    text = listen(cluster)
    assert "still" not in text and read_place(text)[0] != port
    with DapClient(read_place(text)[0]) as editor:
        editor.attach({str(HERE): [STOP]})
        future = cluster.submit(add, 1)
        editor.stop()
        cluster.stop()  # with an editor at a breakpoint
    wait_until(lambda: not adapters())


def test_a_task_in_a_network_of_its_own_is_refused(adapters):
    with tfmagic.Cluster(workers=2, isolate=True) as cluster:
        with pytest.raises(TfmagicError, match="worker-1 is on another machine, or in a network of its own"):
            listen(cluster)
        assert not adapters()


# ---- scripts -----------------------------------------------------------------------------------------------

SCRIPT = """\
import json, os, sys
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
def add(x):
    y = x + 1
    return y
total = add(index)
if index == 1:
    breakpoint()
print("total", total, sys.argv[1:])
sys.exit(0 if total == (71 if index else 1) else 3)
"""


def test_a_script_waits_for_the_editor(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = ["-m", "tfmagic", "run", "--debug", "worker-1", script, "--lr", "1"]
    with program(sys.executable, *words, stderr=subprocess.STDOUT) as run:
        lines = []
        for line in run.stdout:
            lines.append(line)
            if port := re.search(r"worker-1 waits for an editor on 127\.0\.0\.1:(\d+)", line):
                break
        with DapClient(int(port[1])) as editor:
            assert not any("total 2" in line for line in lines)
            assert editor.attach({str(script): [5]}) == [True]
            thread, _, frames = editor.stop()
            assert frames[:2] == [(str(script), 5, "add"), (str(script), 6, "<module>")]
            assert editor.variables(thread)["y"] == "2"
            editor.request("continue", threadId=thread)
            thread, _, frames = editor.stop()  # at `breakpoint()`
            assert frames[0][0] == str(script)
            frame = editor.frames(thread)[0]["id"]
            editor.request("setExpression", expression="total", value="71", frameId=frame)
            editor.request("continue", threadId=thread)
        lines += run.stdout.readlines()
        assert run.wait(60) == 0, "".join(lines)
    assert any("[worker-1]:    total 71 ['--lr', '1']" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--debug", "worker-7"], "there is no task 'worker-7'"),
        (["--debug", "all"], "--debug takes one task; 'all' means 2"),
        (["--debug", "worker-1", "--quiet"], "--quiet hides where the task of --debug listens"),
    ],
)
def test_a_run_that_cannot_wait_starts_nothing(commands, tmp_path, words, why):
    (tmp_path / "script.py").write_text("print('it ran')")
    commands.start(tmp_path, ["run", *words, "script.py"])
    assert commands.wait() == 2
    assert why in (tmp_path / "err.txt").read_text() and "it ran" not in (tmp_path / "out.txt").read_text()
