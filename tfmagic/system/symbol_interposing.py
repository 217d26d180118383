"""Replace a C function that loaded libraries call, for these libraries alone, for a while or for good.

A shared library calls a function of another one through a slot of its own (its global offset table), which
the loader has filled in; so it does with most functions of its own that other libraries can see. Writing
another address there redirects the calls of this library only. Slots are data: a thread calls the old
function or the new one, and the old address can be put back at any moment. The tables are found through the
loader (dl_iterate_phdr(3)) and read as elf(5) describes them; no compiler and no privilege is needed. On
other machines than 64-bit Linux on x86 and ARM nothing is replaced, and no slot that the loader has not
filled in: Python loads its libraries with RTLD_NOW, which fills in all of them.

A replacement that is a ctypes callback takes the interpreter's lock. So it suits functions that are called on
the thread of a Python call, as `listen` is (measured for every server of TensorFlow 2.21).
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
_RELA, _RELASZ, _PLTRELSZ, _JMPREL, _RELACOUNT = 7, 8, 2, 23, 0x6FFFFFF9
_RELOCATION = [("offset", "u8"), ("kind", "u4"), ("symbol", "u4"), ("addend", "i8")]
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


def interpose(folders: tuple[str, ...], function: Any, replacement: Any) -> list[int]:
    """Redirect the calls of a ctypes function by libraries below `folders`; return the slots written.

    The caller keeps the replacement, a ctypes function, as long as it is in the slots.
    """
    slots = find_slots(folders, function)
    for slot in slots:
        write_word(slot, address_of(replacement))
    return slots


def find_slots(folders: tuple[str, ...], function: Any) -> list[int]:
    """Return the addresses of the slots through which libraries below `folders` call the function."""
    kinds, address = _SLOT_TYPES.get(platform.machine(), ()), address_of(function)
    return [slot for library in _libraries(folders) for slot in _slots(library, address, kinds)]


def address_of(function: Any) -> int:
    """Return the address of a ctypes function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


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


def _slots(library: _Library, address: int, kinds: tuple[int, ...]) -> list[int]:
    """Return the addresses of the library's slots that hold this address."""
    found = []
    tables = ((_JMPREL, _PLTRELSZ, 0), (_RELA, _RELASZ, library.tables.get(_RELACOUNT, 0)))
    for table, size, skip in tables:
        count = library.tables.get(size, 0) // 24 - skip
        if table in library.tables and count > 0:
            entries = _array(library.address(table) + 24 * skip, count, _RELOCATION)
            for kind in kinds:
                found += _holding(entries["offset"][entries["kind"] == kind] + library.base, address)
    return found


def _holding(slots: Any, address: int) -> list[int]:
    """Return those of the slots, [count], which lie side by side in memory, that hold this address."""
    if not len(slots):
        return []
    first = int(slots.min())
    words = _array(first, (int(slots.max()) - first) // 8 + 1, [("word", "u8")])["word"]
    return [int(slot) for slot in slots[words[(slots - first) // 8] == address]]


def _array(address: int, count: int, fields: list[tuple[str, str]]) -> Any:
    """Return memory of this process as a numpy array of records, [count]."""
    import numpy as np

    kind = np.dtype(fields)
    return np.frombuffer((ctypes.c_char * (count * kind.itemsize)).from_address(address), kind)


def write_word(address: int, value: int) -> None:
    """Write 8 bytes at once; raise OSError where the system does not allow it.

    If their page is read-only, as most are, it is so again afterwards.
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
