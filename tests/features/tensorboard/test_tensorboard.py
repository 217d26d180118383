"""TensorBoard of a cluster: requests that are refused, and failed starts."""

import importlib.util
import socket
import threading

import pytest
from conftest import wait_until

from tfmagic.errors import LaunchError, TfmagicError
from tfmagic.features.tensorboard import process as tensorboard
from tfmagic.runs import trace_folders
from tfmagic.runs.folder import create_run


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path / "state", "c", {})


def test_without_tensorboard_the_error_has_the_line_that_installs_it(run, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TfmagicError, match="pip install tensorboard$"):
        tensorboard.start_tensorboard(str(tmp_path), None, "127.0.0.1", run)


def test_the_folder_is_the_named_one_or_the_last_that_tasks_named(run, tmp_path):
    with pytest.raises(TfmagicError, match=r"tfcluster.tensorboard.LOGDIR"):
        tensorboard.find_logdir(None, run)
    (run.folder / tensorboard.POINTER).write_text(str(tmp_path))
    assert tensorboard.find_logdir(None, run) == str(tmp_path)
    (tmp_path / "file").touch()
    for name, word in (("file", "is a file"), ("nowhere", "does not exist")):
        with pytest.raises(TfmagicError, match=word):
            tensorboard.find_logdir(str(tmp_path / name), run)


@pytest.mark.parametrize("port", [None, 70_000])
def test_a_port_that_cannot_be_had_is_named(run, tmp_path, port):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        asked = port or taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"cannot have port {asked}.*Leave --port out"):
            tensorboard.start_tensorboard(str(tmp_path), asked, "127.0.0.1", run)


def test_a_start_that_fails_shows_its_last_lines(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "_PROGRAM", "import sys; sys.exit('no board today')")
    with pytest.raises(LaunchError, match="ended with exit code 1:\nno board today"):
        tensorboard.start_tensorboard(str(tmp_path), None, "127.0.0.1", run)


def test_one_that_never_answers_is_given_up_and_ended(run, tmp_path, monkeypatch):
    begun = tmp_path / "begun"
    monkeypatch.setattr(tensorboard, "_PROGRAM", f"import time; open({str(begun)!r}, 'w'); time.sleep(1000)")
    monkeypatch.setattr(tensorboard, "_START_S", 2.0)
    ended = []
    monkeypatch.setattr(
        tensorboard,
        "kill_session",
        lambda process, end=tensorboard.kill_session: (end(process), ended.append(process)),
    )
    with pytest.raises(LaunchError, match="did not answer within 2 s"):
        tensorboard.start_tensorboard(str(tmp_path), None, "127.0.0.1", run)
    assert [process.poll() for process in ended] == [-9]


def test_one_that_was_started_by_a_thread_outlives_it(run, tmp_path):
    """The signal that ends it with the kernel follows the thread that has started it."""
    begun = []
    starter = threading.Thread(
        target=lambda: begun.append(tensorboard.start_tensorboard(str(tmp_path), None, "127.0.0.1", run))
    )
    starter.start()
    starter.join()
    (board,) = begun
    assert board.answers()
    board.close()
    assert not board.running and not board.answers()
    wait_until(lambda: "tfmagic-helper" not in {thread.name for thread in threading.enumerate()})


def test_traces_are_shown_where_no_task_has_named_a_folder(run, tmp_path, monkeypatch):
    traces = run.folder / "traces-of-cells"
    (traces / "plugins" / "profile").mkdir(parents=True)
    assert tensorboard.find_logdir(None, run) == str(traces)
    for is_there in (False, True):
        monkeypatch.setattr(trace_folders, "has_plugin", lambda is_there=is_there: is_there)
        assert ("pip install xprof" in trace_folders.missing_plugin(str(traces))) is not is_there
    monkeypatch.setattr(trace_folders, "has_plugin", lambda: False)
    assert trace_folders.missing_plugin(str(tmp_path)) == trace_folders.missing_plugin("gs://logs") == ""
    (run.folder / tensorboard.POINTER).write_text(str(tmp_path))
    assert tensorboard.find_logdir(None, run) == str(tmp_path)
