"""Let one process at a time write to a folder. Used by `places`, `saving`, and the Keras repairs of `task`.

    <base>/.tfmagic-writer    locked by flock(2) while its owner writes; the text names the owner

Only the lock decides, and the kernel releases it with the process, also after SIGKILL. A file system without
locks (some network ones) cannot be guarded: a line says so. No link is followed: who can write to the folder
could empty a file of the user by it.

Behind a URL there are no locks: see `tfmagic.logdir.mirrors.RemoteClaim`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import uuid
import weakref

from tfmagic.logdir.errors import LogdirError
from tfmagic.protocol import task_context
from tfmagic.system import files
from tfmagic.system.advice import Step

NAME = ".tfmagic-writer"
MIRROR_NAME = ".tfmagic-logdir-writer"  # for `task_logdir`; the same run can save checkpoints there, too

_Holders = weakref.WeakValueDictionary[int, object]  # by id; one that is garbage holds nothing
# locked files, by pid and folder: a fork inherits the table, but owns no lock; whether an owner was killed
_locks: dict[tuple[int, str], tuple[int, _Holders, bool]] = {}


def hold(folder: str, holder: object) -> bool:
    """Let an object of this process write to the folder. Raise `LogdirError` if another process does.

    Several objects can hold it. If an object is garbage before `release`, the lock stays until the next one.
    Return False if this object holds it already.
    """
    key = os.getpid(), os.path.realpath(folder)
    path = os.path.join(key[1], NAME)
    try:
        if key not in _locks:
            fd, was_left = _open_locked(path, folder)
            _locks[key] = fd, weakref.WeakValueDictionary(), was_left
    except LogdirError:
        raise
    except OSError as error:
        raise LogdirError(
            f"{folder} cannot be written: {path}: {error.strerror}. Delete that file, or name another folder"
        ) from error
    holders = _locks[key][1]
    is_new = id(holder) not in holders
    holders[id(holder)] = holder
    return is_new


def follows_killed(folder: str) -> bool:
    """Check whether the owner before this process was killed, and can have left a part of its files."""
    return _locks[os.getpid(), os.path.realpath(folder)][2]


def release(folder: str, holder: object) -> None:
    """Undo the `hold` of this object, if there is one."""
    key = os.getpid(), os.path.realpath(folder)
    fd, holders, _ = _locks.get(key, (-1, weakref.WeakValueDictionary(), False))
    if holders.pop(id(holder), None) is not None and not holders:
        del _locks[key]
        with contextlib.suppress(OSError):  # under the lock, so that it is our own file
            os.unlink(os.path.join(key[1], NAME))
        os.close(fd)


def _open_locked(path: str, folder: str) -> tuple[int, bool]:
    """Return the locked file of this owner, and whether an earlier owner has not deleted its own."""
    was_left = False
    while True:
        try:
            fd, is_ours = files.open_regular(path, os.O_RDWR | os.O_CREAT, 0o644), True
        except PermissionError:  # another user's, who was killed: a file opened to read can be locked
            fd, is_ours = files.open_regular(path), False
        try:
            is_free = files.try_lock(fd)
        except OSError as error:
            is_free = files.say_no_locks(fd, error)
            if not is_free:
                os.close(fd)
                raise
        if not is_free:
            content = os.read(fd, 1000)
            os.close(fd)
            raise LogdirError(
                f"{folder} is being written by {owner_of(content)}, and two writers spoil each other's "
                f"checkpoints. Give this run a folder of its own, or end the other{_how_to_end(content)}"
            )
        is_there, status = files.is_still_at(fd, path), os.fstat(fd)
        was_left |= status.st_size > 0
        if is_there and is_ours and status.st_nlink == 1:
            os.ftruncate(fd, 0)
            os.write(fd, json.dumps(describe()).encode())
            return fd, was_left
        try:
            if is_there:
                os.unlink(path)
        finally:
            os.close(fd)


def describe() -> dict[str, object]:
    """Return the data that names this process to others."""
    task = task_context.current_task().name if task_context.is_task() else ""
    cluster = task_context.services().cluster
    return {"task": task, "cluster": cluster, "pid": os.getpid(), "host": socket.gethostname()}


def owner_of(content: bytes) -> str:
    """Return the name of the process that wrote this content, from the data of `describe`."""
    try:
        owner = json.loads(content)
        return f"{owner['task'] or 'a process'} (pid {owner['pid']} on {owner['host']})"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _how_to_end(content: bytes) -> str:
    """Return the step that ends the owner, as the end of a sentence; "" for what is no task."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return f":  {Step('stop').of(cluster)}" if (cluster := json.loads(content)["cluster"]) else ""
    return ""


_tokens: dict[int, str] = {}


def process_token() -> str:
    """Return the same text for each call in this process, and another one in every other process."""
    return _tokens.setdefault(os.getpid(), uuid.uuid4().hex)  # a fork is another process
