"""The files of the checkpoints of one base: a folder, or a URL with a local folder in front of it.

    save:     TensorFlow ──→ store.folder ── publish ──→ URL
    restore:  store.folder ←── fetch ── URL

Only `tfmagic.logdir.saving` uses it. It imports no TensorFlow.
"""

import contextlib
import glob
import os
import re
import shutil
import uuid
from collections.abc import Iterable

from tfmagic.logdir import owners
from tfmagic.logdir.errors import LogdirError
from tfmagic.logdir.mirrors import Remote, RemoteClaim
from tfmagic.system import files

PREFIX = "ckpt"
NO_INDEX = "has no index: it is being saved, or that was cut short"
_FILE = re.compile(rf"{PREFIX}-(\d+)\.(?:index|data-(\d{{5}})-of-(\d{{5}}))")


class Store:
    """The files of one base. TensorFlow reads and writes in `folder`; for a URL, that is of this process."""

    def __init__(self, folder: str, remote: Remote | None = None):
        self.folder, self._remote = folder, remote
        self._have: set[str] = set()  # files in `folder` that are as those behind the URL
        self._claim: RemoteClaim | None = None

    def __str__(self) -> str:
        return self._remote.url if self._remote else self.folder

    def hold(self) -> None:
        """Become the writer.

        Raises:
            LogdirError: Another process writes there; later, another run has begun to write to the URL since.
        """
        if self._remote is None:
            # else such files can belong to a program without our lock, which saves at this moment
            if owners.hold(self.folder, self) and owners.follows_killed(self.folder):
                found = checkpoint_files(self.names()).values()  # of a killed save: data without an index
                self.remove(name for names in found if not names[-1].endswith(".index") for name in names)
                for path in glob.glob(os.path.join(glob.escape(self.folder), f"{PREFIX}-*_temp")):
                    shutil.rmtree(path, ignore_errors=True)
        elif self._claim is None:
            self._claim = RemoteClaim(self._remote, owners.NAME, uuid.uuid4().hex)
        else:
            self._claim.check(
                ", and two writers spoil each other's checkpoints. Nothing was saved. Give one of them a "
                "folder of its own; or end the other, and run this cell again"
            )

    def let_go(self) -> None:
        """Undo `hold`: a later `hold` begins again. Asks no server, since it can be gone by now."""
        owners.release(self.folder, self)
        self._claim = None

    def names(self) -> dict[str, int]:
        """Return the files and their sizes in bytes."""
        if self._remote:
            return self._remote.names()
        found = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        return found

    def publish(self, names: Iterable[str]) -> None:
        """Keep these files of `folder`, in this order."""
        if self._remote:
            for name in names:
                self._remote.put(os.path.join(self.folder, name), name)
                self._have.add(name)

    def fetch(self, names: Iterable[str]) -> None:
        """Bring these files into `folder`."""
        if self._remote is None:
            return
        sizes = self.names()
        for name in names:
            path = os.path.join(self.folder, name)
            is_here = name in self._have and os.path.exists(path)
            if not is_here or os.path.getsize(path) != sizes.get(name):
                self._remote.get(name, path)
                self._have.add(name)

    def sync(self, names: Iterable[str]) -> None:
        """Force these files to the disk, with their names, if they are on one of this machine."""
        if self._remote is None:
            files.sync(*(os.path.join(self.folder, name) for name in names), self.folder)

    def forget(self) -> None:
        """Fetch all files again, since another process can have replaced them."""
        self._have.clear()

    def remove(self, names: Iterable[str]) -> None:
        """Remove these files, if they are there."""
        names = list(names)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))
        if self._remote:
            self._have.difference_update(names)
            for name in names:
                self._remote.remove(name)

    def write(self, name: str, content: bytes) -> None:
        """Write a small file in one piece."""
        if self._remote:
            self._remote.write(name, content)
            return
        path = os.path.join(self.folder, name)
        try:
            files.replace_text(path, content.decode())
        except OSError as error:
            raise LogdirError(f"{path} cannot be written: {error.strerror}") from error

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, None if there is no such file."""
        if self._remote:
            return self._remote.read(name)
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self.folder, name), "rb") as file:
            return file.read()
        return None


def checkpoint_files(names: Iterable[str]) -> dict[int, list[str]]:
    """Return the files of each checkpoint by its number, the index last, also of incomplete checkpoints."""
    found: dict[int, list[str]] = {}
    for name in sorted(names):  # "data" before "index"
        match = _FILE.fullmatch(name)
        if match:
            found.setdefault(int(match[1]), []).append(name)
    return found


def missing_files(files: Iterable[str]) -> str:
    """Return which file of one checkpoint is missing, by the names of its files; "" if none is."""
    matches = [match for name in files if (match := _FILE.fullmatch(name))]
    if all(match[2] for match in matches):
        return NO_INDEX
    shards = {int(match[2]): int(match[3]) for match in matches if match[2]}
    total = max(shards.values(), default=0)
    lost = [number for number in range(total or 1) if number not in shards]
    return f"lacks data file {lost[0]} of {total or 'any'}" if lost else ""
