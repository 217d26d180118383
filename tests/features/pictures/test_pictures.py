"""The pictures of real clusters: the map in a shell and in a kernel."""

import os
import re
import signal
import time

import pytest
from conftest import wait_until
from IPython.core.error import UsageError

from tfmagic import Cluster
from tfmagic.errors import TfmagicError
from tfmagic.features.pictures.timeline_file import read_timeline
from tfmagic.runs.folder import find_runs, state_dir
from tfmagic.runs.kernels import kernel_lives
from tfmagic.runs.status_reader import read_snapshot

STRATEGY = "%%tfcluster\nimport tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()"


def test_the_map_of_a_cluster_in_a_terminal(notebook):
    notebook.run("%tfcluster start --workers 2 --evaluator")
    before = notebook.run("%tfcluster map")
    assert "No task has reported a strategy yet" in before
    addresses = notebook.cluster().spec.addresses
    pids = {row["task"]: row["pid"] for row in notebook.cluster().status()}
    for task, address in addresses.items():
        assert re.search(rf"^{task} .*\b{pids[task.name]}\b.* {re.escape(address)}$", before, re.MULTILINE)
    notebook.run(STRATEGY)
    assert "In use: a collective strategy over worker-0, worker-1." in notebook.run("%tfcluster map")
    one = notebook.run("%tfcluster map worker-1")
    assert "this task listens here" in one
    assert "task.index = 1" in one
    with pytest.raises(UsageError, match="there is no task 'worker-7'"):
        notebook.run("%tfcluster map worker-7")
    with pytest.raises(UsageError, match="a map explains one task"):
        notebook.run("%tfcluster map worker")
    notebook.run("%tfcluster kill worker-1")
    wait_until(lambda: "the process of worker-1 ended since" in notebook.run("%tfcluster map"))
    assert notebook.cluster().draw_map().text.count("\n") > 5


def test_a_map_is_live_while_a_cell_runs(shared_kernel, tmp_path):
    """It is shown while a detached cell waits for a file, and follows the task until the cell has ended."""
    kernel, flag = shared_kernel, tmp_path / "go"
    kernel.run(
        f"%%tfcluster --detach\nimport os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.02)"
    )
    wait_until(lambda: "running" in kernel.text("%tfcluster status"))
    shown = kernel.run("%tfcluster map")
    (first,) = [content for kind, content in shown if kind == "display_data"]
    identity = first["transient"]["display_id"]
    assert "running" in first["data"]["text/plain"]
    flag.touch()

    def ends(kind, content):
        is_ours = kind == "update_display_data" and content["transient"]["display_id"] == identity
        return is_ours and "running" not in content["data"]["text/plain"]

    kernel.hear(ends)
    kernel.run("%tfcluster wait")


def test_a_map_does_not_start_a_cluster():
    with pytest.raises(TfmagicError, match="has never been started"):
        Cluster(workers=1).draw_map()


def names_of(timeline, doing):
    return {(lane.task, span.whom) for lane in timeline.lanes for span in lane.spans if span.doing == doing}


def run_until_seen_waiting(notebook, flag, source, *tasks):
    """Run a cell in which a task waits for the file, which is made when these tasks wait for that one.

    They wait for half of the cell, so that each picture shows it. Return the seconds that the cell took.
    """
    began = time.monotonic()
    notebook.run("%%tfcluster --detach\nimport os, time, tfmagic\n" + source.format(flag=str(flag)))

    def doings():
        return {row["task"]: row["doing"] for row in notebook.cluster().status()}

    wait_until(lambda: all(doings()[task] == "waiting" for task in tasks))
    time.sleep(max(1.0, time.monotonic() - began))
    flag.touch()
    notebook.run("%tfcluster wait")
    return time.monotonic() - began


def test_the_timeline_shows_who_waits_for_whom_at_a_barrier(notebook, tmp_path):
    notebook.run("%tfcluster start --workers 3")
    source = (
        "if tfmagic.current_task().index == 2:\n"
        "    while not os.path.exists({flag!r}): time.sleep(0.02)\n"
        "tfmagic.barrier()"
    )
    took = run_until_seen_waiting(notebook, tmp_path / "go", source, "worker-0", "worker-1")
    found = notebook.cluster().timeline().timeline
    assert names_of(found, "waiting") >= {("worker-0", ("worker-2",)), ("worker-1", ("worker-2",))}
    assert {(arrow.source, arrow.target) for arrow in found.arrows} >= {("worker-0", "worker-2")}
    waited = [s.seconds for lane in found.lanes for s in lane.spans if lane.task == "worker-0" and s.whom]
    assert 0.7 < sum(waited) < took
    slow = next(lane for lane in found.lanes if lane.task == "worker-2")
    assert 4 in {span.line for span in slow.spans}
    text = notebook.run("%tfcluster timeline")
    assert re.search(r"^worker-0 .*~~~~", text, re.MULTILINE)
    assert re.search(r"worker-0 waits for worker-2 at barrier.*line 5: tfmagic.barrier\(\)", text)


def test_the_timeline_of_a_collective_that_waits_for_a_slow_task(notebook, tmp_path):
    notebook.run(STRATEGY)
    source = (
        "while strategy.cluster_resolver.task_id == 1 and not os.path.exists({flag!r}):\n"
        "    time.sleep(0.02)\n"
        "strategy.run(lambda: tf.distribute.get_replica_context().all_reduce('sum', tf.constant(1.0)))"
    )
    run_until_seen_waiting(notebook, tmp_path / "go", source, "worker-0")
    assert ("worker-0", ("worker-1",)) in names_of(notebook.cluster().timeline().timeline, "waiting")
    assert re.search(r"worker-0 waits for worker-1 at all_reduce", notebook.run("%tfcluster timeline"))


def test_a_killed_and_revived_task_is_dead_and_comes_back(notebook):
    notebook.run("%%tfcluster --workers 2\n1 + 1")
    notebook.run("%tfcluster kill worker-1")
    wait_until(lambda: notebook.cluster().status()[1]["state"] == "dead")
    notebook.run("%tfcluster revive")
    notebook.run("%%tfcluster\n1 + 1")
    found = notebook.cluster().timeline(whole=True).timeline
    (lane,) = [lane for lane in found.lanes if lane.task == "worker-1"]
    doings = [span.doing for span in lane.spans]
    assert doings.index("dead") < len(doings) - 1 - doings[::-1].index("starting")
    assert {span.attempt for span in lane.spans} == {1, 2}
    texts = [event.text for event in found.events if event.task == "worker-1"]
    assert "was killed by you (SIGKILL)" in texts
    assert "new process, number 2" in texts
    text = notebook.run("%tfcluster timeline --all")
    assert re.search(r"^worker-1 .*[XN]", text, re.MULTILINE)
    with pytest.raises(TfmagicError, match=r"no record of cell \[999\]"):
        notebook.run("%tfcluster timeline --cell 999")
    with pytest.raises(UsageError, match="there is no run 'nope'"):
        notebook.run("%tfcluster timeline --run nope")


def test_an_interrupted_cell_is_marked(notebook):
    notebook.run("%tfcluster start --workers 2")
    notebook.run("%%tfcluster --detach\nimport time\nwhile True: time.sleep(0.02)")
    wait_until(lambda: all(row["line"] == 2 or row["line"] == 3 for row in notebook.cluster().status()))
    notebook.run("%tfcluster interrupt")
    with pytest.raises(KeyboardInterrupt):
        notebook.run("%tfcluster wait")
    signs = {(event.task, event.sign) for event in notebook.cluster().timeline().timeline.events}
    assert signs == {("worker-0", "interrupt"), ("worker-1", "interrupt")}


def is_drawn(run):
    """Check whether both tasks were seen at a line a while before the kernel was last seen alive."""
    seen = {record.task: record.t for record in read_timeline(run) if getattr(record, "line", 0)}
    written = read_snapshot(run.folder).written
    return len(seen) == 2 and written > max(seen.values()) + 0.5


def test_a_run_whose_kernel_was_killed_is_drawn_from_disk(kernel, notebook, commands, tmp_path):
    kernel.run("%tfcluster start --workers 2")
    kernel.run("%%tfcluster --detach\nimport time\nfor step in range(100_000):\n    time.sleep(0.02)")
    (name,) = kernel.text("print(get_ipython().magics_manager.registry['TFClusterMagics'].notebook"
                          ".clusters['default'].run_folder)").split()  # fmt: skip
    run = next(run for run in find_runs(state_dir()) if str(run) == name)
    wait_until(lambda: is_drawn(run))
    os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
    wait_until(lambda: not kernel_lives(run))
    text = notebook.run(f"%tfcluster timeline --run {name}")
    assert "not ended" in text and "The kernel of this run died" in text
    assert re.search(r"^worker-1 .*[34]=", text, re.MULTILINE)
    commands.start(tmp_path, ["timeline", name, "--all"])
    assert commands.wait() == 0
    assert "> starting" in (tmp_path / "out.txt").read_text()
    commands.start(tmp_path, ["timeline", name, "--svg", "run.svg"])
    assert commands.wait() == 0
    assert (tmp_path / "run.svg").read_text().startswith("<svg ")
    commands.start(tmp_path, ["timeline", "nope"])
    assert commands.wait() == 1
