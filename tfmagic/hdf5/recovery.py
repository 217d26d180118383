"""`recover`: parts that a killed task has flushed, but not closed, get their names. `missing_parts`: checks
the parts that a virtual file points to, which HDF5 does not do.

HDF5 does not open a file again that a killed writer has made with ``libver="latest"`` (superblock version 3):
"file is already open for write (may use <h5clear file> ...)". h5py has no h5clear, so `unfinished`
sets the property of HDF5 that h5clear sets.

HDF5 reads the fill value where a part of a virtual file is gone. Worse, it then takes a file of that name in
the current folder, whatever it holds (measured on 1.14.6). A part must be beside the file, so `missing_parts`
searches nowhere else.
"""

import os
from typing import Any

import h5py

from tfmagic.hdf5 import guarding, unfinished
from tfmagic.hdf5.copying import rows_at_once
from tfmagic.hdf5.errors import PartError, reason_of
from tfmagic.hdf5.partnames import UNFINISHED, Part, find_parts
from tfmagic.system.arguments import as_path


def recover(base: str | os.PathLike[str]) -> list[str]:
    """Give the unfinished parts of a base their names, as the last flush() left them.

    Reads every dataset of such a part first. Leaves a part alone that is being written, and one that has a
    finished part beside it: it belongs to a later attempt, which was not finished.

    Returns:
        The tasks whose parts were recovered.

    Raises:
        PartError: A part cannot be read. Those before it in the order of tasks are recovered.
    """
    parts = find_parts(base)
    finished = {part.task for part in parts if part.finished}
    recovered = []
    for part in parts:
        if part.finished or part.task in finished:
            continue
        path = part.path.removesuffix(UNFINISHED)
        with guarding.opening(part.path), guarding.opening(path):
            if not unfinished.exists(path) or not guarding.is_free(part.path) or os.path.lexists(path):
                continue
            _check_readable(part)
            os.rename(part.path, path)
        recovered.append(part.task.name)
    return recovered


def _check_readable(part: Part) -> None:
    def read(_: str, item: Any) -> None:
        dict(item.attrs)
        if isinstance(item, h5py.Dataset) and item.shape:
            block = rows_at_once(item)
            for row in range(0, item.shape[0], block):
                item[row : row + block]

    try:
        unfinished.clear_writer_mark(part.path)
        with h5py.File(part.path, "r") as file:
            read("/", file)
            file.visititems(read)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise PartError(
            f"{part.path}, which {part.task.name} left unfinished, cannot be recovered: {reason_of(error)}. "
            "It was killed before its first flush(), or in the midst of one: delete the file, and let the "
            "task write again"
        ) from error


def missing_parts(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the problems of the parts that a consolidated file needs; {} where all is well.

    Reads no data. A file that was consolidated by copy needs no parts.

    Returns:
        By the name of a part's file: that it is missing, is no HDF5 file, or has changed since.

    Raises:
        PartError: The file itself cannot be read.
    """
    needs: dict[str, dict[str, tuple[tuple[int, ...], Any]]] = {}  # file -> dataset -> shape, dtype

    def note_sources(_: str, item: Any) -> None:
        is_virtual = isinstance(item, h5py.Dataset) and item.is_virtual
        for source in item.virtual_sources() if is_virtual else ():
            if source.file_name != ".":  # this very file
                # HDF5 keeps no shape of a source that is mapped as a whole; its place in the whole has it
                first, last = source.vspace.get_select_bounds()
                shape = tuple(int(b - a) + 1 for a, b in zip(first, last, strict=True))
                name, dataset = (text.replace("%%", "%") for text in (source.file_name, source.dset_name))
                needs.setdefault(name, {})[dataset] = (shape, item.dtype)

    path = as_path("path", path, takes_bytes=True)
    with guarding.naming_errors(f"{path} cannot be read", path, "r"), h5py.File(path, "r") as file:
        file.visititems(note_sources)
    folder = os.path.dirname(os.path.realpath(path))
    found = {name: _problem_of(os.path.join(folder, name), wanted) for name, wanted in needs.items()}
    return {name: problem for name, problem in found.items() if problem}


def _problem_of(path: str, wanted: dict[str, tuple[tuple[int, ...], Any]]) -> str:
    """Describe the problem of a part, or return ""."""
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
