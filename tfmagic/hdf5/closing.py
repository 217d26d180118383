"""Flushing and closing HDF5 files on a full disk, which HDF5 itself does not survive.

Measured on HDF5 1.14.6: a flush or close that fails for want of space leaves the library broken; a second
close, the object's end or the interpreter's end is a segmentation fault. So the space that the end will need
is reserved in the file system beforehand. The descriptor of a file that is given up leads to /dev/null, where
every write succeeds; on disk stays what the last flush left.

Used by `parts`, `consolidation` and the shared writer.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, cast

from tfmagic.hdf5 import guarding, patches, unfinished
from tfmagic.hdf5.errors import FULL, FileInUseError, PartError, reason_of
from tfmagic.hdf5.partnames import UNFINISHED

_DATASET_CACHE = 1 << 20  # bytes that HDF5 keeps of an open dataset by default: rdcc_nbytes of h5py.File
_MORE = 1 << 16
_AHEAD = 8 << 20  # to ask the system once for many small pieces


def keep_flushed(file: Any) -> None:
    """Write metadata only at flushes from now on, so that the last flush stays readable after a kill.

    Otherwise HDF5 writes parts of its tree whenever its cache is full. Measured: of files whose writer was
    killed some time after a flush, 6 of 6 were unreadable, and 0 of 12 with this. It costs memory for what is
    new since the last flush: about a kilobyte for a dataset.
    """
    config = file.id.get_mdc_config()
    config.set_initial_size = False
    config.incr_mode = config.flash_incr_mode = config.decr_mode = 0
    config.evictions_enabled = False
    file.id.set_mdc_config(config)


def alone() -> contextlib.AbstractContextManager[object]:
    """Return the lock that each call of h5py takes: within it, no other thread writes to any file.

    It is the one of all objects of h5py, and can be taken again by its owner. A lock of ours beside it could
    be waited for by a thread that has this one, as in a callback of ``visititems``.
    """
    from h5py._objects import phil  # private, and there is no other way: see h5py's "Thread safety"

    return cast("contextlib.AbstractContextManager[object]", phil)


def reserve_end(file: Any, held_bytes: int | None = None) -> None:
    """Check that there is space for a flush or close of this `h5py.File`; raise OSError before it is written.

    `held_bytes` is the most that HDF5 holds of its datasets in memory; by default of all that are open.
    """
    from h5py import h5f

    with alone():  # what another thread wrote after `size` would be cut off
        handle = file.id.get_vfd_handle()
        size = os.fstat(handle).st_size
        if held_bytes is None:
            held_bytes = h5f.get_obj_count(file.id, h5f.OBJ_DATASET) * _DATASET_CACHE
        try:
            os.posix_fallocate(handle, size, held_bytes + int(file.id.get_mdc_size()[2]) + _MORE)
        except OSError as error:
            if error.errno in FULL:  # else a file system that does not know
                raise
        finally:
            os.ftruncate(handle, size)


class SpaceReserve:
    """Space for rows that are about to be written: an error before HDF5 meets a full disk, and breaks.

    h5py ignores errors of what it writes when a dataset's object ends: those rows would be lost. At most one
    dataset is open.
    """

    def __init__(self, file: Any):
        self._file, self._left = file, 0

    def take(self, size: int) -> None:
        """Reserve so many bytes more, or raise OSError."""
        if size > self._left:
            self._left = max(size, _AHEAD)
            try:
                reserve_end(self._file, self._left + _DATASET_CACHE)
            except OSError:
                self._left = size  # the disk is nearly full; it can still have as much as is needed
                reserve_end(self._file, size + _DATASET_CACHE)
        self._left -= size


_lost: list[Any] = []  # identifiers that HDF5 could not close: their end is a segmentation fault


def close_after(error: BaseException, file: Any) -> None:
    """Close a file after an error; where the disk is full, give it up."""
    import h5py

    with alone():
        if not is_full(error):
            with contextlib.suppress(Exception):
                reserve_end(file)
                h5py.File.close(file)  # a subclass of ours does more
        if file.id.valid:
            give_up(file)


def give_up(file: Any) -> None:
    """Close a file without writing another byte to it."""
    import h5py

    with contextlib.suppress(Exception):  # the file is lost, and HDF5 can report that in any way
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, file.id.get_vfd_handle(), inheritable=False)
        os.close(null)
    with contextlib.suppress(Exception):
        h5py.File.close(file)
    if file.id.valid:
        # half closed: HDF5 cannot cut /dev/null to its length. Even the identifier's repr, in a debugger that
        # shows the frames of the error, would be a segmentation fault
        _lost.append(file.id)
        if patches.TABLE.fits(patches.IDENTIFIER):
            file._id = h5py.h5f.FileID(0)


def is_full(error: BaseException) -> bool:
    """Check whether this is the error of a disk that takes no more."""
    return isinstance(error, OSError) and error.errno in FULL


@contextlib.contextmanager
def written_beside(path: str) -> Iterator[Any]:
    """Yield a new `h5py.File` that gets its name when it is whole; a failure leaves nothing of it.

    It has the format of HDF5 1.8: the default, an older one, takes no attribute of 64 KiB. Raises
    FileInUseError where another process writes it, PartError where the folder or the disk does not take it.
    What a killed writer of this name has left, such as a shared writer, is kept under another name.
    """
    import h5py

    beside = path + UNFINISHED
    file = h5py.File.__new__(h5py.File)
    naming = guarding.naming_errors(f"{path} cannot be written", beside, "w")
    with naming, guarding.opening(beside), guarding.opening(path):
        unfinished.check_target(path)
        if unfinished.exists(path) and not guarding.is_free(beside):
            raise FileInUseError(guarding.describe_use(beside, "w"))
        unfinished.clear(path)
        unfinished.create(path, lambda: h5py.File.__init__(file, beside, "w", libver="v108"))
        guarding.claim(file)
    try:
        yield file
        with guarding.opening(beside), guarding.opening(path):
            reserve_end(file)
            file.close()
            unfinished.give_name(path)
    except BaseException as error:
        close_after(error, file)
        with contextlib.suppress(OSError):
            os.unlink(beside)
        if is_full(error):
            raise PartError(f"{path} was not written: {reason_of(error)}. Nothing of it was left.") from error
        raise
