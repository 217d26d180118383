"""The results of `verify` and `salvage`: frozen data, and how they are shown. This module reads no file."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from typing import Any, Literal

from tfmagic.system.memory import format_bytes

Kind = Literal[
    "truncated",  # the stream ends, or misses bytes, in a record
    "length CRC",  # a checksum is wrong
    "data CRC",
    "being written",  # truncated, and a process has the file open for writing
    "compressed stream",  # decompression fails
    "empty",
    "not a TFRecord file",
    "unreadable",  # the system refuses to read the file
    # with a manifest also:
    "missing",  # the shard is not there
    "count",  # the number of records differs, although every record is intact
    "checksum",  # the file is another one than was written
    "former run",  # the other shards of the set were written again, this one was not
]
_WITH_PLACE = ("truncated", "length CRC", "data CRC", "being written", "compressed stream")
_SHOWN = 20  # damages that are listed for a file; all of them are in the object
_MANY_BYTES = 100_000_000  # for fewer bytes the rate measures the start only


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged place of the file `path`.

    Attributes:
        offset: Offset of the place in the stream of records; in a compressed file, in the decompressed stream
            (for the kind "compressed stream": in the file).
        end: Offset of the next intact record, or of the end of the file.
        record: Number of records before the place.
        kind: What is wrong, one of `findings.Kind`.
        detail: More, in words.
    """

    path: str
    offset: int
    end: int
    record: int
    kind: Kind
    detail: str = ""

    def __str__(self) -> str:
        place = f" at byte {self.offset:,} (record {self.record:,})" if self.kind in _WITH_PLACE else ""
        return f"{self.kind}{place}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True)
class FileReport:
    """The findings for one file.

    Attributes:
        records: Number of intact records.
        bytes: Size of the file.
        compression: "", "GZIP" or "ZLIB"; None if it is no TFRecord file.
        damages: The damaged places, in the order of the file.
    """

    path: str
    records: int
    bytes: int
    compression: str | None
    damages: tuple[Damage, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damages

    def with_damage(self, kind: Kind, detail: str) -> FileReport:
        """Return this report with one more damage, of the whole file."""
        whole = Damage(self.path, 0, self.bytes, self.records, kind, detail)
        return replace(self, damages=(*self.damages, whole))

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        packed = f", {self.compression.lower()}" if self.compression else ""
        head = f"{self.path}: {_count(self.records, 'record')}, {_count(self.bytes, 'byte')}{packed}"
        if self.ok:
            return [f"ok      {head}"]
        lines = [f"DAMAGED {head}", *(f"        {damage}" for damage in self.damages[:_SHOWN])]
        rest = len(self.damages) - _SHOWN
        return lines if rest <= 0 else [*lines, f"        and {rest:,} more places"]


@dataclass(frozen=True, slots=True)
class Verification:
    """The findings of `verify`: a report for each file, in the order of their names, and its duration."""

    files: tuple[FileReport, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether no file is damaged."""
        return all(file.ok for file in self.files)

    @property
    def damages(self) -> tuple[Damage, ...]:
        """Damages of all files."""
        return tuple(damage for file in self.files for damage in file.damages)

    @property
    def records(self) -> int:
        """Number of intact records in all files."""
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        """Total size of all files, in bytes."""
        return sum(file.bytes for file in self.files)

    def __str__(self) -> str:
        return "\n".join([*(line for file in self.files for line in file.lines()), self.summary()])

    def summary(self) -> str:
        """Return the last line of the text."""
        bad = sum(not file.ok for file in self.files)
        rate = f" ({format_bytes(self.bytes / self.seconds)}/s)" if self.bytes > _MANY_BYTES else ""
        state = "all whole" if self.ok else f"{bad} damaged"
        return (
            f"{_count(len(self.files), 'file')}, {state}: {_count(self.records, 'record')}, "
            f"{_count(self.bytes, 'byte')} in {self.seconds:.2f} s{rate}"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        rows = "<tr><th>file</th><th>records</th><th>bytes</th><th>found</th></tr>"
        for file in self.files:
            found = "<br>".join(html.escape(str(damage)) for damage in file.damages[:_SHOWN]) or "ok"
            cells = (html.escape(file.path), f"{file.records:,}", f"{file.bytes:,}", found)
            rows += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        return f"<table>{rows}</table><p>{html.escape(self.summary())}</p>"


@dataclass(frozen=True, slots=True)
class Salvage:
    """The result of `salvage` of the damaged file `src` into `dst`, which is whole.

    Attributes:
        records: Number of saved records.
        bytes: Size of the saved records with their framing, not compressed.
        lost: What is lost, each from `offset` to `end`.
    """

    src: str
    dst: str
    records: int
    bytes: int
    lost: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was lost."""
        return not self.lost

    @property
    def lost_bytes(self) -> int:
        """Lost bytes; how many lie after damage in a compressed stream is unknown, they do not count."""
        return sum(damage.end - damage.offset for damage in self.lost if damage.kind != "compressed stream")

    def __str__(self) -> str:
        head = f"{self.dst}: {self.records:,} records, {self.bytes:,} bytes saved from {self.src}"
        if self.ok:
            return f"{head}; nothing was lost"
        places = [f"  lost {d.end - d.offset:,} bytes, {d.offset:,} to {d.end:,}: {d}" for d in self.lost]
        return "\n".join([f"{head}; {self.lost_bytes:,} bytes lost", *places])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
