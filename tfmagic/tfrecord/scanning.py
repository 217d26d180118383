"""Find the records in a stream of bytes: which are intact, what is lost, where the next one is after damage.

    RecordStream ──→ window (some MiB) ──→ walk from header to header ──→ all lengths ──→ data ──→ Records
                          ↑                                                  │ wrong checksum
                          └──────── the next correct header ←────────────────┘

`verifying` (in several threads), `copying` and `data_loss_hint` call it. Memory is bounded
by the window and the largest record. numpy is imported on first use: `import tfmagic.tfrecord` must stay
cheap.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tfmagic.tfrecord import framing
from tfmagic.tfrecord.findings import Damage, Kind
from tfmagic.tfrecord.framing import FRAME, HEADER, LENGTH, Buffer
from tfmagic.tfrecord.record_stream import RecordStream

WINDOW = 4 << 20
_STEP = 256 << 10  # bytes searched at once after damage: the next record is mostly near


@dataclass(slots=True)
class Scan:
    """The result of a scan."""

    first: int = 0  # offset of the first record; where the scan ended, if there is none
    end: int = 0  # offset after the last record
    records: int = 0  # number of intact records
    seen: int = 0  # number of intact records and of those whose data are damaged
    damages: list[Damage] = field(default_factory=list)  # what lies between the intact records


class Records(NamedTuple):
    """Intact records, one after the other. They are valid until the next ones are asked for."""

    window: memoryview
    borders: list[int]  # where each record begins in the window, and where the last one ends

    @property
    def frames(self) -> memoryview:
        """The bytes of all of them, as they stand in a file."""
        return self.window[self.borders[0] : self.borders[-1]]


class Scanner:
    """Checks every record of a stream, which begins at the offset `start`. `scan` is the result so far."""

    def __init__(self, stream: RecordStream, start: int = 0):
        self.scan = Scan(start, start)
        self._stream, self._base = stream, start
        self._buffer = bytearray(2 * WINDOW)  # reused: new memory would cost more than reading
        self._window, self._is_at_end = memoryview(self._buffer)[:0], False
        self._suspect: int | None = None  # where the last record began, if its data are damaged

    def records(self, stop: int | None = None, *, is_aligned: bool = True) -> Iterator[Records]:
        """Yield the intact records, many at a time. A damage is in `scan` before the records after it come.

        Args:
            stop: Records that begin at or after this offset are left out.
            is_aligned: Whether a record begins at the start. Otherwise the first correct one is searched.
        """
        place: int | None = self._base if is_aligned else self._find(self._base, stop)
        self.scan.first = self.scan.end = self._end() if place is None else place
        while place is not None and (stop is None or place < stop):
            place = yield from self._advance(place, stop)
            self.scan.end = self._end() if place is None else place

    # -- the window --

    def _end(self) -> int:
        return self._base + len(self._window)

    def _fill(self, place: int, size: int) -> bool:
        """Read until the window has `size` bytes from `place` on. Return whether the stream has so many.

        Bytes before `place` are dropped.
        """
        have = self._end() - place
        if have >= size or self._is_at_end:
            return have >= size
        rest, self._base = self._window[place - self._base :], place
        if size > len(self._buffer) and self._stream.size is not None:
            self._buffer = bytearray(size + WINDOW)
        view = memoryview(self._buffer)
        view[:have] = rest  # memoryviews of one object are allowed to overlap
        while have < size and not self._is_at_end:
            if have == len(view):  # a compressed stream can end long before the length that a header claims
                self._buffer = bytearray(min(2 * have, size + WINDOW))
                self._buffer[:have] = view
                view = memoryview(self._buffer)
            count = self._stream.read_into(view[have : max(have + 1, min(have + WINDOW, len(view)))])
            have, self._is_at_end = have + count, count == 0
        self._window = view[:have]
        return have >= size

    # -- forward --

    def _advance(self, place: int, stop: int | None) -> Generator[Records, None, int | None]:
        """Yield the records in the window from `place` on. Return the next place, None at the end."""
        held = place if self._suspect is None else self._suspect  # where the window must begin
        if not self._fill(held, place - held + HEADER):
            return None if self._end() == place else self._lose(place, "truncated")
        here = place - self._base
        places, after = walk(self._window, here, len(self._window) if stop is None else stop - self._base)
        if len(places) == 0:
            length = framing.length_at(self._window, here)
            if length is None:
                return self._lose(place, "length CRC")
            # a stream whose size is unknown is read
            can_end = self._stream.size is None or place + length + FRAME <= self._stream.size
            is_whole = can_end and self._fill(held, place - held + length + FRAME)
            return place if is_whole else self._lose(place, "truncated")
        good = framing.count_intact_headers(self._window, places, after)
        if good == 0:
            return self._lose(place, "length CRC")
        borders = [*places.tolist(), after][: good + 1]
        next_place = self._base + borders[-1]
        yield from self._check_data(places[:good], borders)
        return next_place

    def _check_data(self, places: Any, borders: list[int]) -> Iterator[Records]:
        """Yield those of the records at `places` whose data are intact; each ends at the next border."""
        first, damaged = 0, framing.find_damaged(self._window, places, borders[-1])
        for number in damaged:
            if number > first:
                yield Records(self._window, borders[first : number + 1])
            start, end = (self._base + border for border in borders[number : number + 2])
            self._add_damage(start, end, self.scan.seen + number, "data CRC")
            first = number + 1
        self.scan.seen += len(places)
        self.scan.records += len(places) - len(damaged)
        is_last = bool(damaged) and damaged[-1] == len(places) - 1
        self._suspect = self._base + borders[-2] if is_last else None
        if len(places) > first:
            yield Records(self._window, borders[first:])

    # -- after damage --

    def _lose(self, place: int, kind: Kind) -> int | None:
        """Record that there is no record at `place`. Return the place of the next one, None at the end.

        If the data of the record before are damaged too, bytes are missing in it: then the next record can
        begin within what its length covers.
        """
        found = self._find((place if self._suspect is None else self._suspect) + 1)
        end = self._end() if found is None else found
        damages = self.scan.damages
        if self._suspect is not None and end < place:
            damages[-1] = replace(damages[-1], end=end, detail="bytes are missing in it")
        else:
            self._add_damage(place, end, self.scan.seen, kind)
        self._suspect = None
        return found

    def _add_damage(self, start: int, end: int, record: int, kind: Kind) -> None:
        self.scan.damages.append(Damage(str(self._stream.path), start, end, record, kind))

    def _find(self, place: int, stop: int | None = None) -> int | None:
        """Return the next place of a record that is intact or followed by a correct header.

        Return None if there is none before `stop`: otherwise each segment of a hole, or of a foreign file,
        would be searched to the end of the file.
        """
        size = self._stream.size
        while stop is None or place < stop:
            self._fill(place, _STEP + HEADER)
            here = place - self._base
            piece = self._window[here : here + _STEP + HEADER - 1]
            limit = framing.MAX_LENGTH if size is None else size - place
            for offset in framing.find_headers(piece, limit):
                if self._is_record(place + offset, place):
                    return place + offset
            if self._is_at_end and place + len(piece) >= self._end():
                return None
            place += len(piece) - HEADER + 1
        return None

    def _is_record(self, place: int, held: int) -> bool:
        """Check a correct header: its data or the next header are intact too, or the stream ends there."""
        (length,) = LENGTH.unpack_from(self._window, place - self._base)
        if not self._fill(held, place - held + length + FRAME):
            return False
        after = place + length + FRAME
        if framing.is_data_intact(self._window, place - self._base, length):
            return True
        if not self._fill(held, after - held + HEADER):
            return after == self._end()
        return framing.length_at(self._window, after - self._base) is not None


def walk(window: Buffer, place: int, until: int) -> tuple[Any, int]:
    """Follow the lengths from record to record, without a look at their checksums.

    Many files have records of one length: numpy counts those at the start.

    Return the places of the whole records that begin at `place` or after it and before `until`, int64
    [count], and the place after the last one.
    """
    import numpy as np

    read, size = LENGTH.unpack_from, len(window)
    last_header = min(size - HEADER, until - 1)
    stride = read(window, place)[0] + FRAME if place <= last_header else size + 1
    count = min((size - place) // stride, (last_header - place) // stride + 1)
    alike = np.empty(0, np.int64)
    if count > 0:
        rows = np.frombuffer(window, np.uint8, count * stride, place).reshape(count, stride)
        others = np.flatnonzero(np.ascontiguousarray(rows[:, :8]).view("<u8")[:, 0] != stride - FRAME)
        alike = place + np.arange(others[0] if len(others) else count, dtype=np.int64) * stride
        place += len(alike) * stride
    places: list[int] = []
    add = places.append
    while place <= last_header:
        after = place + read(window, place)[0] + FRAME
        if after > size:
            break
        add(place)
        place = after
    return np.concatenate([alike, np.array(places, np.int64)]), place
