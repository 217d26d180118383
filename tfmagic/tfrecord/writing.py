"""Shards from records: each task writes its own files, which appear when they are whole.

    write(record) ──→ frames, gathered ──→ PendingFile .train-00003-of-00008.tfrecord.writing
                                                │ close
                                                ├─→ train-00003-of-00008.tfrecord     (rename)
                                                └─→ train-00003-of-00008.manifest.json (beside, rename)

Used in tasks and anywhere else; no thread, no TensorFlow. One writer belongs to one thread.
"""

from __future__ import annotations

import contextlib
import glob
import os
import weakref
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

from tfmagic.protocol import task_context
from tfmagic.tfrecord import framing, rounds, shard_owner, shards
from tfmagic.tfrecord.atomic_file import WRITING, PendingFile
from tfmagic.tfrecord.errors import ShardError, ShardExists
from tfmagic.tfrecord.manifests import Entry, Manifest, write_manifest
from tfmagic.tfrecord.shards import ShardName

_GATHER = 512 << 10  # bytes for one write

Compression = Literal["gzip", "GZIP", ""] | None
"""Also as TensorFlow spells it."""


def is_packed(compression: Compression) -> bool:
    """Whether a file is to be compressed.

    Raises:
        ShardError: There is no such compression.
    """
    if compression not in (None, "", "gzip", "GZIP"):
        raise ShardError(f"compression is None or 'gzip', not {compression!r}")
    return bool(compression)


class RecordFile:
    """Records on their way into one file, with its count and checksum. `write_frames` takes framed ones."""

    def __init__(self, pending: PendingFile, packed: bool):
        from crc32c import crc32c

        self.pending, self.crc32c = pending, crc32c
        self.packer = zlib.compressobj(wbits=31) if packed else None
        self.waiting: list[bytes] = []  # records that are framed together: that is twice as fast
        self.waiting_bytes = self.framed_records = self.framed_bytes = self.crc = 0

    @property
    def records(self) -> int:
        """How many there are so far."""
        return self.framed_records + len(self.waiting)

    @property
    def size(self) -> int:
        """What they take in bytes, not compressed."""
        return self.framed_bytes + self.waiting_bytes

    def write(self, data: bytes) -> None:
        """One record."""
        self.waiting.append(data)
        self.waiting_bytes += len(data) + framing.FRAME
        if self.waiting_bytes >= _GATHER:
            self.flush()

    def write_frames(self, frames: memoryview, records: int) -> None:
        """Whole records, as they stand in a file."""
        self.flush()
        self._put(frames, records)

    def flush(self) -> None:
        """Give what waits to the system."""
        if self.waiting:
            records, self.waiting, self.waiting_bytes = self.waiting, [], 0
            self._put(framing.frame_all(records), len(records))

    def place(self) -> None:
        """Complete the file and give it its name."""
        self.end()
        self.pending.place()

    def end(self) -> None:
        """Write what is missing."""
        self.flush()
        if self.packer is not None:
            self._write(self.packer.flush())
            self.packer = None

    def entry(self, name: str) -> Entry:
        """For the manifest."""
        return Entry(name, self.records, self.pending.size, f"{self.crc:08x}")

    def _put(self, frames: bytes | memoryview, records: int) -> None:
        self.framed_bytes += len(frames)
        self.framed_records += records
        self._write(frames if self.packer is None else self.packer.compress(frames))

    def _write(self, data: bytes | memoryview) -> None:
        self.crc = self.crc32c(data, self.crc)
        self.pending.write(data)


class ShardWriter:
    """Writes this task's shards of a set, and a manifest. A context manager.

    Within ``with`` nothing is visible; at its end all of it is there, or nothing where it was left by an
    exception. A killed process leaves a hidden file, which the next writer of that shard writes over. A fork
    of the process cannot write with it.

    Args:
        path_pattern: The name of the set, as in ``"data/train.tfrecord"``: the shards are
            ``data/train-00003-of-00008.tfrecord``. ``"data/train-*.tfrecord"`` means the same.
        task: Which shard: a task, or (index, count). By default the task that runs this, of a cluster of ours
            or of TF_CONFIG, or (0, 1) elsewhere. Of a task its place among those that work on data counts:
            chief and workers.
        compression: ``"gzip"`` or None.
        max_records: Begin another shard after so many records.
        max_bytes: Begin another shard before it would have more than so many bytes, not compressed.
        overwrite: Replace a former run's shards, also those with another count, when this writer closes.
        run: What names the writing run in the manifest: equal on all tasks, and another one the next time, so
            that shards of two runs are not read as one set. By default that is known where all tasks of a
            cluster of ours run this together.

    Raises:
        ShardExists: Shards of that name are there, or another writer is at it.
        ShardWriteError: The folder is missing, or not ours.
        ShardError: The name, the task or a limit makes no sense.
    """

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
        self.max_records = _limit("max_records", max_records)
        self.max_bytes = _limit("max_bytes", max_bytes)
        if not isinstance(run, str):
            raise ShardError(f"run is a str, not {run!r}")
        self.overwrite, self.run = overwrite, run
        self._is_of_task = self.count > 1 and (task is None or isinstance(task, task_context.TaskContext))
        self.manifest: Manifest | None = None
        self._name = ShardName(*shards.base_of(path_pattern), self.index, self.count)
        self._done: list[RecordFile] = []
        self._state: Literal["open", "closed", "discarded", "failed", "inherited"] = "open"
        self._pid = os.getpid()
        self._file = RecordFile(PendingFile(self._name.path, overwrite=True), bool(self.compression))
        try:
            self._check_free()
            # of this set alone: that of train.tfrecord.gz, whose names begin alike, may be at work beside it
            for left in glob.glob(f"{glob.escape(str(self._beside()))}.{'[0-9]' * 5}*{WRITING}"):
                os.unlink(left)  # further shards of a killed writer: its lock is ours now
        except BaseException:
            self.discard()
            raise
        _writers.add(self)

    # -- writing --

    def write(self, record: bytes | Any) -> None:
        """Add a record.

        Args:
            record: bytes, a bytearray or memoryview, or what has ``SerializeToString()``, as
                tf.train.Example.

        Raises:
            TypeError: It is something else.
            ShardWriteError: As of a full disk; then nothing of this writer is left.
        """
        if type(record) is not bytes:
            record = to_bytes(record)
        if self._state != "open":
            self._refuse()
        if self.max_records or self.max_bytes:
            self._roll(len(record))
        try:
            self._file.write(record)
        except BaseException:  # Ctrl-C too: half of a record may be written
            self._fail()
            raise

    def next_shard(self) -> None:
        """Begin another shard now.

        Raises:
            ShardWriteError: As of a full disk; then nothing of this writer is left.
        """
        if self._state != "open":
            self._refuse()
        try:
            self._file.end()
            if self._done:  # the first one's lock is that of all
                self._file.pending.let_go()
            self._done.append(self._file)
            path = self._name.path.with_name(f"{self._name.path.name}.{len(self._done):05}")
            self._file = RecordFile(PendingFile(path, overwrite=True), bool(self.compression))
        except BaseException:
            self._fail()
            raise

    @property
    def records(self) -> int:
        """How many were written so far, in all its shards."""
        return self._file.records + sum(file.records for file in self._done)

    @property
    def paths(self) -> list[Path]:
        """The shards: when it is closed, or those that it would have now."""
        return [name.path for name in self._names()]

    def close(self) -> None:
        """Make the shards visible, then the manifest. Harmless when it is done.

        Raises:
            ShardExists: The name was taken meanwhile. Nothing of this writer is left.
            ShardWriteError: As of a full disk. Nothing of this writer is left.
            ShardError: An earlier call has failed, and the failure was passed over.
        """
        if self._state == "failed":
            raise ShardError(f"nothing of {self._name.path} was written, since an earlier call has failed")
        if self._state != "open":
            return
        names, files = self._names(), [*self._done, self._file]
        placed: list[Path] = []
        manifest: PendingFile | None = None
        try:
            for file in files:
                file.end()
            self._check_free()
            old = self._replaced() if self.overwrite else []
            manifest = self._write_manifest(names, files)  # while a full disk costs no former shard yet
            for name, file in zip(names, files, strict=True):
                file.pending.path = name.path
                file.pending.place()
                placed.append(name.path)
            for path in set(old) - {*placed, manifest.path}:
                path.unlink(missing_ok=True)
            manifest.place()
            rounds.end(self._name)
        except BaseException:
            self.manifest = None
            if manifest is not None:
                manifest.discard()
            for path in placed:
                with contextlib.suppress(OSError):
                    path.unlink()
            self.discard()
            raise
        self._state = "closed"

    def discard(self) -> None:
        """Leave nothing of what was written."""
        if self._state == "open":
            self._state = "discarded"
            for file in (*self._done, self._file):
                file.waiting.clear()
                file.pending.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if getattr(self, "_state", "") == "open" and hasattr(self, "_file"):
            self.discard()  # a writer that nobody closed: what it has is not known to be complete

    # -- inside --

    def _refuse(self) -> NoReturn:
        if self._state == "inherited":
            raise ShardError(
                f"{self._name.path} is written by the process {self._pid}, and this is a fork of it: write "
                "there, or let each process write a shard of its own with task=(index, count)"
            )
        raise ShardError(f"the writer of {self._name.path} is {self._state}")

    def _leave_to_parent(self) -> None:
        """In a fork: what is under way is the parent's, also its lock, should that be killed."""
        if self._state == "open":
            self._state = "inherited"
            for file in (*self._done, self._file):
                file.pending.let_go()

    def _fail(self) -> None:
        self.discard()
        self._state = "failed"

    def _roll(self, length: int) -> None:
        file, size = self._file, self._file.size
        if (self.max_records and file.records >= self.max_records) or (
            self.max_bytes and size and size + length + framing.FRAME > self.max_bytes
        ):
            self.next_shard()

    def _beside(self) -> Path:
        return self._name.path.with_name(f".{self._name.path.name}")

    def _names(self) -> list[ShardName]:
        parts = len(self._done) + 1
        if parts == 1:
            return [self._name]
        family = self._name.family
        if self.count == 1:
            return [ShardName(*family, part, parts) for part in range(parts)]
        return [ShardName(*family, self.index, self.count, part, parts) for part in range(parts)]

    def _check_free(self) -> None:
        """Nothing of a former run is there, unless it is to be replaced."""
        if self._name.path.parent.is_dir() and not self.overwrite:
            for other in shards.relatives(*self._name.family):
                if other.count != self.count or other.index == self.index or self.count == 1:
                    raise ShardExists(
                        f"{other.path} is there already, of a former run, and would mix with "
                        f"{self._name.path.name}. Delete the old shards, choose another name, or say "
                        "overwrite=True"
                    )

    def _replaced(self) -> list[Path]:
        """Files of former runs that this writer replaces: its own, and all of sets with another count."""
        old = shards.relatives(*self._name.family)
        mine = [s for s in old if s.count != self.count or s.index == self.index or self.count == 1]
        return [*(shard.path for shard in mine), *(shard.manifest for shard in mine)]

    def _write_manifest(self, names: list[ShardName], files: list[RecordFile]) -> PendingFile:
        entries = tuple(file.entry(name.path.name) for name, file in zip(names, files, strict=True))
        packed = "GZIP" if self.compression else ""
        run = self.run or (rounds.present(self._name) if self._is_of_task else "")
        self.manifest = Manifest(str(names[0].manifest), self.index, self.count, packed, entries, run)
        return write_manifest(self.manifest)


_writers: weakref.WeakSet[ShardWriter] = weakref.WeakSet()


def _begin_fork() -> None:
    for writer in list(_writers):
        writer._leave_to_parent()


# not asked at each write, which would take half as long again
os.register_at_fork(after_in_child=_begin_fork)


def to_bytes(record: Any) -> bytes:
    """The bytes of a record.

    Raises:
        TypeError: It has none.
    """
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


def _limit(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    number = shard_owner.whole(value)
    if number is None or number < 1:
        raise ShardError(f"{name} is a whole number of 1 or more, not {value!r}")
    return number
