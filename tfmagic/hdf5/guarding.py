"""The guard of `h5py.File`: a second process that opens a file for writing gets an error.

    h5py.File(path, "w") ──→ opening ──→ busy? ── yes ──→ FileInUseError: who has it, and what to use instead
                                           └──── no ──→ h5py's own File ──→ claim

Tasks have it from their start (`tfmagic.task.program`; TFMAGIC_HDF5_GUARD=0 in their environment switches it
off); elsewhere `guard()` switches it on. It wraps `h5py.File.__init__`: reading costs one more Python call,
opening for writing half a millisecond. It ignores file objects, other drivers than the default one, and all
that is open already. It never waits for another process to close a file, and does not load h5py.
"""

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Self

from tfmagic.hdf5 import claims
from tfmagic.hdf5.errors import FileInUseError

SWITCH = "TFMAGIC_HDF5_GUARD"
_WRITING = ("w", "w-", "x", "a", "r+")
_OFF = ("0", "FALSE", "false", "False")

_WRITE_ADVICE = """HDF5 lets one process write a file. Instead:
  each task its own file    with tfmagic.hdf5.TaskFile({name!r}) as file: ...
                            and then, on one task, tfmagic.hdf5.consolidate({name!r})
  one file for all tasks    tfmagic.hdf5.SharedWriter({name!r}), to which every task can append
  one writer                if tfmagic.current_task().is_chief: ..., and tfmagic.barrier() before others
  read"""
_READ_ADVICE = """No process can read an HDF5 file that is open for writing. Instead:
  wait for its end          close it there, then tfmagic.barrier() on all tasks, then open it
  read while it grows       the writer: h5py.File(path, "w", libver="latest"), make the datasets, then
                            file.swmr_mode = True, and flush; the readers: h5py.File(path, swmr=True)"""

_users = 0  # guards that are on


class Guard:
    """Raises an error where two processes would write one file, in this process from now on.

    It guards `h5py.File` until `switch_off()`, or as ``with guard(): ...``. Tasks of a cluster have it on.
    """

    def __init__(self) -> None:
        self._on = False
        self.switch_on()

    def __enter__(self) -> Self:
        self.switch_on()
        return self

    def __exit__(self, *_: object) -> None:
        self.switch_off()

    def switch_on(self) -> None:
        """Guard `h5py.File` again. A second call changes nothing."""
        global _users
        if self._on:
            return
        self._on, _users = True, _users + 1
        if "h5py" in sys.modules:
            _wrap(sys.modules["h5py"])
        elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())

    def switch_off(self) -> None:
        """Stop guarding `h5py.File`, unless another guard is on."""
        global _users
        if self._on:
            self._on, _users = False, _users - 1


guard = Guard


def begin_task() -> None:
    """Switch the guard on in a task. The task program calls this before any code of the user."""
    if os.environ.get(SWITCH, "1") not in _OFF:
        guard()


class _Finder:
    """Wraps h5py when it is imported, and removes itself."""

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
        open_file = functools.partial(original, self, name, mode, driver, *args, **kwargs)
        is_path = isinstance(name, str | bytes | os.PathLike)
        if not _users or not is_path or driver not in (None, "sec2") or claims.is_opening():
            open_file()
        elif mode in _WRITING:
            open_claimed(self, open_file, os.fsdecode(name), mode, _uses_lock(kwargs.get("locking")))
        else:
            try:
                open_file()
            except BlockingIOError:
                raise FileInUseError(describe_use(os.fsdecode(name), mode)) from None

    initialize.tfmagic_guard = True  # type: ignore[attr-defined]
    return initialize


def _uses_lock(asked: Any) -> bool:
    """Check whether HDF5 would use its own lock. The environment overrides the argument of a call."""
    variable = os.environ.get("HDF5_USE_FILE_LOCKING", "")
    if variable in ("FALSE", "0"):
        return False
    return variable in ("TRUE", "1", "BEST_EFFORT") or asked not in (False, "false")


def open_claimed(
    file: Any, open_file: Callable[[], None], path: str, mode: str, locking: bool = True
) -> None:
    """Let `open_file` open this path for writing as `file`, and claim it.

    Raises FileInUseError where another process has it open; the file is untouched.
    """
    with claims.opening(path):
        if not claims.is_free(path, alone=locking or mode == "w"):
            holders = claims.find_holders(path)
            # HDF5 knows what this process itself has open, and refuses before it truncates
            if all(holder.pid != os.getpid() for holder in holders):
                raise FileInUseError(describe_use(path, mode, holders))
        try:
            open_file()
        except BlockingIOError:
            raise FileInUseError(describe_use(path, mode)) from None
        claim(file)


def claim(file: Any) -> None:
    """Claim the file of an `h5py.File` of the default driver, until it is closed."""
    try:
        handle = file.id.get_vfd_handle()
    except (NotImplementedError, OSError, RuntimeError, ValueError):
        return  # HDF5_DRIVER names one without a descriptor
    if isinstance(handle, int):
        claims.claim(handle)


def describe_use(path: str, mode: str, holders: Sequence[claims.Holder] | None = None) -> str:
    """Return which processes have the file open, and what to do instead of opening it in this mode."""
    if holders is None:
        holders = claims.find_holders(path)
    name = os.path.basename(path)
    others = [holder for holder in holders if holder.pid != os.getpid()]
    writers = [holder for holder in others if holder.writes]
    if writers:
        use = f"{name} is open for writing by {', '.join(map(str, writers[:3]))}"
    elif others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        use = f"{name} is being read by {', '.join(map(str, others[:3]))}{more}"
    else:
        use = f"{name} is open in another process"
    if mode not in _WRITING:
        return f"{use}. It was not opened.\n{_READ_ADVICE}\nThe file: {path}"
    advice = _WRITE_ADVICE.format(name=name)
    return f"{use}. It was not opened, and nothing in it was changed.\n{advice}\nThe file: {path}"
