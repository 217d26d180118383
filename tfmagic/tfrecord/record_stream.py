"""The bytes of a TFRecord file as one stream, decompressed if the file is compressed.

    file ──→ open_stream(path) ──→ RecordStream ──→ read_into(view) ──→ number of bytes; 0 is the end

`scanning` reads records from it. This module only reads, and its memory is bounded.
"""

from __future__ import annotations

import contextlib
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from tfmagic.tfrecord import framing
from tfmagic.tfrecord.errors import ShardError

_COMPRESSED_CHUNK = 64 << 10  # bytes to decompress at once
_PLAIN_CHUNK = 4 << 20  # at most so many bytes come out at once
_HEAD = 16  # bytes that show how a file is compressed


class RecordStream:
    """The stream of an open file; of a compressed file with several gzip members, all of them."""

    def __init__(self, path: Path, fd: int, start: int = 0):
        self.path = path
        self.compression = compression_of(os.pread(fd, _HEAD, 0))  # a file that is None is read as it is
        self.file_size = os.fstat(fd).st_size
        self.size = None if self.compression else self.file_size  # of the stream; None if it is unknown
        self.trouble: tuple[str, int] | None = None  # why decompression stopped early, and where in the file
        self._fd, self._place = fd, start
        self._chunks, self._rest = self._decompress(), memoryview(b"")

    def read_into(self, view: memoryview) -> int:
        """Fill the view with the next bytes. Return how many they are, 0 at the end."""
        if not self.compression:  # not by mmap: a file that is cut while it is read would raise SIGBUS
            count = os.preadv(self._fd, [view], self._place)
            self._place += count
            return count
        while not self._rest and (chunk := next(self._chunks, None)) is not None:
            self._rest = memoryview(chunk)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _decompress(self) -> Iterator[bytes]:
        engine, is_fed = zlib.decompressobj(47), False  # 47: gzip or zlib, by the header
        while chunk := os.pread(self._fd, _COMPRESSED_CHUNK, self._place):
            rest = chunk
            while rest:
                before = engine.copy()
                try:
                    data, is_fed = engine.decompress(rest, _PLAIN_CHUNK), True
                except zlib.error as error:
                    yield self._decompress_bytewise(
                        before, rest, self._place + len(chunk) - len(rest), str(error)
                    )
                    return
                if data:
                    yield data
                rest = engine.unconsumed_tail
                if engine.eof:  # the end of a member; another can follow
                    rest = engine.unused_data
                    engine, is_fed = zlib.decompressobj(47), False
            self._place += len(chunk)
        if is_fed:
            self.trouble = ("the compressed stream is cut short", self._place)

    def _decompress_bytewise(self, engine: zlib._Decompress, chunk: bytes, place: int, reason: str) -> bytes:
        """Decompress a damaged chunk as far as possible, and record where the damage is."""
        parts = []
        for number in range(len(chunk)):
            try:
                parts.append(engine.decompress(chunk[number : number + 1]))
            except zlib.error:
                self.trouble = (reason, place + number)
                break
        else:
            self.trouble = (reason, place + len(chunk))
        return b"".join(parts)


def compression_of(head: bytes) -> str | None:
    """Return "", "GZIP" or "ZLIB" from the first bytes of a file; None if it is no TFRecord file."""
    if len(head) >= framing.HEADER and framing.length_at(head, 0) is not None:
        return ""
    if head[:2] == b"\x1f\x8b":
        return "GZIP"
    # a zlib header is two bytes, which a text can begin with too: only what decompresses is zlib
    if len(head) >= 2 and head[0] & 0x0F == 8 and (head[0] << 8 | head[1]) % 31 == 0:
        with contextlib.suppress(zlib.error):
            zlib.decompressobj().decompress(head)
            return "ZLIB"
    return None if head else ""


@contextlib.contextmanager
def open_stream(path: Path, start: int = 0) -> Iterator[RecordStream]:
    """Open a file for reading, from the offset `start` on. Raise ShardError if it is no regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block us
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ShardError(f"{path} is no ordinary file")
        yield RecordStream(path, fd, start)
    finally:
        os.close(fd)


def detect(path: Path) -> str | None:
    """Return the `compression_of` a file; errors as for `open_stream`."""
    with open_stream(path) as stream:
        return stream.compression
