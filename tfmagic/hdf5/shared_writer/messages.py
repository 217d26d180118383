"""What a task, the writer of a shared HDF5 file and the kernel say to each other.

Over `tfmagic.protocol.channel`. Arrays are bytes beside their shape and their dtype, which is written as in
the header of an .npy file (``repr(numpy.lib.format.dtype_to_descr(dtype))``): nothing is unpickled.
"""

from __future__ import annotations

from tfmagic.protocol.payload import Handle, Message

TEXT = "text"  # stands for a dtype: strings of any length

# ---- a task to the writer -----------------------------------------------------------------------


class Hello(Message, frozen=True):
    """How new datasets are made: see `SharedWriter`. The first message."""

    compression: str = ""
    chunk_rows: int = 0


class Ring(Message, frozen=True):
    """The memory file of `size_bytes` in which this task lays what it appends."""

    handle: Handle
    size_bytes: int


class Rows(Message, frozen=True):
    """Append these rows, of `shape`, to the dataset.

    The bytes are in `data`; or in the ring from `offset` on; or in the memory file `handle`; strings are in
    `texts`. `serial` grows from message to message; `number` is 0 where no answer is wanted but the receipt.
    """

    dataset: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes = b""
    offset: int = -1
    handle: Handle | None = None
    texts: tuple[str, ...] = ()
    serial: int = 0
    number: int = 0


class Flush(Message, frozen=True):
    """Write what came before, and answer when the system has it."""

    number: int


class Detach(Message, frozen=True):
    """This task appends no more. With 0 nobody waits for the answer."""

    number: int


ToWriter = Hello | Ring | Rows | Flush | Detach

# ---- the writer to a task -----------------------------------------------------------------------


class Opened(Message, frozen=True):
    """The file is open, and the process `pid` writes it; or, with a reason, it is not."""

    reason: str = ""
    pid: int = 0


class Waits(Message, frozen=True):
    """It will be opened when these tasks have closed it. Comes from the kernel."""

    whom: tuple[str, ...]


class Written(Message, frozen=True):
    """The task's rows up to this message are in the file: their memory is free."""

    serial: int


class Answered(Message, frozen=True):
    """What was asked under this number is done; or, with a reason, refused."""

    number: int
    reason: str = ""


class Failed(Message, frozen=True):
    """The file cannot be written any more; with `is_complete` it has been closed with all that came."""

    reason: str
    is_complete: bool = False


ToTask = Opened | Waits | Written | Answered | Failed

# ---- the kernel to the writer -------------------------------------------------------------------


class Begin(Message, frozen=True):
    """Open this file for these tasks. The first message."""

    path: str
    mode: str
    members: tuple[str, ...]


class Attach(Message, frozen=True):
    """A task is at the other end of this socket."""

    who: str
    mode: str
    handle: Handle


class Ended(Message, frozen=True):
    """These tasks have ended their part: who of them has not opened the file will not.

    With `are_dead` their processes are gone: whoever still holds their sockets is a fork, and cannot append.
    """

    whom: tuple[str, ...]
    are_dead: bool = False


class Finish(Message, frozen=True):
    """Take what has come, close the file and end; or leave no file, where its only opener has given up."""

    is_withdrawn: bool = False


WriterOrder = Begin | Attach | Ended | Finish

# ---- the writer to the kernel -------------------------------------------------------------------


class Attached(Message, frozen=True):
    """The next one of those that were to be attached is."""


class StillOpen(Message, frozen=True):
    """All have ended their part, but these tasks have not closed the file."""

    whom: tuple[str, ...]


class Finished(Message, frozen=True):
    """The file is complete, under its name; or, with a reason, there is none."""

    reason: str = ""


WriterReport = Attached | StillOpen | Finished
