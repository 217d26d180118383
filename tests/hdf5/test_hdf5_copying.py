"""The rows of parts in the file of all, mapped and copied, and a full disk meanwhile."""

import os
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from hdf5_files import part, write
from hdf5_processes import other

from tfmagic.hdf5 import TaskFile, consolidate, missing_parts


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "results.h5")


def test_complex_numbers_are_mapped_and_what_is_gone_is_no_number(base):
    for number in range(2):
        write(base, f"worker-{number}", x=np.full(2, number + 1j, np.complex64))
    consolidate(base)
    os.unlink(part(base, "worker-1"))
    with h5py.File(base) as file:
        assert file["x"].is_virtual and file["x"].dtype == np.complex64
        assert file["x"][:2].tolist() == [1j, 1j] and np.isnan(file["x"][2:]).all()


def test_rows_that_hold_nothing_need_no_part(base):
    for number in range(2):
        write(base, f"worker-{number}", x=np.zeros((3, 0)), y=np.zeros((0, 0)), z=np.arange(2))
    consolidate(base)
    assert missing_parts(base) == {}
    with h5py.File(base) as file:
        assert [file[name].shape for name in "xyz"] == [(6, 0), (0, 0), (4,)]


def test_hdf5_alone_reads_zeros_for_a_part_that_is_gone(tmp_path):
    layout = h5py.VirtualLayout((2,), "f8")
    layout[:] = h5py.VirtualSource(str(tmp_path / "gone.h5"), "x", (2,))
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
        assert file["x"][:].tolist() == [0, 0]


SHOW = """
def show(error):  # as a debugger does, and a task that packs its error
    trace = error.__traceback__
    while trace:
        for value in list(trace.tb_frame.f_locals.values()): repr(value)
        trace = trace.tb_next
"""


def test_the_frames_of_a_failed_consolidation_can_be_looked_at(base):
    with TaskFile(base) as file:
        file.append("x", np.zeros((1000, 90)))
    program = (
        SHOW
        + """
from tfmagic.hdf5 import consolidation
def copy_rows(*arguments): raise KeyboardInterrupt
consolidation.copy_rows = copy_rows
try: consolidate(sys.argv[1], "copy")
except KeyboardInterrupt as error: show(error), say("shown")
"""
    )
    with other(program, base) as process:
        assert process.hear() == "shown" and process.end() == 0
    assert os.listdir(os.path.dirname(base)) == ["results.worker-0.h5"]


@pytest.mark.parametrize("kind", ["rows", "packed", "text"])
def test_after_a_full_disk_the_process_can_still_use_hdf5(base, kind):
    """Rows that wait in a dataset's cache are written when its object ends: that must not be what fails."""
    for number in range(3):
        with TaskFile(base, task=f"worker-{number}") as file:
            if kind == "rows":
                file.append("x", np.random.default_rng(0).random((1000, 90)))
            elif kind == "packed":
                file.create_dataset(
                    "x", (1000, 90), "f8", maxshape=(None, 90), chunks=(100, 90), compression="gzip"
                )
                file["x"][:] = np.random.default_rng(0).random((1000, 90))
            else:
                file.append("x", ["abcdefgh" * 90] * 1000)
    program = (
        SHOW
        + """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1_700_000, resource.RLIM_INFINITY))
for number in range(2):
    try: consolidate(sys.argv[1], "copy")
    except PartError as error: show(error.__cause__), show(error), say(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
say(consolidate(sys.argv[1], "copy").datasets)
"""
    )
    with other(program, base) as process:
        for _ in range(2):
            assert "was not written: File too large. Nothing of it was left" in process.hear()
        assert "/x" in process.hear() and process.end() == 0


def test_a_copy_takes_the_memory_of_a_block_and_a_full_disk_leaves_nothing(base):
    for number in range(2):
        write(base, f"worker-{number}", x=np.zeros((40, 1 << 17)))  # 40 MiB each
    code = (
        "import sys, resource, os, h5py\nfrom tfmagic.hdf5 import consolidate, PartError\nimport tfmagic.hdf5.consolidation\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "consolidate(sys.argv[1], 'copy', overwrite=True)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30 << 20, 30 << 20))\n"
        "os.unlink(sys.argv[1])\n"
        "try: consolidate(sys.argv[1], 'copy')\n"
        "except PartError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, base], capture_output=True, text=True, timeout=60)
    grown, said = done.stdout.splitlines()[:2]
    assert int(grown) < 30, "MiB"
    assert "was not written: File too large. Nothing of it was left" in said and done.returncode == 0
    assert sorted(os.listdir(os.path.dirname(base))) == ["results.worker-0.h5", "results.worker-1.h5"]


def test_many_chunks_are_copied_in_one_walk(base):
    """Asked for by number, HDF5 counts to each from the first: 14 s for these."""
    rows = np.arange(60_000)
    with TaskFile(base) as file:
        file.create_dataset("x", data=rows, chunks=(5,), maxshape=(None,), compression="gzip")
    before = time.process_time()
    consolidate(base, "copy")
    assert time.process_time() - before < 5
    with h5py.File(base) as file:
        assert (file["x"][:] == rows).all()


def test_rows_that_are_stored_otherwise_in_the_parts_are_copied_too(base, tmp_path):
    """Chunks that do not meet those of the copy, a dataset in its own header, and one in another file."""
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["y"] = np.arange(7)
    layout = h5py.VirtualLayout((7,), "i8")
    layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "y", (7,))
    for number in range(2):
        with TaskFile(base, task=f"worker-{number}") as file:
            file.create_dataset(
                "packed", data=np.arange(7), chunks=(5,), compression="gzip", maxshape=(None,)
            )
            file.create_virtual_dataset("virtual", layout)
            compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            compact.set_layout(h5py.h5d.COMPACT)
            space = h5py.h5s.create_simple((7,))
            h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT64, space, compact)
            file["compact"][:] = np.arange(7)
    consolidate(base, "copy")
    with h5py.File(base) as file:
        assert file["packed"].compression == "gzip" and not file["virtual"].is_virtual
        for name in ("packed", "virtual", "compact"):
            assert file[name][:].tolist() == [*range(7), *range(7)], name
