"""TaskFile: names, modes, threads, and what it refuses."""

import os
import pickle
import subprocess
import sys

import h5py
import numpy as np
import pytest
from hdf5_files import contents, in_threads, part, write
from hdf5_processes import other

from tfmagic.errors import ClusterSpecError, TfmagicError
from tfmagic.hdf5 import (
    FileInUseError,
    MismatchError,
    PartError,
    TaskFile,
    consolidate,
    recover,
)


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "results.h5")


def names(base):
    return sorted(os.listdir(os.path.dirname(base)))


def test_the_package_costs_nothing_before_it_is_used():
    code = (
        "import sys, tfmagic; tfmagic.hdf5.guard(); "
        "print({m.partition('.')[0] for m in sys.modules} & {'h5py', 'numpy', 'tensorflow'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_part_is_an_h5py_file_under_the_name_of_its_task(base):
    with TaskFile(base, task="worker-1") as file:
        file["a/b"] = np.arange(3)
        file.attrs["rate"] = 0.1
        file.create_dataset("c", data=[1.5], compression="gzip")
        assert isinstance(file, h5py.File) and names(base) == ["results.worker-1.h5.unfinished"]
    assert names(base) == ["results.worker-1.h5"] and file.path == base.replace(".h5", ".worker-1.h5")
    with h5py.File(file.path) as read:
        assert read["a/b"][:].tolist() == [0, 1, 2] and read.attrs["tfmagic_task"] == "worker-1"
    with TaskFile(base, "r", task="worker-1") as read:
        assert read["c"][0] == 1.5


def test_an_older_part_is_there_until_the_new_one_is_whole(base):
    with TaskFile(base) as file:
        file["x"] = [1]
    again = TaskFile(base)
    again["x"] = [2]
    with TaskFile(base, "r") as old:
        assert old["x"][0] == 1
    again.close()
    again.close()
    with TaskFile(base, "r") as new:
        assert new["x"][0] == 2


def test_a_part_goes_on_where_it_ended(base):
    for number in range(3):
        with TaskFile(base, "a") as file:
            assert file.append("x", [number]) == number + 1
            assert names(base) == ["results.worker-0.h5.unfinished"]  # it changes: no reader must take it
    with TaskFile(base, "r+") as file:
        assert file["x"][:].tolist() == [0, 1, 2]


def test_modes_that_do_not_fit_what_is_there(base):
    with pytest.raises(PartError, match=r"results.worker-0.h5, the part of worker-0, cannot be opened"):
        TaskFile(base, "r+")
    with pytest.raises(PartError, match="cannot be opened"):
        TaskFile(base, "r")
    with pytest.raises(ValueError, match="mode is one of"):
        TaskFile(base, "rw")
    with pytest.raises(ValueError, match="without driver"):
        TaskFile(base, driver="core")
    with pytest.raises(ClusterSpecError, match="'warden-1' is not a task"):
        TaskFile(base, task="warden-1")
    TaskFile(base, "x").close()
    with pytest.raises(PartError, match="is there already; mode='w'"):
        TaskFile(base, "x")
    assert names(base) == ["results.worker-0.h5"]


def test_a_part_that_is_no_hdf5_file_keeps_its_name(base):
    with open(base.replace(".h5", ".worker-0.h5"), "w") as file:
        file.write("not HDF5")
    with pytest.raises(PartError, match="file signature not found"):
        TaskFile(base, "a")
    assert names(base) == ["results.worker-0.h5"]


@pytest.mark.parametrize("mode", ["w", "x", "a", "r+"])
def test_a_part_is_open_once_also_in_one_process(base, mode):
    with TaskFile(base) as file:
        file["x"] = [1]
        with pytest.raises(FileInUseError, match="already open for writing by this process"):
            TaskFile(base, mode)
        with TaskFile(base, task="worker-1"), TaskFile(base.replace("results", "others")):
            pass
    with TaskFile(base, "r") as file:
        assert file["x"][0] == 1


def test_a_part_is_open_in_one_process_of_two_and_free_when_that_is_killed(base):
    program = "f = TaskFile(sys.argv[1]); f['x'] = [1]; f.flush(); say('open'); wait()"
    with other(program, base) as holder:
        assert holder.hear() == "open"
        with pytest.raises(FileInUseError, match=rf"pid {holder.process.pid}\)"):
            TaskFile(base)
        with pytest.raises(FileInUseError, match=rf"still being written by .*pid {holder.process.pid}\)"):
            consolidate(base)
        assert recover(base) == []
        holder.kill()
        with TaskFile(base, "a") as file:
            assert file["x"][0] == 1


def test_an_exception_leaves_the_part_unfinished_and_says_so(base):
    with pytest.raises(ZeroDivisionError) as caught, TaskFile(base) as file:
        file.append("x", [1, 2])
        _ = 1 / 0
    assert "the part of worker-0, is unfinished" in caught.value.__notes__[0]
    assert names(base) == ["results.worker-0.h5.unfinished"]
    assert recover(base) == ["worker-0"]
    with TaskFile(base, "r") as read:
        assert read["x"][:].tolist() == [1, 2]


def test_a_folder_that_cannot_be_written(tmp_path):
    told = (
        r"results.worker-0.h5, the part of worker-0, cannot be opened: there is no folder .*: make it first"
    )
    with pytest.raises(PartError, match=told):
        TaskFile(tmp_path / "nowhere" / "results.h5")
    with pytest.raises(PartError, match=r"cannot be opened"):
        TaskFile("/proc/results.h5")  # not even root can
    with pytest.raises(PartError, match="cannot be read"):
        consolidate(tmp_path / "nowhere" / "results.h5")


@pytest.mark.parametrize("kind", [FileInUseError, PartError, MismatchError])
def test_errors_are_ours_and_travel(kind):
    error = pickle.loads(pickle.dumps(kind("results.h5 is in use")))
    assert type(error) is kind and str(error) == "results.h5 is in use" and isinstance(error, TfmagicError)
    assert isinstance(FileInUseError("x"), BlockingIOError) and FileInUseError("x").errno == 11


def test_two_that_open_one_part_at_once_are_one_and_an_error(base):
    program = (
        "wait()\ntry: f = TaskFile(sys.argv[1]); say('open')\nexcept FileInUseError: say('in use')\nwait()"
    )
    with other(program, base) as one, other(program, base) as two:
        one.go(), two.go()
        assert sorted([one.hear(), two.hear()]) == ["in use", "open"]
    assert names(base) == ["results.worker-0.h5.unfinished"]


@pytest.mark.parametrize("name", ["", "folder", "folder/"])
def test_a_base_that_is_a_folder_is_refused_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(PartError, match="is a folder: name a file in it"):
        TaskFile(name)
    assert os.listdir(tmp_path) == ["folder"] and not os.listdir(tmp_path / "folder")


def test_threads_that_append_to_one_part_lose_no_row(base):
    with TaskFile(base, task="worker-0") as file:
        in_threads(*(lambda k=k: [file.append("x", [1000 * k + n]) for n in range(300)] for k in range(3)))
        assert len(file["x"]) == 900
    with TaskFile(base, "r", task="worker-0") as read:
        assert sorted(read["x"][:]) == sorted(1000 * k + n for k in range(3) for n in range(300))


def test_a_part_that_two_threads_close_at_once_is_closed_once(base):
    for _ in range(20):
        file = TaskFile(base, task="worker-0")
        file.append("x", [1])
        in_threads(file.close, file.close, file.close)
        assert names(base) == ["results.worker-0.h5"]


def test_a_file_that_another_one_writes_meanwhile_is_not_replaced(base, tmp_path):
    mine = part(base, "worker-0")
    file = TaskFile(base)
    file["x"] = [1]
    with h5py.File(mine, "w") as rival:
        with pytest.raises(FileInUseError, match="is open for writing by this process") as refused:
            file.close()
        rival["y"] = [2]
    assert refused.value.__notes__ == [f"What this task has written is in {mine}.unfinished"]
    assert contents(mine).keys() == {"y"} and contents(f"{mine}.unfinished").keys() == {"x"}
    with h5py.File(mine, "a"), pytest.raises(FileInUseError, match="is left as it is"):
        TaskFile(base)
    os.unlink(f"{mine}.unfinished")
    with h5py.File(base, "w") as rival:
        with pytest.raises(FileInUseError, match="is left as it is"):
            consolidate(base, overwrite=True)
        rival["y"] = [2]
    assert names(base) == ["results.h5", "results.worker-0.h5"] and contents(base).keys() == {"y"}


KILLED = """
import os, signal
for rows in 1000, 1:
    if not (pid := os.fork()):
        file = TaskFile(sys.argv[1])
        file.append("x", np.arange(rows))
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
say("killed")
"""


def test_what_each_killed_task_had_flushed_is_kept(base, capfd):
    with other(KILLED, base) as killed:
        assert killed.hear() == "killed"
    mine = part(base, "worker-0")
    assert f"what a killed task left: {mine}.abandoned\n" in capfd.readouterr().err
    assert len(contents(f"{mine}.abandoned")["x"]) == 1000
    assert recover(base) == ["worker-0"] and len(contents(mine)["x"]) == 1
    os.rename(mine, f"{base}.unfinished")  # as of a shared writer of this name that was killed
    write(base, "worker-0", y=[1])
    consolidate(base)
    assert len(contents(f"{base}.abandoned")["x"]) == 1 and contents(base).keys() == {"y"}


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_a_link_in_the_place_of_an_unfinished_file_is_not_followed(base, tmp_path, make):
    victim = tmp_path / "victim.h5"
    with h5py.File(victim, "w") as file:
        file["mine"] = 1
    write(base, "worker-1", x=[1])
    for name in (part(base, "worker-0"), base):
        make(victim, f"{name}.unfinished")
    before = victim.read_bytes()
    for mode in ("w", "x", "a", "r+"):
        with pytest.raises(PartError, match="is a link or no plain file"):
            TaskFile(base, mode)
    os.unlink(f"{part(base, 'worker-0')}.unfinished")
    write(base, "worker-0", x=[1])
    with pytest.raises(PartError, match="is a link or no plain file"):
        consolidate(base)
    assert victim.read_bytes() == before


def test_a_new_part_is_on_the_disk_before_it_replaces_another(base, synced):
    write(base, "worker-0", x=[1])
    assert synced == []  # it cost nothing
    write(base, "worker-0", x=[2])
    assert synced == [os.stat(part(base, "worker-0")).st_ino]
