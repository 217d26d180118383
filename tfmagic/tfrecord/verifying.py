"""Check every record of files, and what manifests know beside that. This module changes nothing.

    files ──→ segments of large files ──→ scans, in threads ──→ joined at record borders ──→ Verification
                                                                   + manifests, processes that write

A large file is cut anywhere. The scan of a segment begins at the first correct header. If the segment before
ends elsewhere (damage at the cut, or records that contain records), the segment is scanned again from there.
Threads "tfmagic-verify" scan; reading and checksums of long data let other threads run. They end with
`verify`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from tfmagic.system.open_files import find_writers
from tfmagic.tfrecord import manifests, record_stream, shard_owner, shards
from tfmagic.tfrecord.atomic_file import WRITING
from tfmagic.tfrecord.errors import ShardError
from tfmagic.tfrecord.findings import Damage, FileReport, Kind, Verification
from tfmagic.tfrecord.record_stream import RecordStream
from tfmagic.tfrecord.scanning import Scan, Scanner

_SEGMENT = 64 << 20  # bytes of a file that a thread scans at once
_FRESH_S = 10.0  # a file that was changed so recently can still grow: reported, not concluded


@dataclass(frozen=True, slots=True)
class _Segment:
    """A part of a file: the records that begin at or behind `start` and before `stop`.

    Attributes:
        is_aligned: Whether a record begins at `start`.
    """

    path: Path
    start: int = 0
    stop: int | None = None
    is_aligned: bool = True


_Scanned = tuple[Scan, RecordStream]
_Plan = list[tuple[_Segment, Future[_Scanned]]]


def verify(paths: shards.Paths | Iterable[shards.Paths], workers: int | None = None) -> Verification:
    """Check the length and the data of every record, and whether a record or a shard is missing.

    Beside the checksums of the records, shards are compared with their names and manifests: a shard that is
    missing, one with fewer records than were written (which no checksum shows), and one of a former run.
    Compressed files can be verified too.

    Args:
        paths: A glob, a file, a folder, the name of a set as `ShardWriter` takes it; or several of them.
        workers: Number of threads; one for each core by default.

    Returns:
        The findings: `.ok`, `.damages`, a report for each file. Damage raises no exception.

    Raises:
        ShardsMissing: A pattern matches nothing.
        ShardError: `workers` is invalid.
    """
    if workers is not None and (shard_owner.whole(workers) or 0) < 1:
        raise ShardError(f"workers is a whole number of 1 or more, or None, not {workers!r}")
    started = time.perf_counter()
    files = shards.find_files(paths)
    is_cancelled = threading.Event()
    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0)), "tfmagic-verify") as pool:
        try:
            plans: list[_Plan] = [
                [(segment, pool.submit(_scan, segment, is_cancelled)) for segment in _segments_of(path)]
                for path in files
            ]
            reports = [_report(path, plan) for path, plan in zip(files, plans, strict=True)]
        except BaseException:  # Ctrl-C must not wait for a large compressed file
            is_cancelled.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    reports = _compare_with_manifests(files, reports)
    return Verification(tuple(reports), time.perf_counter() - started)


def _segments_of(path: Path) -> list[_Segment]:
    try:
        size = 0 if record_stream.detect(path) else path.stat().st_size  # a compressed file cannot be cut
    except (OSError, ShardError):  # the scan meets the same error and reports it
        size = 0
    starts = range(0, size or 1, _SEGMENT)
    return [_Segment(path, a, b, a == 0) for a, b in zip(starts, [*starts[1:], None], strict=True)]


def _scan(segment: _Segment, is_cancelled: threading.Event | None = None) -> _Scanned:
    with record_stream.open_stream(segment.path, segment.start) as stream:
        scanner = Scanner(stream, segment.start)
        for _ in scanner.records(segment.stop, is_aligned=segment.is_aligned):
            if is_cancelled is not None and is_cancelled.is_set():
                raise CancelledError
        return scanner.scan, stream


def scan_start(path: Path, stop: int | None = None) -> _Scanned:
    """Scan the records of a file that begin before the offset `stop`, in this thread.

    Raises:
        ShardError: It is no regular file.
        OSError: The file cannot be read.
    """
    return _scan(_Segment(path, 0, stop))


def _report(path: Path, plan: _Plan) -> FileReport:
    try:
        scanned = [future.result() for _, future in plan]
        scan = _join([segment for segment, _ in plan], [scan for scan, _ in scanned])
    except (OSError, ShardError) as error:
        text = getattr(error, "strerror", None) or str(error)
        return _finding(path, "unreadable", text)
    return report_scan(scan, scanned[0][1])


def _join(segments: Sequence[_Segment], scans: Sequence[Scan]) -> Scan:
    """Return one scan of a file, from the scans of its segments."""
    whole = scans[0]
    for segment, scan in zip(segments[1:], scans[1:], strict=True):
        if segment.stop is not None and whole.end >= segment.stop:
            continue  # one record, or one hole, covers all of it
        if scan.first != whole.end:
            scan, _ = _scan(replace(segment, start=whole.end, is_aligned=True))
        whole.damages += [replace(damage, record=damage.record + whole.seen) for damage in scan.damages]
        whole.records, whole.seen, whole.end = whole.records + scan.records, whole.seen + scan.seen, scan.end
    return whole


def report_scan(scan: Scan, stream: RecordStream) -> FileReport:
    """Return what a finished scan of a whole file means."""
    path, size, packed = stream.path, stream.file_size, stream.compression or ""
    name, damages = str(path), scan.damages
    if size == 0:
        detail = "0 bytes: nothing was written, or nothing has arrived"
        return FileReport(name, 0, 0, "", (Damage(name, 0, 0, 0, "empty", detail),))
    if scan.seen == 0 and not packed and damages and damages[0].kind == "length CRC":
        with path.open("rb") as file:
            detail = f"no record in it is intact; it begins with {file.read(8)!r}"
        what = Damage(name, 0, size, 0, "not a TFRecord file", detail)
        return FileReport(name, 0, size, None, (what,))
    if stream.trouble is not None:
        reason, place = stream.trouble
        detail = f"{reason}; what lies behind it in the stream cannot be unpacked"
        broken = Damage(name, place, size, scan.seen, "compressed stream", detail)
        damages = [damage for damage in damages if damage.kind != "truncated"] + [broken]
    if damages and damages[-1].kind in ("truncated", "compressed stream"):
        damages[-1] = _look_for_writer(path, damages[-1], scan)
    return FileReport(name, scan.records, size, packed, tuple(damages))


def _look_for_writer(path: Path, damage: Damage, scan: Scan) -> Damage:
    """Change the kind to "being written" if a process has the file that ends early open for writing."""
    if damage.kind == "truncated" and damage.end < scan.end:
        return damage
    if writers := find_writers(path):
        pids = " and ".join(map(str, writers))
        each = "two writers of one file lose records" if len(writers) > 1 else "it has not closed it yet"
        return replace(damage, kind="being written", detail=f"by pid {pids}: {each}")
    if path.name.endswith(WRITING):
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
        missing = shards.check_sets(files) if len(files) > 1 else []
    except ShardError as error:
        return [*reports, _finding(files[0].parent, "count", str(error))]
    missing = [path for path in missing if not path.exists()]  # the caller did not ask about the others
    reports = [_compare(report, entries.get(Path(report.path))) for report in reports]
    reports = [_compare_run(report, former.get(Path(report.path))) for report in reports]
    if len(files) > 1:
        missing += [path for path in entries if not path.exists() and path not in missing]
    gone = "it is not there, and the names or manifests of the others speak of it"
    return [*reports, *(_finding(path, "missing", gone) for path in missing)]


def _finding(path: Path, kind: Kind, detail: str) -> FileReport:
    return FileReport(str(path), 0, 0, None, (Damage(str(path), 0, 0, 0, kind, detail),))


def _compare_run(report: FileReport, latest: Path | None) -> FileReport:
    if latest is None:
        return report
    return report.with_damage("former run", f"{latest.name} is of a later run: {manifests.FORMER}")


def _compare(report: FileReport, entry: manifests.Entry | None) -> FileReport:
    if entry is None:
        return report
    if entry.records == report.records == 0 and report.bytes == entry.bytes:
        return replace(report, damages=())  # it is meant to be empty
    if report.records != entry.records:
        detail = f"{entry.records:,} records were written, {report.records:,} are whole"
        return report.with_damage("count", detail)
    if report.ok and (report.bytes != entry.bytes or manifests.checksum(Path(report.path)) != entry.crc32c):
        detail = "it is not the file that was written, though every record in it is whole"
        return report.with_damage("checksum", detail)
    return report
