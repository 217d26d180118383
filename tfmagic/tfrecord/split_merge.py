"""Records out of files, many files into one, and one into many: in order, with every checksum looked at."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfmagic.tfrecord import blocks, checksums, framing, manifests, scanning, shard_owner, shards
from tfmagic.tfrecord.atomic_file import PendingFile, check_local
from tfmagic.tfrecord.errors import ShardDamaged, ShardError
from tfmagic.tfrecord.framing import FOOTER, HEADER
from tfmagic.tfrecord.writing import Compression, RecordFile, ShardWriter, is_packed

_PIECE = 1 << 20


def iterate(paths: shards.Paths | Iterable[shards.Paths]) -> Iterator[bytes]:
    """The records of files, one after the other, without TensorFlow.

    Args:
        paths: As of `verify`.

    Yields:
        The data of each record.

    Raises:
        ShardsMissing: A pattern matches nothing.
        ShardDamaged: A record does not hold; the message names file and offset. Those before it were yielded.
    """
    for path in shards.find_files(paths):
        fd = blocks.open_file(path)
        try:
            yield from _records_of(path, fd)
        finally:
            os.close(fd)


def _records_of(path: Path, fd: int) -> Iterator[bytes]:
    stream = blocks.open_blocks(fd, _detect(path, fd))
    rest, base = b"", 0
    while piece := _read(stream, max(_PIECE, min(_missing(rest), _most(stream, rest)))):
        window = rest + piece
        places, after = scanning.walk(window, 0, len(window))
        if len(places):
            good = checksums.count_lengths(window, places, after)
            bad = checksums.find_damaged(
                window, places[:good], after if good == len(places) else int(places[good])
            )
            good = bad[0] if bad else good
            starts = [*places.tolist(), after]
            for number in range(good):
                yield window[starts[number] + HEADER : starts[number + 1] - FOOTER]
            if good < len(places):
                raise _damaged(path, base + starts[good])
        rest, base = window[after:], base + after
        if len(rest) >= HEADER and framing.length_at(rest, 0) is None:
            raise _damaged(path, base)
    if rest or stream.trouble:
        raise _damaged(path, base)


def _missing(rest: bytes) -> int:
    """How much a record needs that has begun."""
    length = framing.length_at(rest, 0) if len(rest) >= HEADER else None
    return 0 if length is None else length + framing.FRAME - len(rest)


def _most(stream: blocks.Blocks, rest: bytes) -> int:
    """How much is read at once: a length beyond the end is no reason for so much memory."""
    return 8 * len(rest) if stream.size is None else stream.size


def _read(stream: blocks.Blocks, size: int) -> bytes:
    buffer = bytearray(size)
    return bytes(memoryview(buffer)[: stream.read_into(memoryview(buffer))])


def _detect(path: Path, fd: int) -> str:
    packed = blocks.compression_of(os.pread(fd, 64, 0))
    if packed is None:
        raise _damaged(path, 0)
    return packed


def _damaged(path: Path, offset: int) -> ShardDamaged:
    return ShardDamaged(
        f"{path} is damaged at byte {offset:,} of its records. `python -m tfmagic tfrecord verify {path}` "
        "says how, `salvage` saves what is whole"
    )


def merge(
    paths: shards.Paths | Iterable[shards.Paths],
    dst: shards.Paths,
    *,
    compression: Compression = None,
    overwrite: bool = False,
) -> int:
    """The records of many files in one, in the order of the files.

    Args:
        paths: As of `verify`.
        dst: The new file. It appears when it is whole.
        compression: Of the new file: "gzip" or None.
        overwrite: Replace a file of that name.

    Returns:
        How many records there are.

    Raises:
        ShardDamaged: A record does not hold.
        ShardError: A shard of the set is not among the files, or `dst` is one of them.
        ShardExists, ShardWriteError: As of `ShardWriter`. Nothing of `dst` is left in any case.
    """
    packed, files, target = is_packed(compression), shards.find_files(paths), check_local(dst)
    if missing := shards.check_sets(files):
        raise ShardError(f"not among the files: {', '.join(missing[:5])}; a merge would lose it silently")
    manifests.check_runs(files)
    if target.exists() and any(os.path.samefile(path, target) for path in files):
        raise ShardError(f"{target} is one of the files that are merged")
    pending = PendingFile(target, overwrite=overwrite)
    try:
        file = RecordFile(pending, packed)
        for path in files:
            _append(file, path)
        file.place()
    except BaseException:
        pending.discard()
        raise
    return file.records


def _append(file: RecordFile, path: Path) -> None:
    fd = blocks.open_file(path)
    try:
        stream = blocks.open_blocks(fd, _detect(path, fd))
        scan = scanning.scan(stream, keep=lambda frames: file.write_frames(frames, 0))
        if scan.losses or stream.trouble:
            raise _damaged(path, scan.losses[0].start if scan.losses else scan.end)
        file.framed_records += scan.records
    finally:
        os.close(fd)


def split(
    src: shards.Paths,
    path_pattern: shards.Paths,
    *,
    count: int | None = None,
    records: int | None = None,
    compression: Compression = None,
    overwrite: bool = False,
) -> list[Path]:
    """One file (or a set) in shards, in order: so many shards, or so many records in each.

    Args:
        src: As of `verify`.
        path_pattern: The name of the set, as of `ShardWriter`.
        count: How many shards; their sizes differ by one record at the most.
        records: Or: how many records a shard has.
        compression: "gzip" or None.
        overwrite: Replace a former run's shards.

    Returns:
        The shards.

    Raises:
        ShardDamaged: A record does not hold.
        ShardError: There are fewer records than shards.
        ShardExists, ShardWriteError: As of `ShardWriter`. No shard is left in any case.
    """
    if (count is None) == (records is None):
        raise ShardError("say either how many shards (count) or how many records in each (records)")
    limit = records if count is None else count
    if (shard_owner.whole(limit) or 0) < 1:
        raise ShardError(f"the number of shards or records is 1 or more, not {limit!r}")
    files = shards.find_files(src)
    borders: set[int] = set()
    if count is not None:
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
