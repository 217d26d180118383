"""Every record's checksums, files side by side, and what manifests say besides. Changes nothing.

    files ──→ segments of large ones ──→ scans, in processes ──→ joined at record borders ──→ Verification
                                                                     + manifests, writers at work

Large files are cut anywhere; the scan of a part begins at the first header that holds. Where the part before
ends elsewhere (damage at the cut, or records that contain records), it is looked at again from there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tfmagic.system.open_files import find_writers
from tfmagic.tfrecord import blocks, manifests, shard_owner, shards
from tfmagic.tfrecord.atomic_file import WRITING
from tfmagic.tfrecord.errors import ShardError
from tfmagic.tfrecord.findings import Damage, FileReport, Verification
from tfmagic.tfrecord.scan_workers import Looked, ScanWorkers, Segment
from tfmagic.tfrecord.scanning import Scan

_SEGMENT = 64 << 20  # bytes of a file for one process at a time
_ALONE = 1 << 30  # bytes that this process looks at until another one is of use: a second, measured
_FRESH_S = 10.0  # a file that was changed within may still grow: said, not concluded

Look = Callable[[Sequence[Segment]], list[Looked]]


def verify(paths: shards.Paths | Iterable[shards.Paths], workers: int | None = None) -> Verification:
    """Look at every record of files: is its length whole, are its data, is anything missing?

    Beside each record's checksums, shards are held against their names and manifests: a shard that is not
    there, one with fewer records than were written, which no checksum tells, and one of a former run.
    Compressed files too.

    Args:
        paths: A glob, a file, a folder, the name of a set as `ShardWriter` takes it; or several of them.
        workers: How many processes do it; by default one a core, or below 1 GiB as many threads of this one.

    Returns:
        The findings: `.ok`, `.damages`, a report for each file; damage is no exception.

    Raises:
        ShardsMissing: A pattern matches nothing.
        ShardError: `workers` makes no sense.
    """
    if workers is not None and (shard_owner.whole(workers) or 0) < 1:
        raise ShardError(f"workers is a whole number of 1 or more, or None, not {workers!r}")
    started = time.perf_counter()
    files = shards.find_files(paths)
    plans = {path: _plan(path) for path in files}
    units = [segment for plan in plans.values() if isinstance(plan, list) for segment in plan]
    with ScanWorkers(*_count_lookers(units, workers)) as lookers:
        look = lookers.look
        found = iter(_look_each(look, units))
        reports = []
        for path, plan in plans.items():
            if isinstance(plan, FileReport):
                reports.append(plan)
            else:
                reports.append(_report(path, plan, [next(found) for _ in plan], look))
    reports = _hold_against_manifests(files, reports)
    return Verification(tuple(reports), time.perf_counter() - started)


def _count_lookers(units: Sequence[Segment], workers: int | None) -> tuple[int, int]:
    """How many processes, and how many threads of this one."""
    if workers is not None:
        return min(workers, len(units)), 1
    cores = len(os.sched_getaffinity(0))
    total = sum(os.path.getsize(path) for path in {unit.path for unit in units} if os.path.exists(path))
    return (1, cores) if total < _ALONE else (min(cores, len(units)), 1)


def _plan(path: Path) -> list[Segment] | FileReport:
    """The segments of a file; or the report, if there is nothing to look at."""
    try:
        size = path.stat().st_size
        packed = blocks.detect(path)
    except (OSError, ShardError) as error:
        return _unreadable(path, error)
    if size == 0:
        nothing = Damage(str(path), 0, 0, 0, "empty", "0 bytes: nothing was written, or nothing has arrived")
        return FileReport(str(path), 0, 0, "", (nothing,))
    if packed:
        return [Segment(str(path), packed)]
    starts = range(0, size, _SEGMENT)
    stops = [*starts[1:], None]
    return [Segment(str(path), "", a, b, a == 0) for a, b in zip(starts, stops, strict=True)]


def _unreadable(path: Path, error: Exception) -> FileReport:
    text = getattr(error, "strerror", None) or str(error)
    return FileReport(str(path), 0, 0, None, (Damage(str(path), 0, 0, 0, "unreadable", text),))


def _look_each(look: Look, units: Sequence[Segment]) -> list[Looked | OSError]:
    """A file that vanishes or cannot be read meanwhile is a finding of its own."""
    try:
        return list(look(units))
    except OSError:
        pass
    found: list[Looked | OSError] = []
    for unit in units:
        try:
            found += look([unit])
        except OSError as error:
            found.append(error)
    return found


def _report(path: Path, plan: Sequence[Segment], found: Sequence[Looked | OSError], look: Look) -> FileReport:
    looked = []
    for item in found:
        if isinstance(item, OSError):
            return _unreadable(path, item)
        looked.append(item)
    try:
        scan = _join(plan, looked, look)
    except OSError as error:
        return _unreadable(path, error)
    return judge(path, plan[0].compression, looked[0].size, scan, looked[0].trouble)


def _join(plan: Sequence[Segment], looked: Sequence[Looked], look: Look) -> Scan:
    """One scan of those of a file's segments."""
    whole = looked[0].scan
    for segment, item in zip(plan[1:], looked[1:], strict=True):
        part = item.scan
        if segment.stop is not None and whole.end >= segment.stop:
            continue  # one record, or one hole, covers all of it
        if part.first != whole.end:
            (again,) = look([replace(segment, start=whole.end, aligned=True)])
            part = again.scan
        whole.losses += [replace(loss, record=loss.record + whole.seen) for loss in part.losses]
        whole.records, whole.seen, whole.end = (
            whole.records + part.records,
            whole.seen + part.seen,
            part.end,
        )
    return whole


def judge(path: Path, packed: str, size: int, scan: Scan, trouble: tuple[str, int] | None) -> FileReport:
    """What a scan means for a file."""
    name, losses = str(path), scan.losses
    if scan.seen == 0 and not packed and losses and losses[0].kind == "length CRC":
        what = Damage(name, 0, size, 0, "not a TFRecord file", _foreign(path))
        return FileReport(name, 0, size, None, (what,))
    damages = [Damage(name, loss.start, loss.end, loss.record, loss.kind, loss.detail) for loss in losses]
    if trouble is not None:
        text, place = trouble
        detail = f"{text}; what lies behind it in the stream cannot be unpacked"
        broken = Damage(name, place, size, scan.seen, "compressed stream", detail)
        damages = [damage for damage in damages if damage.kind != "truncated"] + [broken]
    if damages and damages[-1].kind in ("truncated", "compressed stream"):
        damages[-1] = _look_for_writer(path, damages[-1], scan)
    return FileReport(name, scan.records, size, packed, tuple(damages))


def _foreign(path: Path) -> str:
    fd = blocks.open_file(path)
    try:
        head = os.pread(fd, 8, 0)
    finally:
        os.close(fd)
    return f"no record in it holds; it begins with {head!r}"


def _look_for_writer(path: Path, damage: Damage, scan: Scan) -> Damage:
    """A file that ends too early is one that is being written, if somebody has it open for that."""
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


def _hold_against_manifests(files: Sequence[Path], reports: list[FileReport]) -> list[FileReport]:
    """Add what no checksum of a record can tell."""
    try:
        entries, former = manifests.entries_of(files), manifests.find_former(files)
        missing = shards.check_sets(files) if len(files) > 1 else []
        missing = [path for path in missing if not os.path.exists(path)]  # others were not asked about
    except ShardError as error:
        return [*reports, _finding_of_set(files[0].parent, str(error))]
    reports = [_compare(report, entries.get(Path(report.path))) for report in reports]
    reports = [_compare_run(report, former.get(Path(report.path))) for report in reports]
    if len(files) > 1:
        missing += [str(path) for path in entries if not path.exists() and str(path) not in missing]
    gone = "it is not there, and the names or manifests of the others speak of it"
    return [
        *reports,
        *(FileReport(p, 0, 0, None, (Damage(p, 0, 0, 0, "missing", gone),)) for p in missing),
    ]


def _finding_of_set(folder: Path, text: str) -> FileReport:
    return FileReport(str(folder), 0, 0, None, (Damage(str(folder), 0, 0, 0, "count", text),))


def _compare_run(report: FileReport, latest: Path | None) -> FileReport:
    if latest is None:
        return report
    detail = f"{latest.name} is of a later run: {manifests.FORMER}"
    return report.with_damages(Damage(report.path, 0, report.bytes, report.records, "former run", detail))


def _compare(report: FileReport, entry: manifests.Entry | None) -> FileReport:
    if entry is None:
        return report
    if entry.records == report.records == 0 and report.bytes == entry.bytes:
        return replace(report, damages=())  # it is meant to be empty
    if report.records != entry.records:
        detail = f"{entry.records:,} records were written, {report.records:,} are whole"
        return report.with_damages(Damage(report.path, 0, report.bytes, report.records, "count", detail))
    if report.ok and (report.bytes != entry.bytes or manifests.checksum(Path(report.path)) != entry.crc32c):
        detail = "it is not the file that was written, though every record in it is whole"
        return report.with_damages(Damage(report.path, 0, report.bytes, report.records, "checksum", detail))
    return report
