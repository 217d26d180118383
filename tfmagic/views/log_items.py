"""A task's part of a cell as numbered items: rows of text, rich displays in their place, and gaps.

    log bytes ── Screen ──→ rows ─┐
    displays, by log offset ──────┴→ items 0, 1, 2 ... ──→ Patch(base, items): the items from `base` on

The panel follows a running task with a `TaskFeed`; the static form reads an ended one with `read_items`. A
feed reads some hundred kilobytes at a look at most, however much was written. A gap item stands for the
bytes that it skips; these are in the log. Items below a patch's base never change, except for a display that
the cell updates in place, and for old displays whose data is not kept for later snapshots.
"""

import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfmagic.protocol.events import Displayed
from tfmagic.runs.log_reader import ErrorSpans, LogFollower
from tfmagic.runs.tensorflow_noise import find_noise, is_noise
from tfmagic.runs.terminal.lines import cut
from tfmagic.runs.terminal.screen import Row, Screen, plain_text
from tfmagic.system.memory import format_bytes
from tfmagic.views.values import Bundle

WHOLE_BYTES = 1 << 21
_ROW_CHARACTERS = 10_000  # the rest of a longer line is only in the log
_KEPT_DISPLAY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Pace:
    """How much of a log is read at one look."""

    look_bytes: int = 1 << 16  #: More is a flood: 0.6 MB/s a task at ten looks a second.
    flood_bytes: int = 1 << 13  #: Of a flood, only so many bytes at its end are read,
    flood_rows: int = 60  #: and only so many rows are kept: more than a reader sees in a tenth of a second.
    counts_lines: bool = False  #: Count the lines in a gap, which takes 0.3 s for 1 GB.


@dataclass(frozen=True, slots=True)
class RowItem:
    """A line of text."""

    row: Row
    noise: bool = False

    def encode(self) -> Any:
        return {"n": self.row} if self.noise else self.row


@dataclass(frozen=True, slots=True)
class GapItem:
    """Output that is not shown here."""

    size_bytes: int
    lines: int = 0  #: How many lines it has; 0 where they were not counted.

    def encode(self) -> Any:
        size = format_bytes(self.size_bytes)
        return {"gap": f"⋯ {size} not shown here; the log has them" if self.size_bytes else ""}


@dataclass(frozen=True, slots=True)
class RemarkItem:
    """A remark of tfmagic's."""

    text: str

    def encode(self) -> Any:
        return {"x": self.text}


@dataclass(frozen=True, slots=True)
class DisplayItem:
    """A rich display; `key` is unique in its cell and task."""

    data: dict[str, Any]
    metadata: dict[str, Any]
    key: str

    def encode(self) -> Any:
        return {"d": self.data, "m": self.metadata, "k": self.key}


Item = RowItem | GapItem | RemarkItem | DisplayItem


@dataclass(slots=True)
class Patch:
    """What changed: the items from number `base` on, and single displays that were updated in place."""

    base: int
    items: list[Item]
    replaced: dict[int, Item] = field(default_factory=dict)


class TaskFeed:
    """Follows a task's part of a cell, from an offset in its log; owns file descriptors until `close`.

    It keeps `row_limit` items for snapshots.
    """

    def __init__(self, path: Path, start: int, row_limit: int = 2000, pace: Pace = Pace()):
        self.log = LogFollower(path, start)
        self._errors = ErrorSpans(path)
        self.values: list[Bundle] = []  # of the last expression
        self._start, self._row_limit, self._pace = start, row_limit, pace
        self._items: list[Item] = []
        self._first = 0  # the number of the first item that is kept
        self._begin_segment()
        self._by_id: dict[str, int] = {}
        self._count = 0
        self._clear_next = False
        self._display_bytes = 0

    def close(self) -> None:
        self.log.close()
        self._errors.close()

    @property
    def written_bytes(self) -> int:
        """How many bytes the task has written in this cell, as far as they were read."""
        return self.log.offset - self._start

    @property
    def last_row(self) -> Row | None:
        """The last line that is neither empty nor TensorFlow's noise."""
        for item in reversed(self._items):
            if isinstance(item, RowItem) and item.row and not item.noise:
                return item.row
        return None

    def snapshot(self) -> Patch:
        """Return all items that are kept."""
        return Patch(self._first, list(self._items))

    def pull(self, displays: deque[Displayed], until: int | None = None) -> Patch | None:
        """Read up to where the log ended at the last look, or `until`; return what changed, or None.

        The task's displays that are shown by that, in the order of their offsets, are removed.
        """
        end = self._errors.known_end(self.log.offset, self.log.next_end()) if until is None else until
        base = before = self._end
        replaced: dict[int, Item] = {}
        while displays and displays[0].offset <= end:
            shown = displays.popleft()
            base = min(base, self._read_to(shown.offset))
            base = min(base, self._place(shown, replaced))
        base = min(base, self._read_to(end))
        if base == before == self._end and not replaced:
            return None
        self._trim()
        base = max(base, self._first)
        items = self._items[base - self._first :]
        return Patch(base, items, {n: item for n, item in replaced.items() if self._first <= n < base})

    # -- text; each method returns the number of the first item that changed --

    @property
    def _end(self) -> int:
        return self._first + len(self._items)

    def _read_to(self, end: int) -> int:
        """Read the log up to `end`."""
        size = end - self.log.offset
        if size <= 0:
            return self._end
        base = self._clear() if self._clear_next else self._end
        is_flood = size > self._pace.look_bytes
        if is_flood:
            base = min(base, self._skip_to_tail(end))
        start = self.log.offset
        for is_error, part in self._errors.split(start, self.log.read(end - start)):
            self._screen.feed_of(is_error, part)
        return min(base, self._take(self._pace.flood_rows if is_flood else None))

    def _skip_to_tail(self, end: int) -> int:
        """Move on to the beginning of a line shortly before `end`, and leave a gap."""
        tail = end - self._pace.flood_bytes
        tail += self.log.peek(tail, self._pace.flood_bytes).find(b"\n") + 1
        gap, lines = tail - self.log.offset, self.log.skip(tail) if self._pace.counts_lines else 0
        self.log.offset = tail
        base = self.finish()
        self._items.append(GapItem(gap, lines))
        self._segment = self._floor = self._end
        return base

    def _take(self, at_most: int | None = None) -> int:
        """Make items from the screen's changed rows."""
        start, rows = self._screen.take()
        if rows and self._screen.ends_clean:
            rows.pop()  # the empty line that nothing was written to yet
        base = self._segment + start
        if base < self._floor:  # the cursor went up to rows that were never items
            rows, base = rows[self._floor - base :], self._floor
        items: list[Item] = [_row_item(row) for row in rows]
        if at_most is not None and len(items) > at_most:
            lost = sum(len(plain_text(row)) + 1 for row in rows[:-at_most])
            items = [GapItem(lost, len(items) - at_most), *items[-at_most:]]
            # the screen still counts the rows that are no items now
            self._segment -= len(rows) - len(items)
            self._floor = base + 1  # after the gap
        self._cut(base)
        self._items += items
        return base

    def finish(self) -> int:
        """Show an incomplete character or sequence; text that follows begins a new row."""
        self._screen.finish()
        base = self._take()
        self._begin_segment()
        return base

    def _begin_segment(self) -> None:
        self._screen = Screen()
        self._segment = self._end  # the number of the first item of this screen
        self._floor = self._end  # items below that number are no rows of this screen

    # -- displays --

    def _place(self, shown: Displayed, replaced: dict[int, Item]) -> int:
        """Put a display at its place; return the number of the first item that changed."""
        content = _read_bundle(shown.bundle)
        if content.get("clear"):
            if not content.get("wait"):
                return self._clear()
            self._clear_next = True
            return self._end
        data, metadata = content["data"], content["metadata"]
        if not data:
            return self._end
        base = self._clear() if self._clear_next else self._end
        if content.get("value"):
            self.values.append((data, metadata))
            return base
        name = str((content.get("transient") or {}).get("display_id") or "")
        if content.get("update") and (number := self._by_id.get(name)) is not None:
            place = number - self._first
            if place >= 0 and isinstance(old := self._items[place], DisplayItem):  # not too old to be kept
                self._items[place] = replaced[number] = DisplayItem(data, metadata, old.key)
            return base
        base = min(base, self.finish())
        self._count += 1
        if name:
            self._by_id[name] = self._end
        self._items.append(DisplayItem(data, metadata, f"{shown.task}:{shown.cell}:{self._count}"))
        self._display_bytes += len(shown.bundle)
        self._segment = self._floor = self._end
        return base

    def _clear(self) -> int:
        self._clear_next = False
        self._cut(self._first)
        self._by_id.clear()
        self._begin_segment()
        return self._first

    # -- the items --

    def _cut(self, base: int) -> None:
        del self._items[max(base - self._first, 0) :]

    def _trim(self) -> None:
        """Drop the oldest items, and the data of old displays."""
        surplus = len(self._items) - self._row_limit
        if surplus > 0:
            del self._items[:surplus]
            self._first += surplus
        if self._display_bytes <= _KEPT_DISPLAY_BYTES:
            return
        self._display_bytes = 0
        for place in range(len(self._items) - 1, -1, -1):
            item = self._items[place]
            if isinstance(item, DisplayItem):
                size = sum(len(str(value)) for value in item.data.values())
                if self._display_bytes + size > _KEPT_DISPLAY_BYTES // 2:
                    self._items[place] = RemarkItem("[an older display; it is kept on disk]")
                else:
                    self._display_bytes += size


def read_items(
    path: Path,
    start: int,
    end: int,
    displays: deque[Displayed],
    *,
    whole_bytes: int = WHOLE_BYTES,
    counts_lines: bool = False,
) -> tuple[list[Item], list[Bundle]]:
    """Return the items of a part of a log that is over, and the task's last values.

    Of a part that is longer than `whole_bytes`, the beginning and the end are read, with a gap between them.
    """
    feed = TaskFeed(path, start, 1 << 30, Pace(whole_bytes, whole_bytes, 1 << 30, counts_lines))
    head_bytes = whole_bytes // 8
    try:
        if end - start > whole_bytes + head_bytes:
            head = feed.log.peek(start, head_bytes).rfind(b"\n") + 1
            feed.pull(displays, start + (head or head_bytes))
        feed.pull(displays, end)
        feed.finish()
        return feed.snapshot().items, feed.values
    finally:
        feed.close()


def _read_bundle(bundle: bytes) -> dict[str, Any]:
    """Return the bundles of a task, as text that can be encoded, with dicts as data and metadata."""
    if b"\\ud" in bundle:  # half a surrogate pair: json accepts it, what comes later does not
        text = json.dumps(json.loads(bundle), ensure_ascii=False)
        bundle = text.encode("utf-8", "replace")
    content: dict[str, Any] = json.loads(bundle)
    for name in ("data", "metadata"):
        if not isinstance(content.get(name), dict):
            content[name] = {}
    return content


def _first(row: Row, characters: int) -> list[tuple[str, str]]:
    """Return the beginning of a row."""
    found = []
    for style, text in [("", row)] if isinstance(row, str) else row:
        found.append((style, text[:characters]))
        characters = max(characters - len(text), 0)
    return [run for run in found if run[1]]


def _row_item(row: Row) -> RowItem:
    text = plain_text(row)
    if (start := find_noise(text)) > 0:
        row = [*_first(row, start), ("d", f" … (TensorFlow's log: +{len(text) - start} characters)")]
        return RowItem(row)
    if len(text) > _ROW_CHARACTERS:
        kept = cut(row, _ROW_CHARACTERS)[0]
        more = ("d", f" … (+{len(text) - len(plain_text(kept))} characters)")
        row = [*([("", kept)] if isinstance(kept, str) else kept), more]
    return RowItem(row, is_noise(text))
