"""All records of a damaged file that can be had, into a new one. The damaged file is not touched."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfmagic.tfrecord import blocks, scanning, shards, verifying
from tfmagic.tfrecord.atomic_file import PendingFile, check_local
from tfmagic.tfrecord.errors import ShardDamaged, ShardError, ShardsMissing
from tfmagic.tfrecord.findings import Damage
from tfmagic.tfrecord.writing import RecordFile


@dataclass(frozen=True, slots=True)
class Salvage:
    """What was saved and what is lost.

    Attributes:
        src: The damaged file.
        dst: The new one, whole.
        records: How many records it has.
        bytes: What they take in the records' stream, of compressed files as unpacked.
        lost: The places between, each from `offset` to `end`.
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
        """What is not in `dst`; of a compressed stream that broke, what could not be unpacked is unknown."""
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
    """Copy every record that holds, also those behind the damage, into a new file.

    Behind damage the next record is looked for: a header whose checksum holds, and data whose checksum does.
    A record that itself holds TFRecords may then be taken apart. Behind damage in a compressed stream nothing
    can be had, but for what was unpacked. `dst` is compressed as `src` is (zlib becomes gzip), and appears
    when it is whole.

    Args:
        src: The damaged file.
        dst: The new file.
        overwrite: Replace a file of that name.

    Returns:
        What was saved, and where something is lost.

    Raises:
        ShardsMissing: There is no such file.
        ShardDamaged: Not one record holds. Nothing is written then.
        ShardError: `src` and `dst` are one file.
        ShardExists: `dst` is there already.
        ShardWriteError: As of a full disk. Nothing of `dst` is left then.
    """
    source, target = check_local(src), check_local(dst)
    if not source.exists():
        raise ShardsMissing(f"there is no file {source}")
    if os.path.realpath(source) == os.path.realpath(target) or (
        target.exists() and os.path.samefile(source, target)
    ):
        raise ShardError(f"{source} and {target} are one file: salvage writes a new one beside it")
    fd = blocks.open_file(source)
    try:
        return _copy(fd, source, PendingFile(target, overwrite=overwrite))
    finally:
        os.close(fd)


def _copy(fd: int, source: Path, pending: PendingFile) -> Salvage:
    try:
        packed = blocks.compression_of(os.pread(fd, 64, 0))
        stream = blocks.open_blocks(fd, packed)
        file = RecordFile(pending, bool(packed))
        scan = scanning.scan(stream, keep=lambda frames: file.write_frames(frames, 0))
        report = verifying.judge(source, packed or "", os.fstat(fd).st_size, scan, stream.trouble)
        if not scan.records:
            told = f": {report.damages[0]}" if report.damages else ": it is empty"
            raise ShardDamaged(f"no record of {source} can be saved{told}. Nothing was written")
        file.place()
    except BaseException:
        pending.discard()
        raise
    return Salvage(str(source), str(pending.path), scan.records, file.framed_bytes, report.damages)
