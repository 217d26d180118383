"""The notebook's own modules on other hosts: the Python files of its import path, without what is installed.

    kernel: collect() ── LaunchTask, as a memory file ──→ agent: Unpacked ── its folders ──→ task: sys.path

Data files are not sent, nor hidden folders, virtual environments, and folders that no import can name. A
host that has the same files at the same place, on a shared file system, uses those.
"""

import functools
import hashlib
import io
import os
import sysconfig
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfmagic.errors import LaunchError
from tfmagic.protocol.module_origins import UNPACKED
from tfmagic.system.advice import Step
from tfmagic.system.memory import format_bytes
from tfmagic.system.own_code import OUR_FOLDER

_INSTALLED = frozenset(("site-packages", "dist-packages", "lib-dynload"))
_NEVER = frozenset(("node_modules", "__pycache__", *_INSTALLED))
_MAX_FOLDERS = 10_000  # a second's walk; a notebook in the root folder has more
_OWN_FOLDER = "Nothing was started. Put the notebook into a folder of its own with the modules that it needs"
_Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class OwnModules:
    """Sources to send.

    Attributes:
        archive: A zip file that has each source by its absolute path; b"" if there is none.
        before: The folders that an import searches before Python's own modules.
        after: Those that it searches last.
    """

    archive: bytes
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def collect(path: Sequence[str], files: Iterable[str], max_bytes: int) -> OwnModules:
    """Return the sources below the folders of an import path, and further files.

    Args:
        path: As `sys.path`.
        files: Files of modules and scripts; what is installed is left out.
        max_bytes: Limit of their size; 0: nothing is sent.

    Raises:
        LaunchError: They are too large; the message names what is.
    """
    if max_bytes <= 0:
        return OwnModules(b"")
    stdlib = sysconfig.get_path("stdlib")
    folders = [os.path.abspath(entry) for entry in path]
    middle = folders.index(stdlib) if stdlib in folders else len(folders)
    own = [folder if _is_own(folder) and os.path.isdir(folder) else "" for folder in folders]
    before, after = (tuple(dict.fromkeys(filter(None, part))) for part in (own[:middle], own[middle:]))
    found: dict[str, tuple[str, int, int]] = {}
    for folder in (*before, *after):
        _add(found, folder, _sources(folder), max_bytes)
    further = [os.path.abspath(file) for file in files if file]
    _add(found, "", (file for file in further if _is_own(file) and file.endswith(".py")), max_bytes)
    return OwnModules(_pack(tuple(sorted(found.values()))), before, after)


def _is_own(path: str) -> bool:
    """Check that a path is not one of what is installed: hosts have that, or another build of it."""
    stdlib = sysconfig.get_path("stdlib")
    parts = set(Path(path).parts)
    return not (parts & _INSTALLED or path.startswith(f"{stdlib}{os.sep}") or path == stdlib)


def _add(found: dict[str, tuple[str, int, int]], folder: str, sources: Iterable[str], max_bytes: int) -> None:
    """Note the sources of one folder, with the time and size of each."""
    for source in sources:
        try:
            known = os.stat(source)
        except OSError:
            continue
        found[source] = source, known.st_mtime_ns, known.st_size
    if sum(size for _, _, size in found.values()) > max_bytes:
        raise LaunchError(_too_large(found, folder, max_bytes))


def _too_large(found: Mapping[str, tuple[str, int, int]], folder: str, max_bytes: int) -> str:
    sizes: Counter[str] = Counter()
    for source, _, size in found.values():
        is_inside = source.startswith(f"{folder}{os.sep}")
        first = os.path.relpath(source, folder).split(os.sep)[0] if is_inside else ""
        sizes[os.path.join(folder, first) if first else os.path.dirname(source)] += size
    large = [(name, size) for name, size in sizes.most_common(3) if size > max_bytes // 20]
    largest = ", ".join(f"{name} ({format_bytes(size)})" for name, size in large)
    return (
        f"the notebook's own modules, which hosts of Ray get, are larger than {format_bytes(max_bytes)}: "
        f"most of it is {largest}. {_OWN_FOLDER}, or send more:  "
        f"{Step('configure', max_module_bytes=4 * max_bytes)}"
    )


def _sources(root: str) -> Iterator[str]:
    """Yield the Python files below a folder that an import can reach."""
    seen, waiting = set[tuple[int, int]](), [root]
    while waiting:
        folder = waiting.pop()
        try:
            known = os.stat(folder)
            entries = list(os.scandir(folder))
        except OSError:
            continue
        if (known.st_dev, known.st_ino) in seen:  # a link to a folder above
            continue
        seen.add((known.st_dev, known.st_ino))
        if len(seen) > _MAX_FOLDERS:
            raise LaunchError(
                f"{root} has more than {_MAX_FOLDERS} folders below it, and hosts of Ray get the notebook's "
                f"own modules. {_OWN_FOLDER}, or send none:  {Step('configure', max_module_bytes=0)}"
            )
        names = {entry.name for entry in entries}
        if folder != root and names & {"pyvenv.cfg", "conda-meta"}:
            continue
        for entry in entries:
            if entry.name.endswith(".py") and entry.is_file():
                yield entry.path
            elif _is_package_name(entry) and entry.is_dir():
                waiting.append(entry.path)


def _is_package_name(entry: os.DirEntry[str]) -> bool:
    """Check whether `import` can reach this folder. tfmagic's own is left out: hosts get it separately."""
    is_ours = f"{entry.path}{os.sep}" == OUR_FOLDER
    return entry.name.isidentifier() and entry.name not in _NEVER and not is_ours


@functools.lru_cache(maxsize=2)
def _pack(sources: _Signature) -> bytes:
    if not sources:
        return b""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        for source, _, _ in sources:
            try:
                content = Path(source).read_bytes()
            except OSError:  # removed meanwhile, or not for us
                continue
            out.writestr(zipfile.ZipInfo(source.lstrip(os.sep)), content, zipfile.ZIP_DEFLATED, 1)
    return archive.getvalue()


class Unpacked:
    """An archive of sources on this host.

    Args:
        archive: As `collect` makes it.
        base: The run folder; the sources get a folder in it, named by what they are.
    """

    def __init__(self, archive: bytes, base: Path):
        self.folder = base / f"{UNPACKED}{hashlib.sha256(archive).hexdigest()[:16]}"
        with zipfile.ZipFile(io.BytesIO(archive)) as sources:
            if not self.folder.exists():
                unfinished = tempfile.mkdtemp(dir=base)
                sources.extractall(unfinished)
                os.rename(unfinished, self.folder)
            self._names = [f"{os.sep}{name}" for name in sources.namelist()]
        self._known: dict[str, str] = {}

    def here(self, path: str) -> str:
        """Return where a folder or file of the notebook's machine is on this host."""
        if path not in self._known:
            inside = [name for name in self._names if name == path or name.startswith(f"{path}{os.sep}")]
            is_same = all(self._is_same(name) for name in inside)
            self._known[path] = path if is_same else f"{self.folder}{path}"
        return self._known[path]

    def _is_same(self, name: str) -> bool:
        try:
            return Path(name).read_bytes() == Path(f"{self.folder}{name}").read_bytes()
        except OSError:
            return False
