"""The datasets of a shared file: rows of every kind, and those that do not fit."""

import h5py
import numpy as np
import psutil
import pytest
from hdf5_files import contents, writer_pid

from tfmagic.hdf5 import MismatchError, SharedWriter


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "out.h5")


def test_rows_of_every_kind_arrive_as_they_were(path):
    rows = {
        "floats": np.random.default_rng(0).random((3, 4), np.float32),
        "half": np.ones(5, np.float16),
        "complex": np.array([1 + 2j]),
        "flags": np.array([True, False]),
        "big-endian": np.arange(4, dtype=">i4"),
        "record": np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")]),
        "bytes": np.array([b"ab", b"c"]),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "strided": np.arange(20)[::2],
        "none yet": np.empty((0, 7), np.uint8),
    }
    with SharedWriter(path) as writer:
        for name, array in rows.items():
            writer.append(name, array)
    found = contents(path)
    assert set(found) == set(rows)
    for name, array in rows.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name


def test_scalars_strings_and_groups(path):
    with SharedWriter(path) as writer:
        for step in range(3):
            writer.append("train/loss", 0.5 * step)
            writer.append("train/word", f"wörd {step}")
        writer.append("train/word", ["a", ""])
    with h5py.File(path) as file:
        assert file["train/loss"][:].tolist() == [0.0, 0.5, 1.0]
        assert file["train/word"].asstr()[:].tolist() == ["wörd 0", "wörd 1", "wörd 2", "a", ""]


def test_bytes_objects_of_a_string_tensor_are_text(path):
    """Such an array is ``np.asarray(tf.constant(["a", "b"]))``."""
    words = np.array(["wörd".encode(), b""], object)
    with SharedWriter(path) as writer:
        writer.append("word", words)
        writer.append("word", "str")
        with pytest.raises(ValueError, match="holds text as UTF-8, not b'.xff'"):
            writer.append("word", np.array([b"\xff"], object))
    assert words[0] == "wörd".encode()
    with h5py.File(path) as file:
        assert file["word"].asstr()[:].tolist() == ["wörd", "", "str"]


def test_chunks_and_compression_are_as_asked(path):
    with SharedWriter(path, compression="gzip", chunk_rows=10) as writer:
        writer.append("x", np.zeros((25, 3)))
    with h5py.File(path) as file:
        assert (file["x"].chunks, file["x"].compression) == ((10, 3), "gzip")


@pytest.mark.parametrize(
    "rows, words",
    [
        (np.zeros((2, 4), np.float32), r"has rows of shape \(3,\), and these are of shape \(4,\)"),
        (np.zeros((2, 3), np.float64), "holds float32, and these rows are float64"),
        (["a"], "holds float32, and these rows are text"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_else_is_lost(path, rows, words):
    with SharedWriter(path) as writer:
        writer.append("x", np.ones((2, 3), np.float32))
        for _ in range(2):  # the second time, too
            with pytest.raises(MismatchError, match=words):
                writer.append("x", rows)
        writer.append("x", np.ones((1, 3), np.float32))
    assert contents(path)["x"].shape == (3, 3)


def test_two_ways_to_write_a_name_lead_to_one_dataset(path):
    with SharedWriter(path) as writer:
        for number, name in enumerate(["g/x", "/g/x", "g//x/", "./g/x"]):
            writer.append(name, np.full(2, number))
    with h5py.File(path, "a") as file:
        assert file["g/x"][:].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        file["soft"], file["hard"] = h5py.SoftLink("/g/x"), file["g/x"]
    with SharedWriter(path, "a") as writer:
        for number, name in enumerate(["soft", "g/x", "hard", "soft"], 4):
            writer.append(name, number)
    with h5py.File(path) as file:
        assert file["hard"][:].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7]


def test_text_that_hdf5_cannot_hold_is_refused_and_harms_no_other_rows(path):
    with SharedWriter(path) as writer:
        writer.append("x", "a")
        for text in ("b\0c", "\ud800"):
            with pytest.raises(ValueError, match="NUL character, not"):
                writer.append("x", ["d", text])
        with pytest.raises(ValueError, match="has a name"):
            writer.append("x\0y", "e")
        writer.append("x", "f")
    assert contents(path)["x"].tolist() == [b"a", b"f"]


def test_what_hdf5_cannot_hold_is_a_type_error(path):
    import ml_dtypes

    with SharedWriter(path) as writer:
        for value in ({1, 2}, np.datetime64("2026-01-01"), np.ones(2, ml_dtypes.bfloat16)):
            with pytest.raises(TypeError, match="convert it first"):
                writer.append("x", value)
        with pytest.raises(ValueError, match="has a name"):
            writer.append("/", 1)
        writer.append("group/x", 1)
        with pytest.raises(MismatchError, match="hold nothing"):
            writer.append("empty rows", np.zeros((2, 0)))
        with pytest.raises(MismatchError, match="is a group"):
            writer.append("group", 1)
        with pytest.raises(MismatchError, match="cannot be a dataset"):
            writer.append("group/x/y", 1)


def test_a_dataset_that_cannot_grow_is_named(path):
    with h5py.File(path, "w") as file:
        file["fixed"] = np.zeros(3)
    with SharedWriter(path, "a") as writer, pytest.raises(MismatchError, match="cannot grow"):
        writer.append("fixed", 1.0)


def test_the_writers_memory_stays_small_with_many_datasets(path):
    rows = np.zeros((256, 1024), np.float32)
    with SharedWriter(path) as writer:
        for _ in range(6):
            for number in range(50):
                writer.append(f"layer{number}", rows)
        writer.flush()
        held = psutil.Process(writer_pid()).memory_info().rss
    assert held < 230 << 20, held >> 20  # of 300 MiB
