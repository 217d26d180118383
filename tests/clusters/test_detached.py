"""Detached cells in a plain shell: their queue, waits for them, and the names and exceptions they leave."""

import re
import threading

import pytest
from conftest import wait_until
from IPython.core.error import UsageError

from tfmagic.errors import TaskTimeoutError, TfmagicError

LOOP = "import os, time\nwhile not os.path.exists({flag!r}):\n    time.sleep(0.005)\n"


@pytest.fixture
def flag(tmp_path):
    return tmp_path / "go"


def loop(flag):
    return LOOP.format(flag=str(flag))


def test_a_detached_cell_returns_at_once_and_is_waited_for(notebook, flag):
    told = notebook.run(
        f"%%tfcluster --workers 2 --detach --out found --pull n\n{loop(flag)}n = 3\nprint('over')\n7"
    )
    assert re.search(
        r"^tfmagic: cell \[\d+\] runs on worker-0, worker-1;  %tfcluster wait  waits", told, re.M
    )
    assert "over" not in told
    handle = notebook.ns["found"]
    assert not handle.done and re.match(r"<cell \[\d+\] still runs: .*\d s>$", repr(handle))
    with pytest.raises(TaskTimeoutError, match="still runs"):
        handle.result(timeout=0.01)
    with pytest.raises(TfmagicError, match=r"there is no result: cell \[\d+\] still runs"):
        handle["worker-0"]
    flag.touch()
    shown = notebook.run("%tfcluster wait")
    assert "[worker-0]:    over" in shown and "[worker-1]:    over" in shown
    assert dict(notebook.ns["found"]) == {"worker-0": 7, "worker-1": 7} and notebook.ns["found"].done
    assert notebook.ns["n"] == {"worker-0": 3, "worker-1": 3}
    assert re.search(r"default: cell \[\d+\] done on worker-0, worker-1 after [\d.]+ s, n pulled\n$", shown)
    nothing = "tfmagic: cluster default: no detached cell is left to wait for\n"
    assert notebook.run("%tfcluster wait") == nothing


def test_other_tasks_run_cells_meanwhile_and_the_same_ones_queue_them(notebook, flag):
    notebook.run(f"%%tfcluster --workers 2 --detach --on worker-0\n{loop(flag)}first = 1")
    assert "[worker-1]:    meanwhile" in notebook.run("%%tfcluster --on worker-1\nprint('meanwhile')")
    notebook.run("%%tfcluster --detach --on worker-0\nsecond = first + 1")
    flag.touch()
    assert "2 and 1" in notebook.run("%%tfcluster --on worker-0\nprint(second, 'and', first)")
    assert re.search(r"cell \[\d+\] done .*; cell \[\d+\] done ", notebook.run("%tfcluster wait"))


def test_output_of_a_queued_cell_is_its_own(notebook, flag):
    notebook.run(f"%%tfcluster --workers 1 --detach\n{loop(flag)}print('of the first')")
    notebook.run("%%tfcluster --detach --out second\nprint('of the second')")
    flag.touch()
    shown = notebook.run("%tfcluster wait")
    assert shown.count("of the first") == shown.count("of the second") == 1
    assert notebook.ns["second"].output["worker-0"] == "of the second\n"


def test_a_name_that_a_detached_cell_assigns_is_not_overwritten_by_the_notebooks(notebook, flag):
    notebook.ns["x"] = "the notebook's"
    notebook.run(f"%%tfcluster --workers 1 --detach\n{loop(flag)}x = 'the task\\'s'")
    notebook.run("%%tfcluster --detach --out seen\nx")
    flag.touch()
    notebook.run("%tfcluster wait")
    assert notebook.ns["seen"]["worker-0"] == "the task's"


def test_wait_raises_the_first_exception_when_all_cells_have_ended_and_the_next_wait_the_next(notebook, flag):
    notebook.run("%%tfcluster --workers 2 --detach --on worker-0\nraise ValueError('first')")
    notebook.run(f"%%tfcluster --detach --on worker-1 --out second\n{loop(flag)}print('fine')\n1")
    notebook.run("%%tfcluster --detach --on worker-0\nraise KeyError('third')")
    threading.Timer(0.3, flag.touch).start()
    with pytest.raises(ValueError, match="first"):
        notebook.run("%tfcluster wait")
    assert flag.exists() and notebook.ns["second"]["worker-1"] == 1
    with pytest.raises(KeyError, match="third"):
        notebook.run("%tfcluster wait")
    assert "no detached cell is left" in notebook.run("%tfcluster wait")


def test_wait_waits_for_the_cells_of_the_present_cluster_and_raises_none_of_the_one_that_was_stopped(
    notebook, flag
):
    notebook.run("%%tfcluster --workers 1 --detach\nraise ValueError('early')")
    notebook.run("%%tfcluster --detach\nimport time\ntime.sleep(1000)")
    wait_until(lambda: notebook.cluster().status()[0]["line"])
    notebook.run("%tfcluster stop")
    notebook.run(f"%%tfcluster --workers 1 --detach --out late\n{loop(flag)}7")
    threading.Timer(0.3, flag.touch).start()
    shown = notebook.run("%tfcluster wait")
    assert re.search(r"cell \[\d+\] had failed before the cluster was stopped \(ValueError: early\); ", shown)
    assert re.search(r"cell \[\d+\] was stopped with its cluster; cell \[\d+\] done on worker-0", shown)
    assert dict(notebook.ns["late"]) == {"worker-0": 7}


@pytest.mark.parametrize("detach", ["", "--detach"])
def test_with_keep_going_the_results_of_the_tasks_that_returned_are_bound(notebook, detach):
    cell = "import tfmagic\nn = 3\nif tfmagic.current_task().index == 1:\n    raise ValueError('on one')\n7"
    with pytest.raises(ValueError, match="on one"):
        notebook.run(f"%%tfcluster --workers 2 --keep-going --out found --pull n {detach}\n{cell}")
        notebook.run("%tfcluster wait")
    assert dict(notebook.ns["found"]) == {"worker-0": 7}
    assert notebook.ns["n"] == {"worker-0": 3}


def test_a_fresh_cluster_is_as_the_running_one_but_for_what_the_line_says(notebook):
    notebook.run("%tfcluster start --workers 3 --env A=5")
    cell = "import os, tfmagic\n(tfmagic.current_task().num_tasks, os.environ.get('A'))"
    notebook.run(f"%%tfcluster --fresh --out same\n{cell}")
    assert list(notebook.ns["same"].values()) == [(3, "5")] * 3
    notebook.run(f"%%tfcluster --fresh --workers 1 --out other\n{cell}")
    assert list(notebook.ns["other"].values()) == [(1, "5")]


def test_a_wait_that_ends_too_early_names_the_running_tasks_and_their_lines(notebook, flag):
    notebook.run(f"%%tfcluster --workers 2 --detach\nif 1:\n    pass\n{loop(flag)}print('over')")
    wait_until(lambda: all(row["line"] for row in notebook.cluster().status()))
    told = notebook.run("%tfcluster wait --timeout 0.1")
    assert re.search(
        r"cell \[\d+\] still runs: line [56]( \(worker-0\), line [56] \(worker-1\))?; \d+ s", told
    )
    assert "wait again, or end it with  %tfcluster interrupt" in told
    flag.touch()
    assert "over" in notebook.run("%tfcluster wait")


def test_interrupt_ends_a_detached_cell(notebook, flag):
    notebook.run(f"%%tfcluster --workers 1 --detach\n{loop(flag)}")
    assert "interrupted worker-0\n" in notebook.run("%tfcluster interrupt")
    with pytest.raises(KeyboardInterrupt):
        notebook.run("%tfcluster wait")
    assert "no cell runs there" in notebook.run("%tfcluster interrupt")


def test_an_interrupt_of_one_task_says_what_becomes_of_the_others(notebook, flag):
    notebook.run(f"%%tfcluster --workers 2 --detach\n{loop(flag)}")
    told = notebook.run("%tfcluster interrupt worker-1")
    assert "interrupted worker-1; the cell on worker-0 is interrupted 3 s later\n" in told
    with pytest.raises(KeyboardInterrupt):
        notebook.run("%tfcluster wait")


def test_the_end_of_the_cluster_ends_a_detached_cell(notebook, flag):
    notebook.run(f"%%tfcluster --workers 1 --detach\n{loop(flag)}")
    notebook.run("%tfcluster stop")
    with pytest.raises(TfmagicError, match="stopped while the cell ran"):
        notebook.run("%tfcluster wait")


def test_stop_iteration_is_an_error_as_any_other(notebook):
    with pytest.raises(StopIteration):
        notebook.run("%%tfcluster --workers 1 --out found\nnext(iter([]))")
    assert "found" not in notebook.ns


def test_a_display_that_fails_costs_no_results(notebook, monkeypatch, capsys):
    def fail(self, cell):
        raise OSError("no display")

    monkeypatch.setattr("tfmagic.views.text.TextView.finish", fail)
    notebook.run("%%tfcluster --workers 1 --out found\n7")
    assert notebook.ns["found"]["worker-0"] == 7
    assert "no display" in capsys.readouterr().err


def test_contradictory_options_are_refused(notebook):
    for line in ("--detach --fresh", "--detach --compare workers=1,2", "--view widget", "--view html"):
        with pytest.raises(UsageError):
            notebook.run(f"%%tfcluster {line}\npass")
    assert not any(cluster.running for cluster in notebook.magics.clusters.values())
    with pytest.raises(UsageError, match="there is no run 'nope'"):
        notebook.run("%tfcluster attach nope")
