"""Lines that tasks print between two cells: the next visible cell says where they are."""

import os
import re
import signal

import pytest
from conftest import wait_until
from kernels import text_of

import tfmagic

THREAD = """
import os, threading, time
def later():
    while not os.path.exists({flag!r}):
        time.sleep(0.01)
    for n in range({lines}):
        print("between", n)
    open({flag!r} + str(os.getpid()), "w").close()
threading.Thread(target=later).start()
"""


class Threads:
    """Threads that print when they are let go, as a cell starts them on tasks."""

    def __init__(self, folder):
        self.flag = folder / "go"

    def cell(self, lines):
        self.flag.unlink(missing_ok=True)
        for done in self.flag.parent.glob("go*"):
            done.unlink()
        return THREAD.format(flag=str(self.flag), lines=lines)

    def let_go(self, tasks):
        self.flag.touch()
        wait_until(lambda: len(list(self.flag.parent.glob("go?*"))) == tasks)


@pytest.fixture
def threads(tmp_path):
    return Threads(tmp_path)


def test_lines_between_two_cells_are_named_once(notebook, threads, capsys):
    notebook.run("%%tfcluster --workers 2\n" + threads.cell(3))
    notebook.run("%%tfcluster\nprint('shown')")
    threads.let_go(2)
    capsys.readouterr()
    notebook.run("%%tfcluster --view quiet\n1")
    notebook.run("%tfcluster status")
    assert "no cell" not in capsys.readouterr().err
    notebook.run("%%tfcluster --view text\nprint('shown')")
    told = "worker-0, worker-1 printed 6 lines that no cell shows: %tfcluster logs worker-0 worker-1"
    assert capsys.readouterr().err.count(told) == 1
    notebook.run("%%tfcluster\nprint('shown')")
    assert "no cell" not in capsys.readouterr().err


def test_a_cell_on_other_tasks_names_them_and_lines_during_a_cell_are_its_own(notebook, threads, capsys):
    notebook.run("%%tfcluster --workers 2 --on worker-0\n" + threads.cell(2))
    threads.let_go(1)
    notebook.run("%%tfcluster --on worker-1\n1")
    told = capsys.readouterr().err
    assert "worker-0 printed 2 lines that no cell shows: %tfcluster logs worker-0\n" in told
    notebook.run("%%tfcluster --on worker-0\n" + threads.cell(1))
    notebook.run(f"%%tfcluster --on worker-0\nopen({str(threads.flag)!r}, 'w'); import time; time.sleep(0.3)")
    notebook.run("%%tfcluster\n1")
    assert "no cell" not in capsys.readouterr().err


def test_output_of_submit_is_named_and_that_of_detached_and_quiet_cells_is_not(notebook, capsys):
    notebook.run("%%tfcluster --workers 1\n1")
    notebook.run("%%tfcluster --detach\nprint('detached')")
    notebook.run("%tfcluster wait")
    notebook.run("%%tfcluster --view quiet\nprint('quiet')")
    cluster = notebook.cluster()
    cluster.run(print, "quiet", view="quiet")
    capsys.readouterr()
    notebook.run("%%tfcluster\n1")
    assert "no cell" not in capsys.readouterr().err
    cluster.submit(print, "nowhere").result(20)
    notebook.run("%%tfcluster\n1")
    assert "worker-0 printed 1 line that no cell shows:" in capsys.readouterr().err


def test_a_detached_cell_that_runs_shows_its_lines(notebook, tmp_path, capsys):
    flag = tmp_path / "go"
    loop = f"import os, time\nprint('begun', flush=True)\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)"
    notebook.run("%%tfcluster --workers 2 --on worker-0 --detach\n" + loop)
    log = notebook.cluster().run_folder.folder
    wait_until(lambda: any("begun" in path.read_text() for path in log.rglob("worker-0.log")))
    notebook.run("%%tfcluster --on worker-1\n1")
    flag.touch()
    notebook.run("%tfcluster wait")
    notebook.run("%%tfcluster\n1")
    assert "no cell" not in capsys.readouterr().err


def test_lines_before_a_death_are_named_and_those_of_a_start_are_not(notebook, threads, capsys):
    notebook.run("%%tfcluster --workers 2\n" + threads.cell(4))
    notebook.run("%tfcluster restart worker-1")
    threads.let_go(1)
    (pid,) = {row["pid"] for row in notebook.cluster().status() if row["task"] == "worker-0"}
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not all(row["pid"] for row in notebook.cluster().status()))
    notebook.run("%tfcluster revive")
    capsys.readouterr()
    notebook.run("%%tfcluster\n1")
    assert "worker-0 printed 4 lines that no cell shows" in capsys.readouterr().err
    notebook.run("%tfcluster restart")
    notebook.run("%%tfcluster\n1")
    assert "no cell" not in capsys.readouterr().err


def test_what_tensorflow_logs_by_itself_is_not_counted(notebook, capsys):
    notebook.run(
        "%%tfcluster --workers 2\nimport tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()"
    )
    log = notebook.cluster().run_folder.folder.rglob("worker-0.log")
    notebook.run("%tfcluster kill worker-1")
    (path,) = log
    wait_until(lambda: "The tasks have crashed" in path.read_text(), 30)
    notebook.run("%tfcluster revive")
    capsys.readouterr()
    notebook.run("%%tfcluster\n1")
    assert "no cell" not in capsys.readouterr().err


def test_a_flood_is_counted_in_part_and_many_tasks_are_not_all_named(notebook, capsys):
    with tfmagic.Cluster(workers=6, name="many") as cluster:
        cluster.run(int)
        cluster.submit(lambda: print(("y" * 99 + "\n") * 9999)).result(60)
        capsys.readouterr()
        cluster.run(int)
        told = capsys.readouterr().err
    assert re.search(
        r"tfmagic: 6 tasks printed at least [\d,]+ lines that no cell shows: %tfcluster logs\n", told
    )


@pytest.mark.parametrize("stdin", [False, True])
def test_the_line_stays_on_the_page(kernel, tmp_path, stdin):
    threads = Threads(tmp_path)
    kernel.run("%%tfcluster --workers 1\n" + threads.cell(3))
    threads.let_go(1)
    code = "%%tfcluster\nimport time\nfor n in range(15):\n    print('mine', flush=True); time.sleep(0.1)"
    outputs = kernel.outputs(kernel.start(code, stdin=stdin))
    cleared = max((i for i, (kind, _) in enumerate(outputs) if kind == "clear_output"), default=-1)
    assert "worker-0 printed 3 lines that no cell shows" in text_of(outputs[cleared + 1 :])
