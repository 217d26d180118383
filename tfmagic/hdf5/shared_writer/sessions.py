"""Which writer process writes which file: asked by everybody of this kernel who opens a shared HDF5 file.

    task ── WriterWanted with a socket ──→ supervisor ──→ `offer` ─┐
    notebook, script ─────────────────────────────────────────────┴→ the file's session ──→ writer process

A session is one opening of one file: from the first who wants it to the moment when the file has its name.
Each has a thread, "tfmagic-writer", which starts the writer, hears what it says, and ends with it. Nothing
here waits for a writer but `settle`, `end` and `finish`, which their callers ask for.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import itertools
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tfmagic.hdf5.partnames import UNFINISHED
from tfmagic.hdf5.shared_writer.messages import (
    Attach,
    Attached,
    Begin,
    Ended,
    Finish,
    Finished,
    Opened,
    StillOpen,
    ToWriter,
    Waits,
    WriterReport,
)
from tfmagic.protocol.channel import Channel, channel_pair
from tfmagic.protocol.module_origins import import_path
from tfmagic.protocol.payload import Handle
from tfmagic.system.helper_process import start_interpreter

_PATIENCE_S = 3.0  # with a writer, before it is told for whom one waits
_END_S = 10.0  # for all writers, when the interpreter ends

_lock = threading.RLock()
_sessions: dict[str, Session] = {}  # the open ones, by path
_leaving: dict[int, Session] = {}  # those whose file is done, by number, until their process has ended
_lost: dict[Owner, list[str]] = {}  # what went wrong, for who asks
_ended: dict[Owner, set[str]] = {}  # who has ended of those that opened files together
_numbers = itertools.count(1)
places = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Owner:
    """What opens a file together.

    Attributes:
        place: One of `places`: of a cluster, or of a `SharedWriter` of the notebook's.
        cell: The cell or call of the cluster, or a group of them.
    """

    place: int
    cell: int = 0


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Somebody wants to append to a file, and listens at the other end of the socket `fd`.

    Attributes:
        owner: What opens the file together.
        who: One of `members`, the names of those that take part; "" for the notebook.
        copy_of: The number of the notebook's session whose `SharedWriter` has travelled; 0 for none.
    """

    path: str
    mode: str
    owner: Owner
    who: str
    members: tuple[str, ...]
    fd: int
    copy_of: int = 0


class Session:
    """See the module."""

    def __init__(self, offer: OpenRequest):
        self.path, self.owner, self.members = offer.path, offer.owner, offer.members
        self.number = next(_numbers)
        self.attached: set[str] = set()
        self.ended: set[str] = set()
        self.is_told_to_finish = False
        self.open_on: tuple[str, ...] = ()
        self.settled = threading.Event()
        self.over = threading.Event()
        self.pid = 0
        self.waiting: list[OpenRequest] = []  # for the end
        self._on_the_way: collections.deque[OpenRequest] = (
            collections.deque()
        )  # to the writer, which may be ending
        self._control, self._theirs = channel_pair(WriterReport)
        self._control.send(Begin(offer.path, offer.mode, offer.members))
        self.thread = threading.Thread(target=self._serve, name="tfmagic-writer", daemon=True)

    def attach(self, offer: OpenRequest) -> None:
        """Hand the socket to the writer."""
        self.attached.add(offer.who)
        self.ended.discard(offer.who)
        self.settled.clear()
        self._on_the_way.append(offer)
        self._tell(Attach(offer.who, offer.mode, Handle(offer.fd)))

    def note_ended(self, whom: Iterable[str], are_dead: bool = False) -> None:
        """These have ended their part of the cell."""
        new = set(whom) & self.attached if are_dead else set()
        new |= set(whom) - self.ended
        if new:
            self.ended |= new
            self._tell(Ended(tuple(new), are_dead))

    def finish(self, is_withdrawn: bool = False) -> None:
        """Let the writer take what has come, and end."""
        if not self.is_told_to_finish:
            self.is_told_to_finish = True
            self._tell(Finish(is_withdrawn))

    def disown(self) -> None:
        """In a fork: close what it has of the control channel."""
        self._control.sock.close()
        self._theirs.close()

    @property
    def has_ended(self) -> bool:
        """Whether nobody of those that opened it runs any more."""
        return set(self.members) <= self.ended

    def _tell(self, message: object) -> None:
        with contextlib.suppress(OSError):  # it has ended: its thread says so
            self._control.send(message)

    # -- its thread --

    def _serve(self) -> None:
        reason: str | None = ""
        try:
            with os.fdopen(os.memfd_create("tfmagic-writer", os.MFD_CLOEXEC), "w+b") as noise:
                process = self._start(noise.fileno())
                reason = self._listen()
                if reason is not None:
                    self._end(reason)
                code = process.wait()
                if reason is None:
                    noise.seek(0)
                    said = noise.read().decode(errors="replace").strip()[-2000:]
                    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                    reason = f"the process that wrote {self.path} (pid {process.pid}) {how}" + (
                        f": {said}" if said else f"; what it had written is in {self.path}{UNFINISHED}"
                    )
        except OSError as error:
            reason = f"{self.path} could not be opened: no process to write it could be started: {error}"
        finally:
            if not self.over.is_set():
                self._end(reason)
            with _lock:
                _leaving.pop(self.number, None)

    def _start(self, noise: int) -> subprocess.Popen[bytes]:
        fd = self._theirs.fileno()
        process = start_interpreter(
            f"from tfmagic.hdf5.shared_writer import writer_process; writer_process.main({fd})",
            path=import_path(),
            stdout=noise,
            stderr=noise,
            pass_fds=[fd],
        )
        self._theirs.close()
        self.pid = process.pid
        return process

    def _listen(self) -> str | None:
        """Hear the writer until it says how it ended; None where it does not."""
        while True:
            try:
                message = self._control.receive()
            except (EOFError, OSError):
                return None
            match message:
                case Attached():
                    with _lock:
                        os.close(self._on_the_way.popleft().fd)
                case StillOpen(whom):
                    self.open_on = whom
                    self.settled.set()
                case Finished(reason):
                    return reason

    def _end(self, reason: str | None) -> None:
        """Let others open the file; the writer tells its clients when the control channel has been closed."""
        with _lock:
            _leaving[self.number] = self
            if reason:
                _lost.setdefault(self.owner, []).append(reason)
            late = [*self._on_the_way, *self.waiting]
            self._on_the_way.clear()
            if _sessions.get(self.path) is self:
                del _sessions[self.path]
            self._control.close()
            self._theirs.close()
            for wanted in late:
                if reason and wanted not in self.waiting:
                    _refuse(wanted, reason)
                elif _listens(wanted):  # who has given up must not begin a file that nobody writes
                    _place(wanted)
                else:
                    os.close(wanted.fd)
            self.settled.set()
            self.over.set()


def request_open(wanted: OpenRequest) -> int:
    """Connect somebody with the writer of a file, or tell them why not. The session's number, or 0.

    Takes over the descriptor, and does not wait.
    """
    with _lock:
        _ended.setdefault(wanted.owner, set()).discard(wanted.who)
        return _place(wanted)


def note_ended(owner: Owner, whom: Iterable[str], are_dead: bool = False) -> None:
    """These tasks have ended their part of what opened files together."""
    with _lock:
        if owner in _ended:
            _ended[owner].update(whom)
        for session in _of(owner):
            session.note_ended(whom, are_dead)


def settle(owner: Owner, say: Callable[[str], object]) -> list[str]:
    """Wait until the files of a cell that has ended have their names; what went wrong with them.

    Those that a task has not closed are left open; `say` is told of them, and of a long wait.
    """
    with _lock:
        sessions = _of(owner)
        _ended.pop(owner, None)
    for session in sessions:
        if not session.settled.wait(_PATIENCE_S):
            say(f"waiting for the writer of {session.path} (pid {session.pid})")
            session.settled.wait()
        if not session.over.is_set() and session.open_on:
            say(
                f"{session.path} is still open on {', '.join(session.open_on)}, and gets its name when it is "
                "closed: use `with SharedWriter(...)`, or call close()"
            )
    return _lost.pop(owner, [])


def end(place: int = 0) -> list[str]:
    """Close every file of this place, or of all, and wait for that; what went wrong."""
    let_go(place)
    with _lock:
        sessions = [s for s in (*_sessions.values(), *_leaving.values()) if place in (0, s.owner.place)]
    deadline = time.monotonic() + _END_S
    for session in sessions:
        session.thread.join(max(deadline - time.monotonic(), 0))
    return [reason for session in sessions for reason in _lost.pop(session.owner, [])]


def let_go(place: int = 0) -> None:
    """As `end`, without waiting."""
    with _lock:
        for session in _sessions.values():
            if place in (0, session.owner.place):
                session.finish()


def finish(number: int) -> str:
    """Close the notebook's file of this number, and wait for that; what went wrong, or ""."""
    with _lock:
        found = [s for s in (*_sessions.values(), *_leaving.values()) if s.number == number]
        for session in found:
            session.finish()
    reasons = []
    for session in found:
        session.thread.join()
        with _lock:
            _ended.pop(session.owner, None)
            reasons += _lost.pop(session.owner, [])
    return "; ".join(reasons)


def withdraw(owner: Owner) -> None:
    """Who alone opens a file has given up while it was being opened: it is left as it was. Does not wait."""
    with _lock:
        _ended.pop(owner, None)
        for session in _of(owner):
            session.finish(is_withdrawn=True)


def _of(owner: Owner) -> list[Session]:
    return [session for session in _sessions.values() if session.owner == owner]


def _place(wanted: OpenRequest) -> int:
    """Find the session for an offer, make it, or let it wait for another's end."""
    session = _sessions.get(wanted.path)
    if reason := _why_not(session, wanted):
        return _refuse(wanted, reason)
    if session is None:
        return _begin(wanted)
    if wanted.copy_of or (session.owner == wanted.owner and not _is_again(session, wanted)):
        session.attach(wanted)
        return session.number
    if session.owner != wanted.owner:  # a cell that was run again
        session.finish()
    session.waiting.append(wanted)
    _tell(wanted, Waits(tuple(sorted(set(session.members) - {wanted.who}))))
    return 0


def _why_not(session: Session | None, wanted: OpenRequest) -> str:
    """Why somebody must not write this file now; "" where they may."""
    path = wanted.path
    if wanted.copy_of:
        is_open = session is not None and session.number == wanted.copy_of
        return "" if is_open else f"{path} has been closed in the notebook"
    if session is None or session.owner == wanted.owner:
        return ""
    if session.members == ("",):
        return (
            f"{path} is open in the notebook: use that SharedWriter in the cell, it travels along; "
            "or close it first"
        )
    if not session.has_ended:
        names = ", ".join(name for name in session.members if name not in session.ended)
        return f"{path} is being written by another cell, which runs on {names}"
    if session.owner.place != wanted.owner.place:
        return (
            f"{path} is still open on {', '.join(session.members)} of another cluster: close it there first"
        )
    return ""


def _is_again(session: Session, wanted: OpenRequest) -> bool:
    """Whether this task has closed the file, and wants a new one, while others have not closed it."""
    return wanted.mode != "a" and wanted.who in session.attached and wanted.who not in session.ended


def _begin(wanted: OpenRequest) -> int:
    session = Session(wanted)
    atexit.unregister(_end_all)
    atexit.register(_end_all)
    _sessions[wanted.path] = session
    session.attach(wanted)
    session.note_ended(_ended.get(wanted.owner, set()) - {wanted.who})
    session.thread.start()
    return session.number


def _refuse(wanted: OpenRequest, reason: str) -> int:
    _tell(wanted, Opened(reason))
    os.close(wanted.fd)
    return 0


def _tell(wanted: OpenRequest, message: object) -> None:
    with socket.socket(fileno=os.dup(wanted.fd)) as sock, contextlib.suppress(OSError):
        Channel(sock, ToWriter).send(message)


def _listens(wanted: OpenRequest) -> bool:
    peer = select.poll()
    peer.register(wanted.fd, 0)
    return not peer.poll(0)  # without events asked for: an end alone


def _end_all() -> None:
    """At the interpreter's end."""
    end()


def _leave_to_parent() -> None:
    """In a fork: the writers are its parent's. With our copies of their control channels a fork that goes on
    would keep them from noticing that the parent was killed; and one that ends would close the files."""
    global _lock
    _lock = threading.RLock()  # perhaps held by a thread that is not here
    for session in (*_sessions.values(), *_leaving.values()):
        session.disown()
    for known in (_sessions, _leaving, _lost, _ended):
        known.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
