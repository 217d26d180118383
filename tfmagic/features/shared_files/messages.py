"""The messages between a task, the kernel and the writer process of a shared HDF5 file.

They travel over `tfmagic.protocol.channel`. An array is its bytes, its shape, and its dtype as text. Messages
for which a task waits have serial numbers that grow.
"""

import ast
import functools
from typing import Any

from tfmagic.protocol.payload import Handle, Message

TEXT = "text"  # instead of a dtype: strings of any length
BUFFER_BYTES = 16 << 20  # a disk writes that in some hundredths of a second; more gains nothing


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


class Buffer(Message, frozen=True):
    """The first message: the memory of `BUFFER_BYTES` in which a task of this machine puts its rows."""

    handle: Handle | None = None


class Rows(Message, frozen=True):
    """Append rows to a dataset. Their bytes stand in `data`, in the buffer, or in a memory file."""

    serial: int  # 0 where the task does not wait for the receipt
    dataset: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes = b""
    offset: int = 0  # in the buffer
    handle: Handle | None = None  # of the memory file
    texts: tuple[str, ...] = ()  # the rows, where `dtype` is TEXT


class Flush(Message, frozen=True):
    """Write all earlier rows; with `is_hard`, send the receipt when the operating system has them."""

    serial: int
    is_hard: bool


class Detach(Message, frozen=True):
    """This task appends no more."""

    serial: int  # 0 where the task does not wait for the receipt


ToWriter = Buffer | Rows | Flush | Detach

# ---- the writer to a task -----------------------------------------------------------------------


class Opened(Message, frozen=True):
    """The file is open, and the process `pid` writes it. `note`, for the user: where older rows are."""

    pid: int
    note: str = ""


class Waits(Message, frozen=True):
    """From the kernel: the file will be opened when these tasks have closed it."""

    tasks: tuple[str, ...]


class Done(Message, frozen=True):
    """The receipt for a message; `refusal` is why rows were refused."""

    serial: int
    refusal: str = ""


class Failed(Message, frozen=True):
    """The file cannot be opened, or written any more; with `is_complete` it was closed with all rows."""

    reason: str
    is_complete: bool = False


ToTask = Opened | Waits | Done | Failed

# ---- the kernel to the writer -------------------------------------------------------------------


class Attach(Message, frozen=True):
    """A task is at the other end of this socket."""

    task: str
    handle: Handle


class Ended(Message, frozen=True):
    """These tasks have ended their part of the cell, and will not open the file."""

    tasks: tuple[str, ...]
    are_dead: bool = False  # a process that still holds a socket of theirs is a fork, and cannot append


class Finish(Message, frozen=True):
    """Take what has arrived, close the file and end."""


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
