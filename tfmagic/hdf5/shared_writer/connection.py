"""One task's way to the process that writes a `SharedWriter`'s file: a socket, and a ring of shared memory.

Rows of up to 8 KiB go through the socket, up to 16 MiB through the ring, larger ones in a memory file of
their own. For each of them a receipt comes back when its place may be used again. What the user is told while
this waits, and the errors of a writer that has ended, are here too.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import mmap
import os
import select
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from tfmagic.errors import ProtocolError
from tfmagic.hdf5.errors import MismatchError, SharedWriterError
from tfmagic.hdf5.partnames import UNFINISHED
from tfmagic.hdf5.shared_writer.messages import (
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
from tfmagic.protocol.channel import Channel
from tfmagic.protocol.payload import Handle

_RING_BYTES = 16 << 20  # a disk writes that in some hundredths of a second; larger ones gain nothing
_INLINE_BYTES = 8 << 10  # below, a copy through the socket is quicker than the ring
_MOST_UNDER_WAY = 1024  # messages, where their rows are small
_ALIGN = 64
_PATIENCE_S = 2.0  # with other tasks, before the user is told
_SILENCE_S = 10.0  # of the writer, before the user is told: a full disk cache may take seconds


class Link:
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
        self.send(msgspec.structs.replace(message, serial=serial))
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
