"""The shared HDF5 files that are open in this kernel, and the process that writes each.

    task ── WriterWanted with a socket ──→ supervisor ──→ TaskFiles ─┐
    notebook, script ── OpenRequest with a socket ───────────────────┴→ Session ──→ writer process

A session is one opening of one file: it lasts from the first request until the file has its name. Its thread,
"tfmagic-writer", starts the writer process, receives its messages and ends with it. Only `settle`,
`end_all` and `finish` wait for a writer. h5py is loaded by the writer process alone.
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
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tfmagic.hdf5.partnames import UNFINISHED
from tfmagic.hdf5.shared_writer import messages
from tfmagic.protocol.channel import Channel, channel_pair
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.module_origins import import_path
from tfmagic.protocol.payload import Handle
from tfmagic.system.helper_process import start_interpreter

_PATIENCE_S = 3.0  # with a writer, before the user reads for which one the cell waits
_END_S = 10.0  # for all writers, when the interpreter ends

_lock = threading.RLock()
_sessions: dict[str, Session] = {}  # the open ones, by path
_leaving: dict[int, Session] = {}  # by number: the file is done, the process has not ended
_failures: dict[Owner, list[str]] = {}  # until the owner asks for them
_ended: dict[Owner, set[str]] = {}  # the tasks that have ended their part, by owner
_numbers = itertools.count(1)
origins = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Owner:
    """The tasks that open a file together."""

    origin: int  # from `origins`: of a cluster, or of a `SharedWriter` that the notebook has opened
    cell: int = 0  # the cell or call of the cluster, or its group of cells


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A task or the notebook wants to append to a file."""

    path: str
    mode: str
    owner: Owner
    task: str  # "" for the notebook
    members: tuple[str, ...]  # the tasks of the owner
    fd: int  # the socket that the writer takes over
    copy_of: int = 0  # the session of the notebook's `SharedWriter` that was sent to the task, or 0


class Session:
    """One opening of one file."""

    def __init__(self, request: OpenRequest):
        self.path, self.owner, self.members = request.path, request.owner, request.members
        self._arguments = ascii((request.path, request.mode, request.members))
        self.number = next(_numbers)
        self.attached: set[str] = set()  # tasks that have opened the file
        self.ended: set[str] = set()  # tasks that have ended their part of the cell
        self.open_on: tuple[str, ...] = ()  # tasks that have ended their part and not closed the file
        self.settled = threading.Event()  # all tasks have ended but left the file open, or it is over
        self.over = threading.Event()  # the file has its name, or cannot be written
        self.pid = 0  # the writer process; 0 before it is started
        self.waiting: list[OpenRequest] = []  # for the session after this one
        self._is_finishing = False
        self._sent: collections.deque[OpenRequest] = collections.deque()  # the writer can end before it reads
        self._control, self._theirs = channel_pair(messages.WriterReport)
        self.thread = threading.Thread(target=self._serve, name="tfmagic-writer", daemon=True)

    def attach(self, request: OpenRequest) -> None:
        """Hand the socket to the writer."""
        self.attached.add(request.task)
        self.ended.discard(request.task)
        self.settled.clear()
        self._sent.append(request)
        self._send(messages.Attach(request.task, request.mode, Handle(request.fd)))

    def note_ended(self, tasks: set[str], are_dead: bool = False) -> None:
        """Report to the writer that these tasks have ended their part of the cell."""
        new = tasks - self.ended | (tasks & self.attached if are_dead else set())
        if new:
            self.ended |= new
            self._send(messages.Ended(tuple(new), are_dead))

    def finish(self, is_withdrawn: bool = False) -> None:
        """Let the writer take what has arrived, and end."""
        if not self._is_finishing:
            self._is_finishing = True
            self._send(messages.Finish(is_withdrawn))

    def disown(self) -> None:
        """Close the control channel of a session that belongs to the parent of this fork."""
        self._control.sock.close()
        self._theirs.close()

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # the writer has ended: the session's thread reports that
            self._control.send(message)

    # -- the session's thread --

    def _serve(self) -> None:
        reason: str | None = ""
        try:
            with os.fdopen(os.memfd_create("tfmagic-writer", os.MFD_CLOEXEC), "w+b") as output:
                process = self._start(output.fileno())
                reason = self._receive_end()
                if reason is not None:
                    self._end(reason)
                code = process.wait()
                if reason is None:
                    output.seek(0)
                    text = output.read().decode(errors="replace").strip()[-2000:]
                    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                    reason = f"the process that wrote {self.path} (pid {process.pid}) {how}" + (
                        f": {text}" if text else f"; what it had written is in {self.path}{UNFINISHED}"
                    )
        except OSError as error:
            reason = f"{self.path} could not be opened: no process to write it could be started: {error}"
        finally:
            if not self.over.is_set():
                self._end(reason)
            with _lock:
                _leaving.pop(self.number, None)

    def _start(self, output: int) -> subprocess.Popen[bytes]:
        fd = self._theirs.fileno()
        process = start_interpreter(
            "from tfmagic.hdf5.shared_writer import writer_process\n"
            f"writer_process.main({fd}, *{self._arguments})",
            path=import_path(),
            stdout=output,
            stderr=output,
            pass_fds=[fd],
        )
        self._theirs.close()
        self.pid = process.pid
        return process

    def _receive_end(self) -> str | None:
        """Receive messages until the writer ends. Return why it failed or "", None if it died."""
        while True:
            try:
                message = self._control.receive()
            except (EOFError, OSError):
                return None
            match message:
                case messages.Attached():
                    with _lock:
                        os.close(self._sent.popleft().fd)
                case messages.StillOpen(tasks):
                    self.open_on = tasks
                    self.settled.set()
                case messages.Finished(reason):
                    return reason

    def _end(self, reason: str | None) -> None:
        """Free the path. The writer answers its clients when the control channel has been closed."""
        with _lock:
            _leaving[self.number] = self
            if reason:
                _failures.setdefault(self.owner, []).append(reason)
            sent, self._sent = self._sent, collections.deque()
            if _sessions.get(self.path) is self:
                del _sessions[self.path]
            self._control.close()
            self._theirs.close()
            for request in (*sent, *self.waiting):
                if reason and request not in self.waiting:
                    _refuse(request, reason)
                elif _has_peer(request):  # else its opener was interrupted
                    _place(request)
                else:
                    os.close(request.fd)
            self.settled.set()
            self.over.set()


def request_open(request: OpenRequest) -> int:
    """Connect a socket with the writer of a file, or send the reason why not. Does not wait.

    Takes over the descriptor.

    Returns:
        The number of the session; 0 where the request waits or is refused.
    """
    with _lock:
        _ended.setdefault(request.owner, set()).discard(request.task)
        return _place(request)


def note_ended(owner: Owner, tasks: Iterable[TaskId], are_dead: bool = False) -> None:
    """Note that these tasks have ended their part of the cell; with `are_dead` also their processes."""
    names = {task.name for task in tasks}
    with _lock:
        if owner in _ended:
            _ended[owner] |= names
        for session in _sessions_of(owner):
            session.note_ended(names, are_dead)


def settle(owner: Owner) -> list[str]:
    """Wait until the files of an ended cell have their names. Return why files could not be written.

    A file that a task has not closed stays open; a message on stderr names it.
    """
    with _lock:
        sessions = _sessions_of(owner)
        _ended.pop(owner, None)
    for session in sessions:
        if not session.settled.wait(_PATIENCE_S):
            _print(f"waiting for the writer of {session.path} (pid {session.pid})")
            session.settled.wait()
        if not session.over.is_set() and session.open_on:
            _print(
                f"{session.path} is still open on {', '.join(session.open_on)}, and gets its name when it is "
                "closed: use `with SharedWriter(...)`, or call close()"
            )
    return _failures.pop(owner, [])


def finish_all(origin: int = 0) -> list[Session]:
    """Let the writers of all files of this origin finish; 0 for all origins. Does not wait. Return them."""
    return _finish(lambda session: origin in (0, session.owner.origin))


def end_all(origin: int = 0) -> list[str]:
    """Close all files of this origin, and wait for that. Return why files could not be written."""
    return _wait(finish_all(origin), time.monotonic() + _END_S)


def finish(number: int) -> str:
    """Close the file of this session, and wait for that. Return why it could not be written, or ""."""
    return "; ".join(_wait(_finish(lambda session: session.number == number), float("inf")))


def _finish(is_meant: Callable[[Session], bool]) -> list[Session]:
    with _lock:
        found = [session for session in (*_sessions.values(), *_leaving.values()) if is_meant(session)]
        for session in found:
            session.finish()
    return found


def _wait(found: list[Session], deadline: float) -> list[str]:
    for session in found:
        session.thread.join(min(max(deadline - time.monotonic(), 0), threading.TIMEOUT_MAX))
    with _lock:
        for session in found:
            _ended.pop(session.owner, None)
        return [reason for session in found for reason in _failures.pop(session.owner, [])]


def withdraw(owner: Owner) -> None:
    """Leave a file as it was whose only opener was interrupted while it opened. Does not wait."""
    with _lock:
        _ended.pop(owner, None)
        for session in _sessions_of(owner):
            session.finish(is_withdrawn=True)


def _sessions_of(owner: Owner) -> list[Session]:
    return [session for session in _sessions.values() if session.owner == owner]


def _place(request: OpenRequest) -> int:
    """Attach a request to its session, begin one, or let the request wait for the end of another's."""
    session = _sessions.get(request.path)
    if reason := _refusal(session, request):
        return _refuse(request, reason)
    if session is None:
        return _begin(request)
    if request.copy_of or (session.owner == request.owner and not _opens_anew(session, request)):
        session.attach(request)
        return session.number
    if session.owner != request.owner:  # the cell was run again
        session.finish()
    session.waiting.append(request)
    _answer(request, messages.Waits(tuple(sorted(set(session.members) - {request.task}))))
    return 0


def _refusal(session: Session | None, request: OpenRequest) -> str:
    """Return why this file cannot be opened now, or ""."""
    path = request.path
    if request.copy_of:
        is_open = session is not None and session.number == request.copy_of
        return "" if is_open else f"{path} has been closed in the notebook"
    if session is None or session.owner == request.owner:
        return ""
    if session.members == ("",):
        return (
            f"{path} is open in the notebook: use that SharedWriter in the cell, it travels along; "
            "or close it first"
        )
    if running := [name for name in session.members if name not in session.ended]:
        return f"{path} is being written by another cell, which runs on {', '.join(running)}"
    if session.owner.origin != request.owner.origin:
        return (
            f"{path} is still open on {', '.join(session.members)} of another cluster: close it there first"
        )
    return ""


def _opens_anew(session: Session, request: OpenRequest) -> bool:
    """Check whether this task has closed the file and wants a new one, while other tasks have it open."""
    return request.mode != "a" and request.task in session.attached and request.task not in session.ended


def _begin(request: OpenRequest) -> int:
    session = Session(request)
    atexit.unregister(end_all)
    atexit.register(end_all)
    _sessions[request.path] = session
    session.attach(request)
    session.note_ended(_ended.get(request.owner, set()) - {request.task})
    session.thread.start()
    return session.number


def _refuse(request: OpenRequest, reason: str) -> int:
    _answer(request, messages.Opened(reason))
    os.close(request.fd)
    return 0


def _answer(request: OpenRequest, message: object) -> None:
    with socket.socket(fileno=os.dup(request.fd)) as sock, contextlib.suppress(OSError):
        Channel(sock, messages.ToWriter).send(message)


def _has_peer(request: OpenRequest) -> bool:
    poll = select.poll()
    poll.register(request.fd, 0)  # reports a hang-up alone
    return not poll.poll(0)


def _print(text: str) -> None:
    print(f"tfmagic: {text}", file=sys.stderr)


def _leave_to_parent() -> None:
    """Forget all sessions in a fork: their writers belong to the parent.

    A fork that kept copies of the control channels would hide the death of its parent from the writers, and
    would close the files at its own end.
    """
    global _lock
    _lock = threading.RLock()  # a thread that the fork does not have might hold it
    for session in (*_sessions.values(), *_leaving.values()):
        session.disown()
    for known in (_sessions, _leaving, _failures, _ended):
        known.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
