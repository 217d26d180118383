"""``PATH.unfinished``: an HDF5 file while it is written; it gets the name PATH when it is whole.

    create ──→ PATH.unfinished ── give_name ──→ PATH
                    └ left by a writer that was killed: set_aside ──→ PATH.abandoned

The writers hold `guarding.opening` of the names around each function here: `parts`, `closing` and the shared
writer.
"""

import contextlib
import ctypes
import itertools
import os
import stat
from collections.abc import Callable
from typing import TypeVar

from tfmagic.hdf5 import guarding
from tfmagic.hdf5.errors import FileInUseError, PartError
from tfmagic.hdf5.partnames import UNFINISHED
from tfmagic.system import files

_T = TypeVar("_T")
_ABANDONED = ".abandoned"
_VERSION, _FLAGS = 8, 11  # bytes of the superblock (HDF5 File Format Specification 3.0, II.A)


def exists(path: str) -> bool:
    """Check whether a writer has left the unfinished file. Raise PartError for a link, a folder or a pipe.

    In a folder that others can write to, a link of that name would lead our data into any file of this user.
    """
    try:
        status = os.lstat(path + UNFINISHED)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise PartError(
            f"{path}{UNFINISHED} is a link or no plain file, and is not from tfmagic: delete it, or choose "
            "another name"
        )
    return True


def create(path: str, open_file: Callable[[], _T], mode: int = 0o666) -> _T:
    """Create the unfinished file, empty, and open it; no link is followed, and a failure leaves nothing."""
    flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC
    os.close(os.open(path + UNFINISHED, flags, mode))
    try:
        return open_file()
    except BaseException:
        os.unlink(path + UNFINISHED)
        raise


def clear(path: str) -> str:
    """Make room for a new unfinished file. Return where a killed writer's is kept, "" if it has nothing."""
    if not exists(path):
        return ""
    if _has_objects(path + UNFINISHED):
        return set_aside(path)
    os.unlink(path + UNFINISHED)
    return ""


def set_aside(path: str) -> str:
    """Give the unfinished file a name that no file has, and return it."""
    for number in itertools.count(1):
        name = f"{path}{_ABANDONED}{f'.{number}' if number > 1 else ''}"
        with contextlib.suppress(FileExistsError):
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            break
    os.replace(path + UNFINISHED, name)
    return name


def check_target(path: str) -> None:
    """Raise FileInUseError if another process is writing the file of this name: it would be replaced."""
    if not guarding.is_free(path, alone=False):
        who = ", ".join(str(holder) for holder in guarding.find_holders(path) if holder.writes)
        raise FileInUseError(
            f"{path} is open for writing by {who or 'another process'}, and is left as it is: close it there "
            "first, or choose another name"
        )


def give_name(path: str) -> None:
    """Let the closed file have its name. Raise FileInUseError, and change nothing, where PATH is written."""
    check_target(path)
    files.replace_durably(path + UNFINISHED, path)


def clear_writer_mark(path: str) -> None:
    """Remove the mark "being written" of a file that a killed writer has made with ``libver="latest"``."""
    import h5py

    with open(path, "rb") as file:
        head = file.read(_FLAGS + 1)
    if len(head) > _FLAGS and head[_VERSION] >= 3 and head[_FLAGS]:
        access, yes = h5py.h5p.create(h5py.h5p.FILE_ACCESS), ctypes.c_bool(True)
        hdf5 = ctypes.CDLL(h5py.h5p.__file__)
        hdf5.H5Pset(ctypes.c_int64(access.id), b"clear_status_flags", ctypes.byref(yes))
        h5py.h5f.open(os.fsencode(path), h5py.h5f.ACC_RDWR, access).close()


def _has_objects(path: str) -> bool:
    """Check whether a file that no process writes can be read, as after a flush, and has anything in it."""
    import h5py

    try:
        clear_writer_mark(path)
        with h5py.File(path, "r") as file:
            return bool(len(file))
    except (OSError, RuntimeError, ValueError, KeyError):  # what HDF5 raises for a damaged file
        return False
