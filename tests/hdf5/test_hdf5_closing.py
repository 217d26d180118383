"""What a full disk and a kill leave of a part, in plain h5py and with tfmagic."""

import os
import threading

import h5py
import numpy as np
import pytest
from hdf5_files import in_threads
from hdf5_processes import other

from tfmagic.hdf5 import (
    TaskFile,
    recover,
)


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "results.h5")


def names(base):
    return sorted(os.listdir(os.path.dirname(base)))


NAIVE = """
file = h5py.File(sys.argv[1], "w") if sys.argv[2] == "h5py" else TaskFile(sys.argv[1])
for number in range(4000):
    group = file.create_group(f"g{number}")
    group["z"] = np.arange(50)
    group.attrs["a"] = "x" * 500
    if number == 49:
        file.flush()
say("more")
wait()
"""


@pytest.mark.parametrize("kind", [pytest.param("h5py", marks=pytest.mark.soak), "ours"])
def test_plain_h5py_is_unreadable_when_it_is_killed_after_a_flush(base, kind):
    """HDF5 writes some of its tree whenever its cache is full; `keep_flushed` is the cure."""
    with other(NAIVE, base, kind) as writer:
        assert writer.hear() == "more"
        writer.kill()
    broken = False
    try:
        with h5py.File(base if kind == "h5py" else base.replace(".h5", ".worker-0.h5.unfinished")) as file:
            for number in range(50):
                assert file[f"g{number}/z"][49] == 49 and file[f"g{number}"].attrs["a"]
    except (KeyError, OSError, RuntimeError):
        broken = True
    assert broken == (kind == "h5py")


LIMITED = """
import resource
file = TaskFile(sys.argv[1])
file.append("x", np.ones((8, 1000)))
if sys.argv[2] == "flush": file.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
def fill():
    while True: file.append("x", np.ones((8, 1000)))
try:
    with file: fill() if sys.argv[2] != "close" else resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
except OSError as error:
    say(f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}")
say("still here")
"""


@pytest.mark.parametrize("when", ["write", "flush", "close"])
def test_a_full_disk_is_an_error_with_a_name_and_no_crash(base, when):
    """HDF5 by itself ends in a segmentation fault here: see tfmagic.hdf5.closing."""
    with other(LIMITED, base, when) as writer:
        said = ""
        while (line := writer.hear()) and line != "still here":
            said += line
        assert line == "still here" and writer.end() == 0
    assert "File too large" in said and "results.worker-0.h5, the part of worker-0," in said
    assert names(base) == ["results.worker-0.h5.unfinished"]
    if when == "flush":
        recover(base)
        with TaskFile(base, "r") as file:
            assert (file["x"][:8] == 1).all()


def test_a_full_disk_is_no_error_or_a_crash_in_plain_h5py(tmp_path):
    """HDF5 writes a dataset's memory when its object ends, and h5py ignores errors there."""
    program = """
import resource
file = h5py.File(sys.argv[1], "w")
file.create_dataset("x", (0, 1000), "f8", maxshape=(None, 1000), chunks=(8, 1000))
file.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
sys.unraisablehook = lambda _: None  # h5py prints it
for number in range(50):
    file["x"].resize(8 * number + 8, axis=0)
    file["x"][8 * number :] = np.ones((8, 1000))
say("no error")
try: file.close()
except Exception: pass
"""
    with other(program, tmp_path / "x.h5") as writer:
        assert writer.hear() == "no error"
        assert writer.end() == -11  # SIGSEGV


def test_what_a_thread_writes_while_another_one_flushes_is_in_the_file(base):
    rows, is_over = np.arange(1, 1501), threading.Event()

    def write():
        try:
            data = file.create_dataset("x", (len(rows), 2000), "f8", chunks=(1, 2000))
            for n in rows:
                data[n - 1] = n
        finally:
            is_over.set()

    def flush():
        while not is_over.is_set():
            file.flush()

    with TaskFile(base, task="worker-0") as file:
        in_threads(write, flush, flush, flush)
    with TaskFile(base, "r", task="worker-0") as read:
        assert (read["x"][:] == rows[:, None]).all()
