"""Files that several processes read and write at once: append a line, replace a whole file, lock one.

Raises the system's `OSError`; each caller decides whether a full disk matters to it. No link is followed, and
no pipe is waited for.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from tfmagic.system import notices

Path = str | os.PathLike[str]
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
"""Errors that say nothing of the file or the caller: the system is short of something, or a device fails."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of Linux' fallocate
_NO_SYNC = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})  # file systems that know none
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Return a descriptor of a regular file; raise OSError for a link, a pipe, a folder or a device."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    os.set_blocking(fd, True)  # a task's processes inherit the flag with their standard output
    return fd


def read_bytes(path: Path, max_bytes: int, offset: int = 0) -> bytes:
    """Return bytes of a regular file; raises as `open_regular`."""
    fd = open_regular(path)
    try:
        return os.pread(fd, max_bytes, offset)
    finally:
        os.close(fd)


def read_text(path: Path) -> str:
    """Return the text of a regular file, invalid bytes replaced; raises as `open_regular`."""
    with open(open_regular(path), encoding="utf-8", errors="replace") as file:
        return file.read()


def text_of(path: Path) -> str:
    """Return the text of a regular file, as `read_text`; "" where it cannot be read."""
    try:
        return read_text(path)
    except OSError:
        return ""


def open_to_append(path: Path) -> int:
    """Return a descriptor that appends to a file, which is created for this user alone."""
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def append(path: Path, text: str) -> None:
    """Append text in one write, so that lines of several processes do not mix."""
    fd = open_to_append(path)
    try:
        os.write(fd, text.encode("utf-8", "backslashreplace"))
    finally:
        os.close(fd)


def drop_blocks(path: Path, start: int, end: int) -> None:
    """Give the blocks of a part of a file back to its disk: it reads as zeros then, and keeps its size."""
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fd = open_regular(path, os.O_WRONLY)
    try:
        offsets = ctypes.c_int64(start), ctypes.c_int64(end - start)
        if fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, *offsets):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fspath(path))
    finally:
        os.close(fd)


@contextlib.contextmanager
def replacing(path: Path, beside: str, durably: bool = False) -> Iterator[str]:
    """Give `beside` as the file to write, and rename it to `path` at the end; delete it on a failure."""
    try:
        yield beside
        (replace_durably if durably else os.replace)(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a whole file, so that no reader sees a part of the new text."""
    replace_bytes(path, text.encode(), mode)


def replace_bytes(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Do as `replace_text`."""
    with replacing(path, f"{os.fspath(path)}.{os.getpid()}") as beside:
        fd = open_regular(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(fd, "wb") as file:
            file.write(content)


def sync(*paths: Path) -> None:
    """Force the data of files, and the names in folders, to the disk."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise
        finally:
            os.close(fd)


def replace_durably(new: Path, path: Path) -> None:
    """Rename a file. Where another file has the name, the new data are on the disk before that is gone.

    The system writes data about 30 s later by itself: a power cut in between would cost both files.
    """
    if os.path.lexists(path):
        sync(new)
    os.replace(new, path)


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file (flock(2)) if no other process has it locked; return whether that succeeded.

    Linux drops the lock with the last descriptor, also after SIGKILL. Raises OSError (ENOLCK, EOPNOTSUPP or
    ENOSYS) on a file system without locks.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_said_on: set[int] = set()  # devices


def say_no_locks(fd: int, error: OSError) -> bool:
    """Check whether this error says that the file system has no locks; say so once for each file system."""
    if error.errno not in _NO_LOCKS:
        return False
    device, name = os.fstat(fd).st_dev, os.readlink(f"/proc/self/fd/{fd}")
    if device not in _said_on:
        _said_on.add(device)
        notices.tell(
            f"tfmagic: the file system of {name} has no locks ({error.strerror}): two programs that write "
            "the same files there are not told of each other"
        )
    return True


def is_still_at(fd: int, path: Path) -> bool:
    """Check whether `path` is the file of this descriptor.

    Its last owner can have renamed or deleted the file between our open and our lock.
    """
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
