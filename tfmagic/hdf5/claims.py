"""Claims on HDF5 files: at most one process writes a file. A claim lasts as long as the file is open.

    opening(path)        one opener of this path at a time ── a byte of <state dir>/hdf5.lock ──┐
      is_free(path)      no process has HDF5's own lock (flock) on it, nor a claim of ours      │ milliseconds
      h5py.File(path)    HDF5 opens, truncates, locks                                           │
      claim(fd)          a byte range far behind the data, locked through HDF5's own descriptor ┘
      ...                the claim ends with that descriptor: at close, or with a killed process

HDF5 truncates in mode "w" before it tries its lock, and takes none with HDF5_USE_FILE_LOCKING=FALSE. So both
locks are checked first, and ours is of another kind (an open file description lock, fcntl(2)), which HDF5
neither sees nor drops. Measured on HDF5 1.14.6.

Used by `guarding`, `parts` and the shared writer. Where the state folder cannot be written, or a file system
has no locks, openers are not kept apart; all else holds.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tfmagic.errors import ClusterSpecError
from tfmagic.hdf5.errors import FileInUseError
from tfmagic.protocol.cluster_spec import parse_task
from tfmagic.runs.folder import state_dir
from tfmagic.system import files
from tfmagic.system.open_files import find_openers, may_write

_CLAIMED_BYTE = 1 << 61  # behind any data
_GATE_S = 10.0  # an opening takes milliseconds; a process can be stopped in one
_local = threading.local()


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a file open."""

    pid: int
    name: str
    writes: bool

    def __str__(self) -> str:
        return "this process itself" if self.pid == os.getpid() else f"{self.name} (pid {self.pid})"


def is_opening() -> bool:
    """Return whether this thread is inside of `opening`."""
    return getattr(_local, "inside", False)


@contextlib.contextmanager
def opening(path: str) -> Iterator[None]:
    """Keep other processes from opening or renaming this path; raise FileInUseError after 10 s of waiting."""
    gate = None
    try:
        with contextlib.suppress(OSError):  # of the folder
            folder = state_dir()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            gate = os.open(folder / "hdf5.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if gate is not None:
            _enter(gate, path)
        _local.inside = True
        yield
    finally:
        _local.inside = False
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
        "Look with  %tfcluster status"
    )


def _lock_of(byte: int) -> bytes:
    """Return struct flock of fcntl(2) on 64-bit Linux: type, whence, start, length, pid."""
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, byte, 1, 0)


def claim(fd: int) -> None:
    """Mark the file of this descriptor as being written, until the descriptor is closed."""
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock_of(_CLAIMED_BYTE))


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
    except OSError:
        return True  # a file system without locks
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
            folder, _, name = os.readlink(f"/proc/{pid}/fd/{fd}").rpartition("/")
            if name.endswith(".log") and os.path.basename(os.path.dirname(folder)) == "runs":
                return parse_task(name.removesuffix(".log")).name
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = dict(item.partition(b"=")[::2] for item in file.read().split(b"\0"))
        task = json.loads(variables[b"TF_CONFIG"])["task"]
        return f"{task['type']}-{task['index']}"
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
        return f"a process {file.read().strip()!r}"
    return "a process"
