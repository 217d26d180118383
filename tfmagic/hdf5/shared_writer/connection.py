"""The connection of one process to the writer of a shared HDF5 file: a socket, and a ring of shared memory.

Rows of up to 8 KiB go through the socket, up to 16 MiB through the ring, larger ones in a memory file of
their own. The writer sends a receipt when their memory is free again. `SharedWriter` uses a connection under
its lock.
"""

import collections
import contextlib
import itertools
import mmap
import os
import select
import sys
from collections.abc import Callable
from typing import Any

from tfmagic.errors import ProtocolError
from tfmagic.hdf5.errors import MismatchError, SharedWriterError
from tfmagic.hdf5.partnames import UNFINISHED
from tfmagic.hdf5.shared_writer import messages
from tfmagic.protocol.channel import Channel
from tfmagic.protocol.payload import OwnedHandle

_RING_BYTES = 16 << 20  # a disk writes that in some hundredths of a second; larger rings gain nothing
_INLINE_BYTES = 8 << 10  # up to here, a copy through the socket is quicker than the ring
_MOST_UNDER_WAY = 1024  # messages without a receipt
_ALIGN = 64
_PATIENCE_S = 2.0  # with other tasks, before the user reads for which ones the task waits
_SILENCE_S = 10.0  # of the writer, before the user reads so: a full disk cache can take seconds


class Connection:
    """See the module."""

    def __init__(self, path: str, channel: Channel):
        self.pid = os.getpid()  # a fork must not use the connection
        self.is_busy = False  # a call is under way; one that finds this set follows an interrupted one
        self._path, self._channel = path, channel
        self._writer_pid = 0
        self._opened: str | None = None  # "", or why the file cannot be opened; None before the answer
        self._waits_for: tuple[str, ...] = ()  # tasks that have the file open
        self._failure, self._is_complete = "", False  # the file is closed; with all rows of this process
        self._numbers, self._serials = itertools.count(1), itertools.count(1)
        self._answers: dict[int, str] = {}
        self._ring: mmap.mmap | None = None
        self._head = self._tail = 0  # bytes of the ring that were ever taken, and freed
        self._under_way: collections.deque[tuple[int, int]] = collections.deque()  # serial, head after it

    def open(self, hello: messages.Hello) -> None:
        """Wait until the writer has opened the file."""
        self.send(hello)
        while self._opened is None:
            if self._is_ready(_PATIENCE_S):
                self._receive()
            elif self._waits_for:
                names = ", ".join(self._waits_for)
                print(f"tfmagic: {self._path} is opened anew when {names} has closed it", file=sys.stderr)
                self._waits_for = ()
        if self._opened:
            raise SharedWriterError(self._opened)

    def send(self, message: object) -> None:
        """Put a whole message into the socket. After an interrupt the next call sends the rest."""
        self._check()
        try:
            is_sent = self._channel.post(message)
            while not is_sent:
                self._await(select.POLLIN | select.POLLOUT)
                is_sent = self._channel.flush()
        except OSError:  # the writer has ended, and might have sent why
            while True:
                self._await()

    def send_rows(self, dataset: str, dtype: str, rows: Any, number: int = 0) -> None:
        """Put rows where the writer finds them, and send the message about them."""
        place: dict[str, Any] = {}
        ring_bytes = 0
        if dtype == messages.TEXT:
            place["texts"] = tuple(rows.flat)
        elif rows.nbytes <= _INLINE_BYTES:
            place["data"] = rows.tobytes()
        elif rows.nbytes <= _RING_BYTES:
            place["offset"], ring_bytes = self._put_into_ring(rows)
        else:
            handle = place["handle"] = OwnedHandle(os.memfd_create("tfmagic-rows", os.MFD_CLOEXEC))
            left = memoryview(rows.reshape(-1)).cast("B")
            while left:
                left = left[os.write(handle.fd, left) :]
        # large rows go one at a time, since their memory is not bounded
        while len(self._under_way) >= (1 if "handle" in place else _MOST_UNDER_WAY):
            self._await()
        serial = next(self._serials)
        self._head += ring_bytes
        self._under_way.append((serial, self._head))  # before it is sent: see `Written` in `_receive`
        self.send(messages.Rows(dataset, dtype, rows.shape, serial=serial, number=number, **place))
        self._receive()

    def request(self, send: Callable[[int], None]) -> None:
        """Let `send` send a message of a new number. Wait for the answer; a refusal is a MismatchError."""
        number = next(self._numbers)
        send(number)
        while number not in self._answers:
            self._await()
        if reason := self._answers.pop(number):
            raise MismatchError(f"{self._path}: {reason}")

    def begin(self) -> None:
        """Begin a call. Bring to an end what an interrupted one has left half done."""
        if self.is_busy:
            self.request(lambda number: self.send(messages.Flush(number)))
            self._under_way.clear()  # all written, or never sent
        self.is_busy = True

    def detach(self) -> None:
        """Wait until the writer has written all rows, and close."""
        try:
            self.request(lambda number: self.send(messages.Detach(number)))
        except SharedWriterError:
            if not self._is_complete:
                raise
        finally:
            self.close()

    def close(self) -> None:
        self._channel.close()

    def abandon(self) -> None:
        """Close without waiting: nothing refers to the `SharedWriter` any more."""
        if self.pid == os.getpid():
            with contextlib.suppress(OSError):
                self._channel.post(messages.Detach(0))
        self.close()

    # -- inside --

    def _put_into_ring(self, rows: Any) -> tuple[int, int]:
        """Copy rows into the ring. Return their offset, and how many bytes of the ring they take."""
        import numpy as np

        if self._ring is None:
            handle = OwnedHandle(os.memfd_create("tfmagic-ring", os.MFD_CLOEXEC))
            os.ftruncate(handle.fd, _RING_BYTES)
            ring = mmap.mmap(handle.fd, _RING_BYTES)
            self.send(messages.Ring(handle, _RING_BYTES))
            self._ring = ring
        size = -(-rows.nbytes // _ALIGN) * _ALIGN
        while True:
            if not self._under_way:  # start anew: bytes skipped at the ring's end would count as taken
                self._head = self._tail = 0
            left = _RING_BYTES - self._head % _RING_BYTES
            padding = left if left < size else 0
            if self._head + padding + size - self._tail <= _RING_BYTES:
                break
            self._await()
        start = (self._head + padding) % _RING_BYTES
        np.frombuffer(self._ring, np.uint8, rows.nbytes, start)[:] = rows.reshape(-1).view(np.uint8)
        return start, padding + size

    def _receive(self) -> None:
        """Take the messages that the writer has sent. Does not wait."""
        try:
            received = self._channel.receive_ready()
        except (EOFError, OSError, ProtocolError):
            self._failure = self._failure or (
                f"the process that wrote {self._path} has ended; what it had written is in "
                f"{self._path}{UNFINISHED}"
            )
            received = []
        for message in received:
            match message:
                case messages.Opened(reason, pid, note):
                    self._opened, self._writer_pid = reason, pid
                    if note:
                        print(f"tfmagic: {self._path}: {note}", file=sys.stderr, flush=True)
                case messages.Waits(tasks):
                    self._waits_for = tasks
                case messages.Written(serial):  # also of a message that an interrupt kept from being sent
                    while self._under_way and self._under_way[0][0] <= serial:
                        self._tail = self._under_way.popleft()[1]
                case messages.Answered(number, reason):
                    self._answers[number] = reason
                case messages.Failed(reason, is_complete):
                    self._failure, self._is_complete = reason, is_complete
        if self._failure and self._opened is None:
            self._opened = self._failure

    def _await(self, events: int = select.POLLIN) -> None:
        """Wait for messages of the writer, or until it takes more; after a long silence, print so."""
        self._check()
        if not self._is_ready(_SILENCE_S, events):
            print(
                f"tfmagic: waiting for the process that writes {self._path} (pid {self._writer_pid}): "
                f"nothing from it for {_SILENCE_S:.0f} s; the disk is slow, or it is stopped",
                file=sys.stderr,
            )
            self._is_ready(None, events)
        self._receive()

    def _is_ready(self, timeout_s: float | None, events: int = select.POLLIN) -> bool:
        poll = select.poll()
        poll.register(self._channel, events)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

    def _check(self) -> None:
        if self._failure:
            raise SharedWriterError(self._failure)
