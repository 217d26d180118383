"""Checkpoints of several tasks: all tasks save, the chief keeps, and all restart from the same checkpoint.

    save     every task ── tf.train.Checkpoint.write ──→ chief: base/ckpt-12    others: a temporary folder
             chief: writes the state file `checkpoint`, then deletes the oldest
    restore  chief: the newest complete one ──→ .tfmagic-restore ── barrier ──→ the others take the same

A checkpoint is complete when all of its files are there and every checksum in it is right. All of it is read
before anything is restored. The file `checkpoint` is not trusted: it can be missing, or from another machine.
`tf.train.CheckpointManager` trusts it, counts damaged checkpoints as kept, and knows no folder behind fsspec.
"""

import contextlib
import json
import operator
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from tfmagic.logdir import checks, places, stores
from tfmagic.logdir.errors import CheckpointError, LogdirError
from tfmagic.logdir.mirrors import Remote, is_remote, refuse_private
from tfmagic.protocol import task_context
from tfmagic.protocol.task_context import TaskContext
from tfmagic.system import notices
from tfmagic.system.arguments import as_path
from tfmagic.system.process_identity import from_json, identify

CHOICE = ".tfmagic-restore"
_STATE = "checkpoint"
_LISTED = re.compile(rf'^\s*all_model_checkpoint_paths: "(?:[^"]*/)?{stores.PREFIX}-(\d+)"', re.MULTILINE)
_COUNTER = "save_counter/.ATTRIBUTES/VARIABLE_VALUE"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_ATTEMPTS = 20  # to read a folder while another process saves there


class Checkpoints(contextlib.AbstractContextManager["Checkpoints"]):
    """The checkpoints of an object in a folder. Every task makes one, and every task saves.

    Args:
        model_or_checkpoint: A model or optimizer of Keras 2 or 3, a tf.Module, a tf.train.Checkpoint, any
            other trackable object, or a dict of these by name.
        base: A folder, or a URL such as ``s3://bucket/run``.
        max_to_keep: Number of checkpoints; the oldest are deleted. 0 keeps all.
        task: The task; by default the one that runs this code.
        storage_options: Options for fsspec, of a remote base.

    Raises:
        TypeError: The object cannot be saved in a checkpoint.
        LogdirError: The folder cannot be written, or another run writes to it.
        DriverError: A package for this kind of URL is missing.
    """

    def __init__(
        self,
        model_or_checkpoint: Any,
        base: str | os.PathLike[str],
        max_to_keep: int = 5,
        *,
        task: TaskContext | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ):
        is_number = hasattr(max_to_keep, "__index__") and not isinstance(max_to_keep, bool)
        if not is_number or operator.index(max_to_keep) < 0:
            raise ValueError(f"max_to_keep is a number of checkpoints, or 0 for all, not {max_to_keep!r}")
        self._checkpoint = checks.as_checkpoint(model_or_checkpoint)
        self._max_to_keep, self._task = operator.index(max_to_keep), task or places.this_task()
        self._keeps = self._task is None or self._task.is_chief
        self._damages: dict[tuple[tuple[str, int], ...], str] = {}  # by files, sizes; "" if complete
        self._warned: set[int] = set()
        self._managed: set[int] | None = None  # see `_managed_steps`; None before the first save
        self._store = self._open(base, storage_options)
        self._last = max(self.steps, default=0)
        if self._task is not None and self._task.is_chief:
            self._store.hold()

    def _open(self, base: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> stores.Store:
        text = as_path("base", base, "a path or a URL")
        if is_remote(base) or text.startswith("gs://"):
            refuse_private(text)
            remote = Remote(text, storage_options)
            if self._keeps:
                remote.prove()
            return stores.Store(places.scratch(places.name_for(text, "checkpoints")), remote)
        if self._keeps:
            return stores.Store(places.prepare(base))
        path = places.local(base)
        if os.path.exists(path) and not os.path.isdir(path):
            raise LogdirError(f"the log folder {path} is a file; name another folder")
        return stores.Store(path)

    def __repr__(self) -> str:
        return f"<Checkpoints in {self._store}: {', '.join(map(str, self.steps)) or 'none yet'}>"

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another run write to the folder. The end of the process does that too."""
        self._store.let_go()
        self._managed = None  # another process can save from now on

    # -- listing --

    @property
    def steps(self) -> list[int]:
        """The steps whose files are all there, the oldest first. The content was not checked."""
        files = stores.checkpoint_files(self._store.names())
        return [step for step in sorted(files) if not stores.missing_files(files[step])]

    @property
    def latest(self) -> str | None:
        """The path of the newest complete checkpoint, without suffix; None if there is none."""
        step = self._newest()
        return None if step is None else self._prefix(step)

    # -- saving --

    def save(self, step: int | None = None) -> int:
        """Save. Under a multi-worker strategy every task must call this: some reads are collectives.

        Args:
            step: Its number; by default one more than the last step that this task knows.

        Returns:
            The number.

        Raises:
            LogdirError: It could not be written; the checkpoint before is still the newest, and complete.
            CheckpointError: There is nothing to save, or `base` holds a later step.
        """
        number = self._last + 1 if step is None else checks.as_step(step)
        if self._keeps:
            self._store.hold()
            self._refuse_older(number)
            self._save_kept(number)
        else:
            folder = places.scratch(places.name_for(str(self._store), "checkpoints_temp"))
            with self._writing(folder, number) as prefix:
                self._checkpoint.write(prefix)
            shutil.rmtree(folder, ignore_errors=True)
        self._last = number
        return number

    def _save_kept(self, number: int) -> None:
        managed = self._managed_steps()
        with self._writing(self._store.folder, number) as prefix:
            self._checkpoint.write(prefix)
            self._refuse_empty(prefix)
            # later checkpoints are damaged, and so are those in _warned
            whole = {n for n in self.steps if n < number and n not in self._warned}
            kept = sorted({number} | whole & managed)
            if self._max_to_keep:
                kept = kept[-self._max_to_keep :]
            # the file that `tf.train.latest_checkpoint` and evaluators read, as TensorFlow writes it
            lines = [f'model_checkpoint_path: "{stores.PREFIX}-{number}"']
            lines += [f'all_model_checkpoint_paths: "{stores.PREFIX}-{step}"' for step in kept]
            stores.Store(self._store.folder).write(_STATE, "\n".join([*lines, ""]).encode())
            files = stores.checkpoint_files(os.listdir(self._store.folder))
            if managed - {*kept}:  # a power cut must leave one; the oldest of those kept is there soonest
                self._store.sync([*files.get(kept[0], ()), _STATE])
            self._store.publish([*files[number], _STATE])
        self._warned.discard(number)
        self._managed = managed | {number}
        names = stores.checkpoint_files(self._store.names())
        old = [step for step in names if step in managed and step not in kept]
        self._store.remove(name for step in old for name in reversed(names[step]))
        self._managed = {*kept}

    def _managed_steps(self) -> set[int]:
        """Return the steps that can be deleted: those that the state's file lists, and complete later ones.

        A save that was killed has left the latter. Other steps were taken off that list, or written by
        another program, and are kept on purpose.
        """
        if self._managed is None:
            state = (self._store.read(_STATE) or b"").decode(errors="replace")
            listed = {int(step) for step in _LISTED.findall(state)}
            newest = max(listed, default=None)
            self._managed = listed | {n for n in self.steps if newest is not None and n > newest}
        return self._managed

    @contextlib.contextmanager
    def _writing(self, folder: str, number: int) -> Iterator[str]:
        """Remove all files of this checkpoint if the body fails."""
        import tensorflow as tf

        prefix = os.path.join(folder, f"{stores.PREFIX}-{number}")
        before = self.steps if self._keeps else []
        was_there = number in before  # saved again: the old one can still be complete
        try:
            yield prefix
        except BaseException as error:
            shutil.rmtree(f"{prefix}_temp", ignore_errors=True)
            left = "All of its files are removed"
            if not was_there and not self._forget(folder, number, error):
                left = "The rest of its files is passed over"
            # other errors are not about writing: the death of a peer, for example
            is_of_tensorflow = isinstance(error, tf.errors.OpError) and prefix in str(error)
            if not isinstance(error, OSError) and not is_of_tensorflow:
                raise
            newest = f"; the newest is still that of step {max(before)}" if before else ""
            raise LogdirError(
                f"checkpoint {number} could not be written to {self._store}: {checks.reason_of(error)}. "
                f"{left}{newest}"
            ) from error

    def _forget(self, folder: str, number: int, why: BaseException) -> bool:
        """Remove the files of a checkpoint. Return False if that failed."""
        try:
            files = stores.checkpoint_files(os.listdir(folder)).get(number, [])
            is_silent = isinstance(why.__cause__, TimeoutError)  # do not wait for that server again
            store = stores.Store(folder) if is_silent or folder != self._store.folder else self._store
            store.remove(reversed(files))
        except OSError:
            return False
        return not is_silent

    def _refuse_older(self, number: int) -> None:
        is_later = max(self.steps, default=-1) > number
        if is_later and (newest := self._newest() or -1) > number:  # a damaged one does not count
            raise CheckpointError(
                f"{self._store} has a checkpoint of step {newest}, which a restart would take instead of "
                f"step {number}. Go on from it with restore_or_initialize(), or give this run its own folder"
            )

    def _refuse_empty(self, prefix: str) -> None:
        import tensorflow as tf

        if not {name for name, _ in tf.train.list_variables(prefix)} - {_GRAPH, _COUNTER}:
            raise CheckpointError(
                "there is nothing to save: the object has no variables yet. Build the model first: call it "
                "on data, or give it an Input"
            )

    # -- restoring --

    def restore(self) -> int:
        """Restore the newest complete checkpoint, which must exist. For more see `restore_or_initialize`.

        Raises:
            CheckpointError: There is no complete checkpoint, or the newest belongs to another object.
        """
        step = self.restore_or_initialize()
        if step is None:
            raise CheckpointError(f"there is no complete checkpoint in {self._store}")
        return step

    def restore_or_initialize(self) -> int | None:
        """Restore the newest complete checkpoint. Return its step, None if there is no checkpoint.

        In a cell every chief and worker task that runs it must call this: they wait for each other, and all
        restore the step that the chief found.

        Raises:
            CheckpointError: The newest belongs to another object.
            threading.BrokenBarrierError: A task of the cell ended without this call.
        """
        for _ in range(_ATTEMPTS):
            self._damages.clear()  # the files can have changed since
            self._store.forget()
            step = self._agree()
            if step is None:
                return None
            try:
                self._read(step)
            except Exception:
                if not self._is_alone or step in self.steps:
                    raise
                continue  # the writer has deleted it, and has a newer one
            self._last = step
            return step
        raise self._too_slow()

    def _read(self, step: int) -> None:
        prefix = self._prefix(step)
        if unbuilt := checks.unbuilt_layers(self._checkpoint, prefix):
            raise CheckpointError(
                f"{prefix} has variables for {', '.join(unbuilt)}, which have none yet, and Keras 3 does not "
                "restore them later. Nothing was restored. Build the model first: call it on data, or give "
                "it an Input"
            )
        try:
            status = self._checkpoint.read(prefix)
            status.assert_nontrivial_match()
            status.assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:  # of other names; of other shapes
            raise CheckpointError(
                f"{prefix} is a checkpoint of something else: {str(error).splitlines()[0][:300]}"
            ) from error

    def _too_slow(self) -> CheckpointError:
        return CheckpointError(
            f"the checkpoints in {self._store} are deleted before they are read. Let the task that saves "
            "there keep more of them (max_to_keep)"
        )

    @property
    def _is_alone(self) -> bool:
        return self._task is None or not task_context.is_task() or self._task.type in ("ps", "evaluator")

    def _agree(self) -> int | None:
        """Return the step that all tasks of this cell restore."""
        if self._is_alone:
            return self._newest()
        assert self._task is not None  # by `_is_alone`
        step = None
        if self._task.is_chief:
            step = self._newest()
            owner = identify(os.getpid())
            assert owner is not None
            self._store.write(CHOICE, json.dumps({"step": step, **owner.as_json()}).encode())
        try:
            task_context.meet_trainers()
            if not self._task.is_chief:
                step = self._chosen()
            task_context.meet_trainers()
        except threading.BrokenBarrierError as error:
            who = "every chief and worker task that runs the cell"
            error.add_note(f"{who} must call restore on its checkpoints")
            raise
        finally:
            if self._task.is_chief:
                self._store.remove([CHOICE])
        return step

    def _chosen(self) -> int | None:
        """Return the chief's choice; if the chief does not run the cell, the newest step."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            choice = json.loads(self._store.read(CHOICE) or b"")
            if from_json(choice).alive:
                return None if choice["step"] is None else int(choice["step"])
        return self._newest()

    def _newest(self) -> int | None:
        """Return the newest complete step. Print a line for each newer step that is damaged, once."""
        for _ in range(_ATTEMPTS):
            sizes = self._store.names()
            files = stores.checkpoint_files(sizes)
            for step in sorted(files, reverse=True):
                damage = stores.missing_files(files[step]) or self._damage(step, files[step], sizes)
                if not damage:
                    self._warned.discard(step)
                    return step
                now = self._store.names()
                if {name: now.get(name) for name in files[step]} != {n: sizes[n] for n in files[step]}:
                    break  # it is being written or deleted: try again
                if step not in self._warned:
                    self._warned.add(step)
                    line = f"tfmagic: checkpoint {step} in {self._store} is passed over: it {damage}"
                    notices.tell(line)
            else:
                return None
        raise self._too_slow()

    def _damage(self, step: int, files: list[str], sizes: Mapping[str, int]) -> str:
        if not sizes[files[-1]]:  # TensorFlow creates an empty file first
            return stores.NO_INDEX
        key = tuple((name, sizes[name]) for name in files)
        if self._damages.get(key) != "":  # a damaged one can have been repaired
            try:
                self._store.fetch(files)
            except LogdirError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                return "was deleted"
            self._damages[key] = checks.damage_of(self._prefix(step))
        return self._damages[key]

    def _prefix(self, step: int) -> str:
        self._store.fetch(stores.checkpoint_files(self._store.names()).get(step, ()))
        return os.path.join(self._store.folder, f"{stores.PREFIX}-{step}")


checkpoints = Checkpoints  # ``saves = checkpoints(model, "runs/7")``
