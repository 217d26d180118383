"""Who writes to a folder: one process at a time.

    <base>/.tfmagic-writer    locked by flock(2) as long as the writer writes; its text says who that is

The lock and not the text decides: the kernel drops it with the process, also after SIGKILL. A file system
without locks (some network ones) cannot be guarded, and is let be.

Behind a URL are no locks: there the file of this name says who began last (`stores.RemoteStore.hold`), and
stays. Whether that one still lives cannot be known, and a run that starts again after a kill must get it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import uuid
from dataclasses import dataclass

from tfmagic.logdir.errors import LogdirError
from tfmagic.protocol import task_context
from tfmagic.system import files

NAME = ".tfmagic-writer"
MIRROR_NAME = ".tfmagic-logdir-writer"  # of `task_logdir`; one run may save checkpoints there, too
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(slots=True)
class _Held:
    fd: int
    times: int
    pid: int


_held: dict[str, _Held] = {}


def hold(folder: str) -> None:
    """Be the writer of this folder; may be called again by the same process.

    Raises:
        LogdirError: Another process is.
    """
    key = os.path.realpath(folder)
    held = _held.get(key)
    if held is not None and held.pid == os.getpid():
        held.times += 1
        return
    _held[key] = _Held(_lock(key, folder), 1, os.getpid())


def release(folder: str) -> None:
    """Undo one `hold`."""
    key = os.path.realpath(folder)
    held = _held.get(key)
    if held is None or held.pid != os.getpid():
        return
    held.times -= 1
    if held.times <= 0:
        del _held[key]
        with contextlib.suppress(OSError):  # under the lock: nobody's but ours
            os.unlink(os.path.join(key, NAME))
        os.close(held.fd)


def abandon(folder: str) -> None:
    """Whoever called `hold` is garbage and never released: the lock stays, for the next `release` to end."""
    held = _held.get(os.path.realpath(folder))
    if held is not None and held.pid == os.getpid():
        held.times = max(held.times - 1, 0)


def _lock(key: str, folder: str) -> int:
    path = os.path.join(key, NAME)
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            is_ours = True
        except PermissionError:  # another user's, who was killed: the lock can be had by reading, too
            fd, is_ours = _open_to_read(path, folder), False
        _take(fd, folder)
        if is_ours and files.is_still_at(fd, path):
            os.ftruncate(fd, 0)
            os.write(fd, json.dumps(describe()).encode())
            return fd
        try:
            if not is_ours and files.is_still_at(fd, path):
                os.unlink(path)
        except OSError as error:
            raise _not_ours(path, folder, error) from error
        finally:
            os.close(fd)


def _open_to_read(path: str, folder: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _not_ours(path, folder, error) from error


def _not_ours(path: str, folder: str, error: OSError) -> LogdirError:
    return LogdirError(
        f"{folder} cannot be written: {path}: {error.strerror}. Delete that file, or name another folder"
    )


def _take(fd: int, folder: str) -> None:
    try:
        if files.try_lock(fd):
            return
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return
        os.close(fd)
        raise
    owner = os.read(fd, 1000).decode("utf-8", "replace")
    os.close(fd)
    raise LogdirError(
        f"{folder} is being written by {tell(owner)}, and two writers spoil each other's "
        "checkpoints. Give this run a folder of its own, or end the other:  %tfcluster stop"
    )


_tokens: dict[int, str] = {}


def claim() -> bytes:
    """This process for a file behind a URL: the same each time, and never that of another one."""
    token = _tokens.setdefault(os.getpid(), uuid.uuid4().hex)  # a fork is another process
    return json.dumps({**describe(), "claim": token}).encode()


def describe() -> dict[str, object]:
    """This process, for others to read."""
    task = task_context.current_task().name if task_context.is_task() else ""
    return {"task": task, "pid": os.getpid(), "host": socket.gethostname()}


def tell(text: str) -> str:
    """Who that is, from what `describe` has given."""
    try:
        owner = json.loads(text)
        who = f"{owner['task'] or 'a process'} (pid {owner['pid']} on {owner['host']})"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    return who
