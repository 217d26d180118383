"""Repair saves of Keras 3 that several tasks make at the same moment.

Read and measured on Keras 3.15.1. Only tasks are repaired, and ``--no-keras-fix`` leaves Keras alone.

1. `model.save`, `save_weights` and `ModelCheckpoint` open the final path for writing. Two tasks that save to
   one path silently damage a ``.keras`` file (7 to 14 of 20), and fail on an ``.h5`` file.
   Here: a task writes another file in the folder, and renames it when it is complete. The last save stays.
   Replicas of a multi-worker strategy save equal files; for other models a line reports the collision.
2. `BackupAndRestore` writes and deletes one folder from every worker. In Keras 2 all but the chief had a
   temporary one. Here: under a multi-worker strategy the chief writes the folder, the others save to a
   scratch folder, and all restore from the chief's. If each task trains a model of its own, a second writer
   of the folder gets an error before it trains.
"""

import contextlib
import functools
import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfmagic.logdir import owners, places
from tfmagic.logdir.errors import LogdirError
from tfmagic.protocol import task_context
from tfmagic.system import files
from tfmagic.system.process_identity import this_boot
from tfmagic.task.tensorflow import notices

_FILE = re.compile(r"\.(keras|h5|hdf5)$")
_NAME_BYTES = 255  # of a file name on Linux
_BACKUP_NOTICE = (
    "tfmagic: BackupAndRestore under a multi-worker strategy: the chief writes {folder}, all restore from it"
)
_SHARED_NOTICE = (
    "tfmagic: several tasks save {name} at the same moment: the last one stays, whole. For a file of "
    "each task put tfmagic.current_task().name into its name; for that of the chief alone save to "
    "tfmagic.logdir.task_logdir(folder)"
)


def _is_multi_worker(model: Any) -> bool:
    """Check whether a model trains under a multi-worker strategy."""
    from keras.src.backend.tensorflow import trainer

    is_multi_worker = getattr(trainer, "_collective_all_reduce_multi_worker", lambda strategy: False)
    return bool(is_multi_worker(getattr(model, "_distribute_strategy", None)))


# -- files --


def saving_whole(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace a file only when it is complete."""

    @functools.wraps(original)
    def save(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        target = _plain_file(filepath)
        if target is None or _is_sharded(original, args, kwargs):
            return original(model, filepath, *args, **kwargs)
        _clear_leftovers(target)
        before = _version(target)
        beside = os.path.join(os.path.dirname(target), _beside_name(target))
        with files.replacing(target, beside, durably=True) as path:
            result = original(model, path, *args, **kwargs)
            now = _version(target)
            if now is not None:
                with contextlib.suppress(OSError):  # the file of another user
                    os.chmod(path, stat.S_IMODE(os.stat(target).st_mode))
        if now != before and not _is_multi_worker(model):  # another process has written it meanwhile
            notices.print_repair(_SHARED_NOTICE, "", name=os.path.basename(target))
        return result

    return save


def _is_sharded(save: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Check whether a call of `save_weights_only` writes several files."""
    size = args[0] if args else kwargs.get("max_shard_size")
    return save.__name__ == "save_weights_only" and size is not None


def _plain_file(filepath: Any) -> str | None:
    """Return the real path of a file that can be replaced by a rename, else None."""
    if not isinstance(filepath, str | os.PathLike) or "://" in str(filepath):
        return None
    path = os.path.realpath(str(filepath))
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
    fits = len(_beside_name(path).encode()) <= _NAME_BYTES
    return (
        path if fits and _FILE.search(path) and os.access(os.path.dirname(path), os.W_OK | os.X_OK) else None
    )


def _beside_name(path: str) -> str:
    return f".{_mark()}{os.getpid()}-{os.path.basename(path)}"


def _mark() -> str:
    """Return a mark of this task, and of what its pid counts in: two containers can have one host name."""
    where = hashlib.blake2s(this_boot().encode(), digest_size=6).hexdigest()
    return f"{where}-{task_context.current_task().name if task_context.is_task() else 'task'}-"


def _version(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _clear_leftovers(target: str) -> None:
    """Delete the file of a process of this task that was killed while it saved `target`."""
    folder, name = os.path.split(target)
    known = re.compile(rf"\.{re.escape(_mark())}(\d+)-{re.escape(name)}")
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            found = known.fullmatch(entry)
            if found and not os.path.exists(f"/proc/{found[1]}"):
                os.unlink(os.path.join(folder, entry))


def making_folders(original: Any) -> Callable[[Any], Any]:
    """Let several tasks make one folder at the same moment."""

    @functools.wraps(original)
    def makedirs(path: Any) -> Any:
        try:
            return original(path)
        except FileExistsError:  # its callers have checked: another task has made it since
            if not os.path.isdir(path):
                raise
            return None

    return makedirs


# -- BackupAndRestore --


def repair_backups() -> None:
    """Let the chief write the backup of a multi-worker strategy, and one task that of a model of its own."""
    from keras.src.callbacks.backup_and_restore import BackupAndRestore as callback  # noqa: N813

    begin, save, end = callback.on_train_begin, callback._save_model, callback.on_train_end

    def follows(self: Any) -> bool:
        in_task = task_context.is_task() and _is_multi_worker(self.model)
        return in_task and not task_context.current_task().is_chief

    @functools.wraps(begin)
    def on_train_begin(self: Any, logs: Any = None) -> None:
        if _is_multi_worker(self.model):
            notices.print_repair(_BACKUP_NOTICE, folder=self.backup_dir)
        if not follows(self):
            _hold(self)
        begin(self, logs)

    @functools.wraps(save)
    def _save_model(self: Any) -> None:
        if not follows(self):
            save(self)
            return
        folder = places.scratch(places.name_for(self.backup_dir, "backup"))
        self.model.save_weights(os.path.join(folder, "latest.weights.h5"), overwrite=True)

    @functools.wraps(end)
    def on_train_end(self: Any, logs: Any = None) -> None:
        if not follows(self):
            end(self, logs)
            owners.release(places.local(self.backup_dir), self)

    callback.on_train_begin, callback._save_model = on_train_begin, _save_model
    callback.on_train_end = on_train_end


def _hold(callback: Any) -> None:
    """Lock the folder of a `BackupAndRestore`. Raises `LogdirError` if another process writes to it."""
    if "://" in str(callback.backup_dir):
        return
    folder = places.prepare(callback.backup_dir)
    try:
        owners.hold(folder, callback)
    except LogdirError as error:
        if not _is_multi_worker(callback.model):
            error.add_note(
                "hint: each task trains a model of its own here, and needs a folder of its own: "
                f'BackupAndRestore(f"{callback.backup_dir}/{{tfmagic.current_task().name}}"). Under a '
                "MultiWorkerMirroredStrategy one folder serves all."
            )
        raise
