"""The file of a shared writer: its name, what it replaces, what is kept of it."""

import os
import resource
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest
from conftest import wait_until
from hdf5_files import contents, writer_pid

from tfmagic.features.shared_files.target import Target
from tfmagic.hdf5 import SharedWriter, SharedWriterError


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "out.h5")


def test_the_file_has_its_name_only_when_it_is_complete(path):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
        writer.flush()
        assert os.listdir(os.path.dirname(path)) == ["out.h5.unfinished"]
    assert os.listdir(os.path.dirname(path)) == ["out.h5"]


def test_the_former_file_stays_until_the_new_one_is_complete(path):
    with SharedWriter(path) as writer:
        writer.append("old", 1)
    with SharedWriter(path) as writer:
        writer.append("new", 2)
        writer.flush()
        assert set(contents(path)) == {"old"}
    assert set(contents(path)) == {"new"}


def test_mode_a_adds_and_mode_x_refuses(path):
    for value in (1, 2):
        with SharedWriter(path, "a") as writer:
            writer.append("x", value)
    assert contents(path)["x"].tolist() == [1, 2]
    with pytest.raises(SharedWriterError, match="is there already"):
        SharedWriter(path, "x")
    assert contents(path)["x"].tolist() == [1, 2]


@pytest.mark.parametrize("mode", ["a", "w", "x"])
def test_a_file_is_on_the_disk_before_it_replaces_another(tmp_path, path, synced, mode):
    if mode != "x":
        with h5py.File(path, "w") as file:
            file["old"] = 1
    target = Target(path, mode)
    file, _ = target.open()
    file["new"] = 2
    file.close()
    made = os.stat(target.unfinished_path).st_ino
    target.give_name()
    assert synced == ([] if mode == "x" else [made])  # nothing is lost where there was no file
    assert set(contents(path)) == ({"old", "new"} if mode == "a" else {"new"})


APPEND = """
import os, sys, h5py, tfmagic
if sys.argv[2] == "guarded":
    tfmagic.hdf5.guard()
with h5py.File(sys.argv[1], "r") as file:
    assert len(file["x"]) == 1
try:
    with h5py.File(sys.argv[1], "r+") as file:
        file["mine"] = 1
except OSError as error:
    print(type(error).__name__, error)
else:
    print("written")
"""


@pytest.mark.parametrize("how", ["guarded", "plain"])
def test_while_mode_a_copies_a_file_others_can_read_but_not_write_it(path, how):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
    with SharedWriter(path, "a") as writer:
        writer.append("x", 2)
        command = [sys.executable, "-c", APPEND, path, how]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("FileInUseError" if how == "guarded" else "BlockingIOError"), (
            done.stdout
        )
    assert contents(path)["x"].tolist() == [1, 2]
    with h5py.File(path, "r+") as file:
        file["mine"] = 1  # it is free again


@pytest.mark.parametrize("how", ["written with locks switched off", "replaced"])
def test_what_another_program_writes_while_mode_a_is_open_stays_and_so_do_the_rows(path, how):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
    writer = SharedWriter(path, "a")
    writer.append("x", 2)
    if how == "replaced":
        with h5py.File(path + ".new", "w") as file:
            file["mine"] = 1
        os.replace(path + ".new", path)
    else:
        environ = {**os.environ, "HDF5_USE_FILE_LOCKING": "FALSE"}
        command = [sys.executable, "-c", APPEND, path, "plain"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        assert done.stdout == "written\n"
    with pytest.raises(
        SharedWriterError, match=r"has changed it since.*its rows are in .*out\.h5\.unfinished"
    ):
        writer.close()
    assert "mine" in contents(path) and contents(path + ".unfinished")["x"].tolist() == [1, 2]


def test_a_file_that_is_deleted_while_mode_a_is_open_is_there_again_with_all_rows(path):
    with SharedWriter(path) as writer:
        writer.append("x", 1)
    with SharedWriter(path, "a") as writer:
        writer.append("x", 2)
        os.unlink(path)
    assert contents(path)["x"].tolist() == [1, 2]


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_private_file_stays_private_and_keeps_its_owner(path, mode):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (1,), maxshape=(None,))
    os.chmod(path, 0o640)
    owner = (65534, 65534) if os.getuid() == 0 else (os.getuid(), os.getgid())
    os.chown(path, *owner)
    with SharedWriter(path, mode) as writer:
        writer.append("x", np.float32(1))
        assert os.stat(path + ".unfinished").st_mode & 0o777 == 0o640
    found = os.stat(path)
    assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (0o640, *owner)


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_file_that_is_open_for_writing_with_h5py_is_not_replaced(path, mode):
    with h5py.File(path, "w") as file:
        file["x"] = 1
        file.flush()
        with pytest.raises(SharedWriterError, match=f"is open for writing by .*pid {os.getpid()}"):
            SharedWriter(path, mode)
        file["y"] = 2
    assert contents(path).keys() == {"x", "y"}
    with h5py.File(path), SharedWriter(path, mode) as writer:  # a reader does not matter
        writer.append("z", 3)


def test_a_file_that_is_opened_for_writing_meanwhile_is_not_replaced_either(path):
    writer = SharedWriter(path)
    writer.append("x", 1)
    with h5py.File(path, "a") as file:
        file["mine"] = 1
        with pytest.raises(SharedWriterError, match=r"is open for writing by .*unfinished"):
            writer.close()
    assert contents(path).keys() == {"mine"} and contents(path + ".unfinished").keys() == {"x"}


@pytest.mark.parametrize("target", ["victim", "nowhere"])
def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(path, tmp_path, target):
    (tmp_path / "victim").write_text("mine")
    os.symlink(tmp_path / target, path + ".unfinished")
    with pytest.raises(SharedWriterError, match="is a link or no plain file"):
        SharedWriter(path)
    assert (tmp_path / "victim").read_text() == "mine" and not (tmp_path / "nowhere").exists()


def test_a_link_is_followed_to_the_file_that_it_stands_for(tmp_path):
    (tmp_path / "disk").mkdir()
    link = tmp_path / "out.h5"
    link.symlink_to("disk/real.h5")
    with SharedWriter(link) as writer:
        writer.append("x", 1)
    assert link.is_symlink() and contents(tmp_path / "disk" / "real.h5")["x"].tolist() == [1]


def test_a_file_that_appears_meanwhile_is_not_replaced_in_mode_x(path):
    writer = SharedWriter(path, "x")
    writer.append("x", 1)
    with open(path, "w") as file:
        file.write("somebody else's")
    with pytest.raises(SharedWriterError, match=r"File exists.*its rows are in .*out\.h5\.unfinished"):
        writer.close()
    with open(path) as file:
        assert file.read() == "somebody else's"
    assert contents(path + ".unfinished")["x"].tolist() == [1]


def test_a_place_that_cannot_be_written_is_an_error_at_once(tmp_path):
    with pytest.raises(SharedWriterError, match=f"there is no folder {tmp_path}/nowhere: make it first"):
        SharedWriter(tmp_path / "nowhere" / "out.h5")
    with pytest.raises(SharedWriterError, match="is a folder: name a file in it"):
        SharedWriter(f"{tmp_path}/")
    with pytest.raises(SharedWriterError, match="is a folder"):
        SharedWriter(tmp_path)
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(SharedWriterError, match="no HDF5 file"):
        SharedWriter(tmp_path / "text.h5", "a")
    with pytest.raises(SharedWriterError, match=r"Read-only|denied|not permitted|No such file"):
        SharedWriter("/proc/out.h5")
    assert (tmp_path / "text.h5").read_text() == "hello"
    assert os.listdir(tmp_path) == ["text.h5"]


def test_a_full_disk_leaves_nothing_half_written(path):
    writer = SharedWriter(path)
    resource.prlimit(writer_pid(), resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with pytest.raises(SharedWriterError, match="could not be written"):
        for _ in range(100):
            writer.append("x", np.zeros(100_000))
    with pytest.raises(SharedWriterError):
        writer.close()
    wait_until(lambda: os.listdir(os.path.dirname(path)) == [])


def test_what_was_flushed_before_the_disk_was_full_is_kept_under_another_name(path):
    with (
        pytest.raises(SharedWriterError, match=r"before that is in .*out\.h5\.abandoned"),
        SharedWriter(path) as writer,
    ):
        writer.append("x", np.arange(1000))
        writer.flush()
        resource.prlimit(writer_pid(), resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        while True:
            writer.append("x", np.arange(100_000))
    wait_until(lambda: os.listdir(os.path.dirname(path)) == ["out.h5.abandoned"])
    assert np.array_equal(contents(path + ".abandoned")["x"][:1000], np.arange(1000))


def test_the_rows_of_each_killed_writer_are_kept_under_a_name_of_their_own(path, capfd):
    for number in range(3):
        writer = SharedWriter(path)
        said = capfd.readouterr().err
        kept = f"{path}.abandoned" + (f".{number}" if number > 1 else "")
        assert (f"tfmagic: {path}: the rows of a writer that was killed are in {kept}\n" in said) == (
            number > 0
        )
        writer.append("x", number)
        writer.flush()
        os.kill(writer_pid(), signal.SIGKILL)
        with pytest.raises(SharedWriterError):
            writer.close()
    names = [".abandoned", ".abandoned.2", ".unfinished"]
    assert [contents(path + name)["x"].tolist() for name in names] == [[0], [1], [2]]
