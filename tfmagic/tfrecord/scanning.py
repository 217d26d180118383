"""From a stream of bytes to its records: which hold, what is lost, and where it goes on behind damage.

    Blocks ──→ window (some MiB) ──→ walk from header to header ──→ all lengths at once ──→ data ──→ keep
                     ↑                                                    │ does not hold
                     └────────── the next header that holds ←─────────────┘

Called by verifying (also in processes of its own, for a segment of a file), salvaging and arranging. Memory
is bounded by the window and the largest record. numpy is imported inside: `import tfmagic.tfrecord` is light.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tfmagic.tfrecord import checksums, framing
from tfmagic.tfrecord.blocks import Blocks
from tfmagic.tfrecord.findings import Kind
from tfmagic.tfrecord.framing import FRAME, HEADER, Buffer

WINDOW = 4 << 20
_STEP = 256 << 10  # of a search behind damage: mostly it goes on within a few records
_ALIKE = 16  # records of one length in a row: then numpy looks for how many more there are
_SHORT_RUN = 64  # fewer than this many more: it was not worth looking
_LENGTH = struct.Struct("<Q")

Keep = Callable[[memoryview], None]


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of the stream that holds no intact record; `record` is how many were seen before it."""

    start: int
    end: int
    record: int
    kind: Kind
    detail: str = ""


@dataclass(slots=True)
class Scan:
    """What a scan found.

    Attributes:
        first: The offset of the first record; where the scan ended, if there is none.
        end: The offset behind the last one, at or behind where it should stop.
        records: Intact ones.
        seen: These and those whose data are damaged.
        losses: What lies between.
    """

    first: int = 0
    end: int = 0
    records: int = 0
    seen: int = 0
    losses: list[Loss] = field(default_factory=list)


def scan(
    blocks: Blocks, start: int = 0, stop: int | None = None, *, aligned: bool = True, keep: Keep | None = None
) -> Scan:
    """Look at every record of a stream.

    Args:
        blocks: The stream, at the offset `start`.
        start: The offset of the first byte.
        stop: Records that begin there or behind it are another's.
        aligned: Whether a record begins at `start`; otherwise the first that holds is looked for.
        keep: Is given the bytes of intact records, one behind the other. They are valid during the call.
    """
    return _Scanner(blocks, start, keep).run(stop, aligned)


class _Scanner:
    def __init__(self, blocks: Blocks, start: int, keep: Keep | None):
        self.blocks, self.base, self.keep = blocks, start, keep
        self.room = bytearray(2 * WINDOW)  # used again and again: new memory would cost more than reading
        self.window, self.ended = memoryview(self.room)[:0], False
        self.found = Scan(start, start)
        self.suspect: int | None = None  # where the last record began, if its data do not hold

    def run(self, stop: int | None, aligned: bool) -> Scan:
        place: int | None = self.base if aligned else self._find(self.base, stop)
        self.found.first = self.found.end = self._end() if place is None else place
        while place is not None and (stop is None or place < stop):
            place = self._advance(place, stop)
            self.found.end = self._end() if place is None else place
        return self.found

    # -- the window --

    def _end(self) -> int:
        return self.base + len(self.window)

    def _fill(self, place: int, size: int) -> bool:
        """Have `size` bytes from `place` on in the window, if there are so many; what is before may go."""
        have = self._end() - place
        if have >= size or self.ended:
            return have >= size
        rest, self.base = self.window[place - self.base :], place
        if size > len(self.room) and self.blocks.size is not None:
            self.room = bytearray(size + WINDOW)
        view = memoryview(self.room)
        view[:have] = rest  # memoryviews of one object may overlap
        while have < size and not self.ended:
            if have == len(view):  # a compressed stream may end long before the length that a header claims
                self.room = bytearray(min(2 * have, size + WINDOW))
                self.room[:have] = view
                view = memoryview(self.room)
            count = self.blocks.read_into(view[have : max(have + 1, min(have + WINDOW, len(view)))])
            have, self.ended = have + count, count == 0
        self.window = view[:have]
        return have >= size

    def _fits(self, place: int, length: int) -> bool:
        """Whether a record can end within the stream; reads it, where only that can tell."""
        if self.blocks.size is not None and place + length + FRAME > self.blocks.size:
            return False
        held = place if self.suspect is None else self.suspect
        return self._fill(held, place - held + length + FRAME)

    # -- forward --

    def _advance(self, place: int, stop: int | None) -> int | None:
        """Take the records from `place` on that are in the window; where to go on, None at the end."""
        held = place if self.suspect is None else self.suspect
        if not self._fill(held, place - held + HEADER):
            return None if self._end() == place else self._lose(place, "truncated")
        here = place - self.base
        until = len(self.window) if stop is None else stop - self.base
        places, after = walk(self.window, here, until)
        if len(places) == 0:
            length = framing.length_at(self.window, here)
            if length is None:
                return self._lose(place, "length CRC")
            return place if self._fits(place, length) else self._lose(place, "truncated")
        good = checksums.count_lengths(self.window, places, after)
        if good == 0:
            return self._lose(place, "length CRC")
        after = after if good == len(places) else int(places[good])
        self._take(places[:good], after)
        return self.base + after

    def _take(self, places: Any, after: int) -> None:
        """Records whose headers hold: look at their data."""
        bad = checksums.find_damaged(self.window, places, after)
        starts = [int(places[0]), *(self._border(places, number + 1, after) for number in bad)]
        ends = [*(int(places[number]) for number in bad), after]
        if self.keep is not None:
            for start, end in zip(starts, ends, strict=True):
                if end > start:
                    self.keep(self.window[start:end])
        for number in bad:
            start, end = int(places[number]), self._border(places, number + 1, after)
            seen = self.found.seen + number
            self.found.losses.append(Loss(self.base + start, self.base + end, seen, "data CRC"))
        self.found.seen += len(places)
        self.found.records += len(places) - len(bad)
        is_last = bool(bad) and bad[-1] == len(places) - 1
        self.suspect = self.base + int(places[-1]) if is_last else None

    @staticmethod
    def _border(places: Any, number: int, after: int) -> int:
        return int(places[number]) if number < len(places) else after

    # -- behind damage --

    def _lose(self, place: int, kind: Kind) -> int | None:
        """Nothing holds at `place`: where it goes on; None at the end.

        If the data of the record before do not hold either, bytes are missing in it: then the next record
        may begin within what its length covers.
        """
        held = place if self.suspect is None else self.suspect
        found = self._find(held + 1)
        end = self._end() if found is None else found
        if self.suspect is not None and end < place:
            last = self.found.losses[-1]
            self.found.losses[-1] = replace(last, end=end, detail="bytes are missing in it")
        else:
            self.found.losses.append(Loss(place, end, self.found.seen, kind))
        self.suspect = None
        return found

    def _find(self, place: int, stop: int | None = None) -> int | None:
        """The next place where a record begins that holds, or is followed by a header that does.

        None also where there is none before `stop`: else each segment of a hole, or of a foreign file, would
        be searched to the end of the file.
        """
        size = self.blocks.size
        while stop is None or place < stop:
            self._fill(place, _STEP + HEADER)
            here = place - self.base
            piece = self.window[here : here + _STEP + HEADER - 1]
            limit = framing.MAX_LENGTH if size is None else size - place
            for offset in framing.find_headers(piece, limit):
                if self._is_record(place + offset, place):
                    return place + offset
            if self.ended and place + len(piece) >= self._end():
                return None
            place += len(piece) - HEADER + 1
        return None

    def _is_record(self, place: int, held: int) -> bool:
        """Whether a header that holds is one: its data hold, or the next header does, or the end is there."""
        (length,) = _LENGTH.unpack_from(self.window, place - self.base)
        if not self._fill(held, place - held + length + FRAME):
            return False
        if framing.data_holds(self.window, place - self.base, length):
            return True
        after = place + length + FRAME
        if not self._fill(held, after - held + HEADER):
            return after == self._end()
        return framing.length_at(self.window, after - self.base) is not None


def walk(window: Buffer, place: int, until: int) -> tuple[Any, int]:
    """Follow the lengths, without looking at their checksums.

    Args:
        window: Bytes.
        place: Where a record begins in them.
        until: Records that begin there or behind are left out.

    Returns:
        Where the records that are whole begin, int64 [count], and the place behind the last one.
    """
    import numpy as np

    read, size = _LENGTH.unpack_from, len(window)
    last_header = min(size - HEADER, until - 1)
    parts: list[Any] = []
    places: list[int] = []
    add, alike, before, patience = places.append, 0, -1, _ALIKE
    while place <= last_header:
        (length,) = read(window, place)
        after = place + length + FRAME
        if after > size:
            break
        add(place)
        place = after
        if length != before:
            before, alike = length, 0
            continue
        alike += 1
        if alike >= patience:
            run = _count_alike(window, place, length, last_header)
            parts += [np.array(places, np.int64), place + np.arange(run, dtype=np.int64) * (length + FRAME)]
            places.clear()
            place += run * (length + FRAME)
            alike, patience = 0, _ALIKE if run >= _SHORT_RUN else 2 * patience
    return np.concatenate([*parts, np.array(places, np.int64)]), place


def _count_alike(window: Buffer, place: int, length: int, last_header: int) -> int:
    """How many records from `place` on have this length."""
    import numpy as np

    stride = length + FRAME
    count = min((len(window) - place) // stride, (last_header - place) // stride + 1)
    if count <= 0:
        return 0
    rows = np.frombuffer(window, np.uint8, count * stride, place).reshape(count, stride)
    lengths = np.ascontiguousarray(rows[:, :8]).view("<u8")[:, 0]
    others = np.flatnonzero(lengths != length)
    return int(others[0]) if len(others) else count
