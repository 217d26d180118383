"""The state folder and who else can reach into it. Another user is a real one: nobody."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from ordinary_user import as_ordinary_user

import tfmagic
from tfmagic.errors import LaunchError
from tfmagic.frontends.cli import main
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs import folder, kernels
from tfmagic.runs.cell_records import read_records
from tfmagic.runs.log_reader import LogReader

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")


@pytest.fixture
def base(tmp_path):
    return tmp_path / "shared" / "state"


def as_nobody(script, *words):
    subprocess.run(
        [
            "setpriv",
            f"--reuid={NOBODY}",
            f"--regid={NOBODY}",
            "--clear-groups",
            "sh",
            "-ec",
            script,
            "sh",
            *map(str, words),
        ],
        check=True,
    )


def parent_of_nobody(base):
    base.mkdir(parents=True)
    os.chown(base.parent, NOBODY, -1)


def sticky_parent_of_nobody(base):
    parent_of_nobody(base)
    base.parent.chmod(0o1777)


def state_folder_of_nobody(base):
    (base / "runs").mkdir(parents=True)
    os.chown(base, NOBODY, -1)


def runs_of_nobody(base):
    (base / "runs").mkdir(parents=True, mode=0o755)
    os.chown(base / "runs", NOBODY, -1)


def link_of_nobody(base):
    base.parent.mkdir(parents=True)
    base.parent.chmod(0o1777)
    (base.parent.parent / "mine").mkdir()
    base.symlink_to(base.parent.parent / "mine")
    os.lchown(base, NOBODY, -1)


def link_through_a_folder_of_nobody(base):
    base.parent.mkdir(parents=True)
    (base.parent / "theirs").mkdir()
    (base.parent / "theirs" / "target").mkdir()
    os.chown(base.parent / "theirs", NOBODY, -1)
    (base.parent / "hop").symlink_to("theirs/../theirs/target")
    base.symlink_to("hop")


@as_root
@pytest.mark.parametrize(
    "prepare",
    [
        parent_of_nobody,
        sticky_parent_of_nobody,
        state_folder_of_nobody,
        runs_of_nobody,
        link_of_nobody,
        link_through_a_folder_of_nobody,
    ],
)
def test_a_folder_that_another_user_could_replace_is_refused(base, prepare, capsys, monkeypatch):
    prepare(base)
    before = {path: path.lstat().st_mode for path in base.parent.parent.rglob("*")}
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(base))
    for use in (
        lambda: folder.check_writable(base),
        lambda: folder.create_run(base, "c", {}),
        tfmagic.Cluster(workers=1).start,
        lambda: tfmagic.attach("a-run"),
    ):
        with pytest.raises(LaunchError, match=r"belongs to nobody.*\n*.*set TFMAGIC_STATE_DIR to a folder"):
            use()
    assert main(["reap", "--runs"]) == 1 and "belongs to nobody" in capsys.readouterr().err
    assert before == {path: path.lstat().st_mode for path in base.parent.parent.rglob("*")}, "nothing changed"


@pytest.mark.parametrize(
    "in_place", [Path.touch, os.mkfifo, lambda runs: runs.symlink_to(runs.parent.parent)]
)
def test_what_stands_in_the_place_of_the_runs_is_refused(base, in_place):
    base.mkdir(parents=True)
    in_place(base / "runs")
    mode = base.parent.stat().st_mode
    with pytest.raises(LaunchError, match=r"runs is not a folder"):
        folder.create_run(base, "c", {})
    assert base.parent.stat().st_mode == mode


@pytest.mark.parametrize("prepare", [None, "sticky", "own link", "own open runs", "own open parent"])
def test_a_folder_that_no_other_user_can_replace_is_used_and_closed(base, prepare):
    base.parent.mkdir(parents=True)
    match prepare:
        case "sticky":
            base.parent.chmod(0o1777)
        case "own link":
            (base.parent / "elsewhere").mkdir()
            base.symlink_to("elsewhere")
        case "own open runs":
            (base / "runs").mkdir(parents=True)
            (base / "runs").chmod(0o777)
        case "own open parent":  # for those who can only read it
            base.parent.chmod(0o755)
    run = folder.create_run(base, "c", {})
    assert run.folder.parent.stat().st_mode & 0o777 == run.folder.stat().st_mode & 0o777 == 0o700
    assert (run.folder / "run.json").stat().st_mode & 0o777 == 0o600


@as_root
def test_a_group_of_others_must_not_write_above_the_runs_but_that_of_this_user_can(base):
    base.parent.mkdir(parents=True)
    base.parent.chmod(0o775)
    folder.check_writable(base)
    os.chown(base.parent, -1, NOBODY)  # the group of nobody
    with pytest.raises(LaunchError, match=r"shared can be written by .*nobody"):
        folder.check_writable(base)


@as_root
def test_a_user_who_swaps_the_folder_gets_no_byte_into_a_file_of_ours():
    with tempfile.TemporaryDirectory() as name:
        shared, victim = Path(name) / "shared", Path(name) / "victim"
        os.chmod(name, 0o755)
        shared.mkdir()
        shared.chmod(0o777)
        victim.mkdir()
        (victim / "runs").mkdir()
        run = folder.create_run(Path(name) / "own", "c", {})
        shutil.move(Path(name) / "own", shared / "state")  # as if its parent had been opened later
        as_nobody('cd "$1"; mv state aside; ln -s "$2" state', shared, victim)
        with pytest.raises(LaunchError, match="can be written by every user"):
            folder.create_run(shared / "state", "c", {})
        (victim / "secret").write_text("as it was\n")
        (shared / "aside" / "runs" / run.folder.name / "worker-0.log").symlink_to(victim / "secret")
        moved = folder.RunFolder(shared / "aside" / "runs" / run.folder.name)
        with pytest.raises(OSError, match="symbolic links"):
            moved.open_log(TaskId("worker", 0))
        assert (victim / "secret").read_text() == "as it was\n" and not os.listdir(victim / "runs")


def test_logs_in_another_folder_are_those_of_the_run_for_every_reader(base, tmp_path):
    run, task = folder.create_run(base, "c", {}), TaskId("worker", 0)
    (tmp_path / "logs").mkdir()
    run.put_logs(tmp_path / "logs")
    os.write(fd := run.open_log(task), b"a line\n")
    os.close(fd)
    run.stacks_path(task).touch()  # as each process does
    (found,) = folder.find_runs(base)
    assert found.tasks == (task,) and found.cluster == "c"
    assert found.log_path(task).read_text() == "a line\n" and found.log_bytes(task) == 7
    assert (tmp_path / "logs" / "worker-0.log").read_text() == "a line\n"
    shutil.rmtree(run.folder)
    run.restore()
    (found,) = folder.find_runs(base)
    assert found.log_path(task).read_text() == "a line\n"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd"), Path.mkdir])
def test_a_pipe_a_link_and_a_folder_are_no_files_of_a_run(base, make):
    """And none of them is waited for: the time limit of this test is that of a hang."""
    run, task = folder.create_run(base, "c", {}), TaskId("worker", 0)
    for path in (run.log_path(task), run.stacks_path(task), run.folder / "cells.jsonl"):
        make(path)
    (run.folder / "run.json").unlink()
    make(run.folder / "run.json")
    with pytest.raises(OSError):
        run.open_log(task)
    reader = LogReader(run.log_path(task), task)
    assert reader.log.behind_bytes == 0 and reader.log.read(100) == b""
    assert run.end_reason(task, 1) == "" and read_records(run) == [] and run.cluster == ""
    assert kernels.kernel_lives(run) and kernels.old_runs(base, 0, 0) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user that no password file names")
def test_a_user_without_a_home_gets_a_temporary_folder(monkeypatch):
    for name in ("HOME", "TFMAGIC_STATE_DIR", "XDG_STATE_HOME", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ORDINARY_UID", "54321")
    code = "from tfmagic.runs import folder; print(folder.state_dir())"
    run = subprocess.run(as_ordinary_user(sys.executable, "-c", code), capture_output=True, text=True)
    assert run.stdout == "/tmp/tfmagic-54321\n", run.stderr
