"""A file of records under way, written beside its place and then renamed: it appears whole or not at all.

    .NAME.writing   locked (flock) while a process writes it ──→ rename ──→ NAME

The hidden name is always the same: a second writer of the file finds the lock taken and gets an error. The
file of a killed process is not locked, and is overwritten. The leading dot keeps it out of globs.

`ShardWriter`, `salvage` and `merge` use it, the first one also for its manifest.
"""

import contextlib
import errno
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from tfmagic.system import files
from tfmagic.system.arguments import as_flag
from tfmagic.tfrecord import framing
from tfmagic.tfrecord.errors import ShardError, ShardExists, ShardWriteError
from tfmagic.tfrecord.manifests import Entry
from tfmagic.tfrecord.scanning import Records
from tfmagic.tfrecord.shards import WRITING

_GATHER = 512 << 10  # bytes that are framed together, which is twice as fast as one record at a time

Compression = Literal["gzip", "GZIP", ""] | None
"""Also as TensorFlow spells it."""


def is_packed(compression: Compression) -> bool:
    """Return whether a file is to be compressed. Raise ShardError for an unknown compression."""
    if compression not in (None, "", "gzip", "GZIP"):
        raise ShardError(f"compression is None or 'gzip', not {compression!r}")
    return bool(compression)


class RecordFile:
    """Frames, compresses and counts records. As a context manager it is discarded after an exception.

    Attributes:
        path: The name that the file gets.
        framed_bytes: Size of the records so far with their framing, not compressed.

    Raises:
        ShardExists: A process, or this one, writes it at this moment; or it exists.
        ShardWriteError: The folder is missing or not writable.
    """

    def __init__(self, path: Path, is_packed: bool = False, *, overwrite: bool = False):
        self.path, self.framed_bytes = path, 0
        self._crc32c, self._crc, self._size = framing.checksum(), 0, 0  # of the bytes in the file
        self._packer = zlib.compressobj(wbits=31) if is_packed else None
        self._framed_records, self._waiting = 0, list[bytes]()
        self._full = _GATHER  # frame the waiting records when there are so many bytes
        self._overwrite = as_flag("overwrite", overwrite)
        self._beside = path.with_name(f".{path.name}{WRITING}")
        self.fd, self._is_under_way = -1, False
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

    @property
    def records(self) -> int:
        """Number of records so far."""
        return self._framed_records + len(self._waiting)

    def entry(self, name: str) -> Entry:
        """Return the entry of a finished file in the manifest."""
        return Entry(name, self.records, self._size, f"{self._crc:08x}")

    def write(self, data: bytes) -> None:
        """Add a record."""
        self._waiting.append(data)
        self.framed_bytes += len(data) + framing.FRAME
        if self.framed_bytes >= self._full:
            self._frame_waiting()

    def write_records(self, records: Records) -> None:
        """Add records of another file as they stand there."""
        self.framed_bytes += len(records.frames)
        self._put(records.frames, len(records.borders) - 1)

    def write_bytes(self, data: bytes | bytearray | memoryview) -> None:
        """Append data. Raise ShardWriteError if the disk is full, for example: nothing of it is left."""
        self._crc = self._crc32c(data, self._crc)
        with self._discarded_on_error(), memoryview(data) as view:
            done = 0
            while done < len(view):
                done += os.write(self.fd, view[done:])
        self._size += len(data)

    def end(self) -> None:
        """Write what is still in memory."""
        self._frame_waiting()
        if self._packer is not None:
            self.write_bytes(self._packer.flush())
            self._packer = None

    def close(self) -> None:
        """Close the file, which releases its lock. It can still be placed or discarded."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def sync(self) -> None:
        """Force the finished file to the disk, before another file is given up for it."""
        with self._discarded_on_error():
            files.sync(self._beside)

    def place(self) -> None:
        """End the file and give it its name. Raise ShardExists if that was taken meanwhile."""
        self.end()
        with self._discarded_on_error():
            self._check_free()
            files.replace_durably(self._beside, self.path)
        self._is_under_way = False
        self.close()

    def discard(self) -> None:
        """Delete the file. Does nothing after `place` or `discard`."""
        if self._is_under_way:
            self._is_under_way = False
            with contextlib.suppress(OSError):
                os.unlink(self._beside)
        self.close()

    # -- inside --

    def _frame_waiting(self) -> None:
        records, self._waiting, self._full = self._waiting, [], self.framed_bytes + _GATHER
        if records:
            self._put(framing.frame_all(records), len(records))

    def _put(self, frames: bytes | memoryview, records: int) -> None:
        self._framed_records += records
        self.write_bytes(frames if self._packer is None else self._packer.compress(frames))

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
        **dict.fromkeys((errno.EACCES, errno.EPERM), "you may not write in this folder: choose another one"),
        errno.ENOENT: f"there is no folder {path.parent}: make it first",
        errno.ENOTDIR: f"{path.parent} is no folder",
    }.get(error.errno or 0, "")
    text = error.strerror or str(error)
    return ShardWriteError(error.errno, f"{text} ({advice})" if advice else text, str(path))
