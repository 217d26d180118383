"""A folder has one writer at a time, whichever way the writer ends."""

# ruff: noqa: F401 - fixtures are imported by name
import errno
import fcntl
import gc
import json
import os
import signal
import subprocess
import sys

import pytest
from conftest import wait_until
from log_folders import WORKER_0, _tensorflow, saves

from tfmagic import logdir
from tfmagic.logdir import owners
from tfmagic.system import advice, files


def test_a_folder_has_one_writer_at_a_time_also_after_kill_9(tmp_path):
    code = (
        "import sys, time; from tfmagic.logdir import owners; owners.hold(sys.argv[1], owners); print('held', flush=True); "
        "time.sleep(100)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(logdir.LogdirError, match=rf"being written by .*pid {other.pid}") as caught:
            saves(tmp_path).save(1)
        assert str(tmp_path) in str(caught.value)
        other.send_signal(signal.SIGKILL)
    wait_until(lambda: other.poll() is not None)
    with saves(tmp_path) as kept:
        assert kept.save(1) == 1


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_the_owner_file_is_no_way_to_empty_another_file(tmp_path, link):
    """Who can write to a log folder that several users share could put a link there."""
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    (tmp_path / "run").mkdir()
    link(victim, tmp_path / "run" / ".tfmagic-writer")
    if link is os.symlink:
        with pytest.raises(logdir.LogdirError, match=r"symbolic links. Delete that file, or name another"):
            saves(tmp_path / "run").save(1)
    else:
        saves(tmp_path / "run").save(1)
    assert victim.read_text() == "as it was"


def test_a_file_system_without_locks_is_said_once(tmp_path, monkeypatch, capfd):
    def refuse(fd, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(files, "_said_on", set())
    for name in ("a", "b"):
        with saves(tmp_path / name) as kept:
            kept.save(1)
    said = capfd.readouterr().err
    assert said.count("has no locks (No locks available)") == 1 and str(tmp_path / "a") in said


def test_the_owner_file_goes_with_its_owner(tmp_path):
    with saves(tmp_path) as kept:
        kept.save()
        assert json.loads((tmp_path / ".tfmagic-writer").read_text())["pid"] == os.getpid()
    assert not (tmp_path / ".tfmagic-writer").exists()


def test_a_cell_that_ran_twice_lets_go_of_the_folder_with_one_close(tmp_path):
    """The object of the first run is garbage, and can no longer be closed."""
    take = "import sys; from tfmagic.logdir import owners; owners.hold(sys.argv[1], owners)"
    command = [sys.executable, "-c", take, str(tmp_path)]

    def checkpoints():
        made = saves(tmp_path)
        made.save()
        return made

    for make in (checkpoints, lambda: logdir.task_logdir(tmp_path, task=WORKER_0)):
        kept = make()
        kept = make()
        gc.collect()
        assert subprocess.run(command, capture_output=True).returncode == 1
        kept.close()
        subprocess.run(command, check=True)


@pytest.mark.parametrize(
    "task, cluster, step",
    [
        ("worker-0", "second", r"end the other:  %tfcluster stop --cluster second$"),
        ("worker-0", "default", r"end the other:  %tfcluster stop$"),
        ("", "", r"end the other$"),
    ],
)
def test_how_to_end_the_other_writer_is_said_of_its_cluster(tmp_path, task, cluster, step):
    path = tmp_path / owners.NAME
    path.write_text(json.dumps({"task": task, "cluster": cluster, "pid": 7, "host": "here"}))
    advice.set_front_end(advice.FrontEnd.NOTEBOOK)
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(logdir.LogdirError, match=step):
                owners.hold(str(tmp_path), owners)
    finally:
        advice.set_front_end(None)


@pytest.mark.parametrize("is_alive", [False, True])
def test_the_owner_file_of_another_user_counts_while_he_lives(tmp_path, monkeypatch, is_alive):
    """In a folder that several users may write to, it is forbidden to open another user's file for writing."""
    path, os_open = tmp_path / owners.NAME, os.open
    path.write_text('{"task": "theirs", "pid": 7, "host": "here"}')

    def open_as_another(name, flags, *mode, **more):
        if (
            flags & os.O_RDWR
            and str(name) == str(path)
            and path.exists()
            and path.samefile(f"/proc/self/fd/{fd}")
        ):
            raise PermissionError(13, "Permission denied")
        return os_open(name, flags, *mode, **more)

    fd = os_open(path, os.O_RDONLY)
    if is_alive:
        fcntl.flock(fd, fcntl.LOCK_EX)
    monkeypatch.setattr(os, "open", open_as_another)
    try:
        if is_alive:
            with pytest.raises(logdir.LogdirError, match=r"is being written by theirs \(pid 7 on here\)"):
                owners.hold(str(tmp_path), owners)
        else:
            owners.hold(str(tmp_path), owners)
            assert f'"pid": {os.getpid()}' in path.read_text()
            owners.release(str(tmp_path), owners)
            assert not path.exists()
    finally:
        os.close(fd)
