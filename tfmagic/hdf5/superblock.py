"""The mark "being written" in an HDF5 file's first bytes, which a killed writer leaves behind.

Files made with ``libver="latest"`` have it (superblock version 3), and HDF5 refuses to open them again: "file
is already open for write (may use <h5clear file> ...)". h5py has no h5clear; what it does is to reset one
byte and the checksum of the 48 around it. Layout: HDF5 File Format Specification 3.0, II.A; checksum:
Jenkins' lookup3.
"""

from __future__ import annotations

import struct

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SIZE, _VERSION, _OFFSETS, _FLAGS = 48, 8, 9, 11
_MASK = 0xFFFFFFFF


def clear_writer_mark(path: str) -> bool:
    """Take the mark off a file that nobody writes any more; whether there was one.

    Raises:
        OSError: The file cannot be read or written.
        ValueError: Its first bytes are not those of an HDF5 file, or damaged.
    """
    with open(path, "r+b") as file:
        block = bytearray(file.read(_SIZE))
        if not block.startswith(_SIGNATURE) or len(block) < _SIZE:
            raise ValueError("it does not begin as an HDF5 file does")
        if block[_VERSION] < 3 or block[_OFFSETS] != 8 or not block[_FLAGS]:
            return False
        if struct.unpack_from("<I", block, _SIZE - 4)[0] != lookup3(bytes(block[:-4])):
            raise ValueError("its first 48 bytes are damaged")
        block[_FLAGS] = 0
        struct.pack_into("<I", block, _SIZE - 4, lookup3(bytes(block[:-4])))
        file.seek(0)
        file.write(block)
    return True


def lookup3(data: bytes) -> int:
    """Bob Jenkins' hash of 2006, little-endian, with which HDF5 checks its metadata."""
    a = b = c = (0xDEADBEEF + len(data)) & _MASK
    while len(data) > 12:
        a, b, c = (
            (old + new) & _MASK for old, new in zip((a, b, c), struct.unpack_from("<III", data), strict=True)
        )
        a, b, c = _mix(a, b, c)
        data = data[12:]
    if not data:
        return c
    rest = struct.unpack("<III", data.ljust(12, b"\0"))
    a, b, c = ((old + new) & _MASK for old, new in zip((a, b, c), rest, strict=True))
    target, source, other = c, b, a
    for turn in (14, 11, 25, 16, 4, 14, 24):
        target = ((target ^ source) - _turn(source, turn)) & _MASK
        target, source, other = other, target, source
    return source


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for turn in (4, 6, 8, 16, 19, 4):
        a = ((a - c) & _MASK) ^ _turn(c, turn)
        c = (c + b) & _MASK
        a, b, c = b, c, a
    return a, b, c


def _turn(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK
