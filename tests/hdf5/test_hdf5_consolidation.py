"""The parts of all tasks become one file: by reference and by copy, and what is refused."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from hdf5_processes import other

from tfmagic.hdf5 import MismatchError, PartError, TaskFile, consolidate, missing_parts


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "results.h5")


def write(base, task, **datasets):
    with TaskFile(base, task=task) as file:
        for name, value in datasets.items():
            file[name] = value


def part(base, task):
    return base.replace(".h5", f".{task}.h5")


@pytest.fixture(params=["virtual", "copy"])
def how(request):
    return request.param


def test_rows_stand_by_task_and_number(base, how):
    for number in range(12):
        write(base, f"worker-{number}", x=np.full((2, 3), number), loss=number / 2)
    write(base, "chief-0", x=np.full((1, 3), -1))
    report = consolidate(base, how)
    assert report.tasks[:2] == ("chief-0", "worker-0") and report.datasets["/x"] == (25, 3)
    with h5py.File(base) as file:
        assert file["x"][:, 0].tolist() == [-1, *np.repeat(range(12), 2)]
        assert file["loss"][:].tolist() == [n / 2 for n in range(12)]
        assert list(file["x"].attrs["tfmagic_rows"]) == [1] + [2] * 12
        assert list(file["loss"].attrs["tfmagic_tasks"])[-1] == "worker-11"
        assert file["x"].is_virtual == (how == "virtual")
    assert consolidate(base, how) == report  # again


def test_types_groups_and_attributes_come_along(base, how):
    record = np.array([(1, "a")], [("n", "i4"), ("s", h5py.string_dtype())])
    for number in range(2):
        with TaskFile(base, task=f"worker-{number}") as file:
            file["deep/er/%b"] = [number]
            file["words"] = ["ü", str(number)]
            file["records"] = record
            file["none"] = h5py.Empty("f4")
            file["soft"] = h5py.SoftLink("/words")
            file.create_dataset("empty", (0, 4), maxshape=(None, 4))
            file.create_dataset(
                "packed", data=np.arange(40).reshape(10, 4), chunks=(5, 4), compression="gzip"
            )
            file["words"].attrs.update(unit="s", index=number)
    report = consolidate(base, how)
    assert report.conflicts == ("/words@index",)
    with h5py.File(base) as file:
        assert file["deep/er/%b"][:].tolist() == [0, 1]
        assert [word.decode() for word in file["soft"][:]] == ["ü", "0", "ü", "1"]
        assert [item["s"] for item in file["records"][:]] == [b"a", b"a"]
        assert file["none"].shape is None and file["empty"].shape == (0, 4)
        assert (file["packed"][:] == np.tile(np.arange(40).reshape(10, 4), (2, 1))).all()
        assert file["words"].attrs["unit"] == "s" and file["words"].attrs["index"] == 0
        assert file["tfmagic_attributes/worker-1/words"].attrs["index"] == 1
        assert how == "virtual" or file["packed"].compression == "gzip"


@pytest.mark.parametrize(
    ("one", "two", "words"),
    [
        (np.ones((1, 2)), np.ones((1, 3)), "has the shape (1, 2)"),
        (np.ones(1), np.ones(1, "float32"), "holds float64"),
        (np.ones(1), 1.0, "has the shape (1,)"),
    ],
)
def test_parts_that_do_not_fit_are_named_and_nothing_is_made(base, one, two, words):
    write(base, "worker-0", x=one)
    write(base, "worker-1", x=two)
    with pytest.raises(MismatchError) as caught:
        consolidate(base)
    assert words in str(caught.value) and part(base, "worker-1") in str(caught.value)
    assert not os.path.exists(base) and not os.path.exists(base + ".unfinished")


def test_a_missing_part_is_named(base):
    with pytest.raises(PartError, match=r"no part of .*worker-0.h5"):
        consolidate(base)
    for number in (0, 2):
        write(base, f"worker-{number}", x=[number])
    with pytest.raises(PartError, match="lack the part of worker-1; there is that of worker-0, worker-2"):
        consolidate(base)
    assert consolidate(base, allow_missing=True).missing == ("worker-1",)
    write(base, "worker-1", x=[1])
    with pytest.raises(PartError, match="1 more of 4"):
        consolidate(base, expected=4)
    with pytest.raises(PartError, match="lack the part of chief-0"):
        consolidate(base, expected=["chief-0", "worker-0", "worker-1", "worker-2"])
    consolidate(base, expected=np.int64(3))  # any whole number


def test_a_part_that_an_earlier_larger_run_has_left_is_named(base, monkeypatch):
    def run(workers):
        for index in range(workers):
            cluster = {"cluster": {"worker": ["h:1"] * workers}, "task": {"type": "worker", "index": index}}
            monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
            write(base, None, x=[workers])

    run(3)
    assert consolidate(base).datasets == {"/x": (3,)}
    run(2)
    for expected in (None, 2, iter(["worker-0", "worker-1"])):
        with pytest.raises(PartError, match="also hold the part of worker-2, which an earlier run"):
            consolidate(base, expected=expected)
    assert consolidate(base, expected=3).datasets == {"/x": (3,)}  # who says so gets it
    os.unlink(part(base, "worker-2"))
    assert consolidate(base).datasets == {"/x": (2,)}


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"garbage" * 99, "cannot be read as HDF5"), (None, "truncated")],
)
def test_a_damaged_part_is_named(base, content, words):
    write(base, "worker-0", x=np.ones(5000))
    if content is None:
        os.truncate(part(base, "worker-0"), 9000)
    else:
        Path(part(base, "worker-0")).write_bytes(content)
    with pytest.raises(PartError, match=f"the part of worker-0, .*{words}"):
        consolidate(base)


def test_a_foreign_base_and_a_renamed_part_are_left_alone(base):
    write(base, "worker-0", x=[1])
    with h5py.File(base, "w") as file:
        file["precious"] = [1]
    with pytest.raises(PartError, match="is no consolidation"):
        consolidate(base)
    consolidate(base, overwrite=True)
    os.rename(part(base, "worker-0"), part(base, "worker-1"))
    with pytest.raises(PartError, match="is by its name the part of worker-1, but worker-0 wrote it"):
        consolidate(base)


def test_a_virtual_file_moves_with_its_folder_and_what_is_gone_is_found(base, tmp_path, monkeypatch):
    for number in range(2):
        write(base, f"worker-{number}", x=np.full(2, number + 1.0), n=[number + 1])
    consolidate(base)
    assert missing_parts(base) == {}
    moved = shutil.move(tmp_path, tmp_path.parent / "moved")
    base = os.path.join(moved, "results.h5")
    with h5py.File(base) as file:
        assert file["x"][:].tolist() == [1, 1, 2, 2]
    elsewhere = tmp_path.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.move(part(base, "worker-1"), elsewhere)
    assert missing_parts(base) == {"results.worker-1.h5": "it is missing"}
    with h5py.File(base) as file:
        assert np.isnan(file["x"][2:]).all() and file["n"][1] == np.iinfo("i8").min
    monkeypatch.chdir(elsewhere)  # HDF5 looks here as well: another run's part would be taken for ours
    with h5py.File(base) as file:
        assert file["x"][2:].tolist() == [2, 2]
    assert missing_parts(base) == {"results.worker-1.h5": "it is missing"}
    write(base, "worker-1", x=np.ones(1), n=[1])
    assert "is float64[1] now, and was float64[2]" in missing_parts(base)["results.worker-1.h5"]


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


@pytest.mark.parametrize("how", ["virtual", "copy"])
def test_attributes_larger_than_hdf5s_oldest_format_holds_come_along(base, how):
    for number in range(2):
        with TaskFile(base, task=f"worker-{number}", libver="latest") as file:
            file["x"] = np.arange(3)
            file["x"].attrs["large"] = np.arange(20_000.0)
            file.attrs["differs"] = np.full(20_000, number)
    assert consolidate(base, how).conflicts == ("/@differs",)
    with h5py.File(base) as file:
        assert file["x"].attrs["large"][-1] == 19_999 and file["x"][:].tolist() == [0, 1, 2, 0, 1, 2]
        assert file["tfmagic_attributes/worker-1"].attrs["differs"].tolist() == [1] * 20_000


def test_attributes_of_bytes_that_are_no_text_come_along(base):
    for number in range(2):
        with TaskFile(base, task=f"worker-{number}") as file:
            file.attrs["digest"], file.attrs["name"] = b"\xff\xfe", "ü"
            file.attrs["digests"] = np.array([b"\xff", b"%d" % number], object)
    assert consolidate(base).conflicts == ("/@digests",)
    with h5py.File(base) as file, h5py.File(part(base, "worker-1")) as source:
        assert file.attrs["digest"] == source.attrs["digest"] and file.attrs["name"] == "ü"
        kept = file["tfmagic_attributes/worker-1"].attrs["digests"]
        assert kept.tolist() == source.attrs["digests"].tolist()


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
