"""The errors of this package: each is a `TfmagicError`, and the builtin that code for h5py expects."""

import os
from errno import EAGAIN, EDQUOT, EFBIG, ENOSPC

from tfmagic.errors import TfmagicError

FULL = (ENOSPC, EDQUOT, EFBIG)  # of a disk, a quota or a file that takes no more


class FileInUseError(TfmagicError, BlockingIOError):
    """Another process has this HDF5 file open, so that it cannot be opened now. Nothing was changed."""

    errno = EAGAIN


class PartError(TfmagicError, OSError):
    """The file of a task cannot be used: missing, damaged, unfinished, foreign, or not writable."""


class SharedWriterError(TfmagicError, OSError):
    """A shared file could not be opened or written; the message gives the reason."""


class MismatchError(TfmagicError, ValueError):
    """Rows do not fit into one dataset, or objects do not fit under one name."""


def reason_of(error: BaseException) -> str:
    """Return the message of an error of h5py, without its addresses and times."""
    number = getattr(error, "errno", None)
    if number and not isinstance(error, TfmagicError):
        return os.strerror(number)
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
