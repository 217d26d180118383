"""A file of records under way: it frames, compresses and counts them.

`ShardWriter`, `salvage` and `merge` use it.
"""

import zlib
from pathlib import Path
from typing import Literal

from tfmagic.tfrecord import framing
from tfmagic.tfrecord.atomic_file import PendingFile
from tfmagic.tfrecord.errors import ShardError
from tfmagic.tfrecord.manifests import Entry
from tfmagic.tfrecord.scanning import Records

_GATHER = 512 << 10  # bytes that are framed together, which is twice as fast as one record at a time

Compression = Literal["gzip", "GZIP", ""] | None
"""Also as TensorFlow spells it."""


def is_packed(compression: Compression) -> bool:
    """Return whether a file is to be compressed. Raise ShardError for an unknown compression."""
    if compression not in (None, "", "gzip", "GZIP"):
        raise ShardError(f"compression is None or 'gzip', not {compression!r}")
    return bool(compression)


class RecordFile(PendingFile):
    """One file under way, with the number of its records, their bytes and the checksum of the file."""

    def __init__(self, path: Path, is_packed: bool, overwrite: bool):
        from crc32c import crc32c

        super().__init__(path, overwrite=overwrite)
        self.framed_bytes = 0  # size of the framed records, not compressed
        self._framed_records = 0
        self._crc32c, self._crc = crc32c, 0
        self._packer = zlib.compressobj(wbits=31) if is_packed else None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    @property
    def records(self) -> int:
        """Number of records so far."""
        return self._framed_records + len(self._waiting)

    @property
    def unpacked_size(self) -> int:
        """Size of the records so far with their framing, not compressed."""
        return self.framed_bytes + self._waiting_bytes

    def write(self, data: bytes) -> None:
        """Add a record."""
        self._waiting.append(data)
        self._waiting_bytes += len(data) + framing.FRAME
        if self._waiting_bytes >= _GATHER:
            self._frame_waiting()

    def write_records(self, records: Records) -> None:
        """Add records of another file as they stand there."""
        self._put(records.frames, len(records.borders) - 1)

    def end(self) -> None:
        """Write what is still in memory."""
        self._frame_waiting()
        if self._packer is not None:
            self.write_bytes(self._packer.flush())
            self._packer = None

    def place(self) -> None:
        self.end()
        super().place()

    def entry(self, name: str) -> Entry:
        """Return the entry of a finished file in the manifest."""
        return Entry(name, self.records, self.size, f"{self._crc:08x}")

    def write_bytes(self, data: bytes | bytearray | memoryview) -> None:
        self._crc = self._crc32c(data, self._crc)
        super().write_bytes(data)

    def _frame_waiting(self) -> None:
        records, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if records:
            self._put(framing.frame_all(records), len(records))

    def _put(self, frames: bytes | memoryview, records: int) -> None:
        self.framed_bytes += len(frames)
        self._framed_records += records
        self.write_bytes(frames if self._packer is None else self._packer.compress(frames))
