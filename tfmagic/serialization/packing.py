"""Put a pickle into a message, or into a memory file beside it.

Small values travel in the message. From 64 KiB on, stream and buffers lie in a memory file, whose descriptor
travels instead: the sender copies them once, the reader not at all, and the file vanishes if either ends.
"""

import mmap
import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from tfmagic.protocol.payload import OwnedHandle, Packed
from tfmagic.system import shared_memory

IN_BAND_BYTES = 1 << 16  # below, copying beats a descriptor and a mapping
_MAPPED_BYTES = 1 << 20  # from here on a mapping beats a copy by more than a descriptor is worth
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
_ALIGN = 64  # a cache line: numpy arrays over the mapping stay aligned


class Parts(Protocol):
    """A pickle: its stream, the buffers beside it, and the size of all in bytes."""

    @property
    def stream(self) -> bytes: ...
    @property
    def buffers(self) -> Sequence[memoryview]: ...
    @property
    def size_bytes(self) -> int: ...


def pack(pickled: Parts) -> Packed:
    """Put a pickle into a message or a memory file. Raises OSError when there is no memory for it."""
    stream, buffers = pickled.stream, pickled.buffers
    if pickled.size_bytes < IN_BAND_BYTES:
        return Packed(data=stream)
    fd = shared_memory.share((memoryview(stream), *buffers), _ALIGN)
    return Packed(handle=OwnedHandle(fd), sizes=(len(stream), *(b.nbytes for b in buffers)))


def parts(packed: Packed, writable: bool = True) -> tuple[Any, list[memoryview]]:
    """Return the stream and the buffers of a pickle, and close its memory file.

    The buffers are private: a page that is written is copied first. If they are not `writable`, none is.

    Before Python 3.13 a mapping keeps a descriptor of its own. So values of less than a MiB, of which a
    notebook can hold many, are copied.
    """
    if packed.handle is None:
        return packed.data, []
    fd, sizes = packed.handle.take(), packed.sizes
    length = sum(-(-size // _ALIGN) * _ALIGN for size in sizes)
    try:
        if length < _MAPPED_BYTES:
            whole = memoryview(bytearray(length))
            os.preadv(fd, [whole], 0)
        elif writable:
            whole = memoryview(mmap.mmap(fd, length, mmap.MAP_PRIVATE, **_UNTRACKED))
        else:
            whole = memoryview(mmap.mmap(fd, length, prot=mmap.PROT_READ, **_UNTRACKED))
    finally:
        os.close(fd)
    whole = whole if writable else whole.toreadonly()
    found, offset = [], 0
    for size in sizes:
        found.append(whole[offset : offset + size])
        offset += -(-size // _ALIGN) * _ALIGN
    return found[0], found[1:]
