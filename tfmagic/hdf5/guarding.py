"""The guard before `h5py.File`: two processes that would write one file get an error, and it stays whole.

    h5py.File(path, "w") ──→ opening ──→ busy? ── yes ──→ FileInUseError: who has it, and what to use instead
                                           └──── no ──→ h5py's own File ──→ claim

Tasks have it from their start (`tfmagic.task.program`; TFMAGIC_HDF5_GUARD=0 in their environment leaves it
out); elsewhere `guard()` switches it on. It is `h5py.File.__init__`, wrapped: reading costs one more Python
call, opening for writing half a millisecond. File objects, other drivers than the default one and everything
that is open already are left alone. It never waits for another's file, and loads h5py for nobody.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any, Self

from tfmagic.hdf5 import claims
from tfmagic.hdf5.errors import FileInUseError

SWITCH = "TFMAGIC_HDF5_GUARD"
_WRITING = ("w", "w-", "x", "a", "r+")
_OFF = ("0", "FALSE", "false", "False")

_CURES = """HDF5 lets one process write a file. Instead:
  each task its own file    with tfmagic.hdf5.TaskFile({name!r}) as file: ...
                            and then, on one task, tfmagic.hdf5.consolidate({name!r})
  one file for all tasks    tfmagic.hdf5.SharedWriter({name!r}), to which every task can append
  one writer                if tfmagic.current_task().is_chief: ..., and tfmagic.barrier() before others
  read"""
_READING = """HDF5 lets nobody read a file that is open for writing. Instead:
  wait for its end          close it there, then tfmagic.barrier() on all tasks, then open it
  read while it grows       the writer: h5py.File(path, "w", libver="latest"), make the datasets, then
                            file.swmr_mode = True, and flush; the readers: h5py.File(path, swmr=True)"""


class Guard:
    """The guard's switch, also for a `with` statement."""

    def __init__(self) -> None:
        self._on = False

    def __enter__(self) -> Self:
        self.switch_on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.switch_off()

    def switch_on(self) -> None:
        """Guard `h5py.File` in this process; once more changes nothing."""
        global _users
        if not self._on:
            self._on, _users = True, _users + 1
            _install()

    def switch_off(self) -> None:
        """Leave `h5py.File` as h5py has it, unless somebody else wants it guarded."""
        global _users
        if self._on:
            self._on, _users = False, _users - 1


_users = 0


def guard() -> Guard:
    """Turn the writing of one file by two processes into an error, in this process from now on.

    Returns:
        The switch: `switch_off()`, or as ``with guard(): ...``. Tasks of a cluster have it on.
    """
    switch = Guard()
    switch.switch_on()
    return switch


def begin_task() -> None:
    """Called by the task program before any code of the user."""
    if os.environ.get(SWITCH, "1") not in _OFF:
        guard()


def _install() -> None:
    if "h5py" in sys.modules:
        _wrap(sys.modules["h5py"])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Wraps h5py when it is imported, and is gone then."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name != "h5py":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]  # a finder by its method
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _wrap(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _wrap(h5py: Any) -> None:
    file: Any = getattr(h5py, "File", None)  # a foreign module of this name has none
    if isinstance(file, type) and not hasattr(vars(file)["__init__"], "tfmagic_guard"):
        type.__setattr__(file, "__init__", _guarded(vars(file)["__init__"]))


def _guarded(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def initialize(
        self: Any, name: Any, mode: str = "r", driver: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        is_path = isinstance(name, str | bytes | os.PathLike)
        if not _users or not is_path or driver not in (None, "sec2") or claims.is_opening():
            original(self, name, mode, driver, *args, **kwargs)
        elif mode in _WRITING:
            make = functools.partial(original, self, name, mode, driver, *args, **kwargs)
            open_claimed(self, make, os.fsdecode(name), mode, locks(kwargs.get("locking")))
        else:
            try:
                original(self, name, mode, driver, *args, **kwargs)
            except BlockingIOError:
                raise FileInUseError(describe_use(os.fsdecode(name), mode)) from None

    initialize.tfmagic_guard = True  # type: ignore[attr-defined]
    return initialize


def locks(asked: Any) -> bool:
    """Whether HDF5 would use its own lock. The environment overrides what a call asks for."""
    variable = os.environ.get("HDF5_USE_FILE_LOCKING", "")
    if variable in ("FALSE", "0"):
        return False
    return variable in ("TRUE", "1", "BEST_EFFORT") or asked not in (False, "false")


def open_claimed(file: Any, make: Callable[[], None], path: str, mode: str, locking: bool = True) -> None:
    """Let `make` open this path for writing as `file`, if nobody else has it; then claim it.

    Raises:
        FileInUseError: Another process has it open. Nothing of it was touched.
    """
    with claims.opening(path):
        if not claims.is_free(path, alone=locking or mode == "w"):
            holders = claims.find_holders(path)
            # what this process has open itself, HDF5 knows, and refuses before it truncates
            if all(holder.pid != os.getpid() for holder in holders):
                raise FileInUseError(describe_use(path, mode, holders))
        try:
            make()
        except BlockingIOError:
            raise FileInUseError(describe_use(path, mode)) from None
        claim(file)


def claim(file: Any) -> None:
    """Mark what an `h5py.File` of the default driver writes, until it is closed."""
    try:
        handle = file.id.get_vfd_handle()
    except (NotImplementedError, OSError, RuntimeError, ValueError):
        return  # HDF5_DRIVER names one without a descriptor
    if isinstance(handle, int):
        claims.claim(handle)


def describe_use(path: str, mode: str, holders: Sequence[claims.Holder] | None = None) -> str:
    """Who has the file open, and what to do instead of opening it in this mode."""
    if holders is None:
        holders = claims.find_holders(path)
    name = os.path.basename(path)
    writers = [holder for holder in holders if holder.writes and holder.pid != os.getpid()]
    readers = [holder for holder in holders if not holder.writes and holder.pid != os.getpid()]
    if writers:
        who = f"{name} is open for writing by {', '.join(map(str, writers[:3]))}"
    elif readers:
        more = f" and {len(readers) - 3} more" if len(readers) > 3 else ""
        who = f"{name} is being read by {', '.join(map(str, readers[:3]))}{more}"
    else:
        who = f"{name} is open in another process"
    if mode not in _WRITING:
        return f"{who}. It was not opened.\n{_READING}\nThe file: {path}"
    undone = "It was not opened, and nothing in it was changed."
    return f"{who}. {undone}\n{_CURES.format(name=name)}\nThe file: {path}"
