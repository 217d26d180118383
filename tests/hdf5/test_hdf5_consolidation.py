"""The parts of all tasks become one file: which parts, and what is refused."""

import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from hdf5_files import part, write

from tfmagic.hdf5 import PartError, consolidate, missing_parts


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "results.h5")


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
