"""The messages between a task, the kernel and the writer process of a shared HDF5 file.

They travel over `tfmagic.protocol.channel`. An array is its bytes, its shape, and its dtype as text.
"""

import ast
import functools
from typing import Any

from tfmagic.protocol.payload import Handle, Message

TEXT = "text"  # instead of a dtype: strings of any length


def text_of_dtype(dtype: Any) -> str:
    """Return a numpy dtype as text, as ``numpy.save`` writes it."""
    import numpy as np

    return repr(np.lib.format.dtype_to_descr(dtype))


@functools.cache
def dtype_of_text(text: str) -> Any:
    """Return the numpy dtype that `text_of_dtype` has written."""
    import numpy as np

    return np.lib.format.descr_to_dtype(ast.literal_eval(text))


# ---- a task to the writer -----------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The first message: how new datasets are made; see `SharedWriter`."""

    compression: str = ""
    chunk_rows: int = 0


class Ring(Message, frozen=True):
    """The shared memory in which this task puts its rows."""

    handle: Handle
    size_bytes: int


class Rows(Message, frozen=True):
    """Append rows to a dataset. Their bytes stand in `data`, in the ring, or in a memory file."""

    dataset: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes = b""
    offset: int = -1  # in the ring
    handle: Handle | None = None  # of the memory file
    texts: tuple[str, ...] = ()  # the rows, where `dtype` is TEXT
    serial: int = 0  # grows from message to message
    number: int = 0  # of the answer; 0 where the task waits for the receipt alone


class Flush(Message, frozen=True):
    """Write all earlier rows, and answer when the operating system has them."""

    number: int


class Detach(Message, frozen=True):
    """This task appends no more."""

    number: int  # of the answer; 0 where the task does not wait for it


ToWriter = Hello | Ring | Rows | Flush | Detach

# ---- the writer to a task -----------------------------------------------------------------------


class Opened(Message, frozen=True):
    """The file is open, and the process `pid` writes it; or it is not, with the reason.

    `note` is for the user: where the rows of an earlier writer are.
    """

    reason: str = ""
    pid: int = 0
    note: str = ""


class Waits(Message, frozen=True):
    """From the kernel: the file will be opened when these tasks have closed it."""

    tasks: tuple[str, ...]


class Written(Message, frozen=True):
    """The receipt for all rows up to this message: their memory is free."""

    serial: int


class Answered(Message, frozen=True):
    """The request of this number is done; or it is refused, with the reason."""

    number: int
    reason: str = ""


class Failed(Message, frozen=True):
    """The file cannot be written any more; with `is_complete` it was closed with all rows."""

    reason: str
    is_complete: bool = False


ToTask = Opened | Waits | Written | Answered | Failed

# ---- the kernel to the writer -------------------------------------------------------------------


class Attach(Message, frozen=True):
    """A task is at the other end of this socket."""

    task: str
    mode: str
    handle: Handle


class Ended(Message, frozen=True):
    """These tasks have ended their part of the cell, and will not open the file."""

    tasks: tuple[str, ...]
    are_dead: bool = False  # a process that still holds a socket of theirs is a fork, and cannot append


class Finish(Message, frozen=True):
    """Take what has arrived, close the file and end."""

    is_withdrawn: bool = False  # the only opener has given up: leave no file


WriterOrder = Attach | Ended | Finish

# ---- the writer to the kernel -------------------------------------------------------------------


class Attached(Message, frozen=True):
    """The writer has received the next `Attach`."""


class StillOpen(Message, frozen=True):
    """All tasks have ended their part, but these have not closed the file."""

    tasks: tuple[str, ...]


class Finished(Message, frozen=True):
    """The file is complete, under its name; or there is none, with the reason."""

    reason: str = ""


WriterReport = Attached | StillOpen | Finished
