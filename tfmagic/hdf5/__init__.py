"""HDF5 files that several tasks share: usable without a cluster, and in one.

    with TaskFile("results.h5") as file:      each task writes a file of its own ...
        file.append("loss", losses)
    consolidate("results.h5")                 ... which become one

    with SharedWriter("all.h5") as writer:    or all append to one file, which one process writes
        writer.append("loss", losses)

    guard()                                   two tasks that write one file: an error, not a broken file

Importing this package loads neither h5py nor numpy; most of its names do.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tfmagic.system import linux_only

linux_only.check()

from tfmagic.hdf5.errors import FileInUseError, MismatchError, PartError, SharedWriterError
from tfmagic.hdf5.guarding import guard
from tfmagic.hdf5.partnames import find_parts

if TYPE_CHECKING:
    from tfmagic.features.shared_files.client import SharedWriter
    from tfmagic.hdf5.consolidation import Consolidation, consolidate
    from tfmagic.hdf5.parts import TaskFile
    from tfmagic.hdf5.recovery import missing_parts, recover

__all__ = [
    "Consolidation",
    "FileInUseError",
    "MismatchError",
    "PartError",
    "SharedWriter",
    "SharedWriterError",
    "TaskFile",
    "consolidate",
    "find_parts",
    "guard",
    "missing_parts",
    "recover",
]

_LAZY = {
    "Consolidation": "tfmagic.hdf5.consolidation",
    "SharedWriter": "tfmagic.features.shared_files.client",
    "TaskFile": "tfmagic.hdf5.parts",
    "consolidate": "tfmagic.hdf5.consolidation",
    "missing_parts": "tfmagic.hdf5.recovery",
    "recover": "tfmagic.hdf5.recovery",
}


def __getattr__(name: str) -> Any:
    """Load a module when a name of it is used for the first time."""
    if name not in _LAZY:
        raise AttributeError(f"module 'tfmagic.hdf5' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
