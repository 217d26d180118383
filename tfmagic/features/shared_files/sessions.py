"""The shared HDF5 files that are open in this kernel, and the process that writes each.

    task ── SocketSent ─────────────────→ supervisor ──→ SharedWriters ─┐
    notebook, script ── OpenRequest with a socket ───────────────────┴→ Session ──→ writer process

A session is one opening of one file: it lasts from the first request until the file has its name. Its thread,
"tfmagic-writer", starts the writer process, receives its messages and ends with it. For a task on another
machine a thread "tfmagic-writer-link" connects to it, for some seconds at most. A cluster uses
`SharedWriters` alone. Only its `settle` and `end_all` wait for a writer. h5py is loaded by the writer process
alone.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfmagic.features.shared_files import links, messages
from tfmagic.hdf5.errors import SharedWriterError
from tfmagic.hdf5.partnames import UNFINISHED
from tfmagic.protocol import events
from tfmagic.protocol.channel import Channel, channel_pair
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.module_origins import import_path
from tfmagic.protocol.payload import Handle
from tfmagic.system import notices
from tfmagic.system.helper_process import start_interpreter

_PATIENCE_S = 3.0  # with a writer, before the user reads for which one the cell waits
_END_S = 10.0  # for all writers, when the interpreter ends

_lock = threading.RLock()
_sessions: dict[str, Session] = {}  # the open ones, by path
_running: set[Session] = set()  # those whose process has not ended


@dataclass(eq=False, slots=True)
class Owner:
    """The tasks that open files together: of a cell, of a call or of a group of cells; or the notebook."""

    cluster: SharedWriters | None = None  # None for a `SharedWriter` that the notebook has opened
    ended: set[str] = field(default_factory=set)  # the tasks that have ended their part
    failures: list[str] = field(default_factory=list)  # why files could not be written

    def take_failures(self) -> list[str]:
        with _lock:
            taken, self.failures = self.failures, []
        return taken


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A task or the notebook wants to append to a file."""

    path: str
    how: Sequence[str | int]  # mode, compression and chunk_rows; "" and 0 for the default
    copy_of: int  # the writer process of the notebook's `SharedWriter` that was sent to the task, or 0
    owner: Owner
    task: str  # "" for the notebook
    members: tuple[str, ...]  # the tasks of the owner
    fd: int  # the socket that the writer takes over


class Session:
    """One opening of one file."""

    def __init__(self, request: OpenRequest):
        self.path, self.how = request.path, tuple(request.how)
        self.owner, self.members = request.owner, request.members
        self.attached: set[str] = set()  # tasks that have opened the file, and not ended their part since
        self.open_on: tuple[str, ...] = ()  # tasks that have ended their part and not closed the file
        self.settled = threading.Event()  # all tasks have ended; the file has its name, or is open or lost
        self.pid = 0  # the writer process; 0 before it is started
        self.waiting: list[OpenRequest] = []  # for the session after this one
        self._sent: collections.deque[OpenRequest] = collections.deque()  # the writer can end before it reads
        self._control, self._theirs = channel_pair(messages.WriterReport)
        self.thread = threading.Thread(target=self._serve, name="tfmagic-writer", daemon=True)

    def attach(self, request: OpenRequest) -> None:
        """Hand the socket to the writer."""
        self.attached.add(request.task)
        self.settled.clear()
        self._sent.append(request)
        self._send(messages.Attach(request.task, Handle(request.fd)))
        self.note_ended(
            request.owner.ended & {request.task}
        )  # it has waited for its turn, and been interrupted

    def note_ended(self, tasks: set[str], are_dead: bool = False) -> None:
        """Report to the writer that these tasks have ended their part of the cell."""
        self.attached -= tasks
        if tasks:
            self._send(messages.Ended(tuple(tasks), are_dead))

    def finish(self) -> None:
        """Let the writer take what has arrived, and end."""
        self._send(messages.Finish())

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # the writer has ended: the session's thread reports that
            self._control.send(message)

    # -- the session's thread --

    def _serve(self) -> None:
        try:
            with os.fdopen(os.memfd_create("tfmagic-writer", os.MFD_CLOEXEC), "w+b") as output:
                process = self._start(output.fileno())
                if (reason := self._receive_end()) is not None:
                    self._end(reason)
                code = process.wait()
                if reason is None:
                    output.seek(0)
                    text = output.read().decode(errors="replace").strip()[-2000:]
                    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                    what = text or f"what it had written is in {self.path}{UNFINISHED}"
                    self._end(f"the process that wrote {self.path} (pid {process.pid}) {how}: {what}")
        except OSError as error:
            no_process = "could not be opened: no process to write it could be started"
            self._end(f"{self.path} {no_process}: {error}")
        with _lock:
            _running.discard(self)

    def _start(self, output: int) -> subprocess.Popen[bytes]:
        fd = self._theirs.fileno()
        process = start_interpreter(
            "from tfmagic.features.shared_files import writer_process\n"
            f"writer_process.main({fd}, *{(self.path, self.how, self.members)!a})",
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
        with contextlib.suppress(EOFError, OSError):
            while True:
                match self._control.receive():
                    case messages.Attached():
                        with _lock:
                            os.close(self._sent.popleft().fd)
                    case messages.StillOpen(tasks):
                        self.open_on = tasks
                        self.settled.set()
                    case messages.Finished(reason):
                        return str(reason)
        return None

    def _end(self, reason: str) -> None:
        """Free the path. The writer answers its clients when the control channel has been closed."""
        with _lock:
            if reason:
                self.owner.failures.append(reason)
            if _sessions.get(self.path) is self:
                del _sessions[self.path]
            self._control.close()
            self._theirs.close()
            for request in (*self._sent, *self.waiting):
                if reason and request in self._sent:
                    _refuse(request, reason)
                else:
                    request_open(request)
            self.open_on = ()
            self.settled.set()


class SharedWriters:
    """The shared files of the tasks of one cluster.

    The supervisor's thread calls `hear` for every event of `heard`, and `finish` when its loop ends; the
    thread that waits for a cell calls `settle`, the one that stops the cluster `close`.

    Attributes:
        heard: The classes of events that matter: the ends of cells only once a task has opened a file.
    """

    def __init__(self) -> None:
        self._owners: dict[int, Owner] = {}  # by the number of the cell, or of its group
        self.heard: set[type] = {events.SocketSent, events.GroupChanged, events.TaskExited, events.TaskLost}

    def hear(self, event: events.Event, state: Any) -> None:
        """Note which task opens a file, and which has ended its part; `state` is that before the event.

        Only the cells under way (`state.cells`) and the ended tasks of groups of cells (`.groups`) are read.
        """
        match event:
            case events.SocketSent():
                self._request_open(event, state)
            case events.CellReturned() | events.CellRaised() if event.cell in self._owners:
                _note_ended(self._owners[event.cell], [event.task])
            case events.GroupChanged(group, gone) if group in self._owners:
                _note_ended(self._owners[group], gone)  # its processes can be started again
            case events.TaskExited(task) | events.TaskLost(task):
                for number, owner in self._owners.items():
                    if number not in state.groups:
                        _note_ended(owner, [task], are_dead=True)
                    else:  # its next process goes on with the file
                        with _lock:
                            for session in _sessions_of(owner):
                                session.attached.discard(task.name)

    def settle(self, cell: int) -> SharedWriterError | None:
        """Wait until the files of an ended cell have their names. Return an error if some were not written.

        A file that a task has not closed stays open; a message on stderr names it.
        """
        if (owner := self._owners.get(cell)) is None:
            return None
        with _lock:
            sessions = _sessions_of(owner)
        for session in sessions:
            if not session.settled.wait(_PATIENCE_S):
                _print(f"waiting for the writer of {session.path} (pid {session.pid})")
                session.settled.wait()
            if session.open_on:
                _print(
                    f"{session.path} is still open on {', '.join(session.open_on)}, and gets its name when "
                    "it is closed: use `with SharedWriter(...)`, or call close()"
                )
        lost = owner.take_failures()
        return SharedWriterError("; ".join(lost)) if lost else None

    def finish(self) -> None:
        """Let all files get their names. Does not wait."""
        finish_all(self)

    def close(self) -> list[str]:
        """Close the files that tasks have left open, and wait. Return why files could not be written."""
        return end_all(self)

    def _request_open(self, event: events.SocketSent, state: Any) -> None:
        cell, members = state.cells.get(event.cell), event.members
        ended: Iterable[TaskId] = ()
        if cell is not None and event.task in members:
            self.heard |= {events.CellReturned, events.CellRaised}
            owner = self._owners.setdefault(event.group or event.cell, Owner(self))
            ended = state.groups.get(event.group) or cell.outcomes
        else:  # a thread that a cell has left behind: its file is of this task alone
            owner, members = Owner(self), (event.task,)
        (path, how, copy_of, *place), names = json.loads(event.request), tuple(task.name for task in members)
        with _lock:
            owner.ended.discard(event.task.name)

        def open_for(fd: int) -> None:
            request_open(OpenRequest(path, how, copy_of, owner, event.task.name, names, fd))
            _note_ended(owner, ended)

        if event.handle is not None:
            open_for(event.handle.take())
            return

        def link() -> None:
            with contextlib.suppress(OSError):  # the task waits in vain, and says so
                open_for(links.connect(*place).detach())

        threading.Thread(target=link, name="tfmagic-writer-link", daemon=True).start()


def _note_ended(owner: Owner, tasks: Iterable[TaskId], are_dead: bool = False) -> None:
    """Note that these tasks have ended their part; with `are_dead` also their processes."""
    with _lock:
        names = {task.name for task in tasks}
        owner.ended |= names
        for session in _sessions_of(owner):
            session.note_ended(names, are_dead)


def finish_all(of: SharedWriters | Owner | None = None) -> list[Session]:
    """Let the writers of a cluster, of an owner, or of all finish. Do not wait for them. Return them."""
    with _lock:
        found = [session for session in _running if of in (None, session.owner, session.owner.cluster)]
        for session in found:
            session.finish()
    return found


def end_all(of: SharedWriters | Owner | None = None, seconds: float = _END_S) -> list[str]:
    """Close these files, as `finish_all`, and wait for that. Return why files could not be written."""
    found, deadline = finish_all(of), time.monotonic() + seconds
    for session in found:
        session.thread.join(min(max(deadline - time.monotonic(), 0), threading.TIMEOUT_MAX))
    return [reason for session in found for reason in session.owner.take_failures()]


def _sessions_of(owner: Owner) -> list[Session]:
    return [session for session in _sessions.values() if session.owner is owner]


def request_open(request: OpenRequest) -> None:
    """Connect a socket with the writer of a file, or send the reason why not. Does not wait.

    The request joins its session, begins one, or waits for the end of another's. Takes over the descriptor.
    """
    with _lock:
        session = _sessions.get(request.path)
        # this task has closed the file and wants a new one, while other tasks have it open
        opens_again = session is not None and request.how[0] != "a" and request.task in session.attached
        if reason := _refusal(session, request, opens_again):
            _refuse(request, reason)
        elif session is None:
            session = _sessions[request.path] = Session(request)
            _running.add(session)
            atexit.unregister(end_all)
            atexit.register(end_all)
            session.attach(request)
            session.note_ended(request.owner.ended.copy())
            session.thread.start()
        elif request.copy_of or (session.owner is request.owner and not opens_again):
            session.attach(request)
        else:
            if session.owner is not request.owner:  # the cell was run again
                session.finish()
            session.waiting.append(request)
            _answer(request, messages.Waits(tuple(sorted(set(session.members) - {request.task}))))


def _refusal(session: Session | None, request: OpenRequest, opens_again: bool) -> str:
    """Return why this file cannot be opened now, or ""."""
    path, how = request.path, tuple(request.how)
    if request.copy_of:
        is_open = session is not None and session.pid == request.copy_of
        return "" if is_open else f"{path} has been closed in the notebook"
    if session is None:
        return ""
    if session.owner is request.owner:
        differs = how != session.how and not opens_again
        return f"another task has {path} open with {session.how}, not {how}" if differs else ""
    if session.members == ("",):
        return (
            f"{path} is open in the notebook: use that SharedWriter in the cell, it travels along; "
            "or close it first"
        )
    if running := [name for name in session.members if name not in session.owner.ended]:
        return f"{path} is being written by another cell, which runs on {', '.join(running)}"
    if session.owner.cluster is not request.owner.cluster:
        others = f"{', '.join(session.members)} of another cluster"
        return f"{path} is still open on {others}: close it there first"
    return ""


def _refuse(request: OpenRequest, reason: str) -> None:
    _answer(request, messages.Failed(reason))
    os.close(request.fd)


def _answer(request: OpenRequest, message: object) -> None:
    with socket.socket(fileno=os.dup(request.fd)) as sock, contextlib.suppress(OSError):
        Channel(sock, messages.ToWriter).send(message)


def _print(text: str) -> None:
    notices.tell(f"tfmagic: {text}")


def _leave_to_parent() -> None:
    """Forget all sessions in a fork: their writers belong to the parent.

    A fork that kept copies of the control channels would hide the death of its parent from the writers, and
    would close the files at its own end.
    """
    global _lock
    _lock = threading.RLock()  # a thread that the fork does not have might hold it
    for session in _running:
        session._control.sock.close()
        session._theirs.close()
    _sessions.clear()
    _running.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
