"""The trace of a real cluster, opened by Perfetto's own page and queried by its trace processor."""

import json
import os
import re
import stat

import pytest
from conftest import wait_until
from perfetto import opened
from snippets import snippets

from tfmagic.errors import TfmagicError
from tfmagic.features.pictures.timeline_file import CellBegan, CellEnded, Change, TaskPart, TimelineFile
from tfmagic.frontends.cli import main
from tfmagic.runs.folder import RunFolder

MEETS = """%%tfcluster --detach
# two wait for the third
import os, tfmagic
tfmagic.track(loss=0.5 + tfmagic.current_task().index)
if tfmagic.current_task().index == 2:
    while not os.path.exists({flag!r}): pass
tfmagic.barrier()
"""
FAILS = """%%tfcluster --detach --keep-going
import os, tfmagic
if tfmagic.current_task().index == 1:
    raise ValueError("bad batch")
while not os.path.exists({flag!r}): pass
"""
SLICES = """
select process.name, thread.name, slice.name, slice.ts, slice.dur from slice
join thread_track on thread_track.id = slice.track_id join thread using (utid) join process using (upid)
order by slice.ts
"""
FLOWS = """
select source.name, source_slice.name, target.name, target_slice.name from flow
join slice source_slice on source_slice.id = slice_out join thread_track a on a.id = source_slice.track_id
join thread on thread.utid = a.utid join process source on source.upid = thread.upid
join slice target_slice on target_slice.id = slice_in join thread_track b on b.id = target_slice.track_id
join thread other on other.utid = b.utid join process target on target.upid = other.upid
"""
COUNTERS = """
select process.name, process_counter_track.name, value from counter
join process_counter_track on process_counter_track.id = counter.track_id join process using (upid)
"""
STATES = ("starting", "idle", "running", "failed", "dead", "restarting")
ERRORS = "select name from stats where severity in ('error', 'data_loss') and value > 0"


def is_seen_waiting(notebook, task):
    """Check whether the records have the task at the barrier, at its line."""
    timeline = notebook.cluster().timeline(whole=True).timeline
    spans = [span for lane in timeline.lanes if lane.task == task for span in lane.spans]
    return any(span.doing == "waiting" and span.line == 7 for span in spans)


def run_three_cells(notebook, folder):
    """Run a cell whose tasks wait at a barrier, one that fails on a task, and one after a task was killed."""
    meet, fail = folder / "meet", folder / "fail"

    def rows():
        return {row["task"]: row for row in notebook.cluster().status()}

    notebook.run("%tfcluster start --workers 3")
    before = {task: (row["pid"], row["host"]) for task, row in rows().items()}
    notebook.run(MEETS.format(flag=str(meet)))
    wait_until(lambda: all(is_seen_waiting(notebook, task) for task in ("worker-0", "worker-1")))
    meet.touch()
    notebook.run("%tfcluster wait")
    notebook.run(FAILS.format(flag=str(fail)))
    wait_until(lambda: rows()["worker-1"]["state"] == "ready" and rows()["worker-0"]["line"])
    fail.touch()
    with pytest.raises(ValueError, match="bad batch"):
        notebook.run("%tfcluster wait")
    notebook.run("%tfcluster kill worker-1")
    wait_until(lambda: rows()["worker-1"]["state"] == "dead")
    notebook.run("%tfcluster revive")
    notebook.run("%%tfcluster\n1 + 1")
    return before, rows()["worker-1"]["pid"]


def test_perfetto_reads_processes_slices_counters_and_arrows(notebook, browser, tmp_path):
    before, new_pid = run_three_cells(notebook, tmp_path)
    path = tmp_path / "run.json"
    said = notebook.run(f"%tfcluster timeline --all --perfetto {path}")
    assert f"wrote {path}; open it at https://ui.perfetto.dev" in said
    with opened(browser, path) as trace:
        names = [name for (name,) in trace.query("select name from process where name is not null")]
        slices, flows = trace.query(SLICES), set(trace.query(FLOWS))
        counters, errors = trace.query(COUNTERS), trace.query(ERRORS)
        (question,) = snippets("docs/seeing.md", "sql")
        waited = {(process, name): seconds for process, name, seconds in trace.query(question.code)}
        trace.page.get_by_text(re.compile("^worker-1")).first.wait_for()
    assert errors == []
    by_task = {name.partition(" ")[0]: name for name in names}
    assert sorted(by_task) == ["notebook", "worker-0", "worker-1", "worker-2"]
    pid, host = before["worker-0"]
    assert host and by_task["worker-0"] == f"worker-0 (pid {pid}, {host})"
    assert by_task["worker-1"] == f"worker-1 (pid {new_pid}, before {before['worker-1'][0]}, {host})"
    assert by_task["notebook"].startswith(f"notebook (pid {os.getpid()}, ")

    def on(task, track):
        return [name for process, thread, name, *_ in slices if (process, thread) == (by_task[task], track)]

    cells = ["# two wait for the third", "import os, tfmagic", "1 + 1"]
    for task in by_task:
        assert [name.partition(": ")[2] for name in on(task, "cells")] == cells
    assert "waiting for worker-2" in on("worker-0", "state")
    assert "7: tfmagic.barrier()" in on("worker-0", "line")
    assert waited[by_task["worker-0"], "waiting for worker-2"] > 0
    states = [name for name in on("worker-1", "state") if name in STATES]
    assert states[0] == "starting"
    assert states[states.index("failed") :] == [
        "failed",
        "idle",
        "dead",
        "restarting",
        "idle",
        "running",
        "idle",
    ]
    assert {"failed: ValueError: bad batch", "new process, number 2"} <= set(on("worker-1", "state"))
    arrives = (by_task["worker-2"], "arrives at barrier 1")
    assert flows == {
        (*arrives, by_task[task], "goes on after barrier 1") for task in ("worker-0", "worker-1")
    }
    assert {(process, name, value) for process, name, value in counters} == {
        (by_task[f"worker-{index}"], "loss value", 0.5 + index) for index in range(3)
    }


@pytest.fixture
def run(tmp_path):
    """Return the folder of a run of one cell."""
    folder = tmp_path / "20260131-0930"
    folder.mkdir()
    (folder / "run.json").write_text('{"pid": 7, "host": "here", "cluster": "default"}')
    cell, parts = CellBegan(100.0, 1, ("worker-0",), 7, "x = 1"), {"worker-0": TaskPart("done", 102.0)}
    TimelineFile(RunFolder(folder)).append([cell, CellEnded(102.0, 1, parts)])
    return folder


def test_the_command_writes_a_private_file_and_replaces_only_its_own(run, tmp_path, capsys):
    path, other, link = (tmp_path / name for name in ("trace.json", "other.json", "link.json"))
    for _ in range(2):
        assert main(["timeline", str(run), "--perfetto", str(path)]) == 0
        assert f"wrote {path}; open it at" in capsys.readouterr().out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other.write_text('{"traceEvents": []}')
    link.symlink_to(path)
    for there, why in ((other, "is not a trace of a timeline"), (link, "cannot be written")):
        before = there.read_text()
        assert main(["timeline", str(run), "--perfetto", str(there)]) == 1
        assert f"{there} {why}" in capsys.readouterr().err
        assert there.read_text() == before
    assert link.is_symlink()
    assert main(["timeline", str(run), "--perfetto", str(tmp_path / "nowhere" / "trace.json")]) == 1
    assert sorted(p.name for p in tmp_path.glob("*.json*")) == ["link.json", "other.json", "trace.json"]


def test_a_trace_has_all_states_however_many(run, tmp_path):
    changes = [
        Change(100 + n / 1000, "worker-0", "waiting" if n % 2 else "running", cell=1) for n in range(1900)
    ]
    TimelineFile(RunFolder(run)).append(changes)
    assert main(["timeline", str(run), "--perfetto", str(tmp_path / "trace.json")]) == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event.get("cat") == "state" for event in events) == 1900


def test_the_timeline_of_a_cluster_writes_itself(notebook, tmp_path):
    notebook.run("%%tfcluster --workers 1\n1 + 1")
    path = tmp_path / "trace.json"
    notebook.cluster().timeline().write_perfetto(path)
    assert '"name": "worker-0 (pid' in path.read_text()
    path.write_text("mine")
    with pytest.raises(TfmagicError, match="left as it is; name another file"):
        notebook.cluster().timeline().write_perfetto(path)
    assert path.read_text() == "mine"
