"""Who may write an HDF5 file: asked before HDF5 opens it, and held for as long as it is open.

    opening(path)        one opener of this path at a time ── a byte of <state dir>/hdf5.lock ──┐
      is_free(path)      nobody has it: neither HDF5's own lock (flock) nor a claim of ours     │ milliseconds
      h5py.File(path)    HDF5 opens, truncates, locks                                           │
      claim(fd)          a byte range far behind the data, locked through HDF5's own descriptor ┘
      ...                the claim ends with that descriptor: at close, or with a killed process

HDF5 truncates in mode "w" before it tries its lock, and takes none with HDF5_USE_FILE_LOCKING=FALSE. That is
why both locks are looked at first, and why ours is a lock of another kind (an open file description lock,
fcntl(2)), which HDF5 neither sees nor drops. Measured on HDF5 1.14.6.

Called by `guarding` and `parts`. Where the state folder cannot be written, or a file system has no locks,
openers are not kept apart there, and all else holds.
"""

from __future__ import annotations

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

_FLOCK = "hhqqi4x"  # struct flock of fcntl(2) on 64-bit Linux: type, whence, start, length, pid
_CLAIMED_BYTE = 1 << 61  # behind any data
_GATE_S = 10.0  # an opening takes milliseconds; a stopped process may sit in one
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
    """Whether this thread is inside of `opening`: what it opens there has been looked at."""
    return getattr(_local, "inside", False)


@contextlib.contextmanager
def opening(path: str) -> Iterator[None]:
    """Be the only one, of all processes with this state folder, that opens or renames this path.

    Raises:
        FileInUseError: Somebody else has been at it for ten seconds.
    """
    gate = _enter_gate(path)
    _local.inside = True
    try:
        yield
    finally:
        _local.inside = False
        if gate is not None:
            os.close(gate)


def _enter_gate(path: str) -> int | None:
    """The descriptor that holds the gate; None where there cannot be one."""
    try:
        folder = state_dir()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(folder / "hdf5.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    digest = hashlib.blake2b(os.path.realpath(path).encode(errors="surrogateescape"), digest_size=8).digest()
    lock = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, int.from_bytes(digest) >> 2, 1, 0)
    deadline = time.monotonic() + _GATE_S
    try:
        while True:
            try:
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
                return fd
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise FileInUseError(
                        f"{path}: another process has been opening or closing it for {_GATE_S:.0f} s; it may "
                        "be stopped. Look with  %tfcluster status"
                    ) from None
                time.sleep(0.002)  # a lock of this kind can be waited for, but not with a limit
    except FileInUseError:
        os.close(fd)
        raise
    except OSError:
        os.close(fd)
        return None
    except BaseException:  # Ctrl-C
        os.close(fd)
        raise


def claim(fd: int) -> None:
    """Mark the file of this descriptor, which is open for writing, as being written until it is closed."""
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, _CLAIMED_BYTE, 1, 0))


def is_claimed(path: str) -> bool:
    """Whether a process is writing this file by a claim; False where there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _has_claim(fd)
    finally:
        os.close(fd)


def is_free(path: str, alone: bool = True) -> bool:
    """Whether nobody writes the file, nor, with `alone`, reads it under HDF5's lock."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True  # HDF5 will say what is wrong with it, or create it
    try:
        if _has_claim(fd):
            return False
        return files.try_lock(fd, shared=not alone)
    except OSError:
        return True  # a file system without locks
    finally:
        os.close(fd)


def _has_claim(fd: int) -> bool:
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, _CLAIMED_BYTE, 1, 0)
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
    except OSError:
        return False
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def find_holders(path: str) -> list[Holder]:
    """The processes of this machine that have the file open, as far as this user may look; writers first."""
    openers = find_openers(path)
    found = [Holder(pid, _name_of(str(pid)), may_write(flags)) for pid, flags in openers.items()]
    return sorted(found, key=lambda holder: (not holder.writes, holder.pid))


def _name_of(pid: str) -> str:
    """The task that a process is, or belongs to; else its command.

    A task of ours is forked, and its environment there is that of the launcher: what tells is the log, which
    its standard streams are. Other programs have TF_CONFIG.
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
