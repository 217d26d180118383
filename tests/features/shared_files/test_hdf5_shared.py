"""SharedWriter without a cluster: a real writer process, real files, a real SIGKILL."""

import os
import pickle
import threading

import pytest
from conftest import wait_until
from hdf5_files import contents

from tfmagic.hdf5 import MismatchError, SharedWriter, SharedWriterError


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "out.h5")


def test_after_a_refusal_the_path_is_free_at_once(path):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
    for n in range(5):
        with pytest.raises(SharedWriterError, match="is there already"):
            SharedWriter(path, "x")
        with SharedWriter(path, "a") as writer:
            writer.append("x", n)
    assert contents(path)["x"].tolist() == [1, 0, 1, 2, 3, 4]


def test_a_writer_that_is_made_anew_closes_the_former(path):
    former = SharedWriter(path)
    former.append("x", 1)
    with SharedWriter(path, "a") as writer:
        writer.append("x", 2)
    assert former.closed and contents(path)["x"].tolist() == [1, 2]
    with pytest.raises(SharedWriterError, match="was closed when this process opened the file once more"):
        former.append("x", 3)
    with pytest.raises(SharedWriterError, match="has been closed here"):
        writer.append("x", 3)


def test_an_unreferenced_writer_is_closed(path):
    writer = SharedWriter(path)
    writer.append("x", 1)
    del writer
    wait_until(lambda: os.path.exists(path))
    assert contents(path)["x"].tolist() == [1]


def test_unknown_settings_are_refused(path):
    for given_, words in (
        ({"mode": "r"}, "to read, use h5py.File"),
        ({"compression": "zip"}, "'gzip' or 'lzf'"),
        ({"chunk_rows": 0}, "1 or more"),
    ):
        with pytest.raises(ValueError, match=words):
            SharedWriter(path, **given_)


def test_a_second_thread_does_not_replace_what_the_first_one_writes(path):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
        refused = []

        def again():
            try:
                SharedWriter(path)
            except SharedWriterError as error:
                refused.append(str(error))

        other = threading.Thread(target=again)
        other.start()
        other.join()
        assert "open in the thread MainThread" in refused[0] and "share that SharedWriter" in refused[0]
        writer.append("x", 2)
    assert contents(path)["x"].tolist() == [1, 2]


def test_what_a_thread_that_has_ended_left_open_gives_way(path):
    left = []
    opener = threading.Thread(target=lambda: left.append(SharedWriter(path)))
    opener.start()
    opener.join()
    left[0].append("x", 1)
    with SharedWriter(path) as writer:
        writer.append("x", 2)
    assert left[0].closed and contents(path)["x"].tolist() == [2]


def test_a_fork_of_the_process_that_opened_it_is_refused(path):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                writer.append("x", 2)
            except SharedWriterError as error:
                code = 0 if "is a fork of it" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        writer.append("x", 3)
    assert contents(path)["x"].tolist() == [1, 3]


def test_errors_can_be_pickled():
    for error in (MismatchError("a"), SharedWriterError("b")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
