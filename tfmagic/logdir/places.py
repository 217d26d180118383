"""Which folder a task writes to.

    base ──┬── chief (worker-0 without one), evaluator, no cluster ──→ base
           └── the others ──→ <scratch of the task's process>/<a name for base>

The scratch folder belongs to the cluster, which deletes it when the process has ended, also by SIGKILL.
TensorFlow wants every task of a multi-worker strategy to save, each to a path that it can write, and one to
keep (https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras, `write_filepath`).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import os
import re
import shutil
import sys
import tempfile
import weakref
from collections.abc import Mapping
from typing import Any

from tfmagic.logdir import owners
from tfmagic.logdir.errors import LogdirError
from tfmagic.logdir.mirrors import Mirror, is_remote, refuse_private
from tfmagic.protocol import task_context
from tfmagic.protocol.task_context import TaskContext
from tfmagic.system import files

POINTER = "tensorboard.logdir"  # in a run folder: the last base that a task of it gave to `tensorboard_dir`
_MIRROR_S = 10.0


class TaskLogdir(str):
    """A path, as any string; `with` cleans up at the end, so does `close`."""

    _temporary: bool = False
    _owned: weakref.finalize[..., TaskLogdir] | None = None
    _mirror: Mirror | None = None

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # what travels is the path: whoever made it closes it

    def __enter__(self) -> str:
        return str(self)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Upload what is left for a remote base; delete a temporary place; let another write to base."""
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None  # not before: what could not be uploaded stays, for another try
        if self._owned is not None and self._owned.detach():
            owners.release(self)
        if self._temporary:
            shutil.rmtree(self, ignore_errors=True)


def task_logdir(
    base: str | os.PathLike[str],
    *,
    task: TaskContext | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TaskLogdir:
    """The folder that this task saves to: `base` for the one that keeps, a temporary one for the others.

    The chief (worker-0 without one), the evaluator, and code outside a cluster get `base`; other workers and
    ps tasks a folder that is deleted when they close it, or when their process ends in any way. The same base
    gives the same folder. A remote base is a local folder, uploaded every ten seconds and when it is closed;
    gs:// stays as it is, since TensorFlow writes it by itself.

    Args:
        base: A folder, made if it is not there; or a URL, such as ``s3://bucket/run``.
        task: Whose folder; by default of the task that runs this code.
        storage_options: What fsspec is to know of a remote base.

    Returns:
        The path as a string; ``with task_logdir(base) as path`` cleans up at the end.

    Raises:
        LogdirError: It cannot be written, or the chief of another cluster writes to it.
        DriverError: A package for this kind of URL is missing.
    """
    who = _who(task)
    if not keeps(who):
        return _temporary(base, who)
    if is_remote(base):
        is_sole = who is not None and who.is_chief
        return _mirrored(os.fspath(base), storage_options, is_sole=is_sole)
    if os.fspath(base).startswith("gs://"):
        return TaskLogdir(base)
    path = TaskLogdir(prepare(base))
    if who is not None and who.is_chief:
        owners.hold(path)
        path._owned = weakref.finalize(path, owners.abandon, str(path))
    return path


def tensorboard_dir(
    base: str | os.PathLike[str],
    *,
    task: TaskContext | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TaskLogdir:
    """A folder for this task's event files: ``base/worker-1``; `base` itself outside a cluster.

    ``%tfcluster tensorboard`` opens the last base that was given here. Arguments, result and errors are those
    of `task_logdir`.
    """
    who = _who(task)
    if is_remote(base):
        url = os.fspath(base).rstrip("/")
        _note_base(url)
        return _mirrored(url if who is None else f"{url}/{who.name}", storage_options)
    if os.fspath(base).startswith("gs://"):
        url = os.fspath(base).rstrip("/")
        _note_base(url)
        return TaskLogdir(url if who is None else f"{url}/{who.name}")
    path = local(base)
    _note_base(path)
    return TaskLogdir(prepare(path if who is None else os.path.join(path, who.name)))


def keeps(task: TaskContext | None) -> bool:
    """Whether what this task writes, or reads, is `base` itself."""
    return task is None or task.is_chief or task.type == "evaluator"


def prepare(base: str | os.PathLike[str]) -> str:
    """The absolute path of a local folder, made and proved to be writable.

    Raises:
        LogdirError: It is a file, or cannot be written.
    """
    path = local(base)
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".tfmagic-probe-") as probe:
            probe.write(b"x")
    except (FileExistsError, NotADirectoryError) as error:
        raise LogdirError(
            f"the log folder {path} is a file, or lies below one; name another folder"
        ) from error
    except OSError as error:
        hint = " Free some space." if error.errno in (errno.ENOSPC, errno.EDQUOT) else " Name another folder."
        raise LogdirError(
            f"the log folder {path} cannot be written: {error.strerror}. Nothing was started.{hint}"
        ) from error
    return path


def scratch(name: str) -> str:
    """A folder of this process, deleted with it: by the cluster, or at the end of the program.

    Raises:
        LogdirError: It cannot be made.
    """
    mine = task_context.scratch_dir()
    try:
        if mine is None:
            return _scratch_of_program(name)
        path = os.path.join(mine, name)
        os.makedirs(path, exist_ok=True, mode=0o700)
    except OSError as error:
        raise LogdirError(f"no temporary folder can be made in {mine}: {error.strerror}") from error
    return path


_program: str | None = None


def _scratch_of_program(name: str) -> str:
    global _program
    if _program is None or not os.path.isdir(_program):
        _program = tempfile.mkdtemp(prefix="tfmagic-")
        atexit.register(shutil.rmtree, _program, ignore_errors=True)
    path = os.path.join(_program, name)
    os.makedirs(path, exist_ok=True)
    return path


def name_for(base: str | os.PathLike[str], prefix: str) -> str:
    """A file name for a base, the same each time."""
    text = os.fspath(base)
    where = text if "://" in text else local(text)
    return f"{prefix}_{hashlib.blake2s(where.encode(), digest_size=6).hexdigest()}"


def _who(task: TaskContext | None) -> TaskContext | None:
    return task if task is not None else task_context.current_task() if task_context.is_task() else None


def local(base: str | os.PathLike[str]) -> str:
    """The absolute path of a local base. "~" is your home: a folder of that name is nobody's wish."""
    path = os.fspath(base)
    if not isinstance(path, str) or not path:
        raise TypeError(f"a log folder is a path or a URL, not {base!r}")
    if re.match(r"(?!file:)[a-z][a-z0-9]+:/(?!/)", path):  # what pathlib.Path makes of a URL
        raise LogdirError(
            f"{path} is a URL without one of its slashes, as pathlib.Path leaves it: give the URL as a str "
            f"({path.replace(':/', '://', 1)}), or write ./{path} for a folder of that name"
        )
    path = re.sub("^file:(//|(?=/))", "", path)  # pathlib leaves file:/a of file:///a
    return os.path.abspath(os.path.expanduser(path))


def _temporary(base: str | os.PathLike[str], task: TaskContext | None) -> TaskLogdir:
    assert task is not None  # without a cluster it is `base`
    path = TaskLogdir(scratch(name_for(base, f"workertemp_{task.index}")))
    path._temporary = True
    return path


def _mirrored(url: str, storage_options: Mapping[str, Any] | None, *, is_sole: bool = False) -> TaskLogdir:
    refuse_private(url)
    path = TaskLogdir(scratch(name_for(url, "mirror")))
    path._mirror = Mirror(path, url, every_s=_MIRROR_S, storage_options=storage_options, is_sole=is_sole)
    path._temporary = True
    return path


def _note_base(base: str) -> None:
    """Leave word for `%tfcluster tensorboard`. What cannot be noted can still be typed."""
    mine = task_context.scratch_dir()
    if mine is None:
        return
    with contextlib.suppress(OSError):
        files.replace_text(os.path.join(os.path.dirname(mine), POINTER), base, 0o600)


def say(message: str) -> None:
    """A line to whoever reads this task's output."""
    print(f"tfmagic: {message}", file=sys.stderr, flush=True)
