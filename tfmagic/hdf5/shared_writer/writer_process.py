"""The process that writes one shared HDF5 file: the only one that has it open.

    tasks ── Rows ──→ sockets ─┐                          ┌→ PATH.unfinished ── renamed at the end ──→ PATH
             ring of memory ───┴→ one loop: gather, write ┴→ receipts, which free the ring

Started by `sessions` in a fresh interpreter. It ends when every task of the cell
that opened the file has closed it or ended, when it is told to, or when the kernel is gone: then too it takes
what has come and closes the file. What has reached a socket outlives the task that sent it.

The file is made in HDF5's oldest format that holds it, since that can still be read up to the last flush
when this process is killed; newer ones are marked as open for ever (HDF5 1.14, ``h5clear``).
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from tfmagic.errors import ProtocolError
from tfmagic.hdf5 import claims
from tfmagic.hdf5.errors import MismatchError, reason_of
from tfmagic.hdf5.partnames import UNFINISHED
from tfmagic.hdf5.shared_writer.datasets import CACHE_BYTES, Datasets
from tfmagic.hdf5.shared_writer.messages import (
    Answered,
    Attach,
    Attached,
    Begin,
    Detach,
    Ended,
    Failed,
    Finish,
    Finished,
    Flush,
    Hello,
    Opened,
    Ring,
    Rows,
    StillOpen,
    ToWriter,
    WriterOrder,
    Written,
)
from tfmagic.protocol.channel import Channel
from tfmagic.system import files

ABANDONED = ".abandoned"
_NOTED_MS = 5000  # for the kernel; who is told sooner that the file is closed might find it open there
_IDLE_S = 0.5  # without rows for so long, what there is is handed to the system
_FLUSH_S = 5.0  # the same while rows come: what is new since then is lost if this process is killed


class _Client:
    """A task that is connected."""

    def __init__(self, who: str, mode: str, channel: Channel):
        self.who, self.mode, self.channel = who, mode, channel
        self.ring: mmap.mmap | None = None
        self.detaching: int | None = None
        self.gathered = self.receipted = 0  # serial numbers of its messages

    def tell(self, message: object) -> None:
        """Queue a message; a client that has died is told nothing, but what it sent is still read."""
        with contextlib.suppress(OSError):
            self.channel.post(message)

    def close(self) -> None:
        self.channel.close()


class Writer:
    """See the module."""

    def __init__(self, control: Channel):
        self.control = control
        begin, *self.heard = control.receive_some()
        assert isinstance(begin, Begin)
        self.path, self.mode, self.members = begin.path, begin.mode, set(begin.members)
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)
        self.clients: list[_Client] = []
        self.closed: set[str] = set()
        self.ended: set[str] = set()
        self.file: Any = None
        self.datasets: Datasets | None = None
        self.hello: Hello | None = None
        self.told_open: tuple[str, ...] = ()
        self.finishing = self.is_withdrawn = False

    def serve(self) -> None:
        """Write until it is over.

        Raises:
            OSError: The file could not be written.
        """
        idle = True
        self._obey(self.heard)
        while not self.finishing:
            ready = self.selector.select(None if idle else _IDLE_S)
            if not ready and self.datasets is not None:
                self.datasets.flush()
            idle = not ready
            for key, _ in ready:
                if key.data is None:
                    self._listen()
                elif key.data in self.clients:  # else it was read to its end at the kernel's word
                    self._read(key.data)
            self._write()
            if self.datasets is not None and time.monotonic() - self.datasets.flushed_at > _FLUSH_S:
                self.datasets.flush()
            self._review()
        for client in list(self.clients):
            self._drain(client)
        self._write()

    # -- the kernel --

    def _listen(self) -> None:
        try:
            messages = self.control.receive_ready()
        except (EOFError, OSError):
            messages = [Finish()]  # the kernel is gone
        self._obey(messages)

    def _obey(self, messages: list[Any]) -> None:
        for message in messages:
            match message:
                case Attach(who, mode, handle):
                    self._attach(who, mode, handle.take())
                    self._tell_kernel(Attached())
                case Ended(whom, are_dead):
                    self.ended |= set(whom)
                    for client in list(self.clients):
                        self._drain(client)
                        if are_dead and client.who in whom and client in self.clients:
                            self._remove(client)
                case Finish(is_withdrawn):
                    self.finishing = True
                    self.is_withdrawn = is_withdrawn

    def _attach(self, who: str, mode: str, fd: int) -> None:
        client = _Client(who, mode, Channel(socket.socket(fileno=fd), ToWriter))
        self.clients.append(client)
        self.closed.discard(who)
        self.ended.discard(who)
        self.told_open = ()
        self.selector.register(client.channel, selectors.EVENT_READ, client)

    # -- the tasks --

    def _drain(self, client: _Client) -> None:
        """Take all that has come from it."""
        come = select.poll()
        come.register(client.channel.fileno(), select.POLLIN)
        while client in self.clients and come.poll(0):
            self._read(client)

    def _read(self, client: _Client) -> None:
        """Take some of what has come."""
        with contextlib.suppress(OSError):  # it has died; what it sent may still be there
            client.channel.flush()
        try:
            messages = client.channel.receive_ready()
        except (EOFError, OSError, ProtocolError):
            self._remove(client)
            return
        for message in messages:
            match message:
                case Hello():
                    self._greet(client, message)
                case Ring(handle, size_bytes):
                    fd = handle.take()
                    client.ring = mmap.mmap(fd, size_bytes, prot=mmap.PROT_READ)
                    os.close(fd)
                case Rows():
                    self._take(client, message)
                case Flush(number):
                    self._write()
                    assert self.datasets is not None
                    self.datasets.flush()
                    client.tell(Answered(number))
                case Detach(number):
                    self._write()
                    self.closed.add(client.who)
                    if number:
                        client.detaching = number
                    else:
                        self._remove(client)

    def _greet(self, client: _Client, hello: Hello) -> None:
        reason = self._why_not(client, hello)
        if not reason and self.file is None:
            try:
                self._open(hello)
            except (OSError, RuntimeError) as error:
                reason = str(error)
            except ImportError as error:
                reason = f'h5py cannot be imported ({error}):  pip install "tfmagic[hdf5]"'
        client.tell(Opened(reason, os.getpid()))
        if reason:
            self.closed.add(client.who)
            self._remove(client)

    def _why_not(self, client: _Client, hello: Hello) -> str:
        if self.hello is None or (hello == self.hello and client.mode == self.mode):
            return ""
        if client.mode != self.mode:
            return f"another task has {self.path} open with mode {self.mode!r}, not {client.mode!r}"
        return f"another task has {self.path} open with other chunks or another compression"

    def _take(self, client: _Client, rows: Rows) -> None:
        """Gather rows; they are written with those that came in the same moment."""
        assert self.datasets is not None
        reason = ""
        try:
            self.datasets.gather(rows, client.ring)
        except MismatchError as refused:
            reason = str(refused)
        client.gathered = rows.serial
        if rows.number:
            client.tell(Answered(rows.number, reason))

    def _write(self) -> None:
        """Write what was gathered, and give receipts for it."""
        if self.datasets is not None:
            self.datasets.write()
        for client in self.clients:
            if client.gathered > client.receipted:
                client.receipted = client.gathered
                client.tell(Written(client.receipted))

    def _remove(self, client: _Client) -> None:
        self._write()
        self.selector.unregister(client.channel)
        self.clients.remove(client)
        client.close()

    # -- the end --

    def _review(self) -> None:
        """Whether everybody is done; or, where all have ended their part, who has not closed the file."""
        detaching = [client for client in self.clients if client.detaching is not None]
        still = {client.who for client in self.clients if client.detaching is None}
        if self.members <= self.closed | self.ended and not (still & self.members):
            self.finishing = True
            return
        for client in detaching:
            client.tell(Answered(client.detaching or 0))
            self._remove(client)
        names = tuple(sorted(still & self.members))
        if names and self.members <= self.ended and names != self.told_open:
            self.told_open = names
            self._tell_kernel(StillOpen(names))

    def finish(self) -> None:
        """Close the file, let it have its name, and tell who waits."""
        if self.file is not None:
            assert self.datasets is not None
            self.datasets.flush()
            self.file.close()
            self.file = None
            try:
                if self.is_withdrawn:
                    os.unlink(self._beside)
                else:
                    self._give_name()
            except OSError as error:
                error.add_note(f"its rows are in {self._beside}")
                raise
        self._tell_kernel(Finished())
        noted = select.poll()
        noted.register(self.control.fileno(), 0)  # its end alone: the kernel closes it when it has noted that
        noted.poll(_NOTED_MS)
        for client in self.clients:
            gone = Failed(f"{self.path} has been closed", is_complete=True)
            client.tell(gone if client.detaching is None else Answered(client.detaching))

    def fail(self, error: BaseException) -> None:
        """Leave nothing half written behind, and say why."""
        notes = [*getattr(error, "__notes__", ())]
        if self.file is not None:
            with contextlib.suppress(OSError):
                if self.datasets is not None and self.datasets.was_flushed:
                    os.replace(self._beside, self.path + ABANDONED)
                    notes.append(f"what was written before that is in {self.path}{ABANDONED}")
                else:
                    os.unlink(self._beside)
        reason = "; ".join([f"{self.path} could not be written: {reason_of(error)}", *notes])
        for client in self.clients:
            client.tell(Failed(reason))
        self._tell_kernel(Finished(reason))

    def _give_name(self) -> None:
        if self.mode != "x":
            os.replace(self._beside, self.path)
            return
        os.link(self._beside, self.path)  # fails where somebody else has made one meanwhile
        os.unlink(self._beside)

    def _tell_kernel(self, message: object) -> None:
        with contextlib.suppress(OSError):  # it is gone
            self.control.send(message)

    # -- the file --

    @property
    def _beside(self) -> str:
        return self.path + UNFINISHED

    def _open(self, hello: Hello) -> None:
        import h5py

        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"{self.path} cannot be made: there is no folder {folder}: make it first")
        if os.path.isdir(self.path):
            raise IsADirectoryError(f"{self.path} is a folder")
        if self.mode == "x" and os.path.lexists(self.path):
            raise FileExistsError(f"{self.path} is there already; mode 'w' replaces it, mode 'a' adds to it")
        if self.mode == "a" and os.path.exists(self.path) and not h5py.is_hdf5(self.path):
            raise OSError(f"{self.path} is no HDF5 file, or a damaged one: nothing can be added to it")
        if not claims.is_free(self.path, alone=False):  # its rows would go with the file that ours replaces
            who = ", ".join(str(holder) for holder in claims.find_holders(self.path) if holder.writes)
            raise BlockingIOError(
                f"{self.path} is open for writing by {who or 'another process'}: close it there first, or "
                "choose another name"
            )
        with _alone_in(folder):
            self._set_aside(h5py)
            os.close(os.open(self._beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            try:
                if self.mode == "a" and os.path.exists(self.path):
                    shutil.copyfile(self.path, self._beside)
                    self.file = h5py.File(self._beside, "r+", rdcc_nbytes=CACHE_BYTES)
                else:
                    self.file = h5py.File(self._beside, "w", rdcc_nbytes=CACHE_BYTES)
            except BaseException:
                os.unlink(self._beside)
                raise
            claims.claim(self.file.id.get_vfd_handle())  # HDF5's lock may be switched off
        self.hello = hello
        self.datasets = Datasets(self.file, hello)

    def _set_aside(self, h5py: Any) -> None:
        """Keep what a writer that was killed has left; another that is at work has it locked."""
        if not os.path.exists(self._beside):
            return
        with open(self._beside, "rb") as left:
            if claims.is_claimed(self._beside) or not files.try_lock(left.fileno()):
                raise BlockingIOError(
                    f"{self.path} is being written by another notebook or script: wait for it, or choose "
                    "another name"
                )
        os.replace(self._beside, self.path + ABANDONED)


@contextlib.contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """While it lasts, no other writer opens a file in this folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def main(fd: int) -> None:
    """Be the writer. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the tasks
    os.umask(os.umask(0o022))
    code = 0
    writer = Writer(Channel(socket.socket(fileno=fd), WriterOrder))
    try:
        writer.serve()
        writer.finish()
    except Exception as error:  # of HDF5, of the disk, of ours: whoever waits is told
        code = 1
        writer.fail(error)
        if not isinstance(error, OSError):
            import traceback

            traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)  # HDF5 would try once more to write a file that could not be written
