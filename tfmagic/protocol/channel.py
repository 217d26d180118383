"""Messages over an unnamed socket: length-framed, restricted, with file descriptors beside them.

    sender                                    socket                     receiver
    message ── pickle of our own dataclasses ──→ [length][n fds][body] ──→ only classes of
    Packed.handle (memory file) ─ SCM_RIGHTS ─────────────────────────→   commands, events, cluster_spec

The body is a pickle, but one that may name no class but those that our modules of messages define: garbage or
something hostile on a channel is a `ProtocolError`, never code that runs. User data is opaque bytes here. A
message is its class and the values of its fields: a dataclass' own way to be pickled takes three times as
long, and each cell is a message to and from each task.

`Channel` is used by one reading thread. `send` may be called by several threads of a task process
(it blocks under a lock); the supervisor uses `post` and `flush`, which never block.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import enum
import functools
import io
import operator
import pickle
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tfmagic.errors import ProtocolError
from tfmagic.protocol.payload import Handle, OwnedHandle, lost_handle

_HEADER = struct.Struct("!4sIB")
_MAGIC = b"tfm1"
_MAX_BODY_BYTES = 1 << 30  # far above any message: what is longer is not ours
_MAX_HANDLES = 250  # the kernel's SCM_MAX_FD is 253
_READ_BYTES = 1 << 16
_CONTROL_BYTES = socket.CMSG_SPACE(_MAX_HANDLES * array.array("i").itemsize)
_DONTWAIT, _CLOEXEC = int(socket.MSG_DONTWAIT), int(socket.MSG_CMSG_CLOEXEC)  # enums cost more than the call
_OUR_MODULES = (
    "tfmagic.protocol.events",
    "tfmagic.protocol.commands",
    "tfmagic.protocol.payload",
    "tfmagic.protocol.launcher_messages",
    "tfmagic.protocol.cluster_spec",
    "tfmagic.hdf5.shared_writer.messages",
)


class _MessagePickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO):
        super().__init__(file, protocol=5)
        self.handles: list[Handle] = []

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Handle):
            self.handles.append(obj)
            return Handle, (len(self.handles) - 1,)
        cls: Any = type(obj)
        if isinstance(obj, enum.Enum):  # before 3.11.4 Python reduces a member to a call of getattr
            return cls, (obj.value,)
        values_of = _values_of(cls)
        return NotImplemented if values_of is None else (cls, values_of(obj))


class _MessageUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, handles: Sequence[Handle]):
        super().__init__(file)
        self.handles = handles

    def find_class(self, module: str, name: str) -> Any:
        found = _find_class(module, name)
        return self.handles.__getitem__ if found is Handle else found


@functools.cache
def _values_of(cls: Any) -> Callable[[Any], tuple[Any, ...]] | None:
    """What takes the values of a message of this class; None where it is none."""
    if not dataclasses.is_dataclass(cls):
        return None
    names = [field.name for field in dataclasses.fields(cls)]
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda message: tuple(getattr(message, name) for name in names)


@functools.cache
def _find_class(module: str, name: str) -> type:
    """A class of ours; not what our modules import, nor what is inside of that."""
    found = getattr(sys.modules.get(module), name, None) if module in _OUR_MODULES else None
    if isinstance(found, type) and found.__module__ == module:
        return found
    raise ProtocolError(f"a message names {module}.{name}, which is none of ours")


def encode(message: object) -> tuple[bytes, list[Handle]]:
    """The frame of `message` and the handles that go with it.

    Raises:
        ProtocolError: It carries more than 250 file descriptors.
    """
    file = io.BytesIO()
    pickler = _MessagePickler(file)
    pickler.dump(message)
    if len(pickler.handles) > _MAX_HANDLES:
        raise ProtocolError(
            f"a message carries {len(pickler.handles)} large values; send at most 250 at once"
        )
    body = file.getvalue()
    return _HEADER.pack(_MAGIC, len(body), len(pickler.handles)) + body, pickler.handles


def decode(body: bytes, handles: Sequence[Handle]) -> Any:
    """The message of a frame's body.

    Raises:
        ProtocolError: The body is damaged or names a foreign class.
    """
    try:
        return _MessageUnpickler(io.BytesIO(body), handles).load()
    except ProtocolError:
        raise
    except Exception as error:  # whatever damaged bytes make of the unpickler
        raise ProtocolError(f"a message could not be read: {error}") from error


class Channel:
    """One end of a control channel. Owns its socket and closes it."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self._inbox = bytearray()
        self._handles: deque[list[OwnedHandle]] = deque()  # of one message each, as they arrive
        self._outbox: deque[tuple[memoryview, list[Handle]]] = deque()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        """Close the socket and every descriptor that came and was not taken."""
        self.sock.close()
        self._handles.clear()
        self._outbox.clear()

    # -- sending --

    def send(self, message: object) -> None:
        """Send, waiting as long as the socket is full. Raises OSError when the peer is gone."""
        frame, handles = encode(message)
        with self._lock:
            sent = self._send_some(memoryview(frame), handles)
            if sent < len(frame):
                self.sock.sendall(memoryview(frame)[sent:])

    def post(self, message: object, encoded: tuple[bytes, list[Handle]] | None = None) -> bool:
        """Queue `message` and send what goes without waiting. True when nothing is left over.

        Args:
            message: What to send; its handles stay open until it has gone.
            encoded: Its frame, where the caller sends the same message to several peers.
        """
        frame, handles = encoded or encode(message)
        self._outbox.append((memoryview(frame), handles))
        return self.flush()

    def flush(self) -> bool:
        """Send more of the queue without waiting. Raises OSError when the peer is gone."""
        while self._outbox:
            frame, handles = self._outbox[0]
            try:
                sent = self._send_some(frame, handles, _DONTWAIT)
            except BlockingIOError:
                return False
            if sent < len(frame):
                self._outbox[0] = (frame[sent:], [])
                continue
            self._outbox.popleft()
        return True

    def _send_some(self, frame: memoryview, handles: list[Handle], flags: int = 0) -> int:
        if not handles:
            return self.sock.send(frame, flags)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [h.fd for h in handles]))
        return self.sock.sendmsg([frame], [rights], flags)

    # -- receiving --

    def receive(self) -> Any:
        """The next message, waiting for it.

        Raises:
            EOFError: The peer closed its end.
            ProtocolError: What came is not ours.
        """
        while (message := self._take()) is None:
            self._fill()
        return message

    def receive_some(self) -> list[Any]:
        """The messages that came, having waited for one. Raises as `receive`."""
        while not (messages := self._take_all()):
            self._fill()
        return messages

    def receive_ready(self) -> list[Any]:
        """Every message that can be read without waiting. Raises as `receive`."""
        with contextlib.suppress(BlockingIOError):
            self._fill(_DONTWAIT)
        return self._take_all()

    def _take_all(self) -> list[Any]:
        messages = []
        while (message := self._take()) is not None:
            messages.append(message)
        return messages

    def _fill(self, flags: int = 0) -> None:
        data, control, flags, _ = self.sock.recvmsg(_READ_BYTES, _CONTROL_BYTES, flags | _CLOEXEC)
        handles: list[OwnedHandle] = []
        for level, kind, payload in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                handles = [OwnedHandle(fd) for fd in fds]
        if handles or flags & socket.MSG_CTRUNC:  # a read ends with the descriptors of one message
            self._handles.append(handles)
        if not data:
            raise EOFError("the peer closed the control channel")
        self._inbox += data

    def _take(self) -> Any | None:
        if len(self._inbox) < _HEADER.size:
            return None
        magic, length, count = _HEADER.unpack_from(self._inbox)
        if magic != _MAGIC or length > _MAX_BODY_BYTES:
            raise ProtocolError("the control channel carries bytes that tfmagic did not write")
        end = _HEADER.size + length
        if len(self._inbox) < end:
            return None
        body = bytes(self._inbox[_HEADER.size : end])
        del self._inbox[:end]
        return decode(body, self._take_handles(count) if count else [])

    def _take_handles(self, count: int) -> list[OwnedHandle]:
        """The handles of the next message that has some; the system drops those for which we have no room."""
        if not self._handles:
            raise ProtocolError("a message came without the descriptors that it names")
        handles = self._handles.popleft()
        return handles + [lost_handle() for _ in range(count - len(handles))]


def channel_pair() -> tuple[Channel, socket.socket]:
    """Our end as a `Channel`, the other as a socket to hand on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return Channel(ours), theirs
