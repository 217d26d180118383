"""The byte format of TFRecord, and its checksums. This module knows no files.

    length (8, little endian) │ masked CRC-32C of the length (4) │ data │ masked CRC-32C of the data (4)

Source: tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details"; the mask is that of
tsl/lib/hash/crc32c.h. numpy and crc32c are imported on first use: `import tfmagic.tfrecord` must stay cheap.
"""

import functools
import struct
from collections.abc import Callable
from typing import Any

HEADER, FOOTER = 12, 4
FRAME = HEADER + FOOTER  # bytes of a record beside its data
MAX_LENGTH = 1 << 40  # of one record; a larger number in a header is no length
MASK = 0xA282EAD8
LENGTH = struct.Struct("<Q")
_FEW = 16  # records; below that numpy costs more than it saves
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")

Buffer = bytes | bytearray | memoryview


def mask(crc: Any) -> Any:
    """Return a checksum, or each of an array of uint32, as it is in a file."""
    return (((crc >> 15) | (crc << 17)) + MASK) & 0xFFFFFFFF


@functools.cache
def checksum() -> Callable[..., int]:
    """Return the function that computes the CRC-32C of bytes, and goes on from an earlier value.

    Raises:
        ImportError: The package crc32c is not installed.
    """
    try:
        from crc32c import crc32c
    except ImportError as error:
        raise ImportError(f'TFRecord files need crc32c ({error}):  pip install "tfmagic[tfrecord]"') from None
    return crc32c


@functools.lru_cache(maxsize=4096)
def header(length: int) -> bytes:
    """Return the first twelve bytes of a record whose data has this length."""
    return _HEADER.pack(length, mask(checksum()(LENGTH.pack(length))))


def frame(data: bytes) -> bytes:
    """Return a whole record."""
    return b"".join((header(len(data)), data, _FOOTER.pack(mask(checksum()(data)))))


def frame_all(records: list[bytes]) -> bytes:
    """Return whole records, one after the other."""
    if len(records) < _FEW:
        return b"".join(map(frame, records))
    import numpy as np

    lengths = np.fromiter(map(len, records), np.uint64, len(records))
    crcs = np.fromiter(map(checksum(), records), np.uint32, len(records))
    between = np.zeros((len(records) + 1, FRAME), np.uint8)  # a footer and the next header
    # uint32 [count] → uint8 [count, 4]: the machines that TensorFlow runs on are little endian
    between[:-1, FOOTER:HEADER] = lengths[:, None].view(np.uint8)
    between[:-1, HEADER:] = _masked_header_crcs(lengths)[:, None].view(np.uint8)
    between[1:, :FOOTER] = mask(crcs)[:, None].view(np.uint8)
    pieces: list[bytes] = between.view(f"V{FRAME}")[:, 0].tolist()
    parts = [b""] * (2 * len(records) + 1)
    parts[0::2], parts[1::2] = pieces, records
    parts[0], parts[-1] = pieces[0][FOOTER:], pieces[-1][:FOOTER]
    return b"".join(parts)


def length_at(window: Buffer, place: int) -> int | None:
    """Return the length in the header at `place`; None if its checksum is wrong."""
    length, stored = _HEADER.unpack_from(window, place)
    if length > MAX_LENGTH or mask(checksum()(LENGTH.pack(length))) != stored:
        return None
    return int(length)


def is_data_intact(window: Buffer, place: int, length: int) -> bool:
    """Check the data of the record at `place`, all of which is in the window."""
    start = place + HEADER
    (stored,) = _FOOTER.unpack_from(window, start + length)
    with memoryview(window) as view, view[start : start + length] as data:
        return mask(checksum()(data)) == stored


# ---- many records at once ------------------------------------------------------------------------


def count_intact_headers(window: Buffer, places: Any, after: int) -> int:
    """Return how many records have a correct header checksum, up to the first that has not.

    They begin at `places` in the window, int64 [count], one after the other; the last ends at `after`.
    """
    import numpy as np

    lengths = (np.append(places[1:], after) - places - FRAME).astype(np.uint64)
    if len(lengths) > 1 and (lengths == lengths[0]).all():
        lengths = lengths[:1]
    bad = np.flatnonzero(_words_at(window, places + 8) != _masked_header_crcs(lengths))
    return int(bad[0]) if len(bad) else len(places)


def find_damaged(window: Buffer, places: Any, after: int) -> list[int]:
    """Return the numbers of the records whose data are damaged. Arguments as for `count_intact_headers`."""
    import numpy as np

    ends = np.append(places[1:], after) - FOOTER
    crc32c = checksum()
    with memoryview(window) as view:
        pairs = zip((places + HEADER).tolist(), ends.tolist(), strict=True)
        crcs = np.array([crc32c(view[start:end]) for start, end in pairs], np.uint32)
    damaged: list[int] = np.flatnonzero(mask(crcs) != _words_at(window, ends)).tolist()
    return damaged


def find_headers(window: Buffer, limit: int) -> list[int]:
    """Return the places of all correct headers whose record ends within `limit` bytes.

    Every place is checked, also in a page of zeros: first whether the length is possible, then its checksum.
    """
    import numpy as np

    count = len(window) - HEADER + 1
    if count <= 0:
        return []
    lengths = np.ndarray((count,), "<u8", window, strides=(1,))
    stored = np.ndarray((count,), "<u4", window, 8, strides=(1,))
    most, zero_crc = np.uint64(max(min(limit, MAX_LENGTH), 0)), _masked_header_crcs(np.zeros(1, np.uint64))
    likely = np.flatnonzero((lengths <= most) & ((lengths != 0) | (stored == zero_crc)))
    lengths = lengths[likely]
    ends = likely.astype(np.uint64) + lengths + np.uint64(FRAME)
    found: list[int] = likely[(ends <= most) & (stored[likely] == _masked_header_crcs(lengths))].tolist()
    return found


def _words_at(window: Buffer, places: Any) -> Any:
    """Return the little-endian numbers at `places`, which can be odd: int64 [count] → uint32 [count]."""
    import numpy as np

    return np.ndarray((len(window) - 3,), "<u4", window, strides=(1,))[places]


@functools.cache
def _tables() -> Any:
    """Return the part of each byte of a length in the checksum of its eight bytes: uint32 [8, 256]."""
    import numpy as np

    zero = checksum()(bytes(8))
    rows = [[checksum()(LENGTH.pack(byte << (8 * k))) ^ zero for byte in range(256)] for k in range(8)]
    tables = np.array(rows, np.uint32)
    tables[0] ^= np.uint32(zero)
    return tables


def _masked_header_crcs(lengths: Any) -> Any:
    """Return the checksums in the headers of these lengths: uint64 [count] → uint32 [count]."""
    import numpy as np

    tables = _tables()
    crc = tables[0][lengths & np.uint64(0xFF)]
    for k in range(1, 8):
        crc ^= tables[k][(lengths >> np.uint64(8 * k)) & np.uint64(0xFF)]
    return mask(crc)
