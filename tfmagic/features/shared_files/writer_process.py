"""The process that writes one shared HDF5 file: the only one that has it open.

    tasks ── Rows ──→ sockets ─┐                          ┌→ PATH.unfinished ── renamed at the end ──→ PATH
             shared memory ────┴→ one loop: gather, write ┴→ answers

`sessions` starts it in a fresh interpreter. It ends when every task of the cell that opened the file has
closed it or ended, at the message `Finish`, or when the kernel is gone. In each case it first takes what has
arrived and closes the file. What a task has put into its socket arrives even if the task is killed.

The file has HDF5's oldest format that can hold it: after a kill of this process, such a file is readable up
to the last flush. Newer formats would stay marked as open (HDF5 1.14, ``h5clear``).
"""

import contextlib
import mmap
import os
import select
import selectors
import signal
import socket
import sys
import time
import traceback
from typing import Any

from tfmagic.errors import ProtocolError
from tfmagic.features.shared_files import messages
from tfmagic.features.shared_files.datasets import Datasets
from tfmagic.features.shared_files.target import Target
from tfmagic.hdf5.errors import MismatchError, reason_of
from tfmagic.protocol.channel import Channel
from tfmagic.system import notices

_NOTED_MS = 5000  # for the kernel, which must know first that the file is closed: a task might open it again
_IDLE_S = 0.5  # without rows for so long, the operating system gets what there is
_FLUSH_S = 5.0  # the same while rows arrive: a kill of this process loses what is newer


class _Client:
    """A task that is connected."""

    def __init__(self, task: str, channel: Channel):
        self.task, self.channel = task, channel
        self.buffer: mmap.mmap | None = None
        self.detaching = 0  # the serial number of its `Detach`

    def post(self, message: object) -> None:
        """Queue a message. A client that has died gets none, but what it sent is still read."""
        with contextlib.suppress(OSError):
            self.channel.post(message)


class Writer:
    """See the module."""

    def __init__(self, control: Channel, path: str, how: tuple[str, str, int], members: tuple[str, ...]):
        self.control, self.path, self.members = control, path, set(members)
        self.target, self.storage = Target(path, how[0]), how[1:]
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)
        self.clients: list[_Client] = []
        self.closed: set[str] = set()  # tasks that have closed the file
        self.ended: set[str] = set()  # tasks that have ended their part of the cell
        self.datasets: Datasets | None = None  # of the open file
        self.reported_open: tuple[str, ...] = ()
        self.is_finishing = False

    def serve(self) -> None:
        """Write until the end. Raises OSError where the file cannot be written."""
        is_idle = True
        while not self.is_finishing:
            ready = self.selector.select(None if is_idle else _IDLE_S)
            if not ready and self.datasets is not None:
                self.datasets.flush()
            is_idle = not ready
            for key, _ in ready:
                if key.data is None:
                    self._read_control()
                elif key.data in self.clients:  # else a message of the kernel has ended it in this round
                    self._read(key.data)
            self._write()
            if self.datasets is not None and time.monotonic() - self.datasets.flushed_at > _FLUSH_S:
                self.datasets.flush()
            self._check_end()
        for client in list(self.clients):
            self._drain(client)
        self._write()

    # -- the kernel --

    def _read_control(self) -> None:
        try:
            received = self.control.receive_ready()
        except (EOFError, OSError):
            received = [messages.Finish()]  # the kernel is gone
        for message in received:
            match message:
                case messages.Attach(task, handle):
                    channel = Channel(socket.socket(fileno=handle.take()), messages.ToWriter)
                    self.clients.append(_Client(task, channel))
                    self.closed.discard(task)
                    self.ended.discard(task)
                    self.reported_open = ()
                    self.selector.register(channel, selectors.EVENT_READ, self.clients[-1])
                    self._send_kernel(messages.Attached())
                case messages.Ended(tasks, are_dead):
                    self.ended |= set(tasks)
                    for client in list(self.clients):
                        self._drain(client)
                        if are_dead and client.task in tasks and client in self.clients:
                            self._remove(client)
                case messages.Finish():
                    self.is_finishing = True

    # -- the tasks --

    def _drain(self, client: _Client) -> None:
        """Read all that has arrived."""
        poll = select.poll()
        poll.register(client.channel.fileno(), select.POLLIN)
        while client in self.clients and poll.poll(0):
            self._read(client)

    def _read(self, client: _Client) -> None:
        """Read some of what has arrived."""
        with contextlib.suppress(OSError):  # it has died; what it sent can still be there
            client.channel.flush()
        try:
            received = client.channel.receive_ready()
        except (EOFError, OSError, ProtocolError):
            if not client.task:  # the notebook was interrupted at the opening; a task can get a new process
                self.ended.add(client.task)
            self._remove(client)
            return
        for message in received:
            match message:
                case messages.Buffer(handle):
                    if handle is not None:
                        fd = handle.take()
                        client.buffer = mmap.mmap(fd, messages.BUFFER_BYTES, prot=mmap.PROT_READ)
                        os.close(fd)
                    self._greet(client)
                case messages.Rows(serial):  # `_write` writes them with others of the same moment
                    assert self.datasets is not None
                    refusal = ""
                    try:
                        self.datasets.gather(message, client.buffer)
                    except MismatchError as error:
                        refusal = str(error)
                    if serial:
                        client.post(messages.Done(serial, refusal))
                case messages.Flush(serial, is_hard):
                    assert self.datasets is not None
                    self.datasets.flush() if is_hard else self.datasets.write()
                    client.post(messages.Done(serial))
                case messages.Detach(serial):
                    self.closed.add(client.task)
                    client.detaching = serial
                    if not serial:
                        self._remove(client)

    def _greet(self, client: _Client) -> None:
        note = ""
        try:
            if self.datasets is None:
                file, note = self.target.open()
                self.datasets = Datasets(file, *self.storage)
            client.post(messages.Opened(os.getpid(), note))
            return
        except (OSError, RuntimeError) as error:
            reason = str(error)
        except ImportError as error:
            reason = f'h5py cannot be imported ({error}):  pip install "tfmagic[hdf5]"'
        client.post(messages.Failed(reason))
        self.closed.add(client.task)
        self._remove(client)

    def _write(self) -> None:
        if self.datasets is not None:
            self.datasets.write()

    def _remove(self, client: _Client) -> None:
        self._write()
        self.selector.unregister(client.channel)
        self.clients.remove(client)
        client.channel.close()

    # -- the end --

    def _check_end(self) -> None:
        """Finish when all tasks have closed the file or ended; report those that ended without closing it."""
        still_open = {client.task for client in self.clients if not client.detaching} & self.members
        if self.members <= self.closed | self.ended and not still_open:
            self.is_finishing = True
            return
        for client in [client for client in self.clients if client.detaching]:
            client.post(messages.Done(client.detaching))
            self._remove(client)
        names = tuple(sorted(still_open))
        if names and self.members <= self.ended and names != self.reported_open:
            self.reported_open = names
            self._send_kernel(messages.StillOpen(names))

    def finish(self) -> None:
        """Close the file, give it its name, and report that to the kernel and the tasks."""
        if self.datasets is not None:
            self.datasets.flush()
            self.datasets.file.close()
            is_wanted, self.datasets = self.closed or self.datasets.was_flushed, None
            try:
                if is_wanted:
                    self.target.give_name()
                else:  # the only opener has given up meanwhile
                    os.unlink(self.target.unfinished_path)
            except OSError as error:
                error.add_note(f"its rows are in {self.target.unfinished_path}")
                raise
        self._send_kernel(messages.Finished())
        noted = select.poll()
        noted.register(self.control.fileno(), 0)  # a hang-up alone: the kernel has noted the end
        noted.poll(_NOTED_MS)
        for client in self.clients:
            gone = messages.Failed(f"{self.path} has been closed", is_complete=True)
            client.post(messages.Done(client.detaching) if client.detaching else gone)

    def fail(self, error: BaseException) -> None:
        """Leave nothing half written, and report why."""
        notes = [*getattr(error, "__notes__", ())]
        if self.datasets is not None:
            with contextlib.suppress(OSError):
                if self.datasets.was_flushed:
                    notes.append(f"what was written before that is in {self.target.abandon()}")
                else:
                    os.unlink(self.target.unfinished_path)
        reason = "; ".join([f"{self.path} could not be written: {reason_of(error)}", *notes])
        for client in self.clients:
            client.post(messages.Failed(reason))
        self._send_kernel(messages.Finished(reason))

    def _send_kernel(self, message: object) -> None:
        with contextlib.suppress(OSError):  # the kernel is gone
            self.control.send(message)


def main(fd: int, *opening: Any) -> None:
    """Run the writer process of a file; `fd` is the control channel. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the tasks
    code = 0
    writer = Writer(Channel(socket.socket(fileno=fd), messages.WriterOrder), *opening)
    try:
        writer.serve()
        writer.finish()
    except Exception as error:  # of HDF5, of the disk, or ours: the tasks and the kernel wait for the reason
        code = 1
        writer.fail(error)
        if not isinstance(error, OSError):
            notices.tell(traceback.format_exc())
    sys.stderr.flush()
    os._exit(code)  # HDF5's end would write once more what could not be written
