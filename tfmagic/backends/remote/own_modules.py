"""The notebook's own modules on other hosts: a copy of what it can import, as it was when the tasks started.

    kernel: collect() ── PrepareLaunch, as a memory file ──→ agent: Unpacked ── its folders ──→ task: sys.path

All tasks import the copy, those on the notebook's own machine too: a file that is edited later is old for all
of them until they get a new copy.
"""

import io
import os
import secrets
import sysconfig
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfmagic.backends.remote.sent_files import (
    IGNORE_FILE,
    NO_TEXT,
    OWN_FOLDER,
    Found,
    Stamp,
    is_own,
    is_text,
    printable,
    search,
    stamp_of,
)
from tfmagic.errors import LaunchError
from tfmagic.protocol.module_origins import UNPACKED
from tfmagic.system.advice import Step
from tfmagic.system.memory import format_bytes


@dataclass(frozen=True, slots=True)
class OwnModules:
    """Files to send.

    Attributes:
        before: The folders that an import searches before Python's own modules.
        after: Those that it searches last.
        sent: The stamp of each file, by path.
        left_out: Files and folders that stay here, and why.
        too_large: Folders whose data stays here because of the limit, and its size in bytes.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    sent: Mapping[str, Stamp] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    too_large: Mapping[str, int] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(size for _, _, size in self.sent.values())

    def stamp_of(self, file: str) -> Stamp | None:
        """Return the stamp of a file that was sent; zeros for a file that is new; None for any other one."""
        if file in self.sent:
            return self.sent[file]
        is_below = any(file.startswith(f"{folder}{os.sep}") for folder in (*self.before, *self.after))
        stays = any(file == path or file.startswith(f"{path}{os.sep}") for path in self.left_out)
        return (file, 0, 0) if is_below and not stays else None

    def changed(self, now: "OwnModules", names: Iterable[str]) -> dict[str, bytes]:
        """Return the files of these modules, and below them, that are others now, with their content."""
        inner = [name.replace(".", os.sep) for name in names]
        begins = tuple(
            f"{folder}{os.sep}{name}{end}"
            for folder in (*now.before, *now.after)
            for name in inner
            for end in (".", os.sep)
        )
        files = [f for f, stamp in now.sent.items() if f.startswith(begins) and self.sent.get(f) != stamp]
        return {file: content for file in files if (content := _content_of(file)) is not None}

    def pack(self) -> bytes:
        """Return a zip file that has each file by its absolute path; b"" if there is none."""
        contents = [(file, _content_of(file)) for file in sorted(self.sent)]
        return _zip([(file, content) for file, content in contents if content is not None])


def collect(path: Sequence[str], files: Iterable[str], max_bytes: int) -> OwnModules:
    """Return the modules in the folders of an import path, and further files.

    Args:
        path: As `sys.path`.
        files: Files of modules and scripts; what is installed is left out.
        max_bytes: Limit of their size; 0: nothing is sent.

    Raises:
        LaunchError: The modules alone are too large; the message names what is.
    """
    if max_bytes <= 0:
        return OwnModules()
    stdlib = sysconfig.get_path("stdlib")
    folders = [os.path.abspath(entry) for entry in path]
    middle = folders.index(stdlib) if stdlib in folders else len(folders)
    own = [f if is_own(f) and os.path.isdir(f) and is_text(f) else "" for f in folders]
    before, after = (tuple(dict.fromkeys(filter(None, part))) for part in (own[:middle], own[middle:]))
    found = Found()
    for folder in (*before, *after):
        search(folder, found)
        _check_size(found.code, folder, max_bytes)
    found.left_out |= {printable(f): NO_TEXT for f in folders if not is_text(f)}
    further = [os.path.abspath(file) for file in files if file]
    stamps = (stamp_of(file) for file in further if is_own(file) and is_text(file) and file.endswith(".py"))
    found.code |= {stamp[0]: stamp for stamp in stamps if stamp is not None}
    _check_size(found.code, "", max_bytes)
    data, too_large = _fitting(found.data, max_bytes - _size_of(found.code))
    return OwnModules(before, after, {**found.code, **data}, found.left_out, too_large)


def _size_of(stamps: Mapping[str, Stamp]) -> int:
    return sum(size for _, _, size in stamps.values())


def _fitting(data: Mapping[str, Stamp], left_bytes: int) -> tuple[dict[str, Stamp], dict[str, int]]:
    """Return the data that is sent, whole folders and small ones first, and the size of each other folder."""
    sizes: Counter[str] = Counter()
    for file, _, size in data.values():
        sizes[os.path.dirname(file)] += size
    too_large = {}
    for folder, size in reversed(sizes.most_common()):
        if size > left_bytes:
            too_large[folder] = size
        else:
            left_bytes -= size
    return {file: stamp for file, stamp in data.items() if os.path.dirname(file) not in too_large}, too_large


def _check_size(code: Mapping[str, Stamp], folder: str, max_bytes: int) -> None:
    if _size_of(code) <= max_bytes:
        return
    sizes: Counter[str] = Counter()
    for source, _, size in code.values():
        is_inside = source.startswith(f"{folder}{os.sep}")
        first = os.path.relpath(source, folder).split(os.sep)[0] if is_inside else ""
        sizes[os.path.join(folder, first) if first else os.path.dirname(source)] += size
    large = [(name, size) for name, size in sizes.most_common(3) if size > max_bytes // 20]
    largest = ", ".join(f"{name} ({format_bytes(size)})" for name, size in large)
    raise LaunchError(
        f"the notebook's own modules, which hosts of Ray get, are larger than {format_bytes(max_bytes)}: "
        f"most of it is {largest}. {OWN_FOLDER}, or name what is not needed in {IGNORE_FILE}, or send more:  "
        f"{Step('configure', max_module_bytes=4 * max_bytes)}"
    )


def merge(archive: bytes | memoryview, changed: Mapping[str, bytes]) -> bytes:
    """Return an archive with other contents of some files."""
    if not archive:
        return _zip(list(changed.items()))
    with zipfile.ZipFile(io.BytesIO(archive)) as old:
        names = [name for name in old.namelist() if f"{os.sep}{name}" not in changed]
        return _zip([*((name, old.read(name)) for name in names), *changed.items()])


def _zip(contents: Sequence[tuple[str, bytes]]) -> bytes:
    if not contents:
        return b""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        out.comment = secrets.token_bytes(8)  # no host takes a copy for it that a reload has changed since
        for file, content in contents:
            out.writestr(zipfile.ZipInfo(file.lstrip(os.sep)), content, zipfile.ZIP_DEFLATED, 1)
    return archive.getvalue()


def _content_of(file: str) -> bytes | None:
    """Return the content of a file; None where it was removed meanwhile, or is not for us."""
    try:
        return Path(file).read_bytes()
    except OSError:
        return None


class Unpacked:
    """An archive of files on this host.

    Args:
        archive: As `OwnModules.pack` makes it.
        base: The run folder; the files get a new folder in it.
    """

    def __init__(self, archive: bytes, base: Path):
        self.folder = base / f"{UNPACKED}{secrets.token_hex(8)}"
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            files.extractall(self.folder)

    def copy_of(self, path: str) -> str:
        """Return the copy of a folder or file of the notebook's machine, or the path where there is none."""
        copy = f"{self.folder}{path}"
        return copy if os.path.exists(copy) else path

    def script(self, path: str) -> str:
        """Return the file of a script: it is read at once, so this host's own serves if it is the same."""
        copy = self.copy_of(path)
        try:
            return path if Path(path).read_bytes() == Path(copy).read_bytes() else copy
        except OSError:
            return copy
