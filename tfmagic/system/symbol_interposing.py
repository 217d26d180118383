"""Replace a C function that loaded libraries import, for these libraries alone.

A shared library calls a function of another one through a slot of its own (its global offset table),
which the loader has filled in. Writing another address there redirects the calls of this library only. The
tables are found through the loader (dl_iterate_phdr(3)) and read as elf(5) describes them; no compiler and
no privilege is needed. On other machines than 64-bit Linux on x86 and ARM nothing is replaced.

The replacement is a ctypes callback, which takes the interpreter's lock. So it suits functions that are
called on the thread of a Python call, as `listen` is (measured for every server of TensorFlow 2.21).
"""

import ctypes
import mmap
import os
import platform
from dataclasses import dataclass
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_SLOT_TYPES = {"x86_64": (6, 7), "aarch64": (1025, 1026)}  # R_*_GLOB_DAT and R_*_JUMP_SLOT
_PT_DYNAMIC = 2
_STRTAB, _SYMTAB, _RELA, _RELASZ, _PLTRELSZ, _JMPREL = 5, 6, 7, 8, 2, 23
_RELACOUNT, _GNU_HASH = 0x6FFFFFF9, 0x6FFFFEF5
_RELOCATION = [("offset", "u8"), ("info", "u8"), ("addend", "i8")]
_SYMBOL = [("name", "u4"), ("rest", "V20")]
_HEADER = [("type", "u4"), ("1", "V12"), ("address", "u8"), ("2", "V16"), ("memory_size", "u8"), ("3", "V8")]


class _LoadedObject(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("header_count", ctypes.c_uint16),
    )


_EachObject = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class _Library:
    """A loaded library: its address, and its dynamic section, which lists its tables by tag."""

    base: int
    tables: dict[int, int]

    def address(self, tag: int) -> int:
        """Return the address of a table; some loaders leave an offset in the section, most an address."""
        value = self.tables[tag]
        return value if value >= self.base else self.base + value


def interpose(folders: tuple[str, ...], function: str, replacement: Any) -> int:
    """Redirect the calls of `function` by libraries below `folders`; return the number of slots written.

    Args:
        folders: How the libraries' paths begin.
        function: A C function that they import.
        replacement: A ctypes function. The caller keeps it for the life of the process.
    """
    kinds = _SLOT_TYPES.get(platform.machine())
    if kinds is None:
        return 0
    address = ctypes.cast(replacement, ctypes.c_void_p).value
    assert address is not None
    slots = [slot for library in _libraries(folders) for slot in _slots(library, function.encode(), kinds)]
    for slot in slots:
        write_word(slot, address)
    return len(slots)


def _libraries(folders: tuple[str, ...]) -> list[_Library]:
    found: list[_Library] = []

    def look(pointer: Any, size: int, data: Any) -> int:
        loaded = pointer.contents
        if os.fsdecode(loaded.name or b"").startswith(folders):
            headers = _array(loaded.headers, loaded.header_count, _HEADER)
            for header in headers[headers["type"] == _PT_DYNAMIC]:
                start, count = loaded.base + int(header["address"]), int(header["memory_size"]) // 16
                pairs = _array(start, count, [("tag", "i8"), ("value", "u8")])
                found.append(_Library(loaded.base, dict(pairs.tolist())))
        return 0

    _libc.dl_iterate_phdr(_EachObject(look), None)
    return found


def _slots(library: _Library, function: bytes, kinds: tuple[int, int]) -> list[int]:
    """Return the addresses of the library's slots for this function."""
    number = _imported_number(library, function)
    if number is None:
        return []
    found = []
    tables = ((_JMPREL, _PLTRELSZ, 0), (_RELA, _RELASZ, library.tables.get(_RELACOUNT, 0)))
    for table, size, skip in tables:
        count = library.tables.get(size, 0) // 24 - skip
        if table in library.tables and count > 0:
            entries = _array(library.address(table) + 24 * skip, count, _RELOCATION)
            info = entries["info"]
            wanted = sum((info == number << 32 | kind) for kind in kinds) > 0
            found += [library.base + offset for offset in entries["offset"][wanted].tolist()]
    return found


def _imported_number(library: _Library, function: bytes) -> int | None:
    """Return the number of an imported symbol, or None. Imported symbols stand before the hashed ones."""
    if _GNU_HASH not in library.tables:
        return None
    count = ctypes.c_uint32.from_address(library.address(_GNU_HASH) + 4).value
    names = _array(library.address(_SYMTAB), count, _SYMBOL)["name"].tolist()
    strings = library.address(_STRTAB)
    for number, name in enumerate(names):
        if ctypes.string_at(strings + name, len(function) + 1) == function + b"\0":
            return number
    return None


def _array(address: int, count: int, fields: list[tuple[str, str]]) -> Any:
    """Return memory of this process as a numpy array of records, [count]."""
    import numpy as np

    kind = np.dtype(fields)
    return np.frombuffer((ctypes.c_char * (count * kind.itemsize)).from_address(address), kind)


def write_word(address: int, value: int) -> None:
    """Write 8 bytes at once. If their page is read-only, as most are, it is so again afterwards.

    Raises:
        OSError: The system does not allow it.
    """
    page = address - address % mmap.PAGESIZE
    before = _protection(page)
    _protect(page, before | mmap.PROT_WRITE)
    ctypes.c_uint64.from_address(address).value = value
    _protect(page, before)


def _protect(page: int, protection: int) -> None:
    if _libc.mprotect(page, mmap.PAGESIZE, protection) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")


def _protection(page: int) -> int:
    """Return the present protection of the page, from proc(5)."""
    flags = (("r", mmap.PROT_READ), ("w", mmap.PROT_WRITE), ("x", mmap.PROT_EXEC))
    with open("/proc/self/maps") as maps:
        for line in maps:
            where, modes = line.split(maxsplit=2)[:2]
            start, _, end = where.partition("-")
            if int(start, 16) <= page < int(end, 16):
                return sum(flag for letter, flag in flags if letter in modes)
    raise OSError(f"no mapping at {page:#x}")
