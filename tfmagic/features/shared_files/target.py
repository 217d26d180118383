"""The file of a shared writer: written as ``PATH.unfinished``, which gets the name at the end.

    PATH ── copied in mode "a" ──→ PATH.unfinished ── renamed ──→ PATH
                                        └ left by a writer that was killed, or failed ──→ PATH.abandoned

In mode "a" nothing else may write to PATH meanwhile: the copy replaces it. So it is claimed for `guarding`,
and locked as a reader of HDF5 has it: HDF5 refuses writers without the guard, and others can read. Where
locks do not work, or are switched off, a change is seen at the end, and both files stay.

Used by `writer_process` alone.
"""

import contextlib
import os
import shutil
import stat
from typing import Any

from tfmagic.features.shared_files.datasets import CACHE_BYTES
from tfmagic.hdf5 import guarding, unfinished
from tfmagic.hdf5.partnames import UNFINISHED
from tfmagic.system import files


class Target:
    """One file, from its opening to its name."""

    def __init__(self, path: str, mode: str):
        self.path, self.mode, self.unfinished_path = path, mode, path + UNFINISHED
        self._original: int | None = None  # a descriptor of the file that was copied, with its claim
        self._copied: os.stat_result | None = None  # what it was then

    def open(self) -> tuple[Any, str]:
        """Return an `h5py.File` of the unfinished file, and what was kept of a killed writer's, or "".

        Raises OSError or RuntimeError where the file cannot be opened; nothing is left of it.
        """
        try:
            is_old = self._check()
            with guarding.opening(self.unfinished_path):
                aside = self._set_aside()
                file = self._make(is_old)
                guarding.claim(file)  # HDF5's own lock can be switched off
        except BaseException:
            if self._original is not None:
                os.close(self._original)
                self._original = None
            raise
        return file, f"the rows of a writer that was killed are in {aside}" if aside else ""

    def _make(self, is_old: bool) -> Any:
        import h5py

        def open_file() -> Any:
            if self._original is not None:
                shutil.copyfile(self.path, self.unfinished_path)
            how = "w" if self._original is None else "r+"
            file = h5py.File(self.unfinished_path, how, rdcc_nbytes=CACHE_BYTES)
            if is_old:
                _copy_access(self.path, self.unfinished_path)
            return file

        # for this user alone until it has the access of the file that it will replace
        return unfinished.create(self.path, open_file, 0o600 if is_old else 0o666)

    def _check(self) -> bool:
        """Refuse a path that cannot be written; return whether there is a file, claimed in mode "a"."""
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"{self.path} cannot be made: there is no folder {folder}: make it first")
        if os.path.isdir(self.path):
            raise IsADirectoryError(f"{self.path} is a folder")
        if self.mode == "x" and os.path.lexists(self.path):
            raise FileExistsError(f"{self.path} is there already; mode 'w' replaces it, mode 'a' adds to it")
        with guarding.opening(self.path):
            # else the file would be replaced, and its new rows lost
            unfinished.check_target(self.path)
            if (is_old := os.path.exists(self.path)) and self.mode == "a":
                self._claim()
        return is_old

    def _claim(self) -> None:
        import h5py

        if not h5py.is_hdf5(self.path):
            raise OSError(f"{self.path} is no HDF5 file, or a damaged one: nothing can be added to it")
        self._original = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)  # h5py refuses a read-only file, too
        guarding.claim_descriptor(self._original)
        with contextlib.suppress(OSError):  # a file system without locks
            files.try_lock(self._original, shared=True)
        self._copied = os.fstat(self._original)

    def _set_aside(self) -> str:
        """Keep the file of a writer that was killed; return its new name. That of a running one is locked."""
        if not unfinished.exists(self.path):
            return ""
        if not guarding.is_free(self.unfinished_path):
            raise BlockingIOError(
                f"{self.path} is being written by another notebook or script: wait for it, or choose another "
                "name"
            )
        return self.abandon()

    def abandon(self) -> str:
        """Give the unfinished file a name that no file has, and return it."""
        return unfinished.set_aside(self.path)

    def give_name(self) -> None:
        """Let the closed file have the name. Raises OSError where another file is in its place; both stay."""
        if self.mode == "x":
            os.link(self.unfinished_path, self.path)  # fails where such a file was made meanwhile
            os.unlink(self.unfinished_path)
            return
        with guarding.opening(self.path):
            if self._copied is None:
                unfinished.give_name(self.path)
                return
            with contextlib.suppress(FileNotFoundError):  # it was deleted: nothing is lost
                if _version(os.stat(self.path)) != _version(self._copied):
                    raise OSError("another program has changed it since, and its file was left as it is")
            files.replace_durably(self.unfinished_path, self.path)


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _copy_access(source: str, target: str) -> None:
    """Give a file the owner, mode and access lists of another one, as far as this user may."""
    status = os.stat(source)
    with contextlib.suppress(PermissionError):
        os.chown(target, status.st_uid, -1)
    with contextlib.suppress(PermissionError):
        os.chown(target, -1, status.st_gid)
    with contextlib.suppress(PermissionError):  # a file system without modes
        shutil.copystat(source, target)
    if os.stat(target).st_gid != status.st_gid:  # another group gets what everybody has
        mode = stat.S_IMODE(status.st_mode)
        os.chmod(target, mode & ~0o070 | (mode & 0o007) << 3)
