"""Memory files, in which large values travel beside messages, and their contents."""

import mmap
import os

from tfmagic.protocol.payload import LOST, Handle, OwnedHandle


def read(handle: Handle) -> memoryview:
    """Return the content of a memory file, mapped and not copied."""
    if handle.fd == LOST:
        return memoryview(b"")
    size = os.fstat(handle.fd).st_size
    return memoryview(mmap.mmap(handle.fd, size, prot=mmap.PROT_READ) if size else b"")


def write(content: memoryview | bytes) -> OwnedHandle:
    """Return a new memory file with this content. Raises OSError where there is no memory."""
    handle = OwnedHandle(os.memfd_create("tfmagic-value", os.MFD_CLOEXEC))
    rest = memoryview(content).cast("B")
    os.truncate(handle.fd, len(rest))
    at = 0
    while at < len(rest):
        at += os.pwrite(handle.fd, rest[at : at + (1 << 30)], at)
    return handle
