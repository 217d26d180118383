"""The rows that TaskFile appends, and those that it refuses."""

import h5py
import ml_dtypes
import numpy as np
import pytest

from tfmagic.hdf5 import (
    MismatchError,
    TaskFile,
)


@pytest.fixture
def base(tmp_path):
    return str(tmp_path / "results.h5")


def test_an_append_makes_a_dataset_that_grows(base):
    with TaskFile(base) as file:
        assert file.append("g/x", np.ones((2, 3), "float32")) == 2
        assert file.append("g/x", np.zeros((1, 3), "float32")) == 3
        assert [file.append("step", step) for step in (5, 6)] == [1, 2]  # a scalar is one row
        assert file.append("words", ["one", "zwölf"]) == 2
        assert file.append("flags", np.array([True, False])) == 2
        assert file.append("pixels", np.zeros((0, 0, 3), "uint8")) == 0
        assert file["g/x"].maxshape == (None, 3)
        assert [word.decode() for word in file["words"][:]] == ["one", "zwölf"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (np.ones((1, 4), "float32"), "rows of shape (3,), and these are of shape (4,)"),
        (np.ones((1, 3), "float64"), "holds float32, and these rows are float64"),
        ([[1, 2], [3]], "inhomogeneous"),
        (np.array([[1], {}], object), "Python objects"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_added(base, rows, words):
    with TaskFile(base) as file:
        file.append("x", np.ones((2, 3), "float32"))
        with pytest.raises(ValueError) as caught:
            file.append("x", rows)
        assert words in str(caught.value) and len(file["x"]) == 2
        file["fixed"] = [1.0]
        file.create_group("group")
        with pytest.raises(MismatchError, match="cannot grow"):
            file.append("fixed", [1.0])
        with pytest.raises(MismatchError, match="is a group"):
            file.append("group", [1.0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "datetime64[s]"])
def test_a_dtype_that_hdf5_does_not_have_is_named_and_makes_no_dataset(base, dtype):
    rows = np.zeros(3, getattr(ml_dtypes, dtype, dtype))
    with TaskFile(base) as file:
        with pytest.raises(MismatchError, match=r"HDF5 has nothing for the dtype .*: convert it first"):
            file.append("x", rows)
        assert "x" not in file
        file.append("raw", np.zeros(3, "V5"))  # bytes, as h5py has them
        times = np.zeros(3, "datetime64[s]")
        file.append("time", times.astype(h5py.opaque_dtype(times.dtype)))


def test_rows_go_to_the_dataset_that_has_the_name_now(base):
    with TaskFile(base) as file:
        for name in ("deleted", "moved"):
            file.append(name, [1.0])
        del file["deleted"]
        file.move("moved", "kept")
        for name in ("deleted", "moved"):
            assert file.append(name, [2.0, 3.0]) == 2
    with TaskFile(base, "r") as file:
        assert {name: file[name][:].tolist() for name in file} == {
            "deleted": [2, 3],
            "kept": [1],
            "moved": [2, 3],
        }
