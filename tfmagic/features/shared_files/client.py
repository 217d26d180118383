"""`SharedWriter`: the side of the process that appends to a shared HDF5 file.

    append ── rows into shared memory, a message into the socket ──→ the writer process (`writer_process`)
           ←─ answers ──

A task gets its socket to the writer process through the cluster's control channel, the notebook or a script
directly from `sessions`. A task on another machine listens for the kernel, which connects and hands that
socket to the writer. The writer process holds the memory and the socket as well: when `append` has
returned, its rows reach the file even if this process is killed. At most 16 MiB of rows are under way; then
`append` waits for the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Literal

from tfmagic.errors import ProtocolError
from tfmagic.features.shared_files import links, sessions
from tfmagic.features.shared_files.connection import Connection
from tfmagic.features.shared_files.messages import TEXT, ToTask, text_of_dtype
from tfmagic.hdf5.errors import SharedWriterError
from tfmagic.protocol import task_context
from tfmagic.protocol.channel import Channel, channel_pair
from tfmagic.system.arguments import as_path

Mode = Literal["w", "x", "a"]
_NOT_HELD = re.compile("[\0\ud800-\udfff]")  # NUL ends a text; half of a surrogate pair is no UTF-8


class SharedWriter:
    """One HDF5 file to which all tasks append, and which one process writes.

    Every task opens it under the same path, or gets a writer that the notebook has opened. Each can call
    `append` as often as it likes, from any of its threads. What one task appends keeps its order; rows of
    different tasks lie in the order of their arrival; the rows of one `append` stay together.

    The file is written as ``PATH.unfinished``. It gets its name when all tasks that run the cell have closed
    it or ended their part, or when the notebook closes the writer that it has opened. What a task has
    appended is in the file even if the task is killed.

    Args:
        path: The file; relative to the current folder.
        mode: "w" replaces a file of this name at the end, "x" refuses one, "a" adds to (a copy of) it.
        compression: None, "gzip" or "lzf", for new datasets.
        chunk_rows: Rows of a chunk of a new dataset; by default as many as make up to 1 MiB.

    Raises:
        SharedWriterError: The file cannot be opened; nothing is left of it.
        ValueError: There is no such mode or compression.

    Example:
        >>> with SharedWriter("activations.h5") as writer:   # in a cell, on every task
        ...     for step, batch in enumerate(batches):
        ...         writer.append("layer1", model(batch))    # float32 [256, 1024]: 256 rows more
        ...         writer.append("step", step)              # a scalar: one row more
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: Mode = "w",
        *,
        compression: str | None = None,
        chunk_rows: int | None = None,
    ):
        self._connection: Connection | None = None  # first: __del__ reads it also after a refusal
        as_path("path", path, takes_bytes=True)
        if mode not in ("w", "x", "a"):
            raise ValueError(f"mode is 'w', 'x' or 'a', not {mode!r}; to read, use h5py.File(path)")
        if compression not in (None, "gzip", "lzf"):
            raise ValueError(f"compression is None, 'gzip' or 'lzf', not {compression!r}")
        if chunk_rows is not None and (not isinstance(chunk_rows, int) or chunk_rows < 1):
            raise ValueError(f"chunk_rows is a number of rows, 1 or more, not {chunk_rows!r}")
        if not os.path.basename(path):
            raise SharedWriterError(f"{os.fspath(path)!r} is a folder: name a file in it")
        # a link is followed, as by h5py: all names of a file lead to one writer
        how = mode, compression or "", chunk_rows or 0
        self._set_up(os.path.realpath(os.fsdecode(path)), how)
        self._connect()

    def _set_up(self, path: str, how: tuple[Mode, str, int], copy_of: int = 0) -> None:
        self._connection, self._lock = None, threading.RLock()
        self._how = how
        self.path: str = path
        self.mode: Mode = how[0]
        self._copy_of = copy_of  # the process that writes for the notebook's `SharedWriter`, or 0
        self._owner = sessions.Owner()  # used outside of cells
        self.closed: bool = False  # takes no more rows
        self._has_given_way = False
        self._thread = threading.current_thread()  # the thread that opened it
        self._known: dict[str, tuple[str, tuple[int, ...]]] = {}  # dtype and shape of a row, by dataset

    def append(self, dataset: str, array: Any) -> None:
        """Append rows to a dataset; the first call creates it.

        Waits while 16 MiB of this task's rows are under way. When it returns, the rows reach the file even if
        this task is killed.

        Args:
            dataset: The name; with "/" inside a group.
            array: [n, ...] of any dtype that HDF5 has: n rows of [...]; a scalar is one row of []. Tensors
                and strings too.

        Raises:
            MismatchError: The dataset has another dtype, or rows of another shape, or cannot be made; it is
                unchanged.
            SharedWriterError: The file cannot be written any more, or has been closed.
            TypeError: HDF5 has no such type.
            ValueError: HDF5 does not take this name or text.
        """
        dataset = _normal_name(dataset)
        dtype, rows = _rows_of(array)
        held = dtype, rows.shape[1:]
        with self._lock:
            self._connected().append(dataset, dtype, rows, self._known.get(dataset) == held)
            self._known[dataset] = held

    def flush(self) -> None:
        """Wait until the operating system has all rows of this task, in ``PATH.unfinished``."""
        with self._lock:
            self._connected().flush()

    def close(self) -> None:
        """Wait until all rows of this task are in the file, and append no more. A second call does nothing.

        Raises:
            SharedWriterError: Not everything could be written.
        """
        with self._lock:
            if self.closed:
                return
            connection, self._connection = self._connection, None
            self.closed = True
            _open_here.pop(self.path, None)
            try:
                if connection is not None:
                    connection.detach()
            finally:
                reasons = sessions.end_all(self._owner, float("inf"))
            if reasons:
                raise SharedWriterError("; ".join(reasons))

    def __enter__(self) -> SharedWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # the user reads a SharedWriterError once
        with contextlib.suppress(*([SharedWriterError] if kind is SharedWriterError else [])):
            self.close()

    def __del__(self) -> None:
        if self._connection is not None and not sys.is_finalizing():
            self._connection.abandon()

    def __repr__(self) -> str:
        how = "closed" if self.closed else f"mode {self.mode!r}"
        return f"<SharedWriter {self.path!r}, {how}>"

    def __reduce__(self) -> tuple[Callable[..., SharedWriter], tuple[Any, ...]]:
        if task_context.is_task() or self.closed:
            raise TypeError(
                "a SharedWriter travels from the notebook to the tasks, while it is open; elsewhere open the "
                f"file again: SharedWriter({self.path!r}, 'a')"
            )
        assert self._connection is not None
        return _copy, (self.path, self._how, self._connection.writer_pid)

    # -- inside --

    def _connected(self) -> Connection:
        if self.closed:
            end = "was closed when this process opened the file once more; append to that SharedWriter"
            end = end if self._has_given_way else "has been closed here; open it again to append"
            raise SharedWriterError(f"{self.path} {end}")
        if self._connection is None:  # a copy, used for the first time
            self._connect()
        assert self._connection is not None
        if self._connection.pid != os.getpid():
            raise SharedWriterError(
                f"{self.path} was opened by the process {self._connection.pid}, and this is a fork of it: "
                "append there, or in a thread"
            )
        return self._connection

    def _connect(self) -> None:
        former = None if self._copy_of else _open_here.get(self.path)
        if former is not None and former._connection is not None and former._connection.pid == os.getpid():
            former._give_way()
        channel: Channel | None = None
        try:
            channel, is_here = self._reach_writer()
            connection = Connection(self.path, channel, is_here)
            connection.open()
        except BaseException:  # Ctrl-C, or a refusal: free the path for an opening in another mode
            if channel is not None:
                channel.close()
            sessions.end_all(self._owner)
            raise
        self._connection, self._thread = connection, threading.current_thread()
        if not self._copy_of:
            _open_here[self.path] = self

    def _give_way(self) -> None:
        """Close this writer for a cell that runs again and opens the file again; another thread must not."""
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            raise SharedWriterError(
                f"{self.path} is open in the thread {self._thread.name} of this process: let threads share "
                "that SharedWriter, each may call its append"
            )
        self._has_given_way = True
        self.close()

    def _reach_writer(self) -> tuple[Channel, bool]:
        """Return the channel to the writer process, and whether that is on this machine."""
        wanted = self.path, self._how, self._copy_of
        ours, theirs = channel_pair(ToTask)
        with theirs:
            if (send_socket := task_context.services().send_socket) is None:
                fd = os.dup(theirs.fileno())
                sessions.request_open(sessions.OpenRequest(*wanted, self._owner, "", ("",), fd))
                return ours, True
            try:
                send_socket(json.dumps(wanted), theirs.fileno())
                return ours, True
            except ProtocolError:  # an agent passes no sockets on
                ours.close()
        try:
            return Channel(
                links.await_kernel(lambda place: send_socket(json.dumps([*wanted, *place]), None)), ToTask
            ), False
        except OSError as error:
            raise SharedWriterError(
                f"{self.path} cannot be opened by a SharedWriter here: it writes in a process beside the "
                f"notebook, which does not reach this host ({error}). Let each task write its own file, in a "
                "folder that the hosts share, with tfmagic.hdf5.TaskFile; consolidate() joins them"
            ) from None


def _copy(path: str, how: tuple[Mode, str, int], copy_of: int) -> SharedWriter:
    """Return a task's copy of the notebook's writer; it connects at its first use."""
    copy = SharedWriter.__new__(SharedWriter)
    copy._set_up(path, how, copy_of)
    return copy


_open_here: weakref.WeakValueDictionary[str, SharedWriter] = weakref.WeakValueDictionary()  # by path


# -- checks that fail for the caller alone, before the rows are sent --


def _normal_name(dataset: Any) -> str:
    """Return the name without needless slashes: "x" and "/x" are one dataset."""
    parts = [part for part in dataset.split("/") if part not in ("", ".")] if isinstance(dataset, str) else []
    name = "/".join(parts)
    if not name or "\0" in name:
        raise ValueError(f"a dataset has a name, not {dataset!r}")
    return name


def _rows_of(array: Any) -> tuple[str, Any]:
    """Return the dtype as messages have it, and the rows: a contiguous array, or one of strings."""
    import numpy as np

    rows = np.asarray(array)
    if rows.ndim == 0:
        rows = rows.reshape(1)
    kind = rows.dtype.kind
    if kind in "UT" or (kind == "O" and all(isinstance(value, str | bytes) for value in rows.flat)):
        texts = rows.astype(object)
        texts.flat = [_checked_text(text) for text in texts.flat]
        return TEXT, texts
    if rows.dtype.hasobject or kind in "OmM" or (kind == "V" and rows.dtype.names is None):
        raise TypeError(
            f"HDF5 has nothing for the dtype {rows.dtype}: convert it first, as with astype('float32')"
        )
    return text_of_dtype(rows.dtype), np.ascontiguousarray(rows)


def _checked_text(text: str | bytes) -> str:
    """Return text that HDF5 can hold; others would make the writer process fail, for all tasks."""
    if isinstance(text, bytes):  # an element of a string tensor
        try:
            text = text.decode()
        except UnicodeDecodeError:
            raise ValueError(
                f"HDF5 holds text as UTF-8, not {text[:80]!r}: append bytes as rows of one length, as with "
                "numpy.frombuffer(data, 'uint8')"
            ) from None
    if _NOT_HELD.search(text):
        raise ValueError(f"HDF5 holds text as UTF-8 that ends at a NUL character, not {text[:80]!r}")
    return text
