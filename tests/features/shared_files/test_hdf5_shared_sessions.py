"""The writer process of a shared file: its start, its end, forks, and two that want one file."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import psutil
import pytest
from conftest import alive, program, wait_until
from hdf5_files import contents, writer_pid

from tfmagic.features.shared_files import messages, sessions
from tfmagic.features.shared_files.connection import Connection
from tfmagic.hdf5 import SharedWriter, SharedWriterError
from tfmagic.protocol.channel import channel_pair
from tfmagic.protocol.cluster_spec import TaskId


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "out.h5")


def test_a_killed_writer_is_named_and_what_it_had_flushed_can_be_read(path):
    writer = SharedWriter(path)
    writer.append("x", np.arange(10))
    writer.flush()
    os.kill(writer_pid(), signal.SIGKILL)
    with pytest.raises(
        SharedWriterError, match=r"has ended; what it had written is in .*out\.h5\.unfinished"
    ):
        while True:
            writer.append("x", 1)
    with pytest.raises(SharedWriterError):
        writer.close()
    assert contents(path + ".unfinished")["x"][:10].tolist() == list(range(10))
    with SharedWriter(path) as writer:
        writer.append("y", 1)
    assert sorted(os.listdir(os.path.dirname(path))) == ["out.h5", "out.h5.abandoned"]


SCRIPT = """
import os, sys
import numpy as np
from tfmagic.hdf5 import SharedWriter
from tfmagic.features.shared_files import messages, sessions
from tfmagic.features.shared_files.connection import Connection
from tfmagic.protocol.channel import channel_pair
from tfmagic.protocol.cluster_spec import TaskId

writer = SharedWriter(sys.argv[1])
for step in range(int(sys.argv[2])):
    writer.append("x", np.full(5000, step))
(session,) = sessions._sessions.values()
print(session.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["exit", "SIGKILL"])
def test_the_file_is_closed_and_the_writer_ends_when_its_process_does(path, how):
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, path, "300"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pid = int(script.stdout.readline())
    if how == "SIGKILL":
        script.kill()
    script.communicate()
    wait_until(lambda: not alive({pid}))
    rows = contents(path)["x"].reshape(-1, 5000)
    assert rows[:, 0].tolist() == list(range(300))


def test_two_scripts_cannot_write_one_file(path):
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, path, "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    script.stdout.readline()
    with pytest.raises(SharedWriterError, match="being written by another notebook or script"):
        SharedWriter(path)
    script.communicate()
    assert len(contents(path)["x"]) == 15000


@pytest.mark.parametrize("end", ["its with", "its interpreter"])
def test_a_fork_that_ends_does_not_close_the_file_of_its_parent(path, end):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
        if (pid := os.fork()) == 0:
            signal.alarm(60)
            if end == "its with":
                writer.__exit__(None, None, None)
            else:
                sessions.end_all()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        writer.append("x", 2)
        writer.flush()
    assert contents(path)["x"].tolist() == [1, 2]


FORKING = """
import os, sys, time
from tfmagic.hdf5 import SharedWriter
from tfmagic.features.shared_files import messages, sessions
from tfmagic.features.shared_files.connection import Connection
from tfmagic.protocol.channel import channel_pair
from tfmagic.protocol.cluster_spec import TaskId

writer = SharedWriter(sys.argv[1])
writer.append("x", 1)
child = os.fork()
if child == 0:
    time.sleep(1000)
(session,) = sessions._sessions.values()
print(session.pid, child, flush=True)
sys.stdin.read()
"""


def test_a_fork_that_goes_on_does_not_keep_the_file_open_when_its_parent_is_killed(path):
    with program(sys.executable, "-c", FORKING, path, stdin=subprocess.PIPE) as script:
        pid, child = map(int, script.stdout.readline().split())
        script.kill()
        try:
            wait_until(lambda: os.path.exists(path))
        finally:
            os.kill(child, signal.SIGKILL)
    wait_until(lambda: not alive({pid}))
    assert contents(path)["x"].tolist() == [1]


def test_neither_writer_nor_thread_nor_descriptor_stays(path):
    before = len(psutil.Process().open_files()), psutil.Process().num_fds()
    for _ in range(2):
        with SharedWriter(path) as writer:
            writer.append("x", np.zeros(1 << 16))
            pid = writer_pid()
        assert not alive({pid}) and not sessions._sessions
    del writer
    assert (len(psutil.Process().open_files()), psutil.Process().num_fds()) == before


def test_without_h5py_the_error_says_what_to_install(path):
    folder = os.path.dirname(path)
    with open(os.path.join(folder, "h5py.py"), "w") as file:
        file.write("raise ImportError('No module named h5py')\n")
    sys.path.insert(0, folder)
    try:
        with pytest.raises(SharedWriterError, match=r'pip install "tfmagic\[hdf5\]"'):
            SharedWriter(path)
    finally:
        sys.path.remove(folder)


def test_a_path_object_in_sys_path_does_not_keep_the_writer_from_starting(path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, pathlib.Path(path).parent])
    with SharedWriter(path) as writer:
        writer.append("x", 1)
    assert contents(path)["x"].tolist() == [1]


def test_an_interrupt_while_it_is_opened_leaves_the_path_free_and_the_file_as_it_was(path):
    with SharedWriter(path) as writer:
        writer.append("x", 1)

    def press():  # as soon as the writer's process is there, which has to load h5py
        wait_until(lambda: any(session.pid for session in [*sessions._sessions.values()]))
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    with pytest.raises(KeyboardInterrupt):
        presser.start()
        SharedWriter(path)
    presser.join()
    wait_until(lambda: not sessions._sessions)
    assert contents(path)["x"].tolist() == [1] and os.listdir(os.path.dirname(path)) == ["out.h5"]
    with SharedWriter(path, "a") as writer:
        writer.append("x", 2)
    assert contents(path)["x"].tolist() == [1, 2]


def test_two_scripts_cannot_write_one_file_with_locks_switched_off_either(path):
    environment = os.environ | {"HDF5_USE_FILE_LOCKING": "FALSE"}
    one = [sys.executable, "-c", SCRIPT, path, "3"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    first = subprocess.Popen(one, env=environment, text=True, **pipes)
    first.stdout.readline()
    second = subprocess.run(one, env=environment, capture_output=True, text=True, timeout=60)
    assert "being written by another notebook or script" in second.stderr
    first.communicate()
    assert len(contents(path)["x"]) == 15000


def test_an_interrupt_while_it_waits_for_the_file_of_others_leaves_the_path_free(path):
    """Its turn comes when nobody is there any more."""
    owner = sessions.Owner()
    ours, theirs = socket.socketpair()
    for mode in "aw":
        fd = os.dup(theirs.fileno())
        how = (mode, "", 0)
        sessions.request_open(sessions.OpenRequest(path, how, 0, owner, "", ("",), fd))
    assert sessions._sessions[path].waiting
    ours.close()
    theirs.close()
    wait_until(lambda: not sessions._running)
    assert os.listdir(os.path.dirname(path)) == []


def test_a_task_that_is_interrupted_while_it_waits_for_the_others_leaves_the_path_free(path):
    tasks, files = [TaskId("worker", n) for n in range(2)], sessions.SharedWriters()
    names, owner = tuple(task.name for task in tasks), sessions.Owner(files)

    def ask(name):
        ours, theirs = channel_pair(messages.ToTask)
        with theirs:
            fd = os.dup(theirs.fileno())
            sessions.request_open(sessions.OpenRequest(path, ("w", "", 0), 0, owner, name, names, fd))
        return Connection(path, ours)

    first, second = map(ask, names)
    first.open(), second.open()
    again = ask(names[0])
    assert sessions._sessions[path].waiting
    again.close(), first.close()
    sessions._note_ended(owner, tasks[:1])
    second.close()
    sessions._note_ended(owner, tasks[1:])
    wait_until(lambda: not sessions._sessions)
    assert not os.listdir(os.path.dirname(path)) or contents(path) == {}
