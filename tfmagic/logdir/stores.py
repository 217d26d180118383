"""Where checkpoints are kept: a folder, or a URL with a local folder in front of it.

    save:     TensorFlow ──→ store.folder ── publish ──→ URL
    restore:  store.folder ←── fetch ── URL

`tfmagic.logdir.saving` is the only user. Neither imports TensorFlow at its top.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterable
from typing import Protocol

from tfmagic.logdir import owners
from tfmagic.logdir.errors import LogdirError
from tfmagic.logdir.mirrors import Remote
from tfmagic.system import files

PREFIX = "ckpt"
NO_INDEX = "has no index: it is being saved, or that was cut short"
_FILE = re.compile(rf"{PREFIX}-(\d+)\.(?:index|data-(\d{{5}})-of-(\d{{5}}))")


class Store(Protocol):
    """The files of one base."""

    folder: str  # where TensorFlow reads and writes

    def names(self) -> dict[str, int]:
        """The files and their sizes in bytes."""

    def publish(self, names: Iterable[str]) -> None:
        """These files of `folder` are to be kept, in this order."""

    def fetch(self, names: Iterable[str]) -> None:
        """These files are to be in `folder`."""

    def forget(self) -> None:
        """What was fetched before may be another's by now."""

    def remove(self, names: Iterable[str]) -> None:
        """These files are to be gone."""

    def write(self, name: str, text: str) -> None:
        """A small file, in one piece."""

    def read(self, name: str) -> str | None:
        """A small file; None where there is none."""


class LocalStore:
    """A folder."""

    def __init__(self, folder: str):
        self.folder = folder

    def __str__(self) -> str:
        return self.folder

    def names(self) -> dict[str, int]:
        found = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        return found

    def publish(self, names: Iterable[str]) -> None:
        pass

    def fetch(self, names: Iterable[str]) -> None:
        pass

    def forget(self) -> None:
        pass

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, name))

    def write(self, name: str, text: str) -> None:
        path = os.path.join(self.folder, name)
        try:
            files.replace_text(path, text)
        except OSError as error:
            raise LogdirError(f"{path} cannot be written: {error.strerror}") from error

    def read(self, name: str) -> str | None:
        try:
            with open(os.path.join(self.folder, name)) as file:
                return file.read()
        except FileNotFoundError:
            return None


class RemoteStore:
    """A URL; `folder` is this process' own."""

    def __init__(self, remote: Remote, folder: str):
        self.folder = folder
        self._remote = remote
        self._have: set[str] = set()
        self._claim = ""  # what we have written about ourselves

    def __str__(self) -> str:
        return self._remote.url

    def hold(self) -> None:
        """Be the writer; later, see whether we still are.

        Raises:
            LogdirError: Another run has begun to write there since.
        """
        owner = self._remote.read(owners.NAME) if self._claim else None
        if owner is None:
            self._claim = self._claim or json.dumps({**owners.describe(), "claim": uuid.uuid4().hex})
            self._remote.write(owners.NAME, self._claim.encode())
        elif owner.decode("utf-8", "replace") != self._claim:
            who = owners.tell(owner.decode("utf-8", "replace"))
            raise LogdirError(
                f"{who} has begun to write to {self} after this run, and two writers spoil each other's "
                "checkpoints. Nothing was saved. Give one of them a folder of its own; or end the other, and "
                "run this cell again"
            )

    def let_go(self) -> None:
        """Undo `hold`: a later `hold` begins anew. Asks nobody, since the server may be gone by now."""
        self._claim = ""

    def names(self) -> dict[str, int]:
        return self._remote.names()

    def publish(self, names: Iterable[str]) -> None:
        for name in names:
            self._remote.put(os.path.join(self.folder, name), name)
            self._have.add(name)

    def fetch(self, names: Iterable[str]) -> None:
        sizes = self.names()
        for name in names:
            path = os.path.join(self.folder, name)
            is_here = name in self._have and os.path.exists(path)
            if not is_here or os.path.getsize(path) != sizes.get(name):
                self._remote.get(name, path)
                self._have.add(name)

    def forget(self) -> None:
        self._have.clear()

    def remove(self, names: Iterable[str]) -> None:
        names = list(names)
        LocalStore(self.folder).remove(names)
        self._have.difference_update(names)
        for name in names:
            self._remote.remove(name)

    def write(self, name: str, text: str) -> None:
        self._remote.write(name, text.encode())

    def read(self, name: str) -> str | None:
        content = self._remote.read(name)
        return None if content is None else content.decode("utf-8", "replace")


def checkpoint_files(names: Iterable[str]) -> dict[int, list[str]]:
    """The files of each checkpoint by its number, the index last; also of what is no whole one."""
    found: dict[int, list[str]] = {}
    for name in sorted(names):  # "data" before "index"
        match = _FILE.fullmatch(name)
        if match:
            found.setdefault(int(match[1]), []).append(name)
    return found


def missing_files(files: Iterable[str]) -> str:
    """What these files of one checkpoint lack by their names; "" if nothing."""
    shards: set[int] = set()
    total = 0
    has_index = False
    for name in files:
        match = _FILE.fullmatch(name)
        assert match is not None  # from `checkpoint_files`
        if match[2] is None:
            has_index = True
        else:
            shards.add(int(match[2]))
            total = max(total, int(match[3]))
    if not has_index:
        return NO_INDEX
    lost = sorted(set(range(total)) - shards)
    if not total or lost:
        return f"lacks data file {lost[0] if lost else 0} of {total or 'any'}"
    return ""
