"""Manifests: what a task has written, as JSON beside its shards, and which run of the writers it belongs to.

    {"version": 1, "task": 3, "tasks": 8, "compression": "", "run": "5f0c...",
     "files": [{"name": "train-00003-of-00008.tfrecord", "records": 500, "bytes": 520000, "crc32c": "9a.."}]}

Each task has its own manifest, so that tasks need not wait for each other; a reader of a set reads all of its
manifests. A manifest is written last: where it is, its shards were complete. Only its counts show what is
lost without a trace in a shard (two writers, a copy that ends at the end of a record).
"""

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from tfmagic.protocol import task_context
from tfmagic.tfrecord import framing, shards
from tfmagic.tfrecord.errors import ShardError
from tfmagic.tfrecord.shards import ShardName

VERSION = 1
FORMER = (
    "its task has not closed its writer in the latest run, and what it wrote in a former one is still there. "
    "Write the set again on all tasks, with overwrite=True"
)
_CHUNK = 1 << 20
_closed = Counter[tuple[str, str]]()  # how often this task has closed a set in a cell, call or script


@dataclass(frozen=True, slots=True)
class Entry:
    """One shard. `crc32c` is the CRC-32C of the file's bytes, in hexadecimal digits."""

    name: str
    records: int
    bytes: int
    crc32c: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards of one task.

    `run` is equal for all tasks that have written the set together, and another one the next time. It is ""
    if that is unknown, as in manifests of former versions.
    """

    path: str
    task: int
    tasks: int
    compression: str
    files: tuple[Entry, ...]
    run: str = ""

    @property
    def records(self) -> int:
        """Number of records in all its shards."""
        return sum(entry.records for entry in self.files)

    def encode(self) -> bytes:
        """Return the content of the file."""
        content = {"version": VERSION, **asdict(self)}
        del content["path"]
        return (json.dumps(content, indent=1) + "\n").encode()


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in a file. Raise ShardError if it is none."""
    try:
        content: Any = json.loads(path.read_bytes())
        if content["version"] != VERSION:
            raise ValueError(f"its version is {content['version']}, this tfmagic knows {VERSION}")
        return msgspec.convert({**content, "path": str(path)}, Manifest)
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
        what = f"{path} is no manifest of shards ({type(error).__name__}: {error})"
        raise ShardError(f"{what}. Delete it, if the data are good") from error


def manifests_of(files: Iterable[Path]) -> dict[Path, Manifest]:
    """Return the manifests beside these shards, by their paths."""
    names = list(filter(None, map(shards.parse_name, files)))
    paths = dict.fromkeys(name.manifest for name in names)
    found = {path: read_manifest(path) for path in paths if path.is_file()}
    for name in names:  # the manifest of a lone writer is named as its first shard, which can be missing here
        path = replace(name, index=0).manifest
        if name.manifest not in found and path not in found and path.is_file():
            manifest = read_manifest(path)
            if name.path.name in (entry.name for entry in manifest.files):
                found[path] = manifest
    return found


def read_manifests(pattern: shards.Paths) -> tuple[Manifest, ...]:
    """Return the manifests of a set of shards, in the order of the tasks.

    Args:
        pattern: As for `read_shards`.
    """
    return tuple(manifests_of(shards.find_files(pattern, "pattern")).values())


def entries_of(files: Iterable[Path]) -> dict[Path, Entry]:
    """Return all entries of the manifests beside these files, also those of files that are missing."""
    return {
        path.parent / entry.name: entry
        for path, manifest in manifests_of(files).items()
        for entry in manifest.files
    }


def find_former(files: Iterable[Path]) -> dict[Path, Path]:
    """Return the shards of a former run, each with a shard of the latest run of its set.

    The former shard of a task that did not close its writer again is still in the set. The run that has
    placed the last manifest is the latest. A manifest without a run fits any.
    """
    sets: dict[object, list[Manifest]] = defaultdict(list)
    for path, manifest in manifests_of(files).items():
        first = shards.parse_name(path.parent / manifest.files[0].name) if manifest.files else None
        if first is not None and manifest.run:
            sets[first.family, manifest.tasks].append(manifest)
    former: dict[Path, Path] = {}
    for members in sets.values():
        latest = max(members, key=lambda manifest: os.stat(manifest.path).st_mtime_ns)
        example = Path(latest.path).parent / latest.files[0].name
        for manifest in members:
            if manifest.run != latest.run:
                former |= {Path(manifest.path).parent / entry.name: example for entry in manifest.files}
    return former


def check_runs(files: Sequence[Path]) -> None:
    """Raise ShardError for shards of two runs whose names fit together, also where a writer was killed."""
    for family in dict.fromkeys(shard.family for shard in map(shards.parse_name, files) if shard):
        if left := list(shards.hidden(*family, shards.FORMER)):
            raise ShardError(
                f"{left[0].parent / family[1]}*: a writer is replacing these shards, or was killed in that: "
                "some can be of its run, and some of a former one. Write the set again, with "
                f"overwrite=True. Where all shards are known to be good, delete {left[0].name} and the like"
            )
    for path, other in find_former(files).items():
        raise ShardError(f"{path} and {other.name} are of different runs: {FORMER}")


def checksum(path: Path) -> str:
    """Return the CRC-32C of a file's bytes, as in `Entry`."""
    crc32c, value, buffer = framing.checksum(), 0, bytearray(_CHUNK)
    with path.open("rb", buffering=0) as file, memoryview(buffer) as view:
        while count := file.readinto(buffer):
            value = crc32c(view[:count], value)
    return f"{value:08x}"


# ---- runs -----------------------------------------------------------------------------------------
# The tasks of a cluster run one program, so they close a set equally often, and compute the same id of a run
# without a message. A task that died has closed the set less often: its last shard has another id.


def current_run(name: ShardName) -> str:
    """Return the id of the run that writes this set now; "" if the tasks run no code together."""
    key = _key_of_run(name)
    return hashlib.blake2s(f"{key}{_closed[key]}".encode(), digest_size=8).hexdigest() if key[0] else ""


def end_run(name: ShardName) -> None:
    """Record that this task has closed the set: writing it again in the same cell is another run."""
    _closed[_key_of_run(name)] += 1


def _key_of_run(name: ShardName) -> tuple[str, str]:
    folder, stem, suffix = name.family
    return task_context.services().run_mark(), f"{os.path.realpath(folder)}/{stem}{suffix}"
