"""The bytes of a TFRecord file, and their checksums. Knows no files.

    length (8, little endian) │ masked CRC-32C of it (4) │ data │ masked CRC-32C of the data (4)

Source: tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details"; the mask is that of
tsl/lib/hash/crc32c.h. numpy and crc32c are imported at the first use, since a task may only want the names.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

HEADER, FOOTER = 12, 4
_FEW = 16  # records: below that numpy costs more than it saves
FRAME = HEADER + FOOTER  # what a record takes beside its data
MAX_LENGTH = 1 << 40  # of one record; a larger number in a header is no length
MASK = 0xA282EAD8
_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
FOOT = struct.Struct("<I")

Buffer = bytes | bytearray | memoryview


def mask(crc: int) -> int:
    """The checksum as it stands in a file."""
    return (((crc >> 15) | (crc << 17)) + MASK) & 0xFFFFFFFF


@functools.lru_cache(maxsize=4096)
def header(length: int) -> bytes:
    """The first twelve bytes of a record whose data has this length."""
    from crc32c import crc32c

    return _HEADER.pack(length, mask(crc32c(_LENGTH.pack(length))))


def frame(data: bytes) -> bytes:
    """A whole record."""
    from crc32c import crc32c

    return b"".join((header(len(data)), data, FOOT.pack(mask(crc32c(data)))))


def frame_all(records: list[bytes]) -> bytes:
    """Whole records, one behind the other."""
    if len(records) < _FEW:
        return b"".join(map(frame, records))
    import numpy as np
    from crc32c import crc32c

    lengths = np.fromiter(map(len, records), np.uint64, len(records))
    between = np.zeros((len(records) + 1, FRAME), np.uint8)  # the footer of one, and the header of the next
    between[:-1, FOOTER:HEADER] = lengths[:, None].view(np.uint8)
    between[:-1, HEADER:] = _bytes_of(masked_crcs_of(lengths))
    between[1:, :FOOTER] = _bytes_of(mask_all(np.fromiter(map(crc32c, records), np.uint32, len(records))))
    pieces: list[bytes] = between.view(f"V{FRAME}")[:, 0].tolist()
    parts = [b""] * (2 * len(records) + 1)
    parts[0::2], parts[1::2] = pieces, records
    parts[0], parts[-1] = pieces[0][FOOTER:], pieces[-1][:FOOTER]
    return b"".join(parts)


def _bytes_of(words: Any) -> Any:
    """uint32 [count] → uint8 [count, 4], little endian as the machines are that TensorFlow runs on."""
    import numpy as np

    return words[:, None].view(np.uint8)


def length_at(window: Buffer, place: int) -> int | None:
    """The length in the header there; None where its checksum does not hold."""
    from crc32c import crc32c

    length, stored = _HEADER.unpack_from(window, place)
    if length > MAX_LENGTH or mask(crc32c(_LENGTH.pack(length))) != stored:
        return None
    return int(length)


def data_holds(window: Buffer, place: int, length: int) -> bool:
    """Whether the checksum of the data of the record there holds; all of it is in the window."""
    from crc32c import crc32c

    start = place + HEADER
    (stored,) = FOOT.unpack_from(window, start + length)
    with memoryview(window) as view, view[start : start + length] as data:
        return mask(crc32c(data)) == stored


# ---- many at once --------------------------------------------------------------------------------


def words_at(window: Buffer | Any, places: Any, size: int) -> Any:
    """The little-endian numbers of `size` bytes (4 or 8) at `places`, which may be odd.

    Args:
        window: Bytes, or uint8 [bytes].
        places: int64 [count].

    Returns:
        uint32 or uint64 [count].
    """
    import numpy as np

    every = np.ndarray((len(window) - size + 1,), f"<u{size}", window, strides=(1,))
    return every[places]


@functools.cache
def _tables() -> Any:
    """uint32 [8, 256]: what each byte of a length contributes to the checksum of its eight bytes."""
    import numpy as np
    from crc32c import crc32c

    zero = crc32c(bytes(8))
    rows = [[crc32c(_LENGTH.pack(byte << (8 * k))) ^ zero for byte in range(256)] for k in range(8)]
    tables = np.array(rows, np.uint32)
    tables[0] ^= np.uint32(zero)
    return tables


def masked_crcs_of(lengths: Any) -> Any:
    """The checksums that the headers of these lengths have: uint64 [count] → uint32 [count]."""
    import numpy as np

    tables = _tables()
    crc = tables[0][lengths & 0xFF]
    for k in range(1, 8):
        crc ^= tables[k][(lengths >> np.uint64(8 * k)) & np.uint64(0xFF)]
    return mask_all(crc)


def mask_all(crcs: Any) -> Any:
    """`mask` of uint32 [count]."""
    import numpy as np

    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(MASK)


def find_headers(window: Buffer, limit: int) -> list[int]:
    """The places where a header's checksum holds and its record ends within `limit` bytes.

    Every place is looked at, a page of zeros too; they are a gigabyte a second or so. What has a length
    that could be is checked further.
    """
    import numpy as np

    count = len(window) - HEADER + 1
    if count <= 0:
        return []
    padded = bytes(window) + bytes(24)
    zero_crc = np.uint64(int(masked_crcs_of(np.zeros(1, np.uint64))[0]))
    most, low = np.uint64(max(min(limit, MAX_LENGTH), 0)), np.uint64(0xFFFFFFFF)
    found = []
    for shift in range(min(8, count)):
        fit = (count - shift + 7) // 8
        words = np.frombuffer(padded, "<u8", fit + 1, shift)
        lengths, stored = words[:-1], words[1:] & low
        likely = np.flatnonzero((lengths <= most) & ((lengths != 0) | (stored == zero_crc)))
        if len(likely):
            lengths, stored = lengths[likely], stored[likely]
            places = (shift + 8 * likely).astype(np.uint64)
            same = (stored == masked_crcs_of(lengths)) & (places + lengths + np.uint64(FRAME) <= most)
            found.append(places[same])
    return sorted(int(place) for places in found for place in places)
