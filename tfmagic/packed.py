"""What carries the user's data and open files within a message: bytes that nobody unpickles on the way.

Made by `tfmagic.pickling` and `tfmagic.tracebacks`, opened by the code that asked for them alone.
"""

from __future__ import annotations

from dataclasses import dataclass


class Handle:
    """A file descriptor that travels with a message; the receiver gets one of its own."""

    __slots__ = ("fd",)

    def __init__(self, fd: int):
        self.fd = fd


@dataclass(frozen=True, slots=True)
class Packed:
    """A pickled value: small ones in `data`; big ones in the memory file `handle`.

    `sizes` are the bytes of the pickle stream and of each out-of-band buffer (pickle protocol 5),
    laid one behind the other in the memory file, each at a multiple of 64 bytes.
    """

    data: bytes = b""
    handle: Handle | None = None
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PackedError:
    """An exception of a task on its way to the notebook; see `tfmagic.tracebacks`.

    `chain` holds the type names and messages of the exception and of what led to it, the last one
    first; `packed` is None where not even the frames could travel; `line` is that of the cell, or 0.
    """

    type_name: str
    message: str
    text: str
    packed: Packed | None
    where: str
    chain: tuple[tuple[str, str], ...] = ()
    line: int = 0
