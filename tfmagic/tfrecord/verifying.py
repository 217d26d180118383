"""Check every record of files, and what manifests know beside that. This module changes nothing.

    files ──→ segments of large files ──→ scans, in threads ──→ joined at record borders ──→ Verification
                                                                   + manifests, processes that write

A large file is cut anywhere. The scan of a segment begins at the first correct header. If the segment before
ends elsewhere (damage at the cut, or records that contain records), the segment is scanned again from there.
Threads "tfmagic-verify" scan; reading and checksums of long data let other threads run. They end with
`verify`.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from tfmagic.system.open_files import find_writers
from tfmagic.tfrecord import manifests, record_stream, shard_owner, shards
from tfmagic.tfrecord.errors import ShardError
from tfmagic.tfrecord.findings import Damage, FileReport, Kind, Verification
from tfmagic.tfrecord.record_stream import RecordStream
from tfmagic.tfrecord.scanning import Scan, Scanner

_SEGMENT = 64 << 20  # bytes of a file that a thread scans at once
_FRESH_S = 10.0  # a file that was changed so recently can still grow: reported, not concluded

_Scanned = tuple[Scan, RecordStream]


def verify(paths: shards.Paths | Iterable[shards.Paths], workers: int | None = None) -> Verification:
    """Check the length and the data of every record, and whether a record or a shard is missing.

    Beside the checksums of the records, shards are compared with their names and manifests: a shard that is
    missing, one with fewer records than were written (which no checksum shows), and one of a former run.
    Compressed files can be verified too.

    Args:
        paths: A glob, a file, a folder, the name of a set as `ShardWriter` takes it; or several of them.
        workers: Number of threads; one for each core by default.

    Returns the findings: `.ok`, `.damages`, a report for each file. Damage raises no exception.

    Raises:
        ShardsMissing: A pattern matches nothing.
        ShardError: `workers` is invalid.
    """
    threads = len(os.sched_getaffinity(0)) if workers is None else shard_owner.at_least(1, "workers", workers)
    started = time.perf_counter()
    files = shards.find_files(paths)
    is_cancelled = threading.Event()
    with ThreadPoolExecutor(threads, "tfmagic-verify") as pool:
        try:
            scans = [
                [pool.submit(scan, path, *segment, is_cancelled) for segment in pairwise(_borders_of(path))]
                for path in files
            ]
            reports = [_report(path, parts) for path, parts in zip(files, scans, strict=True)]
        except BaseException:  # Ctrl-C must not wait for a large compressed file
            is_cancelled.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    reports = _compare_with_manifests(files, reports)
    return Verification(tuple(reports), time.perf_counter() - started)


def _borders_of(path: Path) -> list[int | None]:
    """Return where the segments of a file begin, and None, the end of the last one."""
    size = 0
    with contextlib.suppress(OSError, ShardError):  # the scan meets the same error and reports it
        size = 0 if record_stream.detect(path) else path.stat().st_size  # a compressed file cannot be cut
    return [*range(0, size or 1, _SEGMENT), None]


def scan(
    path: Path,
    start: int | None = 0,
    stop: int | None = None,
    is_cancelled: threading.Event | None = None,
    *,
    is_aligned: bool = False,
) -> _Scanned:
    """Scan the records of a file that begin at or after `start` and before `stop`, in this thread.

    With `is_aligned` a record begins at `start`, as at 0. Raise ShardError if it is no regular file.
    """
    start = start or 0
    with record_stream.open_stream(path, start) as stream:
        scanner = Scanner(stream, start)
        for _ in scanner.records(stop, is_aligned=is_aligned or start == 0):
            if is_cancelled is not None and is_cancelled.is_set():
                raise CancelledError
        return scanner.scan, stream


def _report(path: Path, parts: list[Future[_Scanned]]) -> FileReport:
    try:
        (whole, stream), *others = [part.result() for part in parts]
        for number, (part, _) in enumerate(others, 2):
            stop = number * _SEGMENT if number < len(parts) else None
            if stop is not None and whole.end >= stop:
                continue  # one record, or one hole, covers all of it
            if part.first != whole.end:
                part, _ = scan(path, whole.end, stop, is_aligned=True)
            whole.damages += [replace(damage, record=damage.record + whole.seen) for damage in part.damages]
            whole.records += part.records
            whole.seen += part.seen
            whole.end = part.end
    except (OSError, ShardError) as error:
        return _finding(path, "unreadable", getattr(error, "strerror", None) or str(error))
    return report_scan(whole, stream)


def report_scan(scan: Scan, stream: RecordStream) -> FileReport:
    """Return the finding of a finished scan of a whole file."""
    path, size, packed, damages = stream.path, stream.file_size, stream.compression or "", scan.damages
    report = FileReport(str(path), scan.records, size, packed)
    if size == 0:
        return report.with_damage("empty", "0 bytes: nothing was written, or nothing has arrived")
    if scan.seen == 0 and not packed and damages and damages[0].kind == "length CRC":
        with path.open("rb") as file:
            detail = f"no record in it is intact; it begins with {file.read(8)!r}"
        return replace(report, compression=None).with_damage("not a TFRecord file", detail)
    if stream.trouble is not None:
        reason, place = stream.trouble
        detail = f"{reason}; what follows in the stream cannot be unpacked"
        broken = Damage(report.path, place, size, scan.seen, "compressed stream", detail)
        damages = [damage for damage in damages if damage.kind != "truncated"] + [broken]
    if damages and damages[-1].kind in ("truncated", "compressed stream"):
        damages[-1] = _look_for_writer(path, damages[-1], scan)
    return replace(report, damages=tuple(damages))


def _look_for_writer(path: Path, damage: Damage, scan: Scan) -> Damage:
    """Change the kind to "being written" if a process has the file that ends early open for writing."""
    if damage.kind == "truncated" and damage.end < scan.end:
        return damage
    if writers := find_writers(path):
        pids = " and ".join(map(str, writers))
        each = "two writers of one file lose records" if len(writers) > 1 else "it has not closed it yet"
        return replace(damage, kind="being written", detail=f"by pid {pids}: {each}")
    if path.name.endswith(shards.WRITING):
        return replace(damage, detail="left by a writer that was killed; no process writes it")
    age_s = time.time() - path.stat().st_mtime
    if 0 <= age_s < _FRESH_S:
        more = f"changed {age_s:.0f} s ago: perhaps a process elsewhere still writes or copies it"
        return replace(damage, detail=f"{damage.detail}; {more}" if damage.detail else more)
    return damage


# ---- manifests ------------------------------------------------------------------------------------


def _compare_with_manifests(files: Sequence[Path], reports: list[FileReport]) -> list[FileReport]:
    """Add the findings that no checksum of a record can show."""
    try:
        entries, former = manifests.entries_of(files), manifests.find_former(files)
        # the caller of one file did not ask about the others
        wanted = dict.fromkeys([*shards.check_sets(files), *entries]) if len(files) > 1 else ()
    except ShardError as error:
        return [*reports, _finding(files[0].parent, "count", str(error))]
    pairs = zip(files, reports, strict=True)
    reports = [_compare(report, entries.get(path), former.get(path)) for path, report in pairs]
    gone = "it is not there, and the names or manifests of the others speak of it"
    return [*reports, *(_finding(path, "missing", gone) for path in wanted if not path.exists())]


def _finding(path: Path, kind: Kind, detail: str) -> FileReport:
    return FileReport(str(path), 0, 0, None).with_damage(kind, detail)


def _compare(report: FileReport, entry: manifests.Entry | None, latest: Path | None) -> FileReport:
    """Compare a file with its entry; `latest` is a shard of a later run of its set."""
    if entry is None:
        pass
    elif entry.records == report.records == 0 and report.bytes == entry.bytes:
        report = replace(report, damages=())  # it is meant to be empty
    elif report.records != entry.records:
        detail = f"{entry.records:,} records were written, {report.records:,} are whole"
        report = report.with_damage("count", detail)
    elif report.ok and (report.bytes != entry.bytes or manifests.checksum(Path(report.path)) != entry.crc32c):
        detail = "it is not the file that was written, though every record in it is whole"
        report = report.with_damage("checksum", detail)
    if latest is not None:
        report = report.with_damage("former run", f"{latest.name} is of a later run: {manifests.FORMER}")
    return report
