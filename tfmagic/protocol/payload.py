"""The base classes of messages, and the parts of them that carry the user's data and open files.

A user's value travels as a `Packed`: pickled bytes, or a memory file with them. `tfmagic.serialization` packs
and unpacks values; launcher, backend and supervisor only pass the bytes on.
"""

import errno
import os
from collections.abc import Callable, Iterable

import msgspec


class Record(msgspec.Struct, frozen=True, array_like=True):
    """The base class of what is part of a message: on the wire, the list of the values of its fields."""


class Message(Record, frozen=True, tag=True):
    """The base class of messages: on the wire, the name of the class comes before the values."""


class Handle:
    """A file descriptor that travels with a message: the sender's, which stays the sender's.

    The receiver gets an `OwnedHandle`.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int):
        self.fd = fd

    def take(self) -> int:
        """Return a descriptor for the same file, which is the caller's to close."""
        return os.dup(self.fd)


LOST, _TAKEN = -1, -2  # instead of a descriptor: the system has dropped it, or it was taken


class OwnedHandle(Handle):
    """A descriptor that closes when nothing refers to the handle any more, unless it was taken."""

    __slots__ = ()

    def take(self) -> int:
        """Return the descriptor itself; works once.

        Raises:
            HandleLost: It did not arrive.
            ValueError: It was taken or closed before.
        """
        if self.fd == LOST:
            raise HandleLost
        if self.fd == _TAKEN:
            raise ValueError("this value was read or dropped before")
        fd, self.fd = self.fd, _TAKEN
        return fd

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close the descriptor, unless it was taken."""
        if self.fd >= 0:
            close(self.fd)  # bound early: at the interpreter's end the module's names are gone
            self.fd = _TAKEN

    __del__ = close


class LostHandle(OwnedHandle):
    """Stands for a memory file that could not come; `reason` continues a sentence about the value."""

    __slots__ = ("reason",)

    def __init__(self, reason: str):
        super().__init__(LOST)
        self.reason = reason

    def take(self) -> int:
        raise HandleLost(self.reason)


class HandleLost(OSError):
    """A memory file did not come: by default, since the system dropped its descriptor on the way."""

    def __init__(
        self,
        reason: str = "could not be received, since this process has too many open files; close some, or "
        "raise the limit (ulimit -n) before it starts",
    ) -> None:
        super().__init__(errno.EMFILE, reason)

    def __str__(self) -> str:
        return f"a value {self.strerror}"


class Packed(Record, frozen=True):
    """A pickled value: small ones in `data`; big ones in the memory file `handle`.

    `sizes` are the bytes of the pickle stream and of each out-of-band buffer (pickle protocol 5),
    laid one after the other in the memory file, each at a multiple of 64 bytes.
    """

    data: bytes = b""
    handle: Handle | None = None
    sizes: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes) if self.handle is not None else len(self.data)


def release(packs: Iterable[Packed | None]) -> None:
    """Close the memory files of values that nothing will read any more."""
    for packed in packs:
        if packed is not None and isinstance(packed.handle, OwnedHandle):
            packed.handle.close()


class PackedError(Record, frozen=True):
    """An exception of a task on its way to the notebook; see `tfmagic.serialization.tracebacks`.

    `chain` holds the type names and messages of the exception and of what led to it, the last one
    first; `packed` is None where not even the frames could travel; `line` is that of the cell, or 0;
    `explained` is true where a note of the exception already holds a hint.
    """

    type_name: str
    message: str
    text: str
    packed: Packed | None
    where: str
    chain: tuple[tuple[str, str], ...] = ()
    line: int = 0
    explained: bool = False
