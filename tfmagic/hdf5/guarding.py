"""At most one process writes an HDF5 file: claims on files, and the guard of `h5py.File` that uses them.

    opening(path)        one opener of this path at a time ── a byte of <state dir>/hdf5.lock ──┐
      is_free(path)      no process has HDF5's own lock (flock) on it, nor a claim of ours      │ milliseconds
      h5py.File(path)    HDF5 opens, truncates, locks                                           │
      claim(file)        a byte range far after the data, locked through HDF5's own descriptor ┘
      ...                the claim ends with that descriptor: at close, or with a killed process

HDF5 truncates in mode "w" before it tries its lock, and takes none with HDF5_USE_FILE_LOCKING=FALSE. So both
locks are checked first, and ours is of another kind (an open file description lock, fcntl(2)), which HDF5
neither sees nor drops. Measured on HDF5 1.14.6. Where the state folder cannot be written, or a file system
has no locks (a line says so), openers are not kept apart; all else holds.

Tasks have the guard from their start (`tfmagic.task.program`; TFMAGIC_HDF5_GUARD=0 in their environment
switches it off); elsewhere `guard()` switches it on. It wraps `h5py.File.__init__`: reading costs one more
Python call, opening for writing half a millisecond. It ignores file objects, other drivers than the default
one, and all that is open already. It never waits for another process to close a file, and does not load h5py.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tfmagic.errors import ClusterSpecError
from tfmagic.hdf5 import patches
from tfmagic.hdf5.errors import FileInUseError, PartError, reason_of
from tfmagic.protocol.cluster_spec import parse_task
from tfmagic.runs.folder import state_dir
from tfmagic.system import files, notices
from tfmagic.system.advice import Step
from tfmagic.system.after_import import change_module
from tfmagic.system.open_files import find_openers, may_write

_CLAIMED_BYTE = 1 << 61  # after any data
_GATE_S = 10.0  # an opening takes milliseconds; a process can be stopped in one
_local = threading.local()  # `inside`: this thread is inside of `opening`

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


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a file open."""

    pid: int
    name: str
    writes: bool

    def __str__(self) -> str:
        return "this process itself" if self.pid == os.getpid() else f"{self.name} (pid {self.pid})"


@contextlib.contextmanager
def opening(path: str) -> Iterator[None]:
    """Keep other processes from opening or renaming this path; raise FileInUseError after 10 s of waiting.

    Who takes two takes that of ``PATH.unfinished`` before that of ``PATH``, and both before any lock of h5py.
    """
    gate, was_inside = None, getattr(_local, "inside", False)
    try:
        with contextlib.suppress(OSError):  # of the folder
            folder = state_dir()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            gate = files.open_regular(folder / "hdf5.lock", os.O_RDWR | os.O_CREAT)
        if gate is not None:
            _enter(gate, path)
        _local.inside = True
        yield
    finally:
        _local.inside = was_inside
        if gate is not None:
            os.close(gate)


def _enter(gate: int, path: str) -> None:
    """Lock the byte of this path in the file of the gate, if its file system has locks."""
    digest = hashlib.blake2b(os.path.realpath(path).encode(errors="surrogateescape"), digest_size=8).digest()
    lock = _lock_of(int.from_bytes(digest) >> 2)
    deadline = time.monotonic() + _GATE_S
    while time.monotonic() < deadline:
        try:
            fcntl.fcntl(gate, fcntl.F_OFD_SETLK, lock)
            return
        except BlockingIOError:
            time.sleep(0.002)  # a wait for a lock of this kind has no limit
        except OSError:
            return
    raise FileInUseError(
        f"{path}: another process has been opening or closing it for {_GATE_S:.0f} s; it might be stopped. "
        f"Look with  {Step('status')}"
    )


def _lock_of(byte: int) -> bytes:
    """Return struct flock of fcntl(2) on 64-bit Linux: type, whence, start, length, pid."""
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, byte, 1, 0)


def is_free(path: str, alone: bool = True) -> bool:
    """Check that no process writes the file, nor, with `alone`, reads it under HDF5's lock."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True  # HDF5 will create it, or report what is wrong
    try:
        with contextlib.suppress(OSError):
            answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock_of(_CLAIMED_BYTE))
            if struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK:
                return False
        return files.try_lock(fd, shared=not alone)
    except OSError as error:
        files.say_no_locks(fd, error)
        return True
    finally:
        os.close(fd)


def find_holders(path: str) -> list[Holder]:
    """Return the processes that have the file open, as far as this user sees them; writers first."""
    openers = find_openers(path)
    found = [Holder(pid, _name_of(str(pid)), may_write(flags)) for pid, flags in openers.items()]
    return sorted(found, key=lambda holder: (not holder.writes, holder.pid))


def _name_of(pid: str) -> str:
    """Return the task that a process is, or belongs to; else its command.

    A task of a cluster is known by its log, to which its standard streams go: it is forked, and shows the
    launcher's environment. Other programs have TF_CONFIG.
    """
    for fd in ("1", "2"):
        with contextlib.suppress(OSError, ClusterSpecError):
            log = Path(os.readlink(f"/proc/{pid}/fd/{fd}"))
            if log.suffix == ".log" and log.parent.parent.name == "runs":
                return parse_task(log.stem).name
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        task = json.loads(dict(item.partition(b"=")[::2] for item in environ)[b"TF_CONFIG"])["task"]
        return f"{task['type']}-{task['index']}"
    with contextlib.suppress(OSError):
        return f"a process {Path(f'/proc/{pid}/comm').read_text().strip()!r}"
    return "a process"


def open_claimed(
    file: Any, open_file: Callable[[], None], path: str, mode: str, locking: bool = True
) -> None:
    """Let `open_file` open this path for writing as `file`, and claim it.

    Raises FileInUseError where another process has it open; the file is untouched.
    """
    with opening(path):
        if not is_free(path, alone=locking or mode == "w"):
            holders = find_holders(path)
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
    # a driver without a descriptor, which HDF5_DRIVER names
    with contextlib.suppress(NotImplementedError, RuntimeError, TypeError, ValueError):
        claim_descriptor(file.id.get_vfd_handle())


def claim_descriptor(fd: int) -> None:
    """Claim the file of a descriptor that can write, until that is closed."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock_of(_CLAIMED_BYTE))
    except OSError as error:
        files.say_no_locks(fd, error)


def describe_use(path: str, mode: str, holders: Sequence[Holder] | None = None) -> str:
    """Return which processes have the file open, and what to do instead of opening it in this mode."""
    holders, name = find_holders(path) if holders is None else holders, os.path.basename(path)
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


@contextlib.contextmanager
def naming_errors(what: str, path: str, mode: str, where: str = "") -> Iterator[None]:
    """Raise FileInUseError or PartError instead of an error of h5py, which does not name the file."""
    try:
        yield
    except (FileInUseError, PartError):
        raise
    except BlockingIOError:
        raise FileInUseError(describe_use(path, mode)) from None
    except OSError as error:
        raise PartError(f"{what}: {reason_of(error)}{where}") from error


# ---- the guard -----------------------------------------------------------------------------------


class Guard:
    """Raises an error where two processes would write one file, in this process from now on.

    It guards `h5py.File` until `switch_off()`, or as ``with guard(): ...``. Tasks of a cluster have it on.
    """

    _on = False

    def __init__(self) -> None:
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
        change_module("h5py", _wrap)

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


def _wrap(h5py: Any) -> None:
    file: Any = getattr(h5py, "File", None)  # a foreign module of this name has none
    if not isinstance(file, type) or hasattr(vars(file)["__init__"], "tfmagic_guard"):
        return
    if lines := patches.TABLE.left_out([patches.GUARD]):
        notices.tell(f"tfmagic: {lines[0]}")
    else:
        type.__setattr__(file, "__init__", _guarded(vars(file)["__init__"]))


def _guarded(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def initialize(
        self: Any, name: Any, mode: str = "r", driver: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        open_file = functools.partial(original, self, name, mode, driver, *args, **kwargs)
        is_path = isinstance(name, str | bytes | os.PathLike)
        if not _users or not is_path or driver not in (None, "sec2") or getattr(_local, "inside", False):
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
