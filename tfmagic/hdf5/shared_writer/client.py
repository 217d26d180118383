"""One HDF5 file that all tasks append to: `SharedWriter`, the side of who appends.

    append ── rows into the ring, a message into the socket ──→ the writer process (`writer_process`)
           ←─ receipts: that part of the ring is free again ──

A task gets its socket to the writer through the cluster's control channel; the notebook or a script from
`sessions` directly. When `append` returns, the rows are in the ring and the message is in
the socket, both of which the writer holds as well: they reach the file even if this process is killed in the
next instant. Nobody has more than a ring full of rows under way: then `append` waits for the disk.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Literal

from tfmagic.hdf5.errors import SharedWriterError
from tfmagic.hdf5.shared_writer import sessions
from tfmagic.hdf5.shared_writer.appended import name_of, rows_of
from tfmagic.hdf5.shared_writer.connection import Link
from tfmagic.hdf5.shared_writer.messages import Detach, Flush, Hello, ToTask
from tfmagic.protocol import task_context
from tfmagic.protocol.channel import channel_pair

Mode = Literal["w", "x", "a"]


class SharedWriter:
    """One HDF5 file to which all tasks append, and which one process writes.

    Every task opens it under the same path, or gets a writer that the notebook has opened; each may call
    `append` as often as it likes, from any of its threads. The order of what one task appends is kept; rows
    of different tasks lie in the order of their arrival, those of one `append` always together.

    The file is written as ``PATH.unfinished``. It gets its name when all tasks that run the cell have closed
    it or ended their part; with a writer of the notebook's, when the notebook closes it. What a task has
    appended is in it even if the task is killed.

    Args:
        path: The file; relative to the current folder.
        mode: "w" replaces a file of this name at the end, "x" refuses one, "a" adds to (a copy of) it.
        compression: None, "gzip" or "lzf", for new datasets.
        chunk_rows: Rows of a chunk of a new dataset; by default what makes up to 1 MiB.

    Raises:
        SharedWriterError: The file cannot be opened; nothing is left of it.
        ValueError: A mode or compression that there is not.

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
        self._link: Link | None = None  # also of one that is refused: see __del__
        if mode not in ("w", "x", "a"):
            raise ValueError(f"mode is 'w', 'x' or 'a', not {mode!r}; to read, use h5py.File(path)")
        if compression not in (None, "gzip", "lzf"):
            raise ValueError(f"compression is None, 'gzip' or 'lzf', not {compression!r}")
        if chunk_rows is not None and (not isinstance(chunk_rows, int) or chunk_rows < 1):
            raise ValueError(f"chunk_rows is a number of rows, 1 or more, not {chunk_rows!r}")
        if not os.path.basename(path):
            raise SharedWriterError(f"{os.fspath(path)!r} is a folder: name a file in it")
        # a link is followed, as by h5py: the file lies where it points, and is one file by all its names
        self._set_up(os.path.realpath(os.fsdecode(path)), mode, Hello(compression or "", chunk_rows or 0))
        self._connect()

    def _set_up(self, path: str, mode: Mode, hello: Hello, copy_of: int = 0) -> None:
        self._link, self._lock = None, threading.RLock()
        self.path, self.mode, self._hello = path, mode, hello
        self._is_copy, self._number = bool(copy_of), copy_of  # of the notebook's session
        self._pid = os.getpid()
        self._owner = sessions.Owner(next(sessions.places))  # where no cell of a cluster is it
        self._was_closed, self._thread = False, threading.current_thread()  # which opened it
        self._known: dict[str, tuple[Any, tuple[int, ...]]] = {}  # dtype and shape of rows, by dataset

    def append(self, dataset: str, array: Any) -> None:
        """Append rows to a dataset, which the first append makes.

        Waits while a ring full of this task's rows is under way. When it returns, the rows are safe from the
        death of this task.

        Args:
            dataset: Its name; with "/" inside a group.
            array: [n, ...] of any dtype that HDF5 has: n rows of [...]; a scalar is one row of []. Also a
                tensor, and strings.

        Raises:
            MismatchError: The dataset has another dtype, or rows of another shape, or cannot be made; it is
                as it was.
            SharedWriterError: The file cannot be written any more, or has been closed.
            TypeError: Nothing that HDF5 could hold.
            ValueError: A name or text that HDF5 could not hold.
        """
        dataset = name_of(dataset)
        dtype, rows = rows_of(array)
        with self._lock:
            link = self._linked()
            link.begin()
            if self._known.get(dataset) == (dtype, rows.shape[1:]):
                link.send_rows(dataset, dtype, rows, number=0)
            else:
                link.ask(lambda number: link.send_rows(dataset, dtype, rows, number))
                self._known[dataset] = (dtype, rows.shape[1:])
            link.is_busy = False

    def flush(self) -> None:
        """Wait until what this task has appended is in ``PATH.unfinished``, and the system has it."""
        with self._lock:
            link = self._linked()
            link.begin()
            link.ask(lambda number: link.send(Flush(number)))
            link.is_busy = False

    def close(self) -> None:
        """Wait until what this task has appended is in the file, and append no more. Does nothing twice.

        Raises:
            SharedWriterError: Not everything could be written.
        """
        with self._lock:
            link, self._link = self._link, None
            if link is None and not self._number:
                return
            self._was_closed = True
            _here.pop(self.path, None)
            if self._pid != os.getpid():  # a fork that leaves the `with`: the file is its parent's to close
                if link is not None:
                    link.close()
                return
            try:
                if link is not None:
                    link.ask(lambda number: link.send(Detach(number)))
            except SharedWriterError:
                if link is None or not link.is_complete:
                    raise
            finally:
                if link is not None:
                    link.close()
                number, self._number = self._number, 0
                reason = sessions.finish(number) if number and not self._is_copy else ""
            if reason:
                raise SharedWriterError(reason)

    @property
    def closed(self) -> bool:
        """Whether this writer takes no more rows."""
        return self._was_closed

    def __enter__(self) -> SharedWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with contextlib.suppress(*([SharedWriterError] if kind is SharedWriterError else [])):  # said already
            self.close()

    def __del__(self) -> None:
        link = getattr(self, "_link", None)
        if link is not None and not sys.is_finalizing():
            link.abandon()

    def __repr__(self) -> str:
        how = "closed" if self.closed else f"mode {self.mode!r}"
        return f"<SharedWriter {self.path!r}, {how}>"

    def __reduce__(self) -> tuple[Callable[..., SharedWriter], tuple[Any, ...]]:
        if task_context.is_task() or self._was_closed:
            raise TypeError(
                "a SharedWriter travels from the notebook to the tasks, while it is open; elsewhere open the "
                f"file anew: SharedWriter({self.path!r}, 'a')"
            )
        return _copy, (self.path, self.mode, self._hello, self._number)

    # -- inside --

    def _linked(self) -> Link:
        if self._was_closed:
            raise SharedWriterError(f"{self.path} has been closed here; open it anew to append")
        if self._link is None:  # a copy, used for the first time
            self._connect()
        assert self._link is not None
        if self._link.pid != os.getpid():
            raise SharedWriterError(
                f"{self.path} was opened by the process {self._link.pid}, and this is a fork of it: append "
                "there, or in a thread"
            )
        return self._link

    def _connect(self) -> None:
        former = None if self._is_copy else _here.pop(self.path, None)
        if former is not None and former._link is not None and former._link.pid == os.getpid():
            former._give_way()
        ours, theirs = channel_pair(ToTask)
        number = 0
        try:
            number = self._offer(theirs.fileno())
            link = Link(self.path, ours)
            link.open(self._hello)
        except BaseException as error:
            ours.close()
            if not isinstance(error, SharedWriterError):  # Ctrl-C
                sessions.withdraw(self._owner)
            elif number and not self._is_copy:  # who opens it in another way now must not find it taken
                sessions.finish(number)
            raise
        finally:
            theirs.close()
        self._link, self._thread = link, threading.current_thread()
        if not self._is_copy:
            self._number = number
            _here[self.path] = self

    def _give_way(self) -> None:
        """Close this writer, as the file is opened anew: by a cell that runs again, not by another thread."""
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            _here[self.path] = self
            raise SharedWriterError(
                f"{self.path} is open in the thread {self._thread.name} of this process: let threads share "
                "that SharedWriter, each may call its append"
            )
        self.close()

    def _offer(self, fd: int) -> int:
        """Hand the other end of our socket to who finds the writer; the session's number in the notebook."""
        copy_of = self._number if self._is_copy else 0
        if (want_writer := task_context.wants_writers()) is not None:
            want_writer(self.path, self.mode, copy_of, fd)
            return 0
        return sessions.request_open(
            sessions.OpenRequest(self.path, self.mode, self._owner, "", ("",), os.dup(fd), copy_of)
        )


def _copy(path: str, mode: Mode, hello: Hello, number: int) -> SharedWriter:
    """A writer of the notebook's, in a task: it connects when it is used."""
    made = SharedWriter.__new__(SharedWriter)
    made._set_up(path, mode, hello, number)
    return made


_here: weakref.WeakValueDictionary[str, SharedWriter] = weakref.WeakValueDictionary()  # opened here, by path
