"""A task's part of a cell as numbered items: rows of text, rich displays in their place, gaps of a flood.

    log bytes ── Screen ──→ rows ─┐
    displays, by log offset ──────┴→ items 0, 1, 2 ... ──→ Patch(base, items): from `base` on, these

A feed reads at most some hundred kilobytes at a look, however much was written: what it jumps over is one
gap item that says how many bytes; they are in the log. Items below a patch's base never change, except for
a display that the cell updates in place, and for old displays whose bulk is not kept for later snapshots.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfmagic.protocol.events import Displayed
from tfmagic.runs.folder import file_size
from tfmagic.runs.tensorflow_noise import is_noise
from tfmagic.runs.terminal.lines import cut
from tfmagic.runs.terminal.screen import Row, Screen, plain_text

_WHOLE_BYTES = 1 << 21
_HEAD_BYTES = 1 << 18
_ROW_CHARACTERS = 10_000  # a longer line is read from the log, not from a page
_KEPT_DISPLAY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Pace:
    """How much of a log is read at one look.

    Attributes:
        look_bytes: More than that is a flood, of which only the end is read.
        flood_bytes, flood_rows: That end.
    """

    look_bytes: int = 1 << 16  # 0.6 MB/s a task at ten looks a second
    flood_bytes: int = 1 << 13
    flood_rows: int = 60  # more than anybody reads in a tenth of a second


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

    def encode(self) -> Any:
        return {"gap": self.size_bytes}


@dataclass(frozen=True, slots=True)
class RemarkItem:
    """A word of ours."""

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
    """What changed: from item number `base` on, `items`; and single displays that were updated in place."""

    base: int
    items: list[Item]
    replaced: dict[int, Item] = field(default_factory=dict)


class TaskFeed:
    """Follows one task; owns a file descriptor until `close`.

    Args:
        start: Where in its log the task's part of the cell begins.
        row_limit: How many items are kept for those who come later.

    Attributes:
        values: What the task displayed as the value of its last expression, (data, metadata).
    """

    def __init__(self, path: Path, start: int, row_limit: int = 2000, pace: Pace = Pace()):
        self._path, self._start, self._row_limit, self._pace = path, start, row_limit, pace
        self._fd: int | None = None
        self._offset = self._seen = start
        self._screen = Screen()
        self._segment = 0  # the number of the first item of the present screen
        self._floor = 0  # items below that number are no rows of the present screen
        self._items: list[Item] = []
        self._first = 0  # the number of the first item that is kept
        self._by_id: dict[str, int] = {}
        self._count = 0
        self._clear_next = False
        self._display_bytes = 0
        self.values: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @property
    def written_bytes(self) -> int:
        """How much the task has written in this cell, as far as it was seen."""
        return self._offset - self._start

    @property
    def last_row(self) -> Row | None:
        """The last line that says something."""
        for item in reversed(self._items):
            if isinstance(item, RowItem) and item.row and not item.noise:
                return item.row
        return None

    def snapshot(self) -> Patch:
        """Everything that is kept."""
        return Patch(self._first, list(self._items))

    def pull(self, displays: deque[Displayed], until: int | None = None) -> Patch | None:
        """Read what is new, up to where the log ended at the last look; None where nothing is.

        What a task displayed before it wrote a line is known a moment after the line is in the log.

        Args:
            displays: The task's displays that were not shown yet, by offset; taken from it.
            until: The offset at which the task's part of the cell ends, if it has.
        """
        end, self._seen = self._seen, file_size(self._path)
        if until is not None:
            end = until
        base = before = self._first + len(self._items)
        replaced: dict[int, Item] = {}
        while displays and displays[0].offset <= end:
            shown = displays.popleft()
            base = min(base, self._read_to(shown.offset))
            base = min(base, self._place(shown, replaced))
        base = min(base, self._read_to(end))
        if base == before == self._first + len(self._items) and not replaced:
            return None
        self._trim()
        base = max(base, self._first)
        items = self._items[base - self._first :]
        return Patch(base, items, {n: item for n, item in replaced.items() if self._first <= n < base})

    def finish(self) -> None:
        """No more bytes will come: show what an incomplete character left."""
        self._end_segment()

    def line_end_before(self, offset: int) -> int:
        """The offset behind the last line that ends before `offset`, or `offset` if none does."""
        size = offset - self._offset
        return self._offset + ((self._pread(self._offset, size).rfind(b"\n") + 1) or size)

    # -- text --

    def _read_to(self, end: int) -> int:
        """Take the log in up to `end`; the number of the first item that changed."""
        behind = end - self._offset
        if behind <= 0:
            return self._first + len(self._items)
        base = self._clear() if self._clear_next else self._first + len(self._items)
        if behind > self._pace.look_bytes:
            base = min(base, self._jump(end))
        self._screen.feed(self._read(end))
        return min(base, self._take(self._pace.flood_rows if behind > self._pace.look_bytes else None))

    def _jump(self, end: int) -> int:
        """Go to a line's beginning shortly before `end`, and leave a gap."""
        size = self._pace.flood_bytes
        target = end - size
        cut = self._pread(target, size).find(b"\n") + 1
        gap, self._offset = target + cut - self._offset, target + cut
        base = self._end_segment()
        self._append([GapItem(gap)])
        self._segment = self._floor = self._first + len(self._items)
        return base

    def _take(self, at_most: int | None = None) -> int:
        """Items from the screen's changed rows; the number of the first."""
        start, rows = self._screen.take()
        if rows and self._screen.ends_clean:
            rows.pop()  # the empty line that nothing was written to yet
        base = self._segment + start
        if base < self._floor:  # the cursor went up to rows that were never items
            rows, base = rows[self._floor - base :], self._floor
        made: list[Item] = [_row_item(row) for row in rows]
        if at_most is not None and len(made) > at_most:
            lost = sum(len(plain_text(item.row)) + 1 for item in made[:-at_most] if isinstance(item, RowItem))
            made = [GapItem(lost), *made[-at_most:]]
            self._cut(base)
            self._append(made)
            # the screen counts rows that are no items: so many more items it is taken to have
            self._segment -= len(rows) - len(made)
            self._floor = base + 1  # behind the gap
            return base
        if base - self._first == len(self._items) and not made:
            return base
        self._cut(base)
        self._append(made)
        return base

    def _end_segment(self) -> int:
        """The text so far is complete: what follows begins a new row."""
        self._screen.finish()
        base = self._take()
        self._screen = Screen()
        self._segment = self._floor = self._first + len(self._items)
        return base

    # -- displays --

    def _place(self, shown: Displayed, replaced: dict[int, Item]) -> int:
        """Put a display where it happened; the number of the first item that changed."""
        content = _read_bundle(shown.bundle)
        end = self._first + len(self._items)
        if content.get("clear"):
            if content.get("wait"):
                self._clear_next = True
                return end
            return self._clear()
        base = end
        data, metadata = content.get("data") or {}, content.get("metadata") or {}
        if not data:
            return base
        if self._clear_next:
            base = self._clear()
        if content.get("value"):
            self.values.append((data, metadata))
            return base
        name = str((content.get("transient") or {}).get("display_id") or "")
        if content.get("update") and (number := self._by_id.get(name)) is not None:
            if number >= self._first:
                old = self._items[number - self._first]
                if isinstance(old, DisplayItem):  # else it has become a remark: too old to be kept
                    item = DisplayItem(data, metadata, old.key)
                    self._items[number - self._first] = replaced[number] = item
            return base
        base = min(base, self._end_segment())
        self._count += 1
        self._append([DisplayItem(data, metadata, f"{shown.task}:{shown.cell}:{self._count}")])
        self._display_bytes += len(shown.bundle)
        if name:
            self._by_id[name] = self._first + len(self._items) - 1
        self._segment = self._floor = self._first + len(self._items)
        return base

    def _clear(self) -> int:
        self._clear_next = False
        self._cut(self._first)
        self._by_id.clear()
        self._screen = Screen()
        self._segment = self._floor = self._first
        return self._first

    # -- the items --

    def _append(self, items: Iterable[Item]) -> None:
        self._items += items

    def _cut(self, base: int) -> None:
        del self._items[max(base - self._first, 0) :]

    def _trim(self) -> None:
        """Forget the oldest items, and the bulk of old displays."""
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

    # -- the file --

    def _read(self, end: int) -> bytes:
        chunk = self._pread(self._offset, end - self._offset)
        self._offset += len(chunk)
        return chunk

    def _pread(self, offset: int, size: int) -> bytes:
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
        return os.pread(self._fd, size, offset)


def read_items(
    path: Path, start: int, end: int, displays: deque[Displayed]
) -> tuple[list[Item], list[tuple[dict[str, Any], dict[str, Any]]]]:
    """A part of a log that is over, and its last values: all of it, or its beginning and its end.

    The beginning and the end are 256 kB and more: what is left out then is a gap.
    """
    pace = Pace(_WHOLE_BYTES, _WHOLE_BYTES, 1 << 30)
    feed = TaskFeed(path, start, 1 << 30, pace)
    try:
        if end - start > _WHOLE_BYTES + _HEAD_BYTES:
            head = feed.line_end_before(start + _HEAD_BYTES)
            feed.pull(displays, head)
        feed.pull(displays, end)
        feed.finish()
        return feed.snapshot().items, feed.values
    finally:
        feed.close()


def _read_bundle(bundle: bytes) -> dict[str, Any]:
    """What a task displayed, as text that can be encoded, and dicts where there should be some."""
    if b"\\ud" in bundle:  # half a character pair: json bears it, nothing behind it does
        text = json.dumps(json.loads(bundle), ensure_ascii=False)
        bundle = text.encode("utf-8", "replace")
    content: dict[str, Any] = json.loads(bundle)
    for name in ("data", "metadata"):
        if not isinstance(content.get(name), dict):
            content[name] = {}
    return content


def _row_item(row: Row) -> RowItem:
    text = plain_text(row)
    if len(text) > _ROW_CHARACTERS:
        kept = cut(row, _ROW_CHARACTERS)[0]
        more = ("d", f" … (+{len(text) - len(plain_text(kept))} characters)")
        row = [*([("", kept)] if isinstance(kept, str) else kept), more]
    return RowItem(row, is_noise(text))
