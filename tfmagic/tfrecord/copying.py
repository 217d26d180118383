"""Iterate over the records of files, merge many files into one, split one into many, salvage a damaged one.

The order is kept, and every checksum is checked. Nothing here changes its source, or needs TensorFlow.
Sources are given as for `verify`. A new file appears when it is whole; nothing of it is left after an error.
"""

import os
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from tfmagic.tfrecord import manifests, record_stream, shard_owner, shards, verifying
from tfmagic.tfrecord.errors import ShardDamaged, ShardError, ShardsMissing
from tfmagic.tfrecord.findings import Salvage
from tfmagic.tfrecord.framing import FOOTER, HEADER
from tfmagic.tfrecord.record_file import Compression, RecordFile, is_packed
from tfmagic.tfrecord.scanning import Records, Scanner
from tfmagic.tfrecord.writing import ShardWriter


def iterate(paths: shards.Paths | Iterable[shards.Paths]) -> Iterator[bytes]:
    """Yield the data of each record of files (given as for `verify`), one file after the other.

    Raises:
        ShardsMissing: A pattern matches nothing.
        ShardError: The files are shards of two runs.
        ShardDamaged: A record is damaged; the message names file and offset. Those before it were yielded.
    """
    files = shards.find_files(paths)
    manifests.check_runs(files)
    for path in files:
        for window, borders in _intact_records(path):
            for start, end in pairwise(borders):
                yield bytes(window[start + HEADER : end - FOOTER])


def _intact_records(path: Path) -> Iterator[Records]:
    """Yield all records of a file, many at a time; raise ShardDamaged at the first damaged one."""
    with record_stream.open_stream(path) as stream:
        scanner = Scanner(stream)
        scan, is_foreign = scanner.scan, stream.compression is None
        for records in () if is_foreign else scanner.records():  # a foreign file is not searched to its end
            if scan.damages:
                break
            yield records
        if is_foreign or scan.damages or stream.trouble:
            offset = scan.damages[0].offset if scan.damages else scan.end
            raise ShardDamaged(
                f"{path} is damaged at byte {offset:,} of its records. `python -m tfmagic tfrecord verify "
                f"{path}` shows how, `salvage` saves what is whole"
            )


def merge(
    paths: shards.Paths | Iterable[shards.Paths],
    dst: shards.Paths,
    *,
    compression: Compression = None,
    overwrite: bool = False,
) -> int:
    """Write the records of many files into one, in the order of the files. Return their number.

    Args:
        paths: The files, as for `verify`.
        dst: The new file.
        compression: Compression of the new file: "gzip" or None.
        overwrite: Replace a file of that name.

    Raises:
        ShardDamaged: A record is damaged.
        ShardError: A shard of the set is not among the files, or `dst` is one of them.
        ShardExists, ShardWriteError: As for `ShardWriter`.
    """
    packed, files, target = is_packed(compression), shards.find_files(paths), shards.check_local(dst, "dst")
    if missing := shards.check_sets(files):
        names = ", ".join(map(str, missing[:5]))
        raise ShardError(f"not among the files: {names}; a merge would lose it silently")
    manifests.check_runs(files)
    if target.exists() and any(os.path.samefile(path, target) for path in files):
        raise ShardError(f"{target} is one of the files that are merged")
    with RecordFile(target, packed, overwrite=overwrite) as file:
        for path in files:
            for records in _intact_records(path):
                file.write_records(records)
    return file.records


def split(
    src: shards.Paths,
    path_pattern: shards.Paths,
    *,
    count: int | None = None,
    records: int | None = None,
    compression: Compression = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write one file (or a set, as for `verify`) as shards, in order. Return the paths of the shards.

    Args:
        path_pattern: The name of the set, as for `ShardWriter`; so are `compression` and `overwrite`.
        count: Number of shards; they differ by one record at most. Give either this or `records`.
        records: Number of records in a shard.

    Raises:
        ShardDamaged: A record is damaged.
        ShardError: There are fewer records than shards.
        ShardExists, ShardWriteError: As for `ShardWriter`.
    """
    if (count is None) == (records is None):
        raise ShardError("give either count (the number of shards) or records (the number in each)")
    files = shards.find_files(src, "src")
    borders: set[int] = set()
    if count is not None:
        shard_owner.at_least(1, "count", count)
        total = sum(1 for _ in iterate(files))
        if total < count:
            raise ShardError(f"{src} has {total} records, which cannot be {count} shards")
        borders = {total * number // count for number in range(1, count)}
    with ShardWriter(
        path_pattern, task=(0, 1), compression=compression, max_records=records, overwrite=overwrite
    ) as writer:
        for number, record in enumerate(iterate(files)):
            if number in borders:
                writer.next_shard()
            writer.write(record)
    return writer.paths


def salvage(src: shards.Paths, dst: shards.Paths, *, overwrite: bool = False) -> Salvage:
    """Copy every intact record, also those after the damage, into a new file.

    Behind damage the next record is searched: a header and data with correct checksums. A record that itself
    contains TFRecords can then be taken apart. Behind damage in a compressed stream nothing can be saved.
    `dst` is compressed as `src` is (zlib becomes gzip). `overwrite` replaces a file of that name.

    Raises:
        ShardsMissing: There is no file `src`.
        ShardDamaged: No record is intact. Nothing is written.
        ShardError: `src` and `dst` are one file.
        ShardExists, ShardWriteError: As for `ShardWriter`.
    """
    source, target = shards.check_local(src, "src"), shards.check_local(dst, "dst")
    if not source.exists():
        raise ShardsMissing(f"there is no file {source}")
    if target.exists() and os.path.samefile(source, target):
        raise ShardError(f"{source} and {target} are one file: salvage writes a new one beside it")
    with record_stream.open_stream(source) as stream:
        with RecordFile(target, bool(stream.compression), overwrite=overwrite) as file:
            scanner = Scanner(stream)
            for records in scanner.records():
                file.write_records(records)
            report = verifying.report_scan(scanner.scan, stream)
            if not report.records:
                reason = report.damages[0] if report.damages else "it is empty"
                raise ShardDamaged(f"no record of {source} can be saved: {reason}. Nothing was written")
        return Salvage(str(source), str(target), report.records, file.framed_bytes, report.damages)
