"""A state folder that machines share: no machine knows whether the kernels of another one live.

The other machine is a process in a pid namespace of its own, as a container has.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time

import pytest
from conftest import wait_until

from tfmagic.frontends.cli import main
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs import cell_records, folder, kernels, orphans
from tfmagic.runs.status_reader import read_snapshot
from tfmagic.system import process_identity

ELSEWHERE = ("unshare", "-rpf", "--mount-proc", "--kill-child")
START = """
import tfmagic
with tfmagic.Cluster(workers=1) as cluster:
    print(cluster.run_folder, flush=True)
    input()
"""
DAY_S = 86400


@pytest.fixture
def base(tmp_path):
    return tmp_path / "state"


def run_of(base, kernel, days=30.0, **facts):
    """Make a run that was started so many days ago, with what a start elsewhere must not touch."""
    meta = {**kernel.as_json(), "started": time.time() - days * DAY_S, **facts}
    run = folder.create_run(base, "c", meta)
    os.close(run.open_log(TaskId("worker", 0)))
    (run.folder / "worker-0-1.scratch").mkdir()
    (run.folder / "worker-0-1.scratch" / "events").write_text("not uploaded yet")
    orphans.note_process(run, "worker-0", kernel, "a mark")
    (run.folder / "status.json").write_text(json.dumps({"ended": False, "written": time.time()}))
    return run


def content(run):
    return {str(path): path.stat().st_mtime_ns for path in sorted(run.folder.rglob("*"))}


def age(run, seconds):
    """Let the last change of everything in the run be so long ago."""
    for path in run.folder.rglob("*"):
        os.utime(path, (time.time() - seconds,) * 2)


def test_a_cluster_started_in_another_pid_namespace_changes_nothing_of_a_run_here(base, monkeypatch, capsys):
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(base))
    ours = run_of(base, process_identity.identify(os.getpid()))
    before = content(ours)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*ELSEWHERE, sys.executable, "-c", START], **pipes) as other:
        theirs = folder.RunFolder(base / "runs" / os.path.basename(other.stdout.readline().strip()))
        assert content(ours) == before
        wait_until((theirs.folder / "status.json").exists)
        assert orphans.find(base) == [] == orphans.reap(base)
        assert main(["status"]) == 0
        shown = capsys.readouterr().out
        assert f"on another machine ({os.uname().nodename})" in shown and "running" in shown
        other.kill()  # as a crash of that machine
    assert json.loads((theirs.folder / "run.json").read_text())["host"] == os.uname().nodename
    age(theirs, 60)
    snapshot = read_snapshot(theirs.folder)
    assert not snapshot.died and snapshot.host == os.uname().nodename


@pytest.fixture
def far():
    """A process of another machine."""
    here = process_identity.identify(os.getpid())
    return dataclasses.replace(here, boot="another", host="node-7", machine="abc")


def test_a_run_of_another_machine_stays_until_it_has_been_quiet_for_days(base, far):
    run = run_of(base, far)
    before = content(run)
    assert orphans.reap(base) == [] and kernels.prune_runs(base, 7, 0) == []
    age(run, 9 * DAY_S)
    assert kernels.old_runs(base, 7, 1 << 40) == []
    assert [str(found) for found in kernels.old_runs(base, 7, 0)] == [str(run)], (
        "too large, and quiet for 3 days"
    )
    assert before.keys() == content(run).keys()
    age(run, 11 * DAY_S)
    assert [str(found) for found in kernels.prune_runs(base, 7, 1 << 40)] == [str(run)]
    assert not run.folder.exists()


def test_a_run_of_this_machine_before_its_last_boot_is_over(base, far):
    host, machine = process_identity.this_machine()
    run = run_of(base, dataclasses.replace(far, host=host, machine=machine))
    assert kernels.kernel_state(run) is kernels.KernelState.ELSEWHERE, (
        "a copy of this machine has just written"
    )
    age(run, time.time() - process_identity.booted_at() + 60)
    expected = kernels.KernelState.GONE if machine else kernels.KernelState.ELSEWHERE
    assert kernels.kernel_state(run) is expected
    orphans.reap(base)
    assert (run.folder / "worker-0-1.scratch").exists() == (not machine)


def test_a_cell_and_a_timeline_of_another_machine_are_not_called_lost(base, far, monkeypatch, capsys):
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(base))
    run = run_of(base, far)
    record = cell_records.CellRecord(1, "c", "", (), started=time.time() - 100)
    cell_records.append_record(run, record)
    age(run, 95)
    (found,) = cell_records.read_records(run)
    assert found.verdict == "" and 4 < found.elapsed_s < 7, "until it was last seen"
    (run.folder / "status.json").write_text(json.dumps({"ended": False, "written": time.time() - 95}))
    assert read_snapshot(run.folder).host == "node-7" and main(["status", "--all"]) == 0
    shown = capsys.readouterr().out
    assert "elsewhere" in shown and "on another machine (node-7), which wrote 95 s ago" in shown
    assert main(["logs", "--list"]) == 0 and "elsewhere" in capsys.readouterr().out


def test_large_files_in_subfolders_count_in_the_size_of_a_run(base):
    ended = subprocess.Popen(["true"])
    gone = process_identity.identify(ended.pid)
    ended.wait()
    run = run_of(base, gone, days=0)
    assert kernels.old_runs(base, 7, 1 << 20) == []
    (run.folder / "trace").mkdir()
    (run.folder / "trace" / "t.pb").write_bytes(bytes(2 << 20))
    assert [str(found) for found in kernels.old_runs(base, 7, 1 << 20)] == [str(run)]
