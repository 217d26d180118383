"""What was found in files: plain facts, and how they read. Used by verifying and salvaging."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal[
    "truncated",
    "length CRC",
    "data CRC",
    "being written",
    "empty",
    "not a TFRecord file",
    "compressed stream",
    "missing",
    "count",
    "checksum",
    "former run",
    "unreadable",
]
_SHOWN = 20  # damages of a file that are listed; all of them are in the object
_MANY_BYTES = 100_000_000  # of fewer the rate is that of starting


@dataclass(frozen=True, slots=True)
class Damage:
    """One place that does not hold.

    Attributes:
        path: The file.
        offset: Bytes before it, in the records' stream: of a compressed file, as unpacked; but for the kind
            "compressed stream", which is an offset in the file.
        end: The offset behind it: where the next intact record or the end of the file is.
        record: How many records were found before it.
        kind: "truncated" (the stream ends, or misses bytes, in a record), "length CRC", "data CRC",
            "being written" (truncated, and a process writes it at this moment), "empty", "not a TFRecord
            file", "compressed stream" (gzip's own checks), and of shards with a manifest "missing",
            "count" (records are gone without a trace), "checksum", "former run" (the other shards of the set
            were written again, this one was not); "unreadable" for what the system refuses.
        detail: More, in words.
    """

    path: str
    offset: int
    end: int
    record: int
    kind: Kind
    detail: str = ""

    def __str__(self) -> str:
        place = f" at byte {self.offset:,} (record {self.record:,})"
        if self.kind in (
            "missing",
            "count",
            "checksum",
            "former run",
            "unreadable",
            "empty",
            "not a TFRecord file",
        ):
            place = ""
        return f"{self.kind}{place}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True)
class FileReport:
    """What one file holds.

    Attributes:
        path: The file.
        records: Intact records.
        bytes: Its size.
        compression: "", "GZIP" or "ZLIB"; None for what is no TFRecord file.
        damages: What does not hold, in the order of the file.
    """

    path: str
    records: int
    bytes: int
    compression: str | None
    damages: tuple[Damage, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        return not self.damages

    def with_damages(self, *more: Damage) -> FileReport:
        """The same with these too."""
        return replace(self, damages=(*self.damages, *more))

    def lines(self) -> list[str]:
        """As text."""
        packed = f", {self.compression.lower()}" if self.compression else ""
        head = f"{self.path}: {_count(self.records, 'record')}, {_count(self.bytes, 'byte')}{packed}"
        if self.ok:
            return [f"ok      {head}"]
        rest = len(self.damages) - _SHOWN
        more = [f"        and {rest:,} more places"] if rest > 0 else []
        return [f"DAMAGED {head}", *(f"        {damage}" for damage in self.damages[:_SHOWN]), *more]


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found.

    Attributes:
        files: A report for each file, in the order of their names.
        seconds: How long it took.
    """

    files: tuple[FileReport, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every file is whole."""
        return all(file.ok for file in self.files)

    @property
    def damages(self) -> tuple[Damage, ...]:
        """Of all files."""
        return tuple(damage for file in self.files for damage in file.damages)

    @property
    def records(self) -> int:
        """Intact records of all files."""
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)

    def __str__(self) -> str:
        return "\n".join([*(line for file in self.files for line in file.lines()), self.summary()])

    def summary(self) -> str:
        """The last line."""
        bad = sum(not file.ok for file in self.files)
        rate = f" ({self.bytes / 1e9 / self.seconds:.2f} GB/s)" if self.bytes > _MANY_BYTES else ""
        state = "all whole" if self.ok else f"{bad} damaged"
        return (
            f"{_count(len(self.files), 'file')}, {state}: {_count(self.records, 'record')}, "
            f"{_count(self.bytes, 'byte')} in {self.seconds:.2f} s{rate}"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        rows = []
        for file in self.files:
            found = "<br>".join(html.escape(str(damage)) for damage in file.damages[:_SHOWN]) or "ok"
            cells = (html.escape(file.path), f"{file.records:,}", f"{file.bytes:,}")
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in (*cells, found)) + "</tr>")
        head = "".join(f"<th>{name}</th>" for name in ("file", "records", "bytes", "found"))
        return f"<table><tr>{head}</tr>{''.join(rows)}</table><p>{html.escape(self.summary())}</p>"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
