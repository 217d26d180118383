"""Write records as shards: each task writes its own files, which appear when they are whole.

    write(record) ──→ framed, many at a time ──→ RecordFile .train-00003-of-00008.tfrecord.writing
                                                     │ close
                                                     ├─→ train-00003-of-00008.tfrecord      (rename)
                                                     └─→ train-00003-of-00008.manifest.json (written, rename)

User code calls it in tasks and anywhere else. It loads no TensorFlow. A writer belongs to one thread. `close`
renames in a thread of its own, which has ended when it returns: an interrupt in between would cost shards.
"""

import contextlib
import glob
import os
import weakref
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

from tfmagic.protocol import task_context
from tfmagic.system.arguments import as_flag
from tfmagic.system.files import sync
from tfmagic.system.whole_steps import run_whole
from tfmagic.tfrecord import framing, manifests, shard_owner, shards
from tfmagic.tfrecord.errors import ShardError, ShardExists
from tfmagic.tfrecord.manifests import Manifest
from tfmagic.tfrecord.record_file import Compression, RecordFile, is_packed
from tfmagic.tfrecord.shards import ShardName


class ShardWriter:
    """Writes this task's shards of a set, and a manifest. It is a context manager.

    Nothing is visible within ``with``. At its end all shards appear, or none after an exception. A killed
    process leaves a hidden file, which the next writer of that shard overwrites. A fork of the process cannot
    use the writer.

    Args:
        path_pattern: The name of the set, as in ``"data/train.tfrecord"``: the shards are
            ``data/train-00003-of-00008.tfrecord``. ``"data/train-*.tfrecord"`` means the same.
        task: The owner of the shard: a task, or (index, count) among chief and workers. By default the task
            that runs this code, of a tfmagic cluster or of TF_CONFIG; (0, 1) elsewhere.
        compression: ``"gzip"`` or None.
        max_records: Maximum number of records in a shard; then another shard begins.
        max_bytes: Maximum size of a shard in bytes, not compressed; then another shard begins.
        overwrite: Replace the shards of a former run, also those with another count, when this writer closes.
        run: Name of the run in the manifest, equal on all tasks and new each time, so that shards of two runs
            are not read as one set. By default it is known if all tasks of a tfmagic cluster run the writer
            together.

    Raises:
        ShardExists: Shards of that name exist, or another process writes them.
        ShardWriteError: The folder is missing or not writable.
        ShardError: The name, the task or a limit is invalid.
    """

    index: int
    count: int
    max_records: int | None
    max_bytes: int | None
    overwrite: bool
    run: str

    def __init__(
        self,
        path_pattern: shards.Paths,
        *,
        task: shard_owner.Member = None,
        compression: Compression = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        overwrite: bool = False,
        run: str = "",
    ):
        self.compression: Compression = "gzip" if is_packed(compression) else None
        self.index, self.count = shard_owner.place_of(task)
        at_least = shard_owner.at_least
        self.max_records = None if max_records is None else at_least(1, "max_records", max_records)
        self.max_bytes = None if max_bytes is None else at_least(1, "max_bytes", max_bytes)
        if not isinstance(run, str):
            raise ShardError(f"run is a str, not {run!r}")
        self.overwrite, self.run = as_flag("overwrite", overwrite), run
        is_of_task = self.count > 1 and (task is None or isinstance(task, task_context.TaskContext))
        self._is_of_task = is_of_task and not run
        self.manifest: Manifest | None = None
        self._name = ShardName(*shards.base_of(path_pattern), self.index, self.count)
        self._done: list[RecordFile] = []
        self._state: Literal["open", "closed", "discarded", "failed", "inherited"] = "open"
        self._pid = os.getpid()
        self._file = RecordFile(self._name.path, bool(self.compression), overwrite=True)
        try:
            self._check_free()
            self._clear_leftovers()
        except BaseException:
            self.discard()
            raise
        _writers.add(self)

    # -- writing --

    def write(self, record: bytes | Any) -> None:
        """Add a record.

        Args:
            record: bytes, a bytearray or memoryview, or an object with ``SerializeToString()``, such as a
                tf.train.Example.

        Raises:
            TypeError: The record is something else.
            ShardWriteError: The disk is full, for example. All files of this writer are removed.
        """
        if type(record) is not bytes:
            record = to_bytes(record)
        if self._state != "open":
            self._refuse()
        if self.max_records or self.max_bytes:
            file, size = self._file, self._file.framed_bytes
            is_large = self.max_bytes and size and size + len(record) + framing.FRAME > self.max_bytes
            if is_large or (self.max_records and file.records >= self.max_records):
                self.next_shard()
        try:
            self._file.write(record)
        except BaseException:  # also Ctrl-C: half of a record can be written
            self._fail()
            raise

    def next_shard(self) -> None:
        """Begin another shard now.

        Raises:
            ShardWriteError: The disk is full, for example. All files of this writer are removed.
        """
        if self._state != "open":
            self._refuse()
        try:
            self._file.end()
            if self._done:  # the lock of the first shard is enough
                self._file.close()
            self._done.append(self._file)
            path = self._name.path.with_name(f"{self._name.path.name}.{len(self._done):05}")
            self._file = RecordFile(path, bool(self.compression), overwrite=True)
        except BaseException:
            self._fail()
            raise

    @property
    def records(self) -> int:
        """Number of records so far, in all its shards."""
        return self._file.records + sum(file.records for file in self._done)

    @property
    def paths(self) -> list[Path]:
        """The shards; before the writer is closed, those that it would have now."""
        return [name.path for name in self._names()]

    def close(self) -> None:
        """Make the shards visible, then the manifest. A second call does nothing.

        Raises:
            ShardExists: The name was taken meanwhile. All files of this writer are removed.
            ShardWriteError: The disk is full, for example. All files of this writer are removed.
            ShardError: An earlier call has failed, and the program has ignored it.
        """
        if self._state == "failed":
            raise ShardError(f"nothing of {self._name.path} was written, since an earlier call has failed")
        if self._state != "open":
            return
        names, files = self._names(), [*self._done, self._file]
        try:
            for file in files:
                file.end()
            self._check_free()
            manifest = self._describe(names, files)
            pending = RecordFile(Path(manifest.path), overwrite=True)
            try:
                pending.write_bytes(manifest.encode())  # first: a full disk must cost no former shard
                for name, file in zip(names, files, strict=True):
                    file.path = name.path
                run_whole(lambda: self._appear([*files, pending], manifest))
            finally:
                pending.discard()
        except BaseException:
            self.discard()
            raise

    def _appear(self, files: list[RecordFile], manifest: Manifest) -> None:
        """Put the shards and the manifest in the place of the former ones: all, or none after an error.

        The former files have hidden names meanwhile, beside their own ones as long as these are not taken.
        Where a kill leaves them, `manifests.check_runs` refuses the set. The new files are on the disk first.
        """
        new = {file.path for file in files}
        old = {files[-1].path}
        if self.overwrite:
            old |= new | {path for shard in self._former() for path in (shard.path, shard.manifest)}
        aside: dict[Path, Path] = {}
        placed: list[Path] = []
        given_up = sorted(path for path in old if os.path.lexists(path) and not path.is_dir())
        try:
            for file in files if given_up else ():
                file.sync()
            for path in given_up:
                aside[path] = _set_aside(path, stays=path in new)
            for file in files:
                file.place()
                placed.append(file.path)
            if given_up:
                sync(files[-1].path.parent)
        except BaseException as error:
            for path in placed:
                with contextlib.suppress(OSError):
                    path.unlink()
            for path, kept in aside.items():
                try:
                    os.replace(kept, path)
                    kept.unlink(missing_ok=True)  # two names of one file: replace does nothing
                except OSError:
                    error.add_note(f"the former {path} is {kept}")
            raise
        left = shards.hidden(*self._name.family, shards.FORMER)  # also of killed writers
        for kept in {*aside.values(), *(path for path, name in left.items() if self._replaces(name))}:
            with contextlib.suppress(OSError):
                kept.unlink()
        if self._is_of_task:
            manifests.end_run(self._name)
        self.manifest, self._state = manifest, "closed"

    def discard(self) -> None:
        """Delete all that was written."""
        if self._state == "open":
            self._state = "discarded"
            for file in (*self._done, self._file):
                file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if getattr(self, "_state", "") == "open" and hasattr(self, "_file"):
            self.discard()  # it was not closed, so its records are perhaps not complete

    # -- inside --

    def _refuse(self) -> NoReturn:
        if self._state == "inherited":
            raise ShardError(
                f"{self._name.path} is written by the process {self._pid}, and this is a fork of it: write "
                "there, or let each process write a shard of its own with task=(index, count)"
            )
        raise ShardError(f"the writer of {self._name.path} is {self._state}")

    def _leave_to_parent(self) -> None:
        """Release the files in a fork: they belong to the parent, also their lock if the parent is killed."""
        if self._state == "open":
            self._state = "inherited"
            for file in (*self._done, self._file):
                file.close()

    def _clear_leftovers(self) -> None:
        """Delete what killed writers have left that had not begun to appear: our locks say that none runs."""
        # only of this set: a writer of train.tfrecord.gz, whose names begin alike, can be running
        beside = self._name.path.with_name(f".{self._name.path.name}")
        for left in glob.glob(f"{glob.escape(str(beside))}.{'[0-9]' * 5}*{shards.WRITING}"):
            os.unlink(left)
        for path, name in shards.hidden(*self._name.family, shards.MANIFEST + shards.WRITING).items():
            if self._replaces(name):
                with contextlib.suppress(ShardExists):  # a running writer has its lock
                    RecordFile(path.with_name(name.manifest.name), overwrite=True).discard()

    def _fail(self) -> None:
        self.discard()
        self._state = "failed"

    def _names(self) -> list[ShardName]:
        if not self._done:
            return [self._name]
        family, parts = self._name.family, len(self._done) + 1
        if self.count == 1:
            return [ShardName(*family, part, parts) for part in range(parts)]
        return [ShardName(*family, self.index, self.count, part, parts) for part in range(parts)]

    def _check_free(self) -> None:
        """Check that no shard of a former run exists, unless it is to be replaced."""
        if self._name.path.parent.is_dir() and not self.overwrite:
            for other in self._former():
                raise ShardExists(
                    f"{other.path} is there already, of a former run, and would mix with "
                    f"{self._name.path.name}. Delete the old shards, choose another name, or set "
                    "overwrite=True"
                )

    def _former(self) -> list[ShardName]:
        """Return the shards that this writer replaces: its own, and those of sets with another count."""
        old = shards.relatives(*self._name.family)
        return [shard for shard in old if self._replaces(shard)]

    def _replaces(self, shard: ShardName) -> bool:
        return shard.count != self.count or shard.index == self.index or self.count == 1

    def _describe(self, names: list[ShardName], files: list[RecordFile]) -> Manifest:
        entries = tuple(file.entry(name.path.name) for name, file in zip(names, files, strict=True))
        packed = "GZIP" if self.compression else ""
        run = manifests.current_run(self._name) if self._is_of_task else self.run
        return Manifest(str(names[0].manifest), self.index, self.count, packed, entries, run)


def _set_aside(path: Path, stays: bool) -> Path:
    """Give a file a hidden name; its own one `stays`, where the file system has links, until it is taken."""
    aside = path.with_name(f".{path.name}{shards.FORMER}")
    aside.unlink(missing_ok=True)  # of a writer that was killed, whose lock is ours now
    if stays:
        with contextlib.suppress(OSError):
            os.link(path, aside)
            return aside
    os.rename(path, aside)
    return aside


_writers: weakref.WeakSet[ShardWriter] = weakref.WeakSet()


def _release_in_fork() -> None:
    for writer in list(_writers):
        writer._leave_to_parent()


# a check of the pid at each write would make writing half as slow again
os.register_at_fork(after_in_child=_release_in_fork)


def to_bytes(record: Any) -> bytes:
    """Return the bytes of a record. Raise TypeError if it is neither bytes nor has SerializeToString()."""
    if isinstance(record, bytes | bytearray | memoryview):
        return bytes(record)
    serialize = getattr(record, "SerializeToString", None)
    if callable(serialize) and not isinstance(record, type):
        return bytes(serialize())
    advice = "a scalar string tensor has its bytes in .numpy()"
    if isinstance(record, str):
        advice = "encode it: text.encode()"
    elif isinstance(record, dict):
        advice = "make a tf.train.Example of it"
    raise TypeError(
        f"a record is bytes, or something with SerializeToString() as tf.train.Example, not "
        f"{type(record).__name__}: {advice}"
    )
