"""The names of shards, and which files a pattern means. Reads folders, no file's content.

    train-00003-of-00008.tfrecord                   the shard of task 3 of 8
    train-00003-of-00008-00001-of-00002.tfrecord    the second of two that task 3 has rolled
    train-00003-of-00008.manifest.json              what task 3 has written

So both "of" are true when a name appears, and nobody has to know how many shards the others will have. A
lone writer (task 0 of 1) that rolls numbers its shards as if each were a task's.
"""

from __future__ import annotations

import difflib
import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfmagic.tfrecord.atomic_file import WRITING, check_local
from tfmagic.tfrecord.errors import ShardError, ShardsMissing

MANIFEST = ".manifest.json"
SUFFIX = ".tfrecord"
_SHARD = re.compile(
    r"(?P<stem>.+?)-(?P<index>\d{5,})-of-(?P<count>\d{5,})(-(?P<part>\d{5,})-of-(?P<parts>\d{5,}))?"
    r"(?P<suffix>\.[^/]*)?"
)
_MAGIC = re.compile(r"[*?\[]")

Paths = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class ShardName:
    """A shard's name, taken apart. `part` and `parts` are 0 and 1 where a task has one shard."""

    folder: Path
    stem: str
    suffix: str
    index: int
    count: int
    part: int = 0
    parts: int = 1

    @property
    def path(self) -> Path:
        """The file."""
        more = "" if self.parts == 1 else f"-{self.part:05}-of-{self.parts:05}"
        return self.folder / f"{self.stem}-{self.index:05}-of-{self.count:05}{more}{self.suffix}"

    @property
    def manifest(self) -> Path:
        """The manifest of its task; sets whose names differ by their suffix have their own."""
        more = "" if self.suffix == SUFFIX else self.suffix
        return self.folder / f"{self.stem}-{self.index:05}-of-{self.count:05}{more}{MANIFEST}"

    @property
    def first(self) -> ShardName:
        """The shard beside which the manifest of a lone writer's set lies."""
        return replace(self, index=0)

    @property
    def family(self) -> tuple[Path, str, str]:
        """What all shards of one set share."""
        return self.folder, self.stem, self.suffix


def parse_name(path: Path) -> ShardName | None:
    """The parts of a shard's name; None for another name."""
    found = _SHARD.fullmatch(path.name)
    if found is None or path.name.endswith(MANIFEST):
        return None
    part, parts = int(found["part"] or 0), int(found["parts"] or 1)
    return ShardName(
        path.parent,
        found["stem"],
        found["suffix"] or "",
        int(found["index"]),
        int(found["count"]),
        part,
        parts,
    )


def base_of(pattern: Paths) -> tuple[Path, str, str]:
    """Folder, stem and suffix that a writer's pattern means: "train.tfrecord", "train-*.tfrecord", "train".

    Raises:
        ShardError: It cannot be the name of shards.
    """
    path = check_local(pattern)
    if str(pattern).endswith(("/", os.sep)) or path.name in ("", ".", ".."):
        raise ShardError(f"{pattern}: the name of the shards is missing, as in {path / 'train.tfrecord'}")
    if path.name.startswith("."):
        raise ShardError(f"{path}: a name that begins with a dot is hidden from every pattern")
    stem, suffix = _split(path.name)
    if (found := re.fullmatch(r"(.+?)((-\*|-\?+)(-of-(\*|\?+))?|\*)", stem)) is not None:
        stem = found[1]
    if _MAGIC.search(stem + suffix) or re.search(r"-\d{5}-of-\d{5}$", stem):
        raise ShardError(
            f"{path}: give the name without number, as {path.parent / 'train.tfrecord'}; the shards are then "
            "train-00000-of-00002.tfrecord and so on"
        )
    return path.parent, stem, suffix


def _split(name: str) -> tuple[str, str]:
    """Stem and suffix: "a.b.tfrecord.gz" is a.b and .tfrecord.gz."""
    place = name.find(SUFFIX, 1)
    if place < 0:
        place = name.rfind(".", 1)
    return (name[:place], name[place:]) if place > 0 else (name, SUFFIX)


def relatives(folder: Path, stem: str, suffix: str) -> list[ShardName]:
    """The shards in a folder that have this stem and suffix, in order, whatever their numbers."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    shards = (parse_name(folder / name) for name in names if name.startswith(stem))
    return [shard for shard in shards if shard is not None and shard.family == (folder, stem, suffix)]


# ---- reading --------------------------------------------------------------------------------------


def find_files(patterns: Paths | Iterable[Paths]) -> list[Path]:
    """The files that are meant, sorted, each once: globs, names of files, folders, or names of sets.

    Files that are being written, and manifests, are left out. In a glob ``**`` is any number of folders, as
    for `pathlib`: taken for one, it would leave files out without a word.

    Raises:
        ShardsMissing: One of the patterns matches nothing; what there is of a similar name is listed.
        ShardError: It is a URL.
    """
    given = [patterns] if isinstance(patterns, str | os.PathLike) else list(patterns)
    if not given:
        raise ShardsMissing("no file is given")
    found: dict[str, Path] = {}
    for pattern in given:
        path = check_local(pattern)
        files = sorted(_match(path))
        if not files:
            raise ShardsMissing(_nothing_there(path))
        for file in files:
            found.setdefault(os.path.abspath(file), file)  # a/b and /x/a/b are one file
    return list(found.values())


def _match(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (file for file in path.iterdir() if _is_data(file) and SUFFIX in file.name)
    elif path.exists():
        yield path
    elif matches := glob.glob(str(path), recursive=True):
        yield from (file for name in matches if _is_data(file := Path(name)))
    else:  # the name of a set, as it was given to the writer
        yield from (shard.path for shard in relatives(path.parent, *_split(path.name)))


def _is_data(path: Path) -> bool:
    hidden = path.name.startswith(".") or path.name.endswith((MANIFEST, WRITING))
    if not hidden and path.is_symlink() and not path.exists():
        return True  # a link to nowhere: its records are meant; who opens it says that it is not there
    return not hidden and path.is_file()


def _nothing_there(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir() and not _MAGIC.search(str(folder)):
        return f"nothing matches {path}: there is no folder {folder}"
    names = os.listdir(folder) if folder.is_dir() else []
    written = [name for name in names if name.endswith(WRITING)]
    visible = [name for name in names if not name.startswith(".") and not name.endswith(MANIFEST)]
    plain = _MAGIC.sub("", path.name)
    near = difflib.get_close_matches(plain, visible, 5, 0.4) or sorted(visible)[:5]
    told = f"nothing matches {path}"
    if near:
        told += f"; in {folder} there are: {', '.join(sorted(near))}"
    if being := [name for name in written if fnmatch.fnmatch(name, f".{_split(path.name)[0]}*{WRITING}")]:
        told += f"; being written at this moment, or left by a killed writer: {', '.join(sorted(being)[:5])}"
    return told


def check_sets(files: Sequence[Path]) -> list[str]:
    """What is not right with the shards among the files: sets of several runs, or missing members.

    Returns:
        A sentence for each missing file or set.

    Raises:
        ShardError: Shards of several runs lie beside each other: ``-of-00004`` beside ``-of-00008``.
    """
    families: dict[tuple[Path, str, str], list[ShardName]] = {}
    for shard in filter(None, map(parse_name, files)):
        families.setdefault(shard.family, []).append(shard)
    missing = []
    for members in families.values():
        check_counts(members)
        missing += [str(path) for path in missing_of(members)]
    return missing


def check_counts(members: Sequence[ShardName]) -> None:
    """One set has one count; and one number of parts for each task.

    Raises:
        ShardError: Shards of two runs are mixed.
    """
    first = members[0]
    for other in members:
        alike = other.count == first.count
        if alike and other.index == first.index:
            alike = other.parts == first.parts
        if not alike:
            raise ShardError(
                f"{first.path.name} and {other.path.name} in {first.folder} are of different runs. "
                "Delete the old ones, or give a pattern that matches one set only"
            )
        if other.index >= other.count or other.part >= other.parts:
            raise ShardError(f"{other.path} has a number that cannot be: they are counted from 0")
        if other.index != first.index:
            first = other


def missing_of(members: Sequence[ShardName]) -> list[Path]:
    """The files that the names of a set speak of and that are not among them."""
    first = members[0]
    parts = {shard.index: shard.parts for shard in members}
    there = {(shard.index, shard.part) for shard in members}
    return [
        ShardName(*first.family, index, first.count, part, parts.get(index, 1)).path
        for index in range(first.count)
        for part in range(parts.get(index, 1))
        if (index, part) not in there
    ]
