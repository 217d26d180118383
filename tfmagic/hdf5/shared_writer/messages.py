"""What a task, the writer of a shared HDF5 file and the kernel say to each other.

Over `tfmagic.protocol.channel`. Arrays are bytes beside their dtype, as ``numpy.lib.format.dtype_to_descr``
gives it, and their shape: nothing is unpickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfmagic.protocol.payload import Handle

TEXT = "text"  # stands for a dtype: strings of any length

# ---- a task to the writer -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """How new datasets are made: see `SharedWriter`. The first message."""

    compression: str = ""
    chunk_rows: int = 0


@dataclass(frozen=True, slots=True)
class Ring:
    """The memory file of `size_bytes` in which this task lays what it appends."""

    handle: Handle
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Append these rows, of `shape`, to the dataset.

    The bytes are in `data`; or in the ring from `offset` on; or in the memory file `handle`; strings are in
    `texts`. `serial` grows from message to message; `number` is 0 where no answer is wanted but the receipt.
    """

    dataset: str
    dtype: Any
    shape: tuple[int, ...]
    data: bytes = b""
    offset: int = -1
    handle: Handle | None = None
    texts: tuple[str, ...] = ()
    serial: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Flush:
    """Write what came before, and answer when the system has it."""

    number: int


@dataclass(frozen=True, slots=True)
class Detach:
    """This task appends no more. With 0 nobody waits for the answer."""

    number: int


# ---- the writer to a task -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """The file is open, and the process `pid` writes it; or, with a reason, it is not."""

    reason: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Waits:
    """It will be opened when these tasks have closed it. Comes from the kernel."""

    whom: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """The task's rows up to this message are in the file: their memory is free."""

    serial: int


@dataclass(frozen=True, slots=True)
class Answered:
    """What was asked under this number is done; or, with a reason, refused."""

    number: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The file cannot be written any more; with `is_complete` it has been closed with all that came."""

    reason: str
    is_complete: bool = False


# ---- the kernel to the writer -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Open this file for these tasks. The first message."""

    path: str
    mode: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attach:
    """A task is at the other end of this socket."""

    who: str
    mode: str
    handle: Handle


@dataclass(frozen=True, slots=True)
class Ended:
    """These tasks have ended their part: who of them has not opened the file will not.

    With `are_dead` their processes are gone: whoever still holds their sockets is a fork, and cannot append.
    """

    whom: tuple[str, ...]
    are_dead: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """Take what has come, close the file and end; or leave no file, where its only opener has given up."""

    is_withdrawn: bool = False


# ---- the writer to the kernel -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attached:
    """The next one of those that were to be attached is."""


@dataclass(frozen=True, slots=True)
class StillOpen:
    """All have ended their part, but these tasks have not closed the file."""

    whom: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The file is complete, under its name; or, with a reason, there is none."""

    reason: str = ""
