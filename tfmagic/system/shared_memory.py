"""Memory files: large values that another process maps.

A new page costs as much time as what is copied into it (26 against 13 ms for 64 MiB; far more on a virtual
machine that gives free pages back to its host). So a file is kept for some seconds, and serves the next value
if no process has it any more. The lock of the file tells that:

    share() ── a second opening of the file, locked (LOCK_SH) ──→ the receiver, which maps it: the end of the
      │                                                             last mapping unlocks it
      └─ the first opening stays here: it can lock the file alone (LOCK_EX) only if no receiver is left

A process that opens the file by a path must lock it, too: `lock`. A thread "tfmagic-kept-memory" closes files
after their time; it ends with the last one.
"""

import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_KEPT_FROM_BYTES = 4 << 20
_KEPT_TO_BYTES = 256 << 20  # larger ones would double the memory of this process while it maps them
_KEPT_S = 3.0
_KEPT_FILES = 8
_PIECE_BYTES = 16 << 20  # copied at once: other threads wait meanwhile


@dataclass(slots=True, eq=False)
class _File:
    """A memory file. It closes itself, since an interrupt can come wherever it is held."""

    fd: int
    size: int
    until: float = 0.0
    is_used: bool = False  # then it has pages, and mapping them is worth it
    view: mmap.mmap | None = None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if getattr(self, "fd", -1) >= 0:
            close(self.take())

    def take(self) -> int:
        """Return the descriptor, which is then the caller's."""
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        if self.view is not None:
            self.view.close()
        if self.fd >= 0:
            os.close(self.take())


_kept: list[_File] = []
_lock = threading.Lock()
_closer: threading.Thread | None = None


def share(parts: Iterable[memoryview], align: int = 1) -> int:
    """Return the descriptor of a memory file with these contents, which is the caller's to close.

    The parts follow each other, each at a multiple of `align` bytes. Raise OSError for want of memory.
    """
    flat = [part.cast("B") if part.nbytes else memoryview(b"") for part in parts]
    starts, size = [], 0
    for part in flat:
        starts.append(size)
        size += -(-len(part) // align) * align
    file = _take_idle(size) or _File(os.memfd_create("tfmagic", os.MFD_CLOEXEC), size)
    theirs = -1
    try:
        os.ftruncate(file.fd, size)
        if file.is_used and (file.view is None or len(file.view) < size):
            file.view = mmap.mmap(file.fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        for part, start in zip(flat, starts, strict=True):
            _write(file, part, start)
        if not _KEPT_FROM_BYTES <= size <= _KEPT_TO_BYTES:
            return file.take()
        try:
            theirs = os.open(f"/proc/self/fd/{file.fd}", os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):  # of a sandbox: the file serves only once
            if file.view is not None:
                file.view.close()
            return file.take()
        lock(theirs)
        file.size, file.is_used = size, True
        _keep(file)
        return theirs
    except BaseException:
        if theirs >= 0:
            os.close(theirs)
        if file not in _kept:
            file.close()
        raise


def lock(fd: int) -> None:
    """Keep the sender of this file from using it again, until it is closed and mapped nowhere any more."""
    fcntl.flock(fd, fcntl.LOCK_SH)


def _write(file: _File, part: memoryview, start: int) -> None:
    if file.view is not None:
        for at in range(0, len(part), _PIECE_BYTES):
            piece = part[at : at + _PIECE_BYTES]
            file.view[start + at : start + at + len(piece)] = piece
        return
    while part:
        written = os.pwrite(file.fd, part, start)
        part, start = part[written:], start + written


def _take_idle(size: int) -> _File | None:
    """Return a kept file that has the pages for this size; close the others that are idle."""
    found = None
    with _lock:
        for file in [file for file in _kept if size >= _KEPT_FROM_BYTES and _is_idle(file)]:
            _kept.remove(file)
            if found is None and file.size >= size:
                found = file
            else:
                file.close()
    return found


def _is_idle(file: _File) -> bool:
    try:
        fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.flock(file.fd, fcntl.LOCK_UN)
    return True


def _keep(file: _File) -> None:
    global _closer
    file.until = time.monotonic() + _KEPT_S
    with _lock:
        if _closer is None or not _closer.is_alive():  # an interrupt can come while it starts
            _closer = threading.Thread(target=_close_late, name="tfmagic-kept-memory", daemon=True)
            try:
                _closer.start()
            except RuntimeError:  # there are too many threads, or the interpreter ends
                _closer = None
                file.close()
                return
        _kept.append(file)
        if len(_kept) > _KEPT_FILES:
            _kept.pop(0).close()


def _close_late() -> None:
    """Close each file when its time has passed, also while it is mapped elsewhere."""
    global _closer
    while True:
        with _lock:  # which the starter holds until it has added its file
            now = time.monotonic()
            for file in [file for file in _kept if file.until <= now]:
                _kept.remove(file)
                file.close()
            if not _kept:
                _closer = None
                return
            pause_s = min(file.until for file in _kept) - now
        time.sleep(pause_s)


def _forget() -> None:
    """Close the files in a child of this process, which has no such thread, and could write to them, too."""
    global _lock, _closer
    _lock, _closer = threading.Lock(), None
    while _kept:
        _kept.pop().close()


os.register_at_fork(after_in_child=_forget)
