"""A channel between two processes: messages over an unnamed socket, with file descriptors beside them.

    sender                                      socket                          receiver
    Message ── msgspec, by its types ────────────→ [length][n fds][body] ──────→ only the types of message
    Packed.handle (memory file) ── SCM_RIGHTS ──→                                that the channel reads

The body is MessagePack. It is decoded by the types of the messages that a channel is made for: damaged or
hostile bytes are a `ProtocolError`, never code that runs. A user's value is opaque bytes here.

The sender decodes its messages, too: what the receiver would refuse is an error of the code that sends it,
and does not cost the other process its channel.

One thread reads a `Channel`. Several threads of a task process can call `send`, which blocks under a lock;
the supervisor uses `post` and `flush`, which never block.
"""

import array
import errno
import functools
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tfmagic.errors import ProtocolError
from tfmagic.protocol.payload import LOST, Handle, OwnedHandle

_HEADER = struct.Struct("!4sII?")  # magic, bytes of the body, number of descriptors, escaped texts
_MAGIC = b"tfm1"
_MAX_BODY_BYTES = 1 << 30  # far above any message: what is longer is not ours
_MAX_HANDLES = 250  # in one call; the kernel's SCM_MAX_FD is 253
_READ_BYTES = 1 << 16
_CONTROL_BYTES = socket.CMSG_SPACE(_MAX_HANDLES * array.array("i").itemsize)
# enums cost more than the call
_DONTWAIT, _CLOEXEC, _CTRUNC = map(int, (socket.MSG_DONTWAIT, socket.MSG_CMSG_CLOEXEC, socket.MSG_CTRUNC))
# for the system's own buffers, or for more descriptors under way, just now
_NO_ROOM = {errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS}
_LATER = {errno.EAGAIN, *_NO_ROOM}
_AGAIN_S = 0.01
_Piece = tuple[memoryview, list[Handle]]  # of a frame, and the descriptors that leave with it
# a subclass is sent as a plain value
_PLAIN: tuple[tuple[type, Callable[[Any], object]], ...] = (
    (str, str.__str__),
    (bytes, bytes.__bytes__),
    (int, int.__int__),
    (float, float.__float__),
    (Mapping, dict),
)


def encode(message: Any) -> tuple[bytes, list[Handle]]:
    """Return the frame of `message` and the handles that go with it.

    Raises:
        ProtocolError: A value in it has another type than the message has there, or it is too long.
    """
    handles: list[Handle] = []

    def reduce(value: Any) -> object:
        if isinstance(value, Handle):
            handles.append(value)
            return len(handles) - 1
        for base, plain in _PLAIN:
            if isinstance(value, base):
                return plain(value)
        raise TypeError(f"it cannot hold a {type(value).__name__}")

    escaped = False
    try:
        try:
            body = msgspec.msgpack.encode(message, enc_hook=reduce)
        except UnicodeEncodeError:  # a lone surrogate, as in the name of a file that is not UTF-8
            handles.clear()
            escaped = True
            tree = msgspec.to_builtins(message, builtin_types=(bytes,), enc_hook=reduce)
            body = msgspec.msgpack.encode(_map_texts(tree, _escape))
        if len(body) > _MAX_BODY_BYTES:
            raise ValueError(f"it is {len(body)} bytes long, and at most {_MAX_BODY_BYTES} can be sent")
        _checker(message.__class__).decode(body)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(
            f"a {type(message).__name__} cannot be sent: {_naming(message, error)}"
        ) from error
    return _HEADER.pack(_MAGIC, len(body), len(handles), escaped) + body, handles


def _escape(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")


@functools.cache
def _checker(kind: type[Any]) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder that refuses what a receiver would refuse. Escaped texts are texts, too."""
    some = Handle(LOST)
    return msgspec.msgpack.Decoder(kind, dec_hook=lambda kind, value: some)


def _naming(message: object, error: Exception) -> str:
    """Return the text of an error of msgspec, with the name of the field instead of its place."""
    names = ("the message", *getattr(message, "__struct_fields__", ()))

    def name(found: re.Match[str]) -> str:
        return f"`{names[int(found[1])]}{found[2]}`"

    return re.sub(r"`\$\[(\d+)\]([^`]*)`", name, str(error))


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case list() | tuple():
            return [_map_texts(item, change) for item in value]
        case dict():
            return {_map_texts(key, change): _map_texts(item, change) for key, item in value.items()}
    return value


def _pieces(frame: bytes | bytearray, handles: list[Handle]) -> list[_Piece]:
    """Divide a frame so that no piece has more descriptors than the system takes at once."""
    rest, pieces = memoryview(frame), []
    while len(handles) > _MAX_HANDLES:  # each has several bytes in the frame
        pieces.append((rest[:1], handles[:_MAX_HANDLES]))
        rest, handles = rest[1:], handles[_MAX_HANDLES:]
    return [*pieces, (rest, handles)]


def _merged(frames: list[tuple[bytes, list[Handle]]]) -> list[_Piece]:
    """Join frames that leave together; one with handles begins a part of its own."""
    if len(frames) == 1:
        return _pieces(*frames[0])
    parts: list[tuple[bytearray, list[Handle]]] = []
    for frame, handles in frames:
        if handles or not parts:
            parts.append((bytearray(), handles))
        parts[-1][0].extend(frame)
    return [piece for joined, handles in parts for piece in _pieces(joined, handles)]


class Decoder:
    """Reads the bodies of frames: only messages of these types, a class or a union of classes."""

    def __init__(self, types: Any):
        self._types = types
        self._decoder = msgspec.msgpack.Decoder(types, dec_hook=self._restore)
        self._handles: Sequence[Handle] = ()  # those of the message that is being decoded

    def decode(self, body: bytes | bytearray, escaped: bool, handles: Sequence[Handle]) -> Any:
        """Return the message. Raises `ProtocolError` where the bytes are not ours."""
        self._handles = handles
        try:
            if not escaped:
                return self._decoder.decode(body)
            tree = msgspec.msgpack.decode(body)
            tree = _map_texts(tree, lambda text: text.encode("ascii").decode("unicode_escape"))
            return msgspec.convert(tree, self._types, dec_hook=self._restore)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise ProtocolError(f"a message could not be read: {error}") from error
        finally:
            self._handles = ()

    def decode_frame(self, frame: bytes, handles: Sequence[Handle]) -> Any:
        """Return the message of a frame that came whole, as `encode` made it. Raises as `decode`."""
        if len(frame) < _HEADER.size:
            raise ProtocolError("a frame is cut short")
        magic, length, count, escaped = _HEADER.unpack_from(frame)
        if magic != _MAGIC or _HEADER.size + length != len(frame) or count != len(handles):
            raise ProtocolError("a frame is not one that tfmagic wrote")
        return self.decode(frame[_HEADER.size :], escaped, handles)

    def _restore(self, kind: type, value: object) -> Handle:
        if kind is Handle and isinstance(value, int) and 0 <= value < len(self._handles):
            return self._handles[value]
        raise ValueError("it names a descriptor that did not come with it")


class Channel:
    """One end of a control channel. Owns its socket and closes it.

    Args:
        sock: The socket.
        types: The messages that can arrive: a class, or a union of classes.

    Attributes:
        closed: Whether `close` was called.
    """

    def __init__(self, sock: socket.socket, types: Any):
        self.sock, self.closed = sock, False
        self._decoder = Decoder(types)
        self._inbox = bytearray()
        self._handles: deque[list[OwnedHandle]] = deque()  # of one piece each, as they arrive
        self._outbox: deque[_Piece] = deque()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        """Close the socket and every descriptor that came and was not taken."""
        self.closed = True
        self.sock.close()
        self._handles.clear()
        self._outbox.clear()

    # -- sending --

    def send(self, *messages: object) -> None:
        """Send, waiting as long as the socket is full. Raises OSError when the peer is gone.

        Several messages leave together, except that one with handles begins a part of its own.
        """
        pieces = _merged([encode(message) for message in messages])
        with self._lock:
            for piece, some in pieces:
                self._send_all(piece, some)

    def _send_all(self, rest: memoryview, handles: list[Handle]) -> None:
        while rest:
            try:
                sent = self._send_some(rest, handles)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                time.sleep(_AGAIN_S)
                continue
            rest, handles = rest[sent:], []

    def post(self, *messages: object) -> bool:
        """Queue messages as `send` does, send what can go without waiting; return whether all have gone.

        The handles of a message stay open until it has gone.
        """
        self._outbox += _merged([encode(message) for message in messages])
        return self.flush()

    def post_frame(self, frame: bytes, handles: list[Handle]) -> bool:
        """Do as `post` with a message that is encoded."""
        if not (self._outbox or handles):  # mostly, and mostly it goes whole
            sent = 0
            try:
                sent = self.sock.send(frame, _DONTWAIT)
            except OSError as error:
                if error.errno not in _LATER:
                    raise
            if sent == len(frame):
                return True
            frame = frame[sent:]
        self._outbox += _pieces(frame, handles)
        return self.flush()

    def flush(self) -> bool:
        """Send more of the queue without waiting. Raises OSError when the peer is gone."""
        while self._outbox:
            frame, handles = self._outbox[0]
            try:
                sent = self._send_some(frame, handles, _DONTWAIT)
            except OSError as error:
                if error.errno in _LATER:
                    return False
                raise
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
        """Wait for the next message and return it.

        Raises:
            EOFError: The peer closed its end.
            ProtocolError: What came is not ours.
        """
        while (message := self._take()) is None:
            self._wait_and_fill()
        return message

    def receive_some(self) -> list[Any]:
        """Wait for a message, and return all that have come. Raises as `receive`."""
        while not (messages := self._take_all()):
            self._wait_and_fill()
        return messages

    def receive_ready(self) -> list[Any]:
        """Return the messages that can be read without waiting. Raises as `receive`."""
        try:
            self._fill(_DONTWAIT)
        except OSError as error:
            if error.errno not in _LATER:
                raise
        return self._take_all()

    def _take_all(self) -> list[Any]:
        messages = []
        while self._inbox and (message := self._take()) is not None:
            messages.append(message)
        return messages

    def _wait_and_fill(self) -> None:
        try:
            self._fill()
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            time.sleep(_AGAIN_S)

    def _fill(self, flags: int = 0) -> None:
        data, control, flags, _ = self.sock.recvmsg(_READ_BYTES, _CONTROL_BYTES, flags | _CLOEXEC)
        handles: list[OwnedHandle] = []
        for level, kind, payload in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                handles = [OwnedHandle(fd) for fd in fds]
        if handles or flags & _CTRUNC:  # a read ends with the descriptors of one piece
            self._handles.append(handles)
        if not data:
            raise EOFError("the peer closed the control channel")
        self._inbox += data

    def _take(self) -> Any | None:
        if len(self._inbox) < _HEADER.size:
            return None
        magic, length, count, escaped = _HEADER.unpack_from(self._inbox)
        if magic != _MAGIC or length > _MAX_BODY_BYTES:
            raise ProtocolError("the control channel carries bytes that tfmagic did not write")
        end = _HEADER.size + length
        if len(self._inbox) < end:
            return None
        body = self._inbox[_HEADER.size : end]
        del self._inbox[:end]
        return self._decoder.decode(body, escaped, self._take_handles(count) if count else ())

    def _take_handles(self, count: int) -> list[OwnedHandle]:
        """Return the handles of the next message that has some.

        The system drops descriptors for which this process has no room; a lost handle stands for each.
        """
        taken: list[OwnedHandle] = []
        for start in range(0, count, _MAX_HANDLES):
            if not self._handles:
                raise ProtocolError("a message came without the descriptors that it names")
            handles, expected = self._handles.popleft(), min(_MAX_HANDLES, count - start)
            taken += handles + [OwnedHandle(LOST) for _ in range(expected - len(handles))]
        return taken


def channel_pair(types: Any) -> tuple[Channel, socket.socket]:
    """Return our end as a `Channel` that reads messages of these types, and the other end as a socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return Channel(ours, types), theirs
