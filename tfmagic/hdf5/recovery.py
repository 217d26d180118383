"""Bringing back what killed tasks have left: a part that was flushed, but never closed."""

from __future__ import annotations

import os

import h5py

from tfmagic.hdf5 import claims
from tfmagic.hdf5.copying import rows_at_once
from tfmagic.hdf5.errors import PartError, reason_of
from tfmagic.hdf5.layouts import read_layout
from tfmagic.hdf5.partnames import Part, find_parts
from tfmagic.hdf5.superblock import clear_writer_mark


def recover(base: str | os.PathLike[str]) -> list[str]:
    """Give the unfinished parts of a base their names, as the last flush() left them.

    Every dataset of such a part is read through before. A part that is being written is left alone; one that
    has a finished part beside it, too: it belongs to a later attempt that was not finished.

    Returns:
        The tasks whose parts were taken.

    Raises:
        PartError: A part cannot be read. Others before it in the order of tasks have been taken.
    """
    parts = find_parts(base)
    finished = {part.task for part in parts if part.finished}
    taken = []
    for part in parts:
        if part.finished or part.task in finished:
            continue
        whole = part.path.removesuffix(".unfinished")
        with claims.opening(part.path):
            if not claims.is_free(part.path):
                continue
            _check_readable(part)
            os.rename(part.path, whole)
        taken.append(part.task.name)
    return taken


def _check_readable(part: Part) -> None:
    what = f"{part.path}, which {part.task.name} left unfinished,"
    try:
        clear_writer_mark(part.path)
        with h5py.File(part.path, "r") as file:
            layout = read_layout(file, part)
            for path, found in layout.datasets.items():
                block = rows_at_once(file[path]) if found.shape else 1
                for row in range(0, found.shape[0] if found.shape else 0, block):
                    file[path][row : row + block]
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise PartError(
            f"{what} cannot be recovered: {reason_of(error)}. It was killed before its first flush(), or in "
            "the midst of one: delete the file, and let the task write again"
        ) from error
