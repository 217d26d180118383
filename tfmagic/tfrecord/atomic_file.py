"""A file that is written beside its place and then renamed: it appears whole or not at all. Knows no records.

    .NAME.writing   locked (flock) while a process writes it ──→ rename ──→ NAME

The hidden name is always the same: a second writer of the file finds the lock taken and gets an error. The
file of a killed process is not locked, and is overwritten. The leading dot keeps it out of globs.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tfmagic.system import files
from tfmagic.tfrecord.errors import ShardError, ShardExists, ShardWriteError

WRITING = ".writing"


def check_local(path: str | os.PathLike[str]) -> Path:
    """Return the path of a local file or folder. Raise ShardError for a URL."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path is a str or a Path, not {type(text).__name__}: {text!r}")
    if "://" in text:
        raise ShardError(
            f"{text} is remote: tfmagic.tfrecord works on local folders. Write or read it locally, and copy "
            "it with the tool of that store"
        )
    if not text or "\0" in text:
        raise ShardError(f"{text!r} is no path")
    return Path(text)


class PendingFile:
    """A file under way. As a context manager it is placed at the end, or discarded after an exception.

    Raises:
        ShardExists: A process, or this one, writes it at this moment; or it exists.
        ShardWriteError: The folder is missing or not writable.
    """

    def __init__(self, path: Path, *, overwrite: bool = False):
        self.path, self.size, self.fd = path, 0, -1  # the name that it gets; bytes so far; descriptor
        self._beside, self._overwrite = path.with_name(f".{path.name}{WRITING}"), overwrite
        self._is_under_way = False
        with self._discarded_on_error():
            self._check_free()
            self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.place()
        finally:
            self.discard()

    def write_bytes(self, data: bytes | bytearray | memoryview) -> None:
        """Append data. Raise ShardWriteError if the disk is full, for example: nothing of it is left."""
        with self._discarded_on_error(), memoryview(data) as view:
            done = 0
            while done < len(view):
                done += os.write(self.fd, view[done:])
        self.size += len(data)

    def close(self) -> None:
        """Close the file, which releases its lock. It can still be placed or discarded."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def place(self) -> None:
        """Give the file its name. Raise ShardExists if it was taken meanwhile: nothing is left."""
        with self._discarded_on_error():
            self._check_free()
            os.rename(self._beside, self.path)
        self._is_under_way = False
        self.close()

    def discard(self) -> None:
        """Delete the file. Does nothing after `place` or `discard`."""
        if self._is_under_way:
            self._is_under_way = False
            with contextlib.suppress(OSError):
                os.unlink(self._beside)
        self.close()

    @contextlib.contextmanager
    def _discarded_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.discard()
            if isinstance(error, ShardExists):
                raise
            raise _write_error(error, self.path) from error

    def _open(self) -> None:
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self.fd = os.open(self._beside, flags, 0o666)
            if not files.try_lock(self.fd):
                raise ShardExists(
                    f"{self.path} is being written by another writer at this moment. Two writers of one file "
                    "lose records silently: give each its own index or name"
                )
            if files.is_still_at(self.fd, self._beside):
                break
            self.close()  # its writer has placed or discarded it between our two calls
        os.ftruncate(self.fd, 0)
        self._is_under_way = True

    def _check_free(self) -> None:
        if self.path.is_dir():
            raise ShardExists(f"{self.path} is a folder")
        if not self._overwrite and os.path.lexists(self.path):
            raise ShardExists(f"{self.path} exists. Delete it, choose another name, or set overwrite=True")


def _write_error(error: OSError, path: Path) -> ShardWriteError:
    """Return the error with advice, `errno` and `filename`."""
    advice = {
        errno.ENOSPC: "the disk is full; nothing of this file is left there",
        errno.EDQUOT: "your quota of the disk is used up; nothing of this file is left there",
        errno.EFBIG: "larger than a file of this process is allowed to be (ulimit -f); nothing of it is left",
        errno.EROFS: "the file system is read-only: choose another folder",
        errno.EACCES: "you may not write in this folder: choose another one",
        errno.EPERM: "you may not write in this folder: choose another one",
        errno.ENOENT: f"there is no folder {path.parent}: make it first",
        errno.ENOTDIR: f"{path.parent} is no folder",
    }.get(error.errno or 0, "")
    text = error.strerror or str(error)
    return ShardWriteError(error.errno, f"{text} ({advice})" if advice else text, str(path))
