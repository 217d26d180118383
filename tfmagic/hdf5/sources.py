"""`missing_parts`: checks the parts that a virtual file points to, which HDF5 does not do.

HDF5 reads the fill value where a part is gone. Worse, it then takes a file of that name in the current
folder, whatever it holds (measured on 1.14.6). A part must be beside the file, so this searches nowhere else.
"""

from __future__ import annotations

import os
from typing import Any

import h5py

from tfmagic.hdf5.errors import PartError, reason_of


def missing_parts(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return what is wrong with the parts that a consolidated file needs; {} where all is well.

    Reads no data. A file that was consolidated by copy needs no parts.

    Returns:
        By the name of a part's file: that it is missing, is no HDF5 file, or has changed since.

    Raises:
        PartError: The file itself cannot be read.
    """
    needs: dict[str, dict[str, tuple[tuple[int, ...], Any]]] = {}  # file -> dataset -> shape, dtype

    def note_sources(_: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset) or not item.is_virtual:
            return
        for source in item.virtual_sources():
            if source.file_name != ".":  # this very file
                # HDF5 keeps no shape of a source that is mapped as a whole; its place in the whole has it
                first, last = source.vspace.get_select_bounds()
                shape = tuple(int(b - a) + 1 for a, b in zip(first, last, strict=True))
                name, dataset = (text.replace("%%", "%") for text in (source.file_name, source.dset_name))
                needs.setdefault(name, {})[dataset] = (shape, item.dtype)

    try:
        with h5py.File(path, "r") as file:
            file.visititems(note_sources)
    except OSError as error:
        raise PartError(f"{os.fspath(path)} cannot be read: {reason_of(error)}") from error
    folder = os.path.dirname(os.path.realpath(os.fsdecode(path)))
    found = {name: _check(os.path.join(folder, name), wanted) for name, wanted in needs.items()}
    return {name: problem for name, problem in found.items() if problem}


def _check(path: str, wanted: dict[str, tuple[tuple[int, ...], Any]]) -> str:
    """Return what is wrong with a part, or ""."""
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
