"""`missing_parts`: whether what a virtual file points to is still there, which HDF5 never says.

A part that is gone reads as the fill value. Worse, HDF5 then takes a file of that name in the current folder,
whatever it holds (measured on 1.14.6). So this looks where the part must be, beside the file, and nowhere
else.
"""

from __future__ import annotations

import os
from typing import Any

import h5py

from tfmagic.hdf5.errors import PartError, reason_of


def missing_parts(path: str | os.PathLike[str]) -> dict[str, str]:
    """What is wrong with the parts that a consolidated file needs; {} for nothing. No data is read.

    A file that was consolidated by copy needs none.

    Returns:
        By name of the part's file: that it is missing, is no HDF5 file, or has changed since.

    Raises:
        PartError: The file itself cannot be read.
    """
    needs: dict[str, dict[str, tuple[tuple[int, ...], Any]]] = {}
    try:
        with h5py.File(path, "r") as file:
            file.visititems(lambda name, item: _note_sources(item, needs))
    except OSError as error:
        raise PartError(f"{os.fspath(path)} cannot be read: {reason_of(error)}") from error
    folder = os.path.dirname(os.path.realpath(os.fsdecode(path)))
    found = {name: _look_at(os.path.join(folder, name), wanted) for name, wanted in needs.items()}
    return {name: problem for name, problem in found.items() if problem}


def _note_sources(item: Any, needs: dict[str, dict[str, tuple[tuple[int, ...], Any]]]) -> None:
    if not isinstance(item, h5py.Dataset) or not item.is_virtual:
        return
    for source in item.virtual_sources():
        if source.file_name != ".":  # this very file
            # of a source that is mapped as a whole HDF5 keeps no shape: what it fills in the whole is one
            first, last = source.vspace.get_select_bounds()
            shape = tuple(int(b - a) + 1 for a, b in zip(first, last, strict=True))
            name, dataset = (text.replace("%%", "%") for text in (source.file_name, source.dset_name))
            needs.setdefault(name, {})[dataset] = (shape, item.dtype)


def _look_at(path: str, wanted: dict[str, tuple[tuple[int, ...], Any]]) -> str:
    """What is wrong with a part; "" for nothing."""
    if not os.path.exists(path):
        return "it is missing"
    try:
        with h5py.File(path, "r") as file:
            for name, (shape, dtype) in wanted.items():
                item = file.get(name)
                if not isinstance(item, h5py.Dataset):
                    return f"it has no dataset {name} any more"
                if item.shape != shape or item.dtype != dtype:
                    now = f"{item.dtype}{list(item.shape or ())}"
                    return f"its dataset {name} is {now} now, and was {dtype}{list(shape)}"
    except BlockingIOError:
        return "it is being written"
    except OSError as error:
        return f"it cannot be read: {reason_of(error)}"
    return ""
