"""`TaskFile`: each task writes an HDF5 file of its own, which gets its name when it is whole.

    open ──→ results.worker-1.h5.unfinished ──close──→ results.worker-1.h5 ──consolidate──→ results.h5
                       │ killed, or the block raised
                       └──→ stays, as the last flush() left it: named by consolidate, brought back by recover;
                            .abandoned when mode "w" starts again

The part is written beside and renamed, so that no reader finds half a part. SWMR also keeps files readable,
but allows no text, and no new dataset, group or attribute once it is on. What flush() has written survives
SIGKILL (see `tfmagic.hdf5.closing.keep_flushed`), except a kill during a flush. A power cut can lose it:
a flush forces nothing to the disk.
"""

import contextlib
import functools
import json
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from tfmagic.hdf5 import closing, guarding, unfinished
from tfmagic.hdf5.errors import FileInUseError, MismatchError, PartError, reason_of
from tfmagic.hdf5.partnames import CLUSTER, TASK, UNFINISHED, part_path, resolve_task
from tfmagic.hdf5.rows import check_growth, check_rows
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.task_context import TaskContext
from tfmagic.system import notices
from tfmagic.system.arguments import as_path

_CHUNK_BYTES = 1 << 18  # a fourth of what HDF5 caches of a dataset; large enough to be read at disk speed
_MODES = ("w", "x", "w-", "a", "r+", "r")


class TaskFile(h5py.File):
    """The part of a task: an `h5py.File` in everything, under a name of the task's own.

    Several threads can use it at once, as any `h5py.File`: an `append` is one step for the others.

    Attributes:
        task: The task of this part.
        path: The file that exists once this is closed, such as ``results.worker-1.h5``.
    """

    def __init__(
        self,
        base: str | os.PathLike[str],
        mode: str = "w",
        *,
        task: str | TaskId | TaskContext | None = None,
        **options: Any,
    ):
        """Open the part of a task.

        Args:
            base: The file that all parts are to become, such as ``results.h5``.
            mode: "w" makes a new part, which replaces an older one when it is closed (what a killed task had
                flushed is kept as ``PATH.abandoned``); "x" makes one where there is
                none; "a" continues a part, or makes one; "r+" continues one; "r" reads.
            task: The task of the part; by default the one that runs this code, outside of a cluster worker-0.
            options: Further ones of `h5py.File`, such as ``libver``.

        Raises:
            FileInUseError: This part is open already.
            PartError: It exists already, does not exist, is damaged, or cannot be written.
            ClusterSpecError: There is no such task.
            ValueError: There is no such mode.
        """
        as_path("base", base, takes_bytes=True)
        if mode not in _MODES:
            raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
        if options.get("driver") not in (None, "sec2"):
            raise ValueError(f"a part is a plain file on disk, without driver={options['driver']!r}")
        if not os.path.basename(base) or os.path.isdir(base):
            advice = "name a file in it, which the parts will be beside"
            raise PartError(f"{os.fspath(base)!r} is a folder: {advice}")
        self.task, counts = resolve_task(task)
        self.path: str = os.path.abspath(part_path(base, self.task))
        self._beside = "" if mode == "r" else self.path + UNFINISHED
        # the datasets of `append`, open as long as the file: HDF5 writes what it holds of a dataset when that
        # is closed, and ignores a full disk at the end of an h5py object (measured: rows lost, no error)
        self._appended: dict[str, Any] = {}
        if not os.path.isdir(folder := os.path.dirname(self.path)):
            raise PartError(f"{self._title} cannot be opened: there is no folder {folder}: make it first")
        what, where = f"{self._title} cannot be opened", f" ({self._beside or self.path})"
        with guarding.naming_errors(what, self.path, mode, where):
            if mode == "r":
                super().__init__(self.path, "r", **options)
                return
            self._open(mode, options)
            if TASK not in self.attrs:
                self.attrs[TASK] = self.task.name
            if counts:  # so that a missing part is noticed
                self.attrs[CLUSTER] = json.dumps(counts)

    def _open(self, mode: str, options: dict[str, Any]) -> None:
        # stricter than the guard: this very process must not open its part twice either
        with guarding.opening(self._beside), guarding.opening(self.path):
            unfinished.check_target(self.path)
            if unfinished.exists(self.path) and not guarding.is_free(self._beside):
                who = ", ".join(map(str, guarding.find_holders(self._beside))) or "another process"
                raise FileInUseError(
                    f"{self._title} is already open for writing by {who}: close it there first, or give one "
                    "of both another base or task=. Nothing was changed.\n"
                    f"The file: {self._beside}"
                )
            moved = mode in ("a", "r+") and self._take_back()
            if mode in ("x", "w-") and os.path.exists(self.path):
                raise PartError(f"{self._title} is there already; mode='w' replaces it")
            if mode in ("x", "w-") or (mode == "a" and not os.path.exists(self._beside)):
                mode = "w"
            open_file = functools.partial(super().__init__, self._beside, mode, **options)
            if mode == "w":
                if aside := unfinished.clear(self.path):
                    notices.tell(f"tfmagic: {self._title} is written anew; what a killed task left: {aside}")
                unfinished.create(self.path, open_file)
            else:
                try:
                    open_file()
                except BaseException:
                    if moved:
                        os.rename(self._beside, self.path)
                    raise
            guarding.claim(self)

    def _take_back(self) -> bool:
        """Give a finished part its unfinished name, since it will change. Return whether there was one."""
        left, whole = os.path.exists(self._beside), os.path.exists(self.path)
        if left and whole:
            raise PartError(
                f"{self._title} is there twice: finished, and as {self._beside}, which a killed task left. "
                "Delete or rename one of them; mode='w' starts again"
            )
        if whole and not guarding.is_free(self.path):
            raise FileInUseError(guarding.describe_use(self.path, "r+"))
        if whole:
            os.rename(self.path, self._beside)
        return whole

    @property
    def _title(self) -> str:
        return f"{os.path.basename(self.path)}, the part of {self.task.name},"

    def append(self, dataset: str, array: Any) -> int:
        """Append rows to a dataset, which the first call creates.

        Args:
            dataset: Its path in the file.
            array: The rows, [n, ...], in each call of one dtype and one shape of a row; text too.

        Returns:
            How many rows it has now.

        Raises:
            MismatchError: Rows of another dtype or shape, or a dataset that cannot grow.
            PartError: The disk is full; `flush` and `close` will raise it too.
        """
        rows = _as_rows(array)
        with closing.alone(), self._naming_full():
            if dataset not in self:
                row_bytes = max(1, rows.dtype.itemsize * int(rows[:1].size or 1))
                chunks = (max(1, _CHUNK_BYTES // row_bytes), *(max(1, n) for n in rows.shape[1:]))
                limits = (None, *(n or None for n in rows.shape[1:]))  # a chunk is never empty
                self.create_dataset(dataset, (0, *rows.shape[1:]), rows.dtype, maxshape=limits, chunks=chunks)
            held, name = self._appended.get(dataset), dataset.encode(errors="surrogateescape")
            if held is None or h5py.h5o.open(self.id, name) != held.id:  # it was deleted or moved meanwhile
                held = self._appended[dataset] = self[dataset]
            check_growth(held, dataset)
            check_rows(dataset, held.dtype, rows.dtype, held.shape[1:], rows.shape[1:])
            before = int(held.shape[0])
            held.resize(before + len(rows), axis=0)
            try:
                held[before:] = rows
            except BaseException:
                with contextlib.suppress(Exception):  # the disk can be full
                    held.resize(before, axis=0)
                raise
            return before + len(rows)

    def flush(self) -> None:
        """Hand all data to the operating system, where it survives the death of this task.

        Raises:
            PartError: The disk is full. The file is as the last flush left it, and still open.
        """
        if not self._beside or not self.id.valid:
            super().flush()
            return
        with closing.alone():
            closing.keep_flushed(self)
            with self._naming_full():
                closing.reserve_end(self)
            super().flush()

    def close(self) -> None:
        """Close the part and give it its name. A second call does nothing.

        Raises:
            PartError: The disk is full. The file is closed, unfinished, as the last flush left it.
            FileInUseError: Another process is writing the older part. Both files are kept.
        """
        if not self.id.valid:
            return
        if not self._beside:
            super().close()
            return
        # in the order in which h5py.File is opened
        with guarding.opening(self._beside), guarding.opening(self.path), closing.alone():
            if not self.id.valid:  # another thread has closed it meanwhile
                return
            with self._naming_full():
                try:
                    closing.reserve_end(self)
                except OSError:
                    closing.give_up(self)
                    raise
            super().close()
            try:
                unfinished.give_name(self.path)
            except FileInUseError as error:
                error.add_note(f"What this task has written is in {self._beside}")
                raise

    @contextlib.contextmanager
    def _naming_full(self) -> Iterator[None]:
        """Raise PartError for a full disk."""
        try:
            yield
        except OSError as error:
            if not closing.is_full(error):
                raise
            full = PartError(
                f"{self._title} could not be written to the end: {reason_of(error)}. What was there at the "
                f"last flush() is in {self._beside}; tfmagic.hdf5.recover brings it back"
            )
            full.errno = error.errno
            raise full from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        """Close; after an exception the part is not whole, and does not get its name."""
        if error is None or not self._beside or not self.id.valid:
            self.close()
            return
        closing.close_after(error, self)
        error.add_note(
            f"{self._title} is unfinished: {self._beside}; tfmagic.hdf5.recover takes it as it is, mode='a' "
            "goes on with it, mode='w' starts again and keeps it as PATH.abandoned"
        )


def _as_rows(array: Any) -> Any:
    """Return rows as HDF5 takes them: a scalar is one row, text becomes variable-length UTF-8."""
    rows = np.asarray(array)
    if rows.ndim == 0:
        rows = rows.reshape(1)
    is_object = rows.dtype.kind == "O" and h5py.check_string_dtype(rows.dtype) is None
    if is_object and not all(isinstance(item, str | bytes) for item in rows.flat):
        raise MismatchError(
            "append takes rows of one shape and one type; these are Python objects, such as lists of "
            "different length"
        )
    if is_object or rows.dtype.kind == "U":
        return rows.astype(h5py.string_dtype())
    is_time = rows.dtype.kind in "mM" and not h5py.check_opaque_dtype(rows.dtype)
    if is_time or (rows.dtype.kind in "Vf" and rows.dtype.type.__module__ != "numpy"):
        raise MismatchError(  # h5py would keep bfloat16 as bytes without a meaning
            f"HDF5 has nothing for the dtype {rows.dtype}: convert it first, as with "
            f"astype({'int64' if is_time else 'float32'!r})"
        )
    return rows
