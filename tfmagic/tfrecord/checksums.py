"""The checksums of many records that lie one behind the other. Called by scanning; pure.

A call of crc32c takes half a microsecond however few the bytes are, which is most of the time with records of
1 KB. CRCs are linear: the one of a whole stretch follows from those of its parts,

    crc(A B) = crc(A) · x^(8·len(B)) mod P   xor   crc(B)

so one call over the stretch, at memory speed, is held against what the checksums in the file say it must be,
computed for all records at once in numpy. Only where the two differ each record is looked at by itself. A
single damaged record always differs; that several cancel each other has the chance of any CRC-32C, 2^-32.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from tfmagic.tfrecord import framing
from tfmagic.tfrecord.framing import FOOTER, FRAME, HEADER, Buffer

_FEW, _LONG = 256, 32 << 10  # fewer records, or longer ones: then a call for each is as fast
_REACH = 1 << 26  # bytes of a stretch, for which there are powers
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_ONE = 0x80000000
_ORDER = (1 << 31) - 1  # x^_ORDER = 1: the polynomial is (x + 1) times a primitive one of degree 31


def count_lengths(window: Buffer, places: Any, after: int) -> int:
    """How many of the records have a header whose checksum holds, up to the first that has not.

    Args:
        window: Bytes.
        places: Where the records begin in it, int64 [count], one behind the other.
        after: Where the last one ends.
    """
    import numpy as np

    lengths = _lengths(places, after)
    stored = framing.words_at(window, places + 8, 4)
    if len(lengths) > 1 and (lengths == lengths[0]).all():
        lengths = lengths[:1]
    bad = np.flatnonzero(stored != framing.masked_crcs_of(lengths))
    return int(bad[0]) if len(bad) else len(places)


def find_damaged(window: Buffer, places: Any, after: int) -> list[int]:
    """The numbers of the records whose data do not hold; their headers do. As `count_lengths`."""
    import numpy as np

    size = after - int(places[0])
    if len(places) >= _FEW and size < _REACH and size < len(places) * _LONG:
        with memoryview(window) as view, view[int(places[0]) : after] as stretch:
            from crc32c import crc32c

            if crc32c(stretch) == _expected(np.frombuffer(stretch, np.uint8), places - places[0], size):
                return []
    return _find_each(window, places, after)


def _find_each(window: Buffer, places: Any, after: int) -> list[int]:
    """With a call for each record."""
    import numpy as np
    from crc32c import crc32c

    starts = (places + HEADER).tolist()
    ends = np.append(places[1:], after) - FOOTER
    stored = framing.words_at(window, ends, 4)
    with memoryview(window) as view:
        crcs = [crc32c(view[a:b]) for a, b in zip(starts, ends.tolist(), strict=True)]
    return [int(n) for n in np.flatnonzero(framing.mask_all(np.array(crcs, np.uint32)) != stored)]


def _expected(stretch: Any, places: Any, after: int) -> int:
    """The checksum of a whole stretch of records, from what the checksums in it say.

    With X(n) for x^(8n) mod P, b(j) the bytes behind record j, and of each record the header h, the stored
    checksum d of the data and the footer f, it is the sum (xor) over all records of

        crc(h)·X(n + 4 + b)  +  d·X(4 + b)  +  crc(f)·X(b)

    where n + 4 + b is 12 less than what is behind the record before: so all terms with one b are taken
    together, and multiplied once. X(b) is split at 64 KiB, so that the upper half is one for many records.
    """
    import numpy as np

    tables = _tables()
    behind = after - np.append(places[1:], after)
    footers = framing.words_at(stretch, np.append(places[1:], after) - FOOTER, 4)
    rotated = footers - np.uint32(framing.MASK)
    data = (rotated >> np.uint32(17)) | (rotated << np.uint32(15))
    terms = _look_up(tables.data, data) ^ _look_up(tables.footer, footers)
    heads = _header_terms(stretch, places)
    terms[:-1] ^= heads[1:]
    products = _times(terms, tables.low[behind & 0xFFFF])
    upper = behind >> 16
    firsts = np.flatnonzero(np.append(True, upper[1:] != upper[:-1]))
    sums = np.bitwise_xor.reduceat(products, firsts)
    total = int(np.bitwise_xor.reduce(_times(sums, tables.high[upper[firsts]])))
    first = np.array([heads[0]], np.uint32)
    whole = _times(_times(first, tables.low[[after & 0xFFFF]]), tables.high[[after >> 16]])
    return total ^ int(whole[0])


def _header_terms(stretch: Any, places: Any) -> Any:
    """crc(h)·X(-12) of each header: uint32 [count]."""
    import numpy as np

    tables = _tables()
    lengths = framing.words_at(stretch, places, 4)  # a stretch is shorter than 4 GiB
    stored = framing.words_at(stretch, places + 8, 4)
    if len(lengths) > 1 and (lengths == lengths[0]).all():
        lengths, stored = lengths[:1], stored[:1]
    terms = _look_up(tables.length, lengths) ^ _look_up(tables.stored, stored)
    return np.broadcast_to(terms, len(places))


def _look_up(table: Any, words: Any) -> Any:
    """The sum of what each byte contributes: uint32 [4, 256], uint32 [count] → uint32 [count]."""
    found = table[0][words & 0xFF]
    for k in range(1, 4):
        found ^= table[k][(words >> (8 * k)) & 0xFF]
    return found


# ---- polynomials over GF(2), modulo that of CRC-32C; bit 31 is x^0 ------------------------------------


@dataclass(frozen=True, slots=True)
class _Tables:
    """`low[n]` is X(n), `high[n]` X(65536 n); the others are uint32 [4, 256], for `_look_up`."""

    low: Any
    high: Any
    data: Any
    footer: Any
    length: Any
    stored: Any


@functools.cache
def _tables() -> _Tables:
    import numpy as np
    from crc32c import crc32c

    def of_bytes(place: int, size: int, factor: Any) -> Any:
        """What the bytes from `place` on of `size` contribute to the checksum, times a factor."""
        zero = crc32c(bytes(size))
        rows = [
            [crc32c(bytes(place + k) + bytes([b]) + bytes(size - place - k - 1)) ^ zero for b in range(256)]
            for k in range(4)
        ]
        if place == 0:
            rows[0] = [value ^ zero for value in rows[0]]
        return _times(np.array(rows, np.uint32), np.full((4, 256), factor, np.uint32))

    low, high = _powers(_power(1), 1 << 16), _powers(_power(1 << 16), _REACH >> 16)
    values = np.arange(256, dtype=np.uint32)
    shifted = np.stack([values << np.uint32(8 * k) for k in range(4)])
    data = _times(shifted, np.full((4, 256), low[4], np.uint32))
    before = _power(-12)
    return _Tables(
        low, high, data, of_bytes(0, 4, _ONE), of_bytes(0, 12, before), of_bytes(8, 12, before)
    )  # fmt: skip


def _times(a: Any, b: Any) -> Any:
    """Products, each of two polynomials: uint32 arrays of one shape.

    Integers multiply polynomials if no carry reaches the next bit. So each factor is taken apart into four,
    of every fourth bit: at most eight ones meet in one place, for which the three bits above it are free.
    """
    import numpy as np

    parts = [[word.astype(np.uint64) & np.uint64(0x11111111 << k) for k in range(4)] for word in (a, b)]
    whole, term = np.zeros(a.shape, np.uint64), np.empty(a.shape, np.uint64)
    for k in range(4):
        total = parts[0][0] * parts[1][k]
        for i in range(1, 4):
            np.multiply(parts[0][i], parts[1][(k - i) % 4], out=term)
            np.bitwise_xor(total, term, out=total)
        np.bitwise_and(total, np.uint64(0x1111111111111111 << k), out=total)
        np.bitwise_or(whole, total, out=whole)
    upper = (whole >> np.uint64(31)).astype(np.uint32)  # x^0 to x^31; below are x^62 to x^32
    return upper ^ _look_up(_remainders(), whole.astype(np.uint32) & np.uint32(0x7FFFFFFF))


@functools.cache
def _remainders() -> Any:
    """What x^62 to x^32, as the bits 0 to 30, come to: for `_look_up`."""
    import numpy as np

    power, powers = 1, []  # x^31
    for _ in range(31):
        power = power >> 1 ^ (_POLYNOMIAL if power & 1 else 0)
        powers.append(power)
    bits = [*reversed(powers), 0]
    rows = np.zeros((4, 256), np.uint32)
    for k in range(4):
        for b in range(8):
            rows[k, np.arange(256) >> b & 1 == 1] ^= np.uint32(bits[8 * k + b])
    return rows


def _powers(factor: Any, count: int) -> Any:
    """factor^0, factor^1, ...: uint32 [count], a power of two of them."""
    import numpy as np

    powers = np.array([_ONE], np.uint32)
    while len(powers) < count:
        powers = np.append(powers, _times(powers, np.full(len(powers), factor, np.uint32)))
        factor = _times(np.array([factor], np.uint32), np.array([factor], np.uint32))[0]
    return powers


def _power(count: int) -> Any:
    """X(count). The powers of x repeat themselves after 2^31 - 1: so there is one of -n."""
    import numpy as np

    bits = 8 * count % _ORDER
    found, factor = np.array([_ONE], np.uint32), np.array([_ONE >> 1], np.uint32)  # 1, and x
    while bits:
        if bits & 1:
            found = _times(found, factor)
        factor = _times(factor, factor)
        bits >>= 1
    return found[0]


def _lengths(places: Any, after: int) -> Any:
    import numpy as np

    return (np.append(places[1:], after) - places - FRAME).astype(np.uint64)
