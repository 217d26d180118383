"""The folder that each task writes to: the user's base, or a temporary folder.

    base ──┬── chief (worker-0 without one), evaluator, no cluster ──→ base
           └── the others ──→ <scratch of the task's process>/<a name for base>

The cluster deletes the scratch folder when the process has ended, also by SIGKILL. Under a multi-worker
strategy TensorFlow needs every task to save, each to a path that it can write, and one task to keep the
result (https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras, `write_filepath`).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

from tfmagic.logdir import owners
from tfmagic.logdir.errors import LogdirError
from tfmagic.logdir.mirrors import Mirror, is_remote, refuse_private
from tfmagic.protocol import task_context
from tfmagic.protocol.task_context import TaskContext
from tfmagic.system import files
from tfmagic.system.arguments import as_path, described

POINTER = "tensorboard.logdir"  # in a run folder: the last base that a task gave to `tensorboard_dir`
_MIRROR_S = 10.0
_A_BASE = "a path or a URL"


class TaskLogdir(str):
    """A path, as a string. `close`, or the end of `with`, cleans up."""

    _temporary: bool = False
    _mirror: Mirror | None = None

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # pickle only the path: the process that made it closes it

    def __enter__(self) -> str:
        return str(self)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Upload the rest to a remote base, delete a temporary folder, let another process write to base."""
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None  # only now: if the upload fails, the next call tries again
        owners.release(self, self)
        if self._temporary:
            shutil.rmtree(self, ignore_errors=True)


def task_logdir(
    base: str | os.PathLike[str],
    *,
    task: TaskContext | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TaskLogdir:
    """Return the folder that this task saves to: `base` for one task, a temporary folder for the others.

    The chief (worker-0 without one), the evaluator, and code outside a cluster get `base`. Other workers and
    ps tasks get a folder that is deleted when they close it, or when their process ends in any way. The same
    base gives the same folder. For a remote base it is a local folder, uploaded every ten seconds and when it
    is closed. A base at gs:// is returned as it is, since TensorFlow writes there by itself.

    Args:
        base: A folder, made if it does not exist; or a URL, such as ``s3://bucket/run``.
        task: The task; by default the one that runs this code.
        storage_options: Options for fsspec, of a remote base.

    Returns:
        The path as a string; ``with task_logdir(base) as path`` cleans up at the end.

    Raises:
        LogdirError: It cannot be written, or the chief of another cluster writes to it.
        DriverError: A package for this kind of URL is missing.
    """
    task, base = _task(task), as_path("base", base, _A_BASE)
    if task is not None and not task.is_chief and task.type != "evaluator":
        path = TaskLogdir(scratch(name_for(base, f"workertemp_{task.index}")))
        path._temporary = True
        return path
    if is_remote(base):
        is_sole = task is not None and task.is_chief
        return _mirrored(base, storage_options, is_sole=is_sole)
    if base.startswith("gs://"):
        return TaskLogdir(base)
    path = TaskLogdir(prepare(base))
    if task is not None and task.is_chief:
        owners.hold(path, path)
    return path


def tensorboard_dir(
    base: str | os.PathLike[str],
    *,
    task: TaskContext | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TaskLogdir:
    """Return the folder for this task's event files: ``base/worker-1``, or `base` itself outside a cluster.

    ``%tfcluster tensorboard`` opens the last base that was given here. Arguments, result and errors are those
    of `task_logdir`.
    """
    task, base = _task(task), as_path("base", base, _A_BASE)
    is_url = is_remote(base) or base.startswith("gs://")
    path = base.rstrip("/") if is_url else local(base)
    if (own := task_context.services().scratch) is not None:
        with contextlib.suppress(OSError):  # the user can still type the folder
            files.replace_text(os.path.join(os.path.dirname(own), POINTER), path, 0o600)
    if task is not None:
        path = os.path.join(path, task.name)
    if is_remote(base):
        return _mirrored(path, storage_options)
    return TaskLogdir(path if is_url else prepare(path))


def _task(task: TaskContext | None) -> TaskContext | None:
    if task is not None and not isinstance(task, TaskContext):
        raise TypeError(
            f"task is what tfmagic.current_task() returns, or None for this task, not {described(task)}"
        )
    return task or this_task()


def this_task() -> TaskContext | None:
    """Return the task that runs this code, None outside a cluster."""
    return task_context.current_task() if task_context.is_task() else None


def prepare(base: str | os.PathLike[str]) -> str:
    """Make a local folder, check that it is writable (else raise `LogdirError`), and return its path."""
    path = local(base)
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".tfmagic-probe-") as probe:
            probe.write(b"x")
    except (FileExistsError, NotADirectoryError) as error:
        raise LogdirError(f"the log folder {path} is a file, or below one; name another folder") from error
    except OSError as error:
        hint = " Free some space." if error.errno in (errno.ENOSPC, errno.EDQUOT) else " Name another folder."
        raise LogdirError(
            f"the log folder {path} cannot be written: {error.strerror}. Nothing was started.{hint}"
        ) from error
    return path


_program: str | None = None  # the scratch folder of a program that is no task


def scratch(name: str) -> str:
    """Make a folder for this process. The cluster, or the end of the program, deletes it."""
    global _program
    parent = task_context.services().scratch
    try:
        if parent is None:
            if _program is None or not os.path.isdir(_program):
                _program = tempfile.mkdtemp(prefix="tfmagic-")
                atexit.register(shutil.rmtree, _program, ignore_errors=True)
            parent = _program
        path = os.path.join(parent, name)
        os.makedirs(path, exist_ok=True, mode=0o700)
    except OSError as error:
        where = parent or tempfile.gettempdir()
        raise LogdirError(f"no temporary folder can be made in {where}: {error.strerror}") from error
    return path


def name_for(base: str | os.PathLike[str], prefix: str) -> str:
    """Return a file name for a base, the same each time."""
    text = os.fspath(base)
    where = text if "://" in text else local(text)
    return f"{prefix}_{hashlib.blake2s(where.encode(), digest_size=6).hexdigest()}"


def local(base: str | os.PathLike[str]) -> str:
    """Return the absolute path of a local base. "~" is the home of the user."""
    path = os.fspath(base)
    if not isinstance(path, str) or not path:
        raise TypeError(f"a log folder is a path or a URL, not {base!r}")
    if re.match(r"(?!file:)[a-z][a-z0-9]+:/(?!/)", path):  # pathlib.Path changes a URL so
        raise LogdirError(
            f"{path} is a URL without one of its slashes, as pathlib.Path leaves it: give the URL as a str "
            f"({path.replace(':/', '://', 1)}), or write ./{path} for a folder of that name"
        )
    path = re.sub("^file:(//|(?=/))", "", path)  # pathlib makes file:/a from file:///a
    return os.path.abspath(os.path.expanduser(path))


def _mirrored(url: str, storage_options: Mapping[str, Any] | None, *, is_sole: bool = False) -> TaskLogdir:
    refuse_private(url)
    path = TaskLogdir(scratch(name_for(url, "mirror")))
    path._mirror = Mirror(path, url, every_s=_MIRROR_S, storage_options=storage_options, is_sole=is_sole)
    path._temporary = True
    return path
