"""A file that is written beside its place, and comes there whole or not at all. Knows no records.

    .NAME.writing   locked (flock) while somebody writes it ──→ rename ──→ NAME

The name beside is a fixed one: who wants to write the same file finds the lock taken, and is told so; what a
killed process has left is not locked, and is written over. The leading dot keeps it out of globs.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from tfmagic.system import files
from tfmagic.tfrecord.errors import ShardError, ShardExists, ShardWriteError

WRITING = ".writing"


def name_beside(path: Path) -> Path:
    """Where a file is while it is written."""
    return path.with_name(f".{path.name}{WRITING}")


def check_local(path: str | os.PathLike[str]) -> Path:
    """The path, if it is one of this machine.

    Raises:
        ShardError: It is a URL.
    """
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
    """A file under way. `write` all of it, then `place` it; or `discard` it.

    Raises:
        ShardExists: Another process, or this one, writes it at this moment; or it is there already.
        ShardWriteError: The folder is not there, or not ours to write in.
    """

    def __init__(self, path: Path, *, overwrite: bool = False):
        self.path, self.beside, self.overwrite = path, name_beside(path), overwrite
        self.size = 0
        self.fd, self.is_under_way = -1, True
        self._open()
        try:
            self._check_free()
        except BaseException:
            self.discard()
            raise

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append; on a failure nothing is left.

        Raises:
            ShardWriteError: As of a full disk.
        """
        try:
            with memoryview(data) as view:
                done = 0
                while done < len(view):
                    done += os.write(self.fd, view[done:])
        except OSError as error:
            self.discard()
            raise write_error(error, self.path) from error
        self.size += len(data)

    def let_go(self) -> None:
        """Nothing more is written; it is still to be placed. Its lock is gone: for where another holds."""
        self._close()

    def place(self) -> None:
        """Give it its name.

        Raises:
            ShardExists: Somebody has taken it meanwhile. What was written is gone.
            ShardWriteError: The system refuses.
        """
        try:
            self._check_free()
            os.rename(self.beside, self.path)
        except ShardExists:
            self.discard()
            raise
        except OSError as error:
            self.discard()
            raise write_error(error, self.path) from error
        self.is_under_way = False
        self._close()

    def discard(self) -> None:
        """Leave nothing. Harmless when it is done."""
        if self.is_under_way:
            self.is_under_way = False
            with contextlib.suppress(OSError):
                os.unlink(self.beside)
            self._close()

    def _open(self) -> None:
        try:
            while True:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self.fd = os.open(self.beside, flags, 0o666)
                if not files.try_lock(self.fd):
                    raise BlockingIOError
                if files.is_still_at(self.fd, self.beside):
                    break
                self._close()  # its writer has placed or discarded it between our two calls
            os.ftruncate(self.fd, 0)
        except BlockingIOError as error:
            self._close()
            raise ShardExists(
                f"{self.path} is being written by another writer at this moment. Two writers of one file "
                "lose records silently: give each its own index or name"
            ) from error
        except OSError as error:
            self._close()
            raise write_error(error, self.path) from error

    def _check_free(self) -> None:
        if self.path.is_dir():
            raise ShardExists(f"{self.path} is a folder")
        if not self.overwrite and os.path.lexists(self.path):
            raise ShardExists(f"{self.path} exists. Delete it, choose another name, or say overwrite=True")

    def _close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


def write_error(error: OSError, path: Path) -> ShardWriteError:
    """The same in our words, with `errno` and `filename`."""
    advice = {
        errno.ENOSPC: "the disk is full; nothing of this file is left there",
        errno.EDQUOT: "your quota of the disk is used up; nothing of this file is left there",
        errno.EFBIG: "larger than a file of this process may be (ulimit -f); nothing of it is left",
        errno.EROFS: "the file system is read-only: choose another folder",
        errno.EACCES: "you may not write in this folder: choose another one",
        errno.EPERM: "you may not write in this folder: choose another one",
        errno.ENOENT: f"there is no folder {path.parent}: make it first",
        errno.ENOTDIR: f"{path.parent} is no folder",
    }.get(error.errno or 0, "")
    text = error.strerror or str(error)
    return ShardWriteError(error.errno, f"{text} ({advice})" if advice else text, str(path))
