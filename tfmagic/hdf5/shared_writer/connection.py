"""The connection of one process to the writer of a shared HDF5 file: a socket, and a ring of shared memory.

Rows of up to 8 KiB go through the socket, up to 16 MiB through the ring, larger ones in a memory file of
their own. The writer sends a receipt when their memory is free again. `SharedWriter` uses a connection under
its lock.
"""

import collections
import contextlib
import mmap
import os
import select
import sys
from typing import Any

from tfmagic.errors import ProtocolError
from tfmagic.hdf5.errors import MismatchError, SharedWriterError
from tfmagic.hdf5.partnames import UNFINISHED
from tfmagic.hdf5.shared_writer import messages
from tfmagic.hdf5.shared_writer.messages import RING_BYTES
from tfmagic.protocol.channel import Channel
from tfmagic.protocol.payload import OwnedHandle

_INLINE_BYTES = 8 << 10  # up to here, a copy through the socket is quicker than the ring
_ALIGN = 64
_PATIENCE_S = 2.0  # with other tasks, before the user reads for which ones the task waits
_SILENCE_S = 10.0  # of the writer, before the user reads so: a full disk cache can take seconds


class Connection:
    """See the module."""

    def __init__(self, path: str, channel: Channel):
        self.pid = os.getpid()  # a fork must not use the connection
        self.is_busy = False  # a call is under way; one that finds this set follows an interrupted one
        self._path, self._channel = path, channel
        self._writer_pid = 0  # until the file is open
        self._waits_for: tuple[str, ...] = ()  # tasks that have the file open
        self._failure, self._is_complete = "", False  # the file is closed; with all rows of this process
        self._sent = self._done = 0  # serial numbers: of the last message, and of the last receipt
        self._refusals: dict[int, str] = {}  # by serial number
        self._head = self._tail = 0  # bytes of the ring that were ever taken, and freed
        self._under_way: collections.deque[tuple[int, int]] = collections.deque()  # serial, head after it
        handle = OwnedHandle(os.memfd_create("tfmagic-ring", os.MFD_CLOEXEC))
        os.ftruncate(handle.fd, RING_BYTES)
        self._ring = mmap.mmap(handle.fd, RING_BYTES)
        self._send(messages.Ring(handle))

    def open(self) -> None:
        """Wait until the writer has opened the file."""
        while not self._writer_pid:
            self._await()

    def begin(self) -> None:
        """Begin a call. Bring to an end what an interrupted one has left half done."""
        if self.is_busy:
            self.flush()
        self.is_busy = True

    def append(self, dataset: str, dtype: str, rows: Any, is_known: bool) -> None:
        """Put rows where the writer finds them, and send the message about them.

        Wait for the receipt unless the dataset `is_known` to take them. Raises MismatchError if it does not.
        """
        place: dict[str, Any] = {}
        ring_bytes = 0
        if dtype == messages.TEXT:
            place["texts"] = tuple(rows.flat)
        elif rows.nbytes <= _INLINE_BYTES:
            place["data"] = rows.tobytes()
        elif rows.nbytes <= RING_BYTES:
            place["offset"], ring_bytes = self._put_into_ring(rows)
        else:
            handle = place["handle"] = OwnedHandle(os.memfd_create("tfmagic-rows", os.MFD_CLOEXEC))
            left = memoryview(rows.reshape(-1)).cast("B")
            while left:
                left = left[os.write(handle.fd, left) :]
        while "handle" in place and self._under_way:  # one at a time, since their memory is not bounded
            self._await()
        self._sent += 1
        self._head += ring_bytes
        self._under_way.append((self._sent, self._head))  # before it is sent: see `Done` in `_receive`
        self._send(messages.Rows(self._sent, dataset, dtype, rows.shape, **place))
        if is_known:
            self._receive()
        else:
            self._await_receipt()

    def flush(self) -> None:
        """Wait until the operating system has all rows."""
        self._sent += 1
        self._send(messages.Flush(self._sent))
        self._await_receipt()

    def detach(self) -> None:
        """Wait until the writer has written all rows, and close. A fork only closes."""
        try:
            if self.pid == os.getpid():
                self._sent += 1
                self._send(messages.Detach(self._sent))
                self._await_receipt()
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

        size = -(-rows.nbytes // _ALIGN) * _ALIGN
        while True:
            if not self._under_way:  # start anew: bytes skipped at the ring's end would count as taken
                self._head = self._tail = 0
            left = RING_BYTES - self._head % RING_BYTES
            padding = left if left < size else 0
            if self._head + padding + size - self._tail <= RING_BYTES:
                break
            self._await()
        start = (self._head + padding) % RING_BYTES
        np.frombuffer(self._ring, np.uint8, rows.nbytes, start)[:] = rows.reshape(-1).view(np.uint8)
        return start, padding + size

    def _send(self, message: object) -> None:
        """Put a whole message into the socket. After an interrupt the next call sends the rest."""
        try:
            is_sent = not self._failure and self._channel.post(message)
            while not is_sent:
                self._await(select.POLLIN | select.POLLOUT)
                is_sent = self._channel.flush()
        except OSError:  # the writer has ended, and might have sent why
            while True:
                self._await()

    def _await_receipt(self) -> None:
        """Wait for the receipt of the last message; a refusal is a MismatchError."""
        while self._done < self._sent:
            self._await()
        if refusal := self._refusals.pop(self._sent, ""):
            raise MismatchError(f"{self._path}: {refusal}")

    def _await(self, events: int = select.POLLIN) -> None:
        """Wait for messages of the writer, or until it takes more; after a long silence, print so."""
        if self._failure:
            raise SharedWriterError(self._failure)
        poll = select.poll()
        poll.register(self._channel, events)
        patience_s = _SILENCE_S if self._writer_pid else _PATIENCE_S
        if not poll.poll(patience_s * 1000):
            if self._writer_pid:
                print(
                    f"tfmagic: waiting for the process that writes {self._path} (pid {self._writer_pid}): "
                    f"nothing from it for {_SILENCE_S:.0f} s; the disk is slow, or it is stopped",
                    file=sys.stderr,
                )
            elif self._waits_for:
                names = ", ".join(self._waits_for)
                print(f"tfmagic: {self._path} is opened anew when {names} has closed it", file=sys.stderr)
            poll.poll()
        self._receive()

    def _receive(self) -> None:
        """Take the messages that the writer has sent. Does not wait."""
        try:
            received = self._channel.receive_ready()
        except (EOFError, OSError, ProtocolError):
            ended = f"the process that wrote {self._path} has ended; what it had written is in "
            received = [] if self._failure else [messages.Failed(f"{ended}{self._path}{UNFINISHED}")]
        for message in received:
            match message:
                case messages.Opened(pid, note):
                    self._writer_pid = pid
                    if note:
                        print(f"tfmagic: {self._path}: {note}", file=sys.stderr, flush=True)
                case messages.Waits(tasks):
                    self._waits_for = tasks
                case messages.Done(serial, refusal):  # also of one that an interrupt kept from being sent
                    self._done = serial
                    if refusal:
                        self._refusals[serial] = refusal
                    while self._under_way and self._under_way[0][0] <= serial:
                        self._tail = self._under_way.popleft()[1]
                case messages.Failed(reason, is_complete):
                    self._failure, self._is_complete = reason, is_complete
