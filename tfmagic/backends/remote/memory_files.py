"""Memory files, in which large values travel beside messages, and their contents.

Between two processes of one machine the name of the file travels, and nothing is copied. Whether they are on
one machine shows in a trial: containers can have the same address, and see other processes.
"""

import mmap
import os
import secrets

from tfmagic.protocol.payload import LOST, Handle, HandleLost, OwnedHandle
from tfmagic.system import shared_memory

Place = tuple[int, int, int]
"""The names of a memory file in another process: its pid, its descriptor, and the inode."""
Content = Place | memoryview | bytes | str
"""A content on its way, or the reason why it is missing, which continues a sentence about the value."""
Question = tuple[Place, bytes]
"""The place and the content of a memory file: can the other process read it there?"""


def read(handle: Handle) -> memoryview:
    """Return the content of a memory file, mapped and not copied."""
    if handle.fd == LOST:
        return memoryview(b"")
    size = os.fstat(handle.fd).st_size
    return memoryview(mmap.mmap(handle.fd, size, prot=mmap.PROT_READ) if size else b"")


def write(content: memoryview | bytes) -> OwnedHandle:
    """Return a new memory file with this content. Raises OSError where there is no memory."""
    return OwnedHandle(shared_memory.share([memoryview(content)]))


def place_of(handle: Handle) -> Place:
    """Return the place of a memory file that stays open here until the other process has opened it."""
    return os.getpid(), handle.fd, os.fstat(handle.fd).st_ino


def open_at(place: Place) -> OwnedHandle:
    """Open a memory file of another process. Raises OSError where that cannot be seen from here."""
    pid, fd, inode = place
    handle = OwnedHandle(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))
    if os.fstat(handle.fd).st_ino != inode:
        raise FileNotFoundError(f"process {pid} has another file there")
    shared_memory.lock(handle.fd)
    return handle


def content_of(handle: Handle, shares_memory: bool) -> Content:
    """Return what another process makes a memory file of."""
    if handle.fd == LOST:
        return str(HandleLost().strerror)
    return place_of(handle) if shares_memory else read(handle)


def receive(content: Content) -> OwnedHandle:
    """Return a memory file from what another process has sent. Raises OSError where that is missing."""
    if isinstance(content, str):
        raise HandleLost(content)
    return open_at(content) if isinstance(content, tuple) else write(content)


class Trial:
    """A file with random content, by which another process shows that it can open those of this one."""

    def __init__(self) -> None:
        self._content = secrets.token_bytes(16)
        self._handle = write(self._content)
        self.question: Question = place_of(self._handle), self._content


def can_open(question: Question) -> bool:
    """Check whether this process can open the memory files of the one that asks."""
    place, content = question
    try:
        return bytes(read(open_at(place))) == content
    except OSError:
        return False
