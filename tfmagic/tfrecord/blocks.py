"""The bytes of a file as the records' stream: as they are, or unpacked. Reads only, and in bounded memory.

file ──→ PlainBlocks ───────────────┐
file ──→ UnpackedBlocks (gzip, zlib) ┴─→ read_into(view) → how many bytes; 0 is the end
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tfmagic.tfrecord import framing
from tfmagic.tfrecord.errors import ShardError

_PIECE = 64 << 10  # compressed bytes at a time: what is behind damage in one of them is lost
_UNPACKED = 4 << 20
_HEAD = 16


class Blocks(Protocol):
    """A stream of records.

    `size` is its length where that is known, `trouble` what has ended it before its time, with the offset
    in the file.
    """

    size: int | None
    trouble: tuple[str, int] | None

    def read_into(self, view: memoryview) -> int:
        """Put the next bytes there; how many they are, 0 at the end."""


class PlainBlocks:
    """A part of a file as it is. Not by mmap: a file that is cut while it is read would be a SIGBUS."""

    def __init__(self, fd: int, start: int = 0):
        self.fd, self.place = fd, start
        self.size: int | None = os.fstat(fd).st_size
        self.trouble: tuple[str, int] | None = None

    def read_into(self, view: memoryview) -> int:
        count = os.preadv(self.fd, [view], self.place)
        self.place += count
        return count


class UnpackedBlocks:
    """A gzip or zlib stream, unpacked; several gzip members one after the other too."""

    size: int | None = None

    def __init__(self, fd: int):
        self.fd, self.place = fd, 0
        self.trouble: tuple[str, int] | None = None
        self._pieces, self._rest = self._unpack(), memoryview(b"")

    def read_into(self, view: memoryview) -> int:
        while not self._rest and (piece := next(self._pieces, None)) is not None:
            self._rest = memoryview(piece)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _unpack(self) -> Iterator[bytes]:
        engine, fed = zlib.decompressobj(47), False  # gzip or zlib, by its header
        while packed := os.pread(self.fd, _PIECE, self.place):
            rest = packed
            while rest:
                before = engine.copy()
                try:
                    data, fed = engine.decompress(rest, _UNPACKED), True
                except zlib.error as error:
                    yield self._until_trouble(before, rest, self.place + len(packed) - len(rest), str(error))
                    return
                if data:
                    yield data
                rest = engine.unconsumed_tail
                if engine.eof:  # of a member; another may follow
                    rest = engine.unused_data
                    engine, fed = zlib.decompressobj(47), False
            self.place += len(packed)
        if fed:
            self.trouble = ("the compressed stream is cut short", self.place)

    def _until_trouble(self, engine: zlib._Decompress, packed: bytes, place: int, what: str) -> bytes:
        """What can be had of a piece with damage in it, byte by byte."""
        parts = []
        for number in range(len(packed)):
            try:
                parts.append(engine.decompress(packed[number : number + 1]))
            except zlib.error:
                self.trouble = (what, place + number)
                break
        else:
            self.trouble = (what, place + len(packed))
        return b"".join(parts)


def compression_of(head: bytes) -> str | None:
    """What the first bytes of a file say: "", "GZIP" or "ZLIB"; None where they are no TFRecord file's."""
    if len(head) >= framing.HEADER and framing.length_at(head, 0) is not None:
        return ""
    if head[:2] == b"\x1f\x8b":
        return "GZIP"
    if len(head) >= 2 and head[0] & 0x0F == 8 and (head[0] << 8 | head[1]) % 31 == 0 and _inflates(head):
        return "ZLIB"
    return "" if not head else None


def _inflates(head: bytes) -> bool:
    """A zlib header is two bytes, which text may have too."""
    try:
        zlib.decompressobj().decompress(head)
    except zlib.error:
        return False
    return True


def open_file(path: Path) -> int:
    """A descriptor for reading.

    Raises:
        ShardError: It is no ordinary file.
        OSError: As the system says it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not make us wait
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise ShardError(f"{path} is no ordinary file")


def detect(path: Path) -> str | None:
    """`compression_of` a file."""
    fd = open_file(path)
    try:
        return compression_of(os.pread(fd, _HEAD, 0))
    finally:
        os.close(fd)


def open_blocks(fd: int, compression: str | None, start: int = 0) -> Blocks:
    """The stream of an open file, from `start` on if it is not compressed."""
    return UnpackedBlocks(fd) if compression else PlainBlocks(fd, start)
