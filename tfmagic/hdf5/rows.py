"""Rows of datasets that grow along axis 0: appending them to an `h5py.File`, and checks whether they fit."""

import contextlib
from typing import Any

from tfmagic.hdf5.errors import MismatchError

_CHUNK_BYTES = 1 << 18  # a fourth of what HDF5 caches of a dataset; large enough to be read at disk speed


def as_rows(array: Any) -> Any:
    """Return rows as HDF5 takes them: a scalar is one row, text becomes variable-length UTF-8."""
    import h5py
    import numpy as np

    rows = np.asarray(array)
    if rows.ndim == 0:
        rows = rows.reshape(1)
    if rows.dtype.kind == "O" and h5py.check_string_dtype(rows.dtype) is None:
        if not all(isinstance(item, str | bytes) for item in rows.flat):
            raise MismatchError(
                "append takes rows of one shape and one type; these are Python objects, such as lists of "
                "different length"
            )
        return rows.astype(h5py.string_dtype())
    if rows.dtype.kind == "U":
        return rows.astype(h5py.string_dtype())
    is_time = rows.dtype.kind in "mM" and not h5py.check_opaque_dtype(rows.dtype)
    if is_time or (rows.dtype.kind in "Vf" and rows.dtype.type.__module__ != "numpy"):
        raise MismatchError(  # h5py would keep bfloat16 as bytes without a meaning
            f"HDF5 has nothing for the dtype {rows.dtype}: convert it first, as with "
            f"astype({'int64' if is_time else 'float32'!r})"
        )
    return rows


def append_rows(file: Any, name: str, array: Any, opened: dict[str, Any]) -> int:
    """Append rows to a dataset of an `h5py.File`; see `TaskFile.append`. Return how many rows it has now.

    The first call creates it: chunked, and without limit along axis 0. The caller keeps the datasets in
    `opened`, by path, as long as the file is open: HDF5 writes what it holds of a dataset when that is
    closed, and ignores a full disk at the end of an h5py object (measured: rows lost, no error).
    """
    import h5py

    rows = as_rows(array)
    if name not in file:
        row_bytes = max(1, rows.dtype.itemsize * int(rows[:1].size or 1))
        chunks = (max(1, _CHUNK_BYTES // row_bytes), *(max(1, n) for n in rows.shape[1:]))
        limits = (None, *(n or None for n in rows.shape[1:]))  # a chunk is never empty
        file.create_dataset(name, (0, *rows.shape[1:]), rows.dtype, maxshape=limits, chunks=chunks)
    dataset = opened.get(name)
    # it can have been deleted or moved meanwhile
    if dataset is None or h5py.h5o.open(file.id, name.encode(errors="surrogateescape")) != dataset.id:
        dataset = opened[name] = file[name]
    check_growth(dataset, name)
    check_rows(name, dataset.dtype, rows.dtype, dataset.shape[1:], rows.shape[1:])
    before = int(dataset.shape[0])
    dataset.resize(before + len(rows), axis=0)
    try:
        dataset[before:] = rows
    except BaseException:
        with contextlib.suppress(Exception):  # the disk can be full
            dataset.resize(before, axis=0)
        raise
    return before + len(rows)


def check_growth(found: Any, name: str) -> None:
    """Raise MismatchError where the object of this name is no dataset that can grow along axis 0."""
    import h5py

    if not isinstance(found, h5py.Dataset):
        raise MismatchError(f"{name!r} is a group, not a dataset: append to another name")
    if not found.maxshape or found.maxshape[0] is not None:
        raise MismatchError(
            f"dataset {name!r} of shape {found.shape} cannot grow: let append create it, or create it with "
            "maxshape=(None, ...)"
        )


def check_rows(name: str, held: Any, brought: Any, held_shape: Any, brought_shape: Any) -> None:
    """Raise MismatchError where rows do not have the dtype (or its name) and the shape of those held."""
    if held != brought:
        raise MismatchError(
            f"dataset {name!r} holds {held}, and these rows are {brought}: convert them with "
            f"array.astype({str(held)!r}); append does not, since that could lose precision"
        )
    if held_shape != brought_shape:
        raise MismatchError(
            f"dataset {name!r} has rows of shape {held_shape}, and these are of shape {brought_shape}"
        )
