"""One HDF5 file that all tasks append to: `SharedWriter`, the side of who appends.

    append ── rows into the ring, a message into the socket ──→ the writer process (`tfmagic.hdf5.writing`)
           ←─ receipts: that part of the ring is free again ──

A task gets its socket to the writer through the cluster's control channel; the notebook or a script from
`tfmagic.hdf5.desk` directly. When `append` returns, the rows are in the ring and the message is in the
socket, both of which the writer holds as well: they reach the file even if this process is killed in the
next instant. Nobody has more than a ring full of rows under way: then `append` waits for the disk.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import mmap
import os
import select
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from tfmagic import context
from tfmagic.errors import ProtocolError
from tfmagic.hdf5 import desk
from tfmagic.hdf5.appended import name_of, rows_of
from tfmagic.hdf5.complaints import MismatchError, SharedWriterError
from tfmagic.hdf5.messages import (
    TEXT,
    Answered,
    Detach,
    Failed,
    Flush,
    Hello,
    Opened,
    Ring,
    Rows,
    Waits,
    Written,
)
from tfmagic.hdf5.partnames import UNFINISHED
from tfmagic.packed import Handle
from tfmagic.wire import Channel, channel_pair

Mode = Literal["w", "x", "a"]

_RING_BYTES = 16 << 20  # a disk writes that in some hundredths of a second; larger ones gain nothing
_INLINE_BYTES = 8 << 10  # below, a copy through the socket is quicker than the ring
_MOST_UNDER_WAY = 1024  # messages, where their rows are small
_ALIGN = 64
_PATIENCE_S = 2.0  # with other tasks, before the user is told
_SILENCE_S = 10.0  # of the writer, before the user is told: a full disk cache may take seconds


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
        self._link: _Link | None = None  # also of one that is refused: see __del__
        if mode not in ("w", "x", "a"):
            raise ValueError(f"mode is 'w', 'x' or 'a', not {mode!r}; to read, use h5py.File(path)")
        if compression not in (None, "gzip", "lzf"):
            raise ValueError(f"compression is None, 'gzip' or 'lzf', not {compression!r}")
        if chunk_rows is not None and (not isinstance(chunk_rows, int) or chunk_rows < 1):
            raise ValueError(f"chunk_rows is a number of rows, 1 or more, not {chunk_rows!r}")
        if not os.path.basename(path):
            raise SharedWriterError(f"{os.fspath(path)!r} is a folder: name a file in it")
        # a link is followed, as by h5py: the file lies where it points, and is one file by all its names
        self._set_up(os.path.realpath(path), mode, Hello(compression or "", chunk_rows or 0))
        self._connect()

    def _set_up(self, path: str, mode: Mode, hello: Hello, copy_of: int = 0) -> None:
        self._link, self._lock = None, threading.RLock()
        self.path, self.mode, self._hello = path, mode, hello
        self._is_copy, self._number = bool(copy_of), copy_of  # of the notebook's session
        self._owner = desk.Owner(next(desk.places))  # where no cell of a cluster is it
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
                reason = desk.finish(number) if number and not self._is_copy else ""
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
        if context.is_task() or self._was_closed:
            raise TypeError(
                "a SharedWriter travels from the notebook to the tasks, while it is open; elsewhere open the "
                f"file anew: SharedWriter({self.path!r}, 'a')"
            )
        return _copy, (self.path, self.mode, self._hello, self._number)

    # -- inside --

    def _linked(self) -> _Link:
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
        ours, theirs = channel_pair()
        number = 0
        try:
            number = self._offer(theirs.fileno())
            link = _Link(self.path, ours)
            link.open(self._hello)
        except BaseException as error:
            ours.close()
            if not isinstance(error, SharedWriterError):  # Ctrl-C
                desk.withdraw(self._owner)
            elif number and not self._is_copy:  # who opens it in another way now must not find it taken
                desk.finish(number)
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
        if (want_writer := context.wants_writers()) is not None:
            want_writer(self.path, self.mode, copy_of, fd)
            return 0
        return desk.offer(desk.Offer(self.path, self.mode, self._owner, "", ("",), os.dup(fd), copy_of))


def _copy(path: str, mode: Mode, hello: Hello, number: int) -> SharedWriter:
    """A writer of the notebook's, in a task: it connects when it is used."""
    made = SharedWriter.__new__(SharedWriter)
    made._set_up(path, mode, hello, number)
    return made


_here: weakref.WeakValueDictionary[str, SharedWriter] = weakref.WeakValueDictionary()  # opened here, by path


class _Link:
    """The socket to the writer, and the ring. Used under its `SharedWriter`'s lock."""

    def __init__(self, path: str, channel: Channel):
        self.pid = os.getpid()
        self._path, self._channel = path, channel
        self._writer_pid = 0
        self.is_busy = False  # in a call; at the next one's begin: an interrupt has ended that in its midst
        self._fds: list[int] = []  # of memory files, until they have been sent
        self._numbers = itertools.count(1)
        self._answers: dict[int, str] = {}
        self._broken = ""
        self.is_complete = False  # closed by others, with all that was sent
        self._opened: str | None = None
        self._ring: mmap.mmap | None = None
        self._head = self._tail = 0  # bytes of the ring that were ever taken, and freed
        self._serials = itertools.count(1)
        self._under_way: collections.deque[tuple[int, int]] = (
            collections.deque()
        )  # serial, and the head after it
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)

    def open(self, hello: Hello) -> None:
        """Wait until the writer has opened the file."""
        self.send(hello)
        told: tuple[str, ...] = ()
        while self._opened is None:
            waits = self._hear(_PATIENCE_S)
            if waits is not None:
                told = waits
            elif told and self._opened is None:
                print(
                    f"tfmagic: {self._path} is opened anew when {', '.join(told)} has closed it",
                    file=sys.stderr,
                )
                told = ()
        if self._opened:
            raise SharedWriterError(self._opened)

    def send(self, message: object) -> None:
        """Put a message into the socket, whole. An interrupt leaves the rest to the next one."""
        self._check()
        try:
            done = self._channel.post(message)
            while not done:
                self._await(select.POLLIN | select.POLLOUT)
                done = self._channel.flush()
        except OSError:
            self._hear_the_end()

    def send_rows(self, dataset: str, dtype: Any, rows: Any, number: int) -> None:
        """Lay rows where the writer finds them, and say so."""
        shape = tuple(map(int, rows.shape))
        if dtype == TEXT:
            message = Rows(dataset, TEXT, shape, texts=tuple(rows.flat), number=number)
            self._send_counted(message, 0)
        elif rows.nbytes <= _INLINE_BYTES:
            self._send_counted(Rows(dataset, dtype, shape, rows.tobytes(), number=number), 0)
        elif rows.nbytes <= _RING_BYTES:
            self._send_in_ring(dataset, dtype, rows, number)
        else:
            fd = self._make_memory("tfmagic-rows")
            _write_all(fd, rows)
            while self._under_way:  # one at a time: it takes as much memory as it likes
                self._await()
            self._send_counted(Rows(dataset, dtype, shape, handle=Handle(fd), number=number), 0)
            self._close_fds()

    def ask(self, put: Callable[[int], None]) -> None:
        """Send what `put` sends, and wait until the writer has answered it.

        Raises:
            MismatchError: It was refused.
        """
        number = next(self._numbers)
        put(number)
        while number not in self._answers:
            self._await()
        if reason := self._answers.pop(number):
            raise MismatchError(f"{self._path}: {reason}")

    def begin(self) -> None:
        """A call begins. What an interrupted one has left half done is brought to an end first."""
        if self.is_busy:
            self.ask(lambda number: self.send(Flush(number)))
            self._under_way.clear()  # written all, or never sent
            self._close_fds()
        self.is_busy = True

    def close(self) -> None:
        self._channel.close()
        self._close_fds()

    def abandon(self) -> None:
        """Nobody refers to the writer any more: say so, without waiting."""
        if self.pid == os.getpid():
            with contextlib.suppress(OSError):
                self._channel.post(Detach(0))
        self.close()

    # -- inside --

    def _send_in_ring(self, dataset: str, dtype: Any, rows: Any, number: int) -> None:
        import numpy as np

        if self._ring is None:
            self._ring = self._make_ring()
        size = -(-rows.nbytes // _ALIGN) * _ALIGN
        while True:
            if not self._under_way:  # begin anew: what is skipped at the ring's end would count as taken
                self._head = self._tail = 0
            left = _RING_BYTES - self._head % _RING_BYTES
            padding = left if left < size else 0
            if self._head + padding + size - self._tail <= _RING_BYTES:
                break
            self._await()
        start = (self._head + padding) % _RING_BYTES
        flat = np.frombuffer(self._ring, np.uint8, rows.nbytes, start)
        flat[:] = rows.reshape(-1).view(np.uint8)
        del flat
        self._send_counted(Rows(dataset, dtype, rows.shape, offset=start, number=number), padding + size)

    def _send_counted(self, message: Rows, ring_bytes: int) -> None:
        """Send a message for which a receipt will come."""
        while len(self._under_way) >= _MOST_UNDER_WAY:
            self._await()
        serial = next(self._serials)
        self._under_way.append((serial, self._head + ring_bytes))  # first: see `Written` in `_hear`
        self._head += ring_bytes
        self.send(replace(message, serial=serial))
        self._hear(0)

    def _make_ring(self) -> mmap.mmap:
        fd = self._make_memory("tfmagic-ring")
        os.ftruncate(fd, _RING_BYTES)
        ring = mmap.mmap(fd, _RING_BYTES)
        self.send(Ring(Handle(fd), _RING_BYTES))
        self._close_fds()
        return ring

    def _make_memory(self, name: str) -> int:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        self._fds.append(fd)
        return fd

    def _close_fds(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def _hear(self, timeout_s: float) -> tuple[str, ...] | None:
        """Take what the writer says, having waited for it; for whom one waits, where it says so."""
        if not self._poll.poll(timeout_s * 1000):
            return None
        waits = None
        try:
            messages = self._channel.receive_ready()
        except (EOFError, OSError, ProtocolError):
            self._broken = self._broken or (
                f"the process that wrote {self._path} has ended; what it had written is in "
                f"{self._path}{UNFINISHED}"
            )
            messages = []
        for message in messages:
            match message:
                case Opened(reason, pid):
                    self._opened, self._writer_pid = reason, pid
                case Waits(whom):
                    waits = whom
                case Written(serial):  # also of a message that an interrupt kept from being sent
                    while self._under_way and self._under_way[0][0] <= serial:
                        self._tail = self._under_way.popleft()[1]
                case Answered(number, reason):
                    self._answers[number] = reason
                case Failed(reason, is_complete):
                    self._broken, self.is_complete = reason, is_complete
        if self._broken and self._opened is None:
            self._opened = self._broken
        return waits

    def _await(self, events: int = select.POLLIN) -> None:
        """Wait until the writer says something, or takes more; if it is long silent, the user is told."""
        self._check()
        come = select.poll()
        come.register(self._channel.fileno(), events)
        if not come.poll(_SILENCE_S * 1000):
            print(
                f"tfmagic: waiting for the process that writes {self._path} (pid {self._writer_pid}): "
                f"nothing from it for {_SILENCE_S:.0f} s; the disk is slow, or it is stopped",
                file=sys.stderr,
            )
            come.poll()
        self._hear(0)

    def _check(self) -> None:
        if self._broken:
            raise SharedWriterError(self._broken)

    def _hear_the_end(self) -> None:
        """The socket takes no more: the writer has said why, or has died."""
        while True:
            self._await()


def _write_all(fd: int, rows: Any) -> None:
    left = memoryview(rows.reshape(-1)).cast("B")
    while left:
        left = left[os.write(fd, left) :]
