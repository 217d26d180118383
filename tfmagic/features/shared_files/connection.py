"""The connection of one process to the writer of a shared HDF5 file: a socket, and a buffer of shared memory.

Rows of up to 8 KiB go through the socket, up to 16 MiB through the buffer, larger ones in a memory file of
their own, which takes twice the time. When the buffer is full, the task waits until the writer has written
all of it. All rows of a task on another machine go through its socket, which waits for the writer when it is
full. `SharedWriter` uses a connection under its lock.
"""

import contextlib
import mmap
import os
import select
from collections.abc import Callable
from typing import Any

from tfmagic.errors import ProtocolError
from tfmagic.features.shared_files import messages
from tfmagic.features.shared_files.messages import BUFFER_BYTES
from tfmagic.hdf5.errors import MismatchError, SharedWriterError
from tfmagic.hdf5.partnames import UNFINISHED
from tfmagic.protocol.channel import Channel
from tfmagic.protocol.payload import OwnedHandle
from tfmagic.system import notices

_INLINE_BYTES = 8 << 10  # up to here, a copy through the socket is quicker
_ANY_BYTES = 1 << 62
_ALIGN = 64
_PATIENCE_S = 2.0  # with other tasks, before the user reads for which ones the task waits
_SILENCE_S = 10.0  # of the writer, before the user reads so: a full disk cache can take seconds


class Connection:
    """See the module."""

    def __init__(self, path: str, channel: Channel, is_here: bool = True):
        self.pid = os.getpid()  # a fork must not use the connection
        self._path, self._channel = path, channel
        self.writer_pid = 0  # until the file is open
        self._waits_for: tuple[str, ...] = ()  # tasks that have the file open
        self._failure, self._is_complete = "", False  # the file is closed; with all rows of this process
        self._serial = self._done = 0  # numbers of the last request, and of the last receipt
        self._refusal = ""  # of the last receipt
        self._filled = 0  # bytes of the buffer
        self._inline_bytes = _INLINE_BYTES if is_here else _ANY_BYTES
        handle = OwnedHandle(os.memfd_create("tfmagic-rows", os.MFD_CLOEXEC))
        os.ftruncate(handle.fd, BUFFER_BYTES)
        self._buffer = mmap.mmap(handle.fd, BUFFER_BYTES)
        self._send(messages.Buffer(handle if is_here else None))

    def open(self) -> None:
        """Wait until the writer has opened the file."""
        while not self.writer_pid:
            self._await()

    def append(self, dataset: str, dtype: str, rows: Any, is_known: bool) -> None:
        """Put rows where the writer finds them, and send the message about them.

        Wait for the receipt unless the dataset `is_known` to take them. Raises MismatchError if it does not.
        """
        place: dict[str, Any] = {}
        if dtype == messages.TEXT:
            place["texts"] = tuple(rows.flat)
        elif rows.nbytes <= self._inline_bytes:
            place["data"] = rows.tobytes()
        elif rows.nbytes <= BUFFER_BYTES:
            place["offset"] = self._put_into_buffer(rows)
        else:
            self.flush(is_hard=False)  # one at a time: such memory is not bounded
            handle = place["handle"] = OwnedHandle(os.memfd_create("tfmagic-rows", os.MFD_CLOEXEC))
            left = memoryview(rows.reshape(-1)).cast("B")
            while left:
                left = left[os.write(handle.fd, left) :]
        if is_known:
            self._send(messages.Rows(0, dataset, dtype, rows.shape, **place))
        else:
            self._request(messages.Rows, dataset, dtype, rows.shape, **place)

    def flush(self, is_hard: bool = True) -> None:
        """Wait until all rows are written; with `is_hard` until the operating system has them."""
        self._request(messages.Flush, is_hard)

    def detach(self) -> None:
        """Wait until the writer has written all rows, and close. A fork only closes."""
        try:
            if self.pid == os.getpid():
                self._request(messages.Detach)
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

    def _put_into_buffer(self, rows: Any) -> int:
        """Copy rows into the buffer, which is filled again when all that it held is written; return where."""
        import numpy as np

        if self._filled + rows.nbytes > BUFFER_BYTES:
            self.flush(is_hard=False)
            self._filled = 0
        start = self._filled
        self._filled += -(-rows.nbytes // _ALIGN) * _ALIGN
        np.frombuffer(self._buffer, np.uint8, rows.nbytes, start)[:] = rows.reshape(-1).view(np.uint8)
        return start

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

    def _request(self, kind: Callable[..., object], *fields: Any, **more: Any) -> None:
        """Send a message of the next serial number, and wait for its receipt; a refusal is a MismatchError.

        Nobody waits for a receipt of an earlier message: an interrupt can have kept that from being sent.
        """
        self._serial += 1
        self._send(kind(self._serial, *fields, **more))
        while self._done < self._serial:
            self._await()
        if self._refusal:
            raise MismatchError(f"{self._path}: {self._refusal}")

    def _await(self, events: int = select.POLLIN) -> None:
        """Wait for messages of the writer, or until it takes more; after a long silence, print so."""
        if self._failure:
            raise SharedWriterError(self._failure)
        poll = select.poll()
        poll.register(self._channel, events)
        patience_s = _SILENCE_S if self.writer_pid else _PATIENCE_S
        if not poll.poll(patience_s * 1000):
            if self.writer_pid:
                notices.tell(
                    f"tfmagic: waiting for the process that writes {self._path} (pid {self.writer_pid}): "
                    f"nothing from it for {_SILENCE_S:.0f} s; the disk is slow, or it is stopped"
                )
            elif self._waits_for:
                names = ", ".join(self._waits_for)
                notices.tell(f"tfmagic: {self._path} is opened again when {names} has closed it")
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
                    self.writer_pid = pid
                    if note:
                        notices.tell(f"tfmagic: {self._path}: {note}")
                case messages.Waits(tasks):
                    self._waits_for = tasks
                case messages.Done(serial, refusal):
                    self._done, self._refusal = serial, refusal
                case messages.Failed(reason, is_complete):
                    self._failure, self._is_complete = reason, is_complete
