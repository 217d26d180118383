"""The names of shards, and which files a pattern means. This module reads folders, no content of files.

    train-00003-of-00008.tfrecord                   the shard of task 3 of 8
    train-00003-of-00008-00001-of-00002.tfrecord    the second of two shards of task 3
    train-00003-of-00008.manifest.json              the manifest of task 3

Both numbers behind "of" are true when a name appears, and no task has to know how many shards the others will
have. A lone writer (task 0 of 1) with several shards numbers them as if each were the shard of a task.
"""

import difflib
import fnmatch
import glob
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfmagic.system.arguments import as_path, as_paths
from tfmagic.tfrecord.errors import ShardError, ShardsMissing

MANIFEST = ".manifest.json"
WRITING = ".writing"  # of a hidden file that is being written
FORMER = ".former"  # of a hidden file that a writer is replacing; a killed writer has left it
SUFFIX = ".tfrecord"
_SHARD = re.compile(
    r"(?P<stem>.+?)-(?P<index>\d{5,})-of-(?P<count>\d{5,})(-(?P<part>\d{5,})-of-(?P<parts>\d{5,}))?"
    r"(?P<suffix>\.[^/]*)?"
)
_MAGIC = re.compile(r"[*?\[]")

Paths = str | os.PathLike[str]


def check_local(path: Paths, name: str = "path") -> Path:
    """Return the path of a local file or folder, an argument of this name. Raise ShardError for a URL."""
    text = as_path(name, path)
    if "://" in text:
        raise ShardError(
            f"{text} is remote: tfmagic.tfrecord works on local folders. Write or read it locally, and copy "
            "it with the tool of that store"
        )
    if not text or "\0" in text:
        raise ShardError(f"{text!r} is no path")
    return Path(text)


@dataclass(frozen=True, slots=True)
class ShardName:
    """The parts of a shard's name. `part` and `parts` are 0 and 1 if a task has one shard."""

    folder: Path
    stem: str
    suffix: str
    index: int
    count: int
    part: int = 0
    parts: int = 1

    @property
    def path(self) -> Path:
        """The path of the shard."""
        more = "" if self.parts == 1 else f"-{self.part:05}-of-{self.parts:05}"
        return self.folder / f"{self.stem}-{self.index:05}-of-{self.count:05}{more}{self.suffix}"

    @property
    def manifest(self) -> Path:
        """The path of its task's manifest; sets whose names differ by their suffix have their own."""
        more = "" if self.suffix == SUFFIX else self.suffix
        return self.folder / f"{self.stem}-{self.index:05}-of-{self.count:05}{more}{MANIFEST}"

    @property
    def family(self) -> tuple[Path, str, str]:
        """Folder, stem and suffix, which all shards of a set share."""
        return self.folder, self.stem, self.suffix


def parse_name(path: Path) -> ShardName | None:
    """Return the parts of a shard's name; None for another name."""
    found = _SHARD.fullmatch(path.name)
    if found is None or path.name.endswith(MANIFEST):
        return None
    index, count = int(found["index"]), int(found["count"])
    part, parts = int(found["part"] or 0), int(found["parts"] or 1)
    return ShardName(path.parent, found["stem"], found["suffix"] or "", index, count, part, parts)


def base_of(pattern: Paths) -> tuple[Path, str, str]:
    """Return folder, stem and suffix of a writer's pattern: "train.tfrecord", "train-*.tfrecord" or "train".

    Raise ShardError if the pattern cannot name shards.
    """
    path = check_local(pattern, "path_pattern")
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
    """Return stem and suffix of a file name: "a.b" and ".tfrecord.gz" of "a.b.tfrecord.gz"."""
    place = name.find(SUFFIX, 1)
    if place < 0:
        place = name.rfind(".", 1)
    return (name[:place], name[place:]) if place > 0 else (name, SUFFIX)


def relatives(folder: Path, stem: str, suffix: str) -> list[ShardName]:
    """Return the shards in a folder with this stem and suffix and any numbers, in order."""
    shards = (parse_name(folder / name) for name in _names_in(folder) if name.startswith(stem))
    return [shard for shard in shards if shard is not None and shard.family == (folder, stem, suffix)]


def hidden(folder: Path, stem: str, suffix: str, ending: str) -> dict[Path, ShardName]:
    """Return the hidden files of a set with this ending, each with the name of its shard, or a manifest's."""
    found = {}
    for name in _names_in(folder):
        if name.startswith(f".{stem}") and name.endswith(ending):
            visible = name[1:].removesuffix(ending)
            if (plain := visible.removesuffix(MANIFEST)) != visible and suffix == SUFFIX:
                plain += SUFFIX
            shard = parse_name(folder / plain)
            if shard is not None and shard.family == (folder, stem, suffix):
                found[folder / name] = shard
    return found


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


# ---- reading --------------------------------------------------------------------------------------


def find_files(patterns: Paths | Iterable[Paths], name: str = "paths") -> list[Path]:
    """Return the files of globs, file names, folders or names of sets: sorted, each once.

    Files that are being written, and manifests, are left out. In a glob ``**`` is any number of folders, as
    in `pathlib`: read as one folder, it would silently leave files out. Raise ShardsMissing if a pattern
    matches nothing, ShardError if it is a URL.
    """
    given = as_paths(name, patterns)
    if not given:
        raise ShardsMissing("no file is given")
    found: dict[str, Path] = {}
    for pattern in given:
        path = check_local(pattern, name)
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
    if path.name.startswith(".") or path.name.endswith((MANIFEST, WRITING)):
        return False
    return path.is_file() or (path.is_symlink() and not path.exists())  # opening a broken link is an error


def _nothing_there(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir() and not _MAGIC.search(str(folder)):
        return f"nothing matches {path}: there is no folder {folder}"
    names, text = os.listdir(folder) if folder.is_dir() else [], f"nothing matches {path}"
    visible = [name for name in names if not name.startswith(".") and not name.endswith(MANIFEST)]
    plain = _MAGIC.sub("", path.name)
    if near := difflib.get_close_matches(plain, visible, 5, 0.4) or sorted(visible)[:5]:
        text += f"; in {folder} there are: {', '.join(sorted(near))}"
    if being := fnmatch.filter(names, f".{_split(path.name)[0]}*{WRITING}"):
        text += f"; being written at this moment, or left by a killed writer: {', '.join(sorted(being)[:5])}"
    return text


def check_sets(files: Sequence[Path]) -> list[Path]:
    """Check that the sets among the files are complete. Return the shards that are not among them.

    Raise ShardError if shards of several runs lie beside each other: ``-of-00004`` beside ``-of-00008``.
    """
    sets: dict[object, list[ShardName]] = defaultdict(list)
    for shard in filter(None, map(parse_name, files)):
        sets[shard.family].append(shard)
    return [path for members in sets.values() for path in _missing_of(members)]


def _missing_of(members: Sequence[ShardName]) -> list[Path]:
    """Return the shards that must exist by the numbers in the names of the others, and are not among them.

    Raise ShardError if a set has several counts, or several numbers of parts for a task.
    """
    first, tasks = members[0], dict[int, ShardName]()  # a shard of each task
    for shard in members:
        other = first if shard.count != first.count else tasks.setdefault(shard.index, shard)
        if (other.count, other.parts) != (shard.count, shard.parts):
            raise ShardError(
                f"{other.path.name} and {shard.path.name} in {shard.folder} are of different runs. "
                "Delete the old ones, or give a pattern that matches one set only"
            )
        if shard.index >= shard.count or shard.part >= shard.parts:
            raise ShardError(f"{shard.path} has a number that cannot be: they are counted from 0")
    wanted = (
        ShardName(*first.family, index, first.count, part, parts)
        for index in range(first.count)
        for parts in [tasks[index].parts if index in tasks else 1]
        for part in range(parts)
    )
    there = set(members)
    return [shard.path for shard in wanted if shard not in there]
