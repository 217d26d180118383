"""What parts hold goes into the file of all: types, groups, links, attributes."""

import os

import h5py
import numpy as np
import pytest
from hdf5_files import part, write

from tfmagic.hdf5 import MismatchError, PartError, TaskFile, consolidate


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "results.h5")


@pytest.fixture(params=["virtual", "copy"])
def how(request):
    return request.param


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


def test_what_means_nothing_in_another_file_is_left_out_and_named(base):
    with TaskFile(base) as file:
        file["x"] = [1]
        file["type"] = np.dtype("f4")
        file["x"].attrs["to"] = file["x"].ref
    report = consolidate(base)
    assert set(report.left_out) == {"worker-0: /x@to (references)", "worker-0: /type (a named type)"}
    with h5py.File(base) as file:
        assert list(file) == ["x"] and "to" not in file["x"].attrs


def refer(file):
    file.create_dataset("y", (1,), h5py.ref_dtype)[0] = file["x"].ref


def hold_itself(file):
    file["group"] = file["/"]


def take_our_name(file):
    file.create_group("tfmagic_attributes")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (refer, "dataset /y holds references"),
        (hold_itself, "group /group contains itself"),
        (take_our_name, "a name that consolidate needs"),
    ],
)
def test_what_cannot_be_carried_over_is_refused(base, spoil, words):
    with TaskFile(base) as file:
        file["x"] = [1]
        spoil(file)
    with pytest.raises(PartError, match=words):
        consolidate(base)
    assert not os.path.exists(base)


def test_links_of_all_parts_lead_to_one_place(base):
    for number in range(2):
        with TaskFile(base, task=f"worker-{number}") as file:
            file["x"] = [number]
            file["outside"] = h5py.ExternalLink("other.h5", "/y")
            file["soft"] = h5py.SoftLink("/x")
    consolidate(base)
    with h5py.File(base) as file:
        link = file.get("outside", getlink=True)
        assert (link.filename, link.path) == ("other.h5", "/y") and file["soft"][:].tolist() == [0, 1]
    for change, words in (
        (h5py.SoftLink("/y"), "soft is a link to /x in .*, but to /y in"),
        ([1.0], "soft is a link in .*, but a dataset in"),
    ):
        with TaskFile(base, "a", task="worker-1") as file:
            del file["soft"]
            file["soft"] = change
        with pytest.raises(MismatchError, match=words):
            consolidate(base)
