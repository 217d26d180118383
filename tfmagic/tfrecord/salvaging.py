"""Copy the intact records of a damaged file into a new one. The damaged file is not changed."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from typing import Any

from tfmagic.tfrecord import record_stream, shards, verifying
from tfmagic.tfrecord.atomic_file import check_local
from tfmagic.tfrecord.errors import ShardDamaged, ShardError, ShardsMissing
from tfmagic.tfrecord.findings import Damage
from tfmagic.tfrecord.record_file import record_file
from tfmagic.tfrecord.scanning import Scanner


@dataclass(frozen=True, slots=True)
class Salvage:
    """The result of `salvage`.

    Attributes:
        src: The damaged file.
        dst: The new file, which is whole.
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
        """Lost bytes; how many lie behind damage in a compressed stream is unknown, they do not count."""
        return sum(damage.end - damage.offset for damage in self.lost if damage.kind != "compressed stream")

    def __str__(self) -> str:
        head = f"{self.dst}: {self.records:,} records, {self.bytes:,} bytes saved from {self.src}"
        if self.ok:
            return f"{head}; nothing was lost"
        places = [f"  lost {d.end - d.offset:,} bytes, {d.offset:,} to {d.end:,}: {d}" for d in self.lost]
        return "\n".join([f"{head}; {self.lost_bytes:,} bytes lost", *places])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def salvage(src: shards.Paths, dst: shards.Paths, *, overwrite: bool = False) -> Salvage:
    """Copy every intact record, also those behind the damage, into a new file.

    Behind damage the next record is searched: a header and data with correct checksums. A record that itself
    contains TFRecords can then be taken apart. Behind damage in a compressed stream nothing can be saved.
    `dst` is compressed as `src` is (zlib becomes gzip), and appears when it is whole.

    Args:
        src: The damaged file.
        dst: The new file.
        overwrite: Replace a file of that name.

    Returns:
        What was saved, and where something is lost.

    Raises:
        ShardsMissing: There is no file `src`.
        ShardDamaged: No record is intact. Nothing is written.
        ShardError: `src` and `dst` are one file.
        ShardExists: `dst` exists.
        ShardWriteError: The disk is full, for example. Nothing of `dst` is left.
    """
    source, target = check_local(src), check_local(dst)
    if not source.exists():
        raise ShardsMissing(f"there is no file {source}")
    if os.path.realpath(source) == os.path.realpath(target) or (
        target.exists() and os.path.samefile(source, target)
    ):
        raise ShardError(f"{source} and {target} are one file: salvage writes a new one beside it")
    with record_stream.open_stream(source) as stream:
        with record_file(target, bool(stream.compression), overwrite) as file:
            scanner = Scanner(stream)
            for records in scanner.records():
                file.write_records(records)
            report = verifying.report_scan(scanner.scan, stream)
            if not report.records:
                reason = report.damages[0] if report.damages else "it is empty"
                raise ShardDamaged(f"no record of {source} can be saved: {reason}. Nothing was written")
        return Salvage(str(source), str(target), report.records, file.framed_bytes, report.damages)
