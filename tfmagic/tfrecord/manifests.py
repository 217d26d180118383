"""What a task has written, in a file of JSON beside its shards: counts, bytes, checksums.

    {"version": 1, "task": 3, "tasks": 8, "compression": "", "run": "5f0c...",
     "files": [{"name": "train-00003-of-00008.tfrecord", "records": 500, "bytes": 520000, "crc32c": "9a.."}]}

One manifest a task, so that tasks need not wait for each other; who reads a set, reads all of its manifests.
It is written last: where it is, its shards have been complete. What is lost without a trace in a shard (two
writers, a copy that ends at a record's edge) is seen by its count only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfmagic.tfrecord import shards
from tfmagic.tfrecord.atomic_file import PendingFile
from tfmagic.tfrecord.errors import ShardError
from tfmagic.tfrecord.findings import Damage

VERSION = 1
FORMER = (
    "its task has not closed its writer in the latest run, and what it wrote in a former one is still there. "
    "Write the set again on all tasks, with overwrite=True"
)
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One shard. `crc32c` is that of the file's bytes, in hexadecimal digits."""

    name: str
    records: int
    bytes: int
    crc32c: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards of one task.

    `run` is equal for all tasks that have written the set together, and another one the next time. It is ""
    where that is not known, as in manifests of former versions.
    """

    path: str
    task: int
    tasks: int
    compression: str
    files: tuple[Entry, ...]
    run: str = ""

    @property
    def records(self) -> int:
        """Of all its shards."""
        return sum(entry.records for entry in self.files)


def write_manifest(manifest: Manifest) -> PendingFile:
    """Write it beside; who places the result replaces a former one."""
    content = {"version": VERSION, **asdict(manifest)}
    del content["path"]
    pending = PendingFile(Path(manifest.path), overwrite=True)
    pending.write((json.dumps(content, indent=1) + "\n").encode())
    return pending


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file.

    Raises:
        ShardError: It is none.
    """
    try:
        content: Any = json.loads(path.read_bytes())
        if content["version"] != VERSION:
            raise ValueError(f"its version is {content['version']}, this tfmagic knows {VERSION}")
        files = tuple(
            Entry(str(e["name"]), int(e["records"]), int(e["bytes"]), str(e["crc32c"]))
            for e in content["files"]
        )
        task, tasks, run = int(content["task"]), int(content["tasks"]), str(content.get("run", ""))
        return Manifest(str(path), task, tasks, str(content["compression"]), files, run)
    except (ValueError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ShardError(
            f"{path} is no manifest of shards ({what}). Delete it, if the data are good"
        ) from error


def manifests_of(files: Iterable[Path]) -> dict[Path, Manifest]:
    """The manifests that lie beside these shards, by their paths."""
    names = list(filter(None, map(shards.parse_name, files)))
    paths = dict.fromkeys(name.manifest for name in names)
    found = {path: read_manifest(path) for path in paths if path.is_file()}
    for name in names:  # a lone writer's lies beside the first shard, which need not be among these
        path = name.first.manifest
        if name.manifest not in found and path not in found and path.is_file():
            manifest = read_manifest(path)
            if name.path.name in (entry.name for entry in manifest.files):
                found[path] = manifest
    return found


def read_manifests(pattern: shards.Paths) -> tuple[Manifest, ...]:
    """The manifests of a set of shards, in the order of the tasks.

    Args:
        pattern: As of `read_shards`.
    """
    return tuple(manifests_of(shards.find_files(pattern)).values())


def entries_of(files: Iterable[Path]) -> dict[Path, Entry]:
    """What the manifests beside these files say, also of files that are not there."""
    return {
        path.parent / entry.name: entry
        for path, manifest in manifests_of(files).items()
        for entry in manifest.files
    }


def find_former(files: Iterable[Path]) -> dict[Path, Path]:
    """The shards that another run has written than the latest one of their set, each with a shard of that.

    Sets with a task that did not close its writer again keep its former shard. The run that has placed the
    last manifest is the latest. A manifest without a run fits any.
    """
    sets: dict[object, list[Manifest]] = {}
    for path, manifest in manifests_of(files).items():
        first = shards.parse_name(path.parent / manifest.files[0].name) if manifest.files else None
        if first is not None and manifest.run:
            sets.setdefault((first.family, manifest.tasks), []).append(manifest)
    former: dict[Path, Path] = {}
    for members in sets.values():
        latest = max(members, key=lambda manifest: os.stat(manifest.path).st_mtime_ns)
        example = Path(latest.path).parent / latest.files[0].name
        for manifest in members:
            if manifest.run != latest.run:
                former |= {Path(manifest.path).parent / entry.name: example for entry in manifest.files}
    return former


def check_runs(files: Sequence[Path]) -> None:
    """Refuse shards of two runs of writers, although their names fit together.

    Raises:
        ShardError: Names one of each.
    """
    for path, other in find_former(files).items():
        raise ShardError(f"{path} and {other.name} are of different runs: {FORMER}")


def compare_sizes(files: Sequence[Path]) -> list[Damage]:
    """What is missing or has another size than a manifest says. Looks at names and sizes only."""
    found = []
    entries, there = entries_of(files), set(files)
    for path, entry in entries.items():
        if path in there:
            size = os.stat(path).st_size
            if size != entry.bytes:
                found.append(_differs(path, entry, f"it has {size:,} bytes, and {entry.bytes:,}"))
    return found


def _differs(path: Path, entry: Entry, what: str) -> Damage:
    detail = f"{what} when it was written, with {entry.records:,} records"
    return Damage(str(path), 0, 0, 0, "count", detail)


def checksum(path: Path) -> str:
    """The CRC-32C of a file's bytes, as a manifest has it."""
    from crc32c import crc32c

    value, buffer = 0, bytearray(_CHUNK)
    with path.open("rb", buffering=0) as file, memoryview(buffer) as view:
        while count := file.readinto(buffer):
            value = crc32c(view[:count], value)
    return f"{value:08x}"
