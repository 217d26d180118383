"""The template: imports TensorFlow once, then forks a launcher, with a reaper, for each kernel that asks.

    kernel ── ForkLauncher(environ, path) ───→ template ──fork──→ reaper ──fork──→ launcher ──fork──→ tasks
           ←─ LauncherForked | LauncherRefused     │ a socket in the user's own folder    ↑
           └─ ServeKernel(root channel) ───────────┼──────────────────────────────────────┘
                                                   └─ ends with its owner, or when it was idle

A launcher is the kernel's own, as one that the kernel has started (`tfmagic.task.reaper`): it ends with the
kernel, and lives on if the template ends. The template keeps no task and no channel of a kernel. It watches
each kernel only to wake up a reaper that is stopped when the kernel ends.

It has one thread and no context of TensorFlow. It refuses a kernel that has inherited something else, such as
limits or namespaces, or whose import would find other files (`import_record`). What the kernel has inherited
is read from /proc: a process in a sandbox that reaches the socket must not get tasks outside of it.

The owner is the process for whose kernels it works: a Jupyter server, a session of pytest. Without one it
ends after a given time.
"""

import contextlib
import errno
import importlib
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from tfmagic.errors import ProtocolError
from tfmagic.protocol.channel import Channel
from tfmagic.protocol.launcher_messages import OpenSession
from tfmagic.protocol.payload import Handle
from tfmagic.protocol.template_messages import (
    EndIfIdle,
    ForkLauncher,
    LauncherForked,
    LauncherRefused,
    ServeKernel,
    TemplateRequest,
)
from tfmagic.runs import orphans, warm_folder
from tfmagic.system import processes
from tfmagic.system.inherited_facts import inherited_facts
from tfmagic.task import import_conditions, launcher, reaper
from tfmagic.task.import_record import ImportRecord

_LOOK_S = 0.2  # between two looks at the owner during the import
_NOTE_S = 2.0  # between two looks at its own note
_CREDENTIALS = struct.Struct("3i")  # pid, user, group
_SO_PEERPIDFD = 77  # since Linux 6.5; Python has no name for it
_OF_ITSELF = "personality"  # where Yama is in force, only a process itself can read it; it is in the digest


def main(
    record: ImportRecord, listener: int, owner: int, path: str, idle_s: float, preload: tuple[str, ...]
) -> NoReturn:
    """Import TensorFlow, and serve kernels until the owner ends. Never returns.

    Args:
        record: Has recorded the imports from the start.
        listener: The socket on which kernels connect.
        owner: A pidfd of the owner; -1 for none.
        path: The file of its socket; see `tfmagic.runs.warm_folder`.
        idle_s: How long it stays without a launcher; without an owner, how long it stays at all.
        preload: Further modules to import for the tasks.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    code, place = 1, warm_folder.Place(path)
    try:
        place.write_note(idle_s if owner < 0 else 0.0)
        sockets = socket.socket(fileno=listener)
        with _ending_with(owner, place):
            version = launcher.import_for_tasks(preload)
        record.end()
        os.chdir("/")  # so that the first kernel's folder can go
        Template(sockets, owner, place, record, version, idle_s).serve()
        code = 0
    except BaseException:  # the kernels that wait start launchers of their own, which say why
        traceback.print_exc()
    finally:
        place.remove()
        os._exit(code)


@contextlib.contextmanager
def _ending_with(owner: int, place: warm_folder.Place) -> Iterator[None]:
    """End this process in the middle of its import, which has no second thread, when the owner ends."""

    def look(number: int, frame: object) -> None:
        if _has_ended(owner):
            place.remove_all()
            os._exit(0)

    if owner < 0:
        yield
        return
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel that has connected and not asked yet: its channel, its pid and a pidfd."""

    channel: Channel
    pid: int
    pidfd: int

    def close(self) -> None:
        self.channel.close()
        os.close(self.pidfd)


def _peer_of(sock: socket.socket) -> tuple[int, int] | None:
    """Return the pid and a pidfd of the process that has connected, or None.

    None stands for a process of another user, for one that has ended, and for one of an outer pid namespace,
    which has the pid 0 here.
    """
    pid, user, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if user != os.geteuid() or pid <= 0:
        return None
    try:
        return pid, sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        return (pid, os.pidfd_open(pid)) if error.errno == errno.ENOPROTOOPT else None


@dataclass(frozen=True, slots=True)
class _Child:
    """A reaper, and pidfds of it and of its kernel."""

    pid: int
    reaper: int
    kernel: int


class Template:
    """The kernels that ask, the reapers, and one poll for all of them."""

    def __init__(
        self,
        listener: socket.socket,
        owner: int,
        place: warm_folder.Place,
        record: ImportRecord,
        version: str,
        idle_s: float,
    ):
        self.listener, self.owner, self.place, self.record = listener, owner, place, record
        self.version, self.idle_s, self.is_over = version, idle_s, False
        self.obstacle = import_conditions.obstacle_to_fork()
        if self.obstacle:  # its launchers cannot fork tasks
            print(f"no process can be forked from it, because of {self.obstacle}", file=sys.stderr)
            self._end_soon()
        else:
            place.open()
        self.kernels: dict[int, _Kernel] = {}  # by their connections
        self.children: dict[int, _Child] = {}  # by both pidfds
        self.idle_since = time.monotonic()
        self.poll = select.poll()
        listener.setblocking(False)
        for fd in (listener.fileno(), *({owner} - {-1})):
            self.poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Work until the owner ends, nothing was to do for a while, or no command finds this process."""
        while (wait_s := self._wait_s()) >= 0:
            ready = self.poll.poll(min(wait_s, _NOTE_S) * 1000)
            if not (ready or self.is_over or self.place.is_noted()):
                return
            if any(fd == self.owner for fd, _ in ready):
                self.place.remove_all()
                return
            if self.is_over and not ready:
                return
            for fd, _ in ready:
                if fd == self.listener.fileno():
                    self._accept()
                elif fd in self.kernels:
                    self._serve_kernel(fd)
                elif fd in self.children:
                    self._note_end(fd)

    def _wait_s(self) -> float:
        """Return how long to wait for the next event; below 0 if there is none to wait for."""
        if self.is_over:
            return 0
        if self.children and self.owner >= 0:
            return 3600
        return self.idle_since + self.idle_s - time.monotonic()

    def _end_soon(self) -> None:
        """Serve the kernels that have connected, and no more: another template can take this place."""
        self.is_over = True
        self.place.remove()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has gone
            sock, _ = self.listener.accept()
            with contextlib.ExitStack() as stack:
                stack.callback(sock.close)
                if (peer := _peer_of(sock)) is None:
                    return
                stack.pop_all()
            sock.setblocking(True)
            kernel = _Kernel(Channel(sock, TemplateRequest), *peer)
            self.kernels[kernel.channel.fileno()] = kernel
            self.poll.register(kernel.channel.fileno(), select.POLLIN)

    def _serve_kernel(self, fd: int) -> None:
        kernel, channel = self.kernels[fd], self.kernels[fd].channel
        requests: list[TemplateRequest] = []
        ended = False
        try:
            requests = channel.receive_ready()
        except (EOFError, OSError, ProtocolError):
            ended = True
        for request in requests:
            with contextlib.suppress(OSError):  # it has gone: then what was forked for it ends
                if isinstance(request, EndIfIdle):
                    if not self.children:
                        self._end_soon()
                else:
                    channel.send(self._answer(request, kernel))
            ended = True
        if ended:
            self.poll.unregister(fd)
            del self.kernels[fd]
            kernel.close()

    def _answer(self, request: ForkLauncher, kernel: _Kernel) -> LauncherForked | LauncherRefused:
        if outdated := self.record.outdated():
            self._end_soon()
            return LauncherRefused(outdated, True)
        try:
            reason = self.record.difference(request.path, request.cwd) or _other_facts(kernel)
            return LauncherRefused(reason, False) if reason else self._fork(request, kernel)
        except OSError as error:
            return LauncherRefused(str(error), False)

    def _fork(self, request: ForkLauncher, asks: _Kernel) -> LauncherForked:
        obstacle = self.obstacle or import_conditions.obstacle_to_fork()
        connection, kernel = asks.channel.fileno(), os.dup(asks.pidfd)
        pid = os.fork()
        if pid == 0:
            try:
                _set_up(request, connection, kernel)
                watched = reaper.split_off(kernel)
                _serve_kernel(connection, watched, self.version, obstacle)
            except BaseException:  # must not reach the template's loop; the kernel's file gets it
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(1)
        child = _Child(pid, os.pidfd_open(pid), kernel)
        for fd in (child.reaper, child.kernel):
            self.children[fd] = child
            self.poll.register(fd, select.POLLIN)
        return LauncherForked(pid, Handle(child.reaper))

    def _note_end(self, fd: int) -> None:
        """Forget a reaper that has ended; wake one whose kernel has ended: it can be stopped."""
        child = self.children.pop(fd)
        self.poll.unregister(fd)
        os.close(fd)
        if fd == child.kernel:
            if child.reaper in self.children:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(child.reaper, signal.SIGCONT)
        else:
            os.waitpid(child.pid, 0)
            if child.kernel in self.children:
                self._note_end(child.kernel)
        if self.owner >= 0:
            self.idle_since = time.monotonic()


def _other_facts(kernel: _Kernel) -> str:
    """Return what a kernel has inherited otherwise than this process, as a reason, or ""."""
    ours, theirs = inherited_facts(os.getpid()), inherited_facts(kernel.pid)
    if _has_ended(kernel.pidfd):  # its pid could be another process' by now
        return "it has ended"
    others = [name for name in ours if name != _OF_ITSELF and theirs.get(name) != ours[name]]
    return f"it has inherited other values of {', '.join(others)}" if others else ""


def _set_up(request: ForkLauncher, connection: int, kernel: int) -> None:
    """Drop the template's state in the child, and take over the kernel's environment, path and folder."""
    os.setsid()
    output = request.output.take()
    for target in (1, 2):
        os.dup2(output, target)
    processes.close_all_but(connection, kernel)
    processes.rewrite_first_environ(orphans.MARK, request.mark)
    os.environ.clear()
    os.environ.update(request.environ)
    sys.path[:] = request.path
    importlib.invalidate_caches()
    with contextlib.suppress(OSError):  # it was deleted; tasks get a folder with their first message
        os.chdir(request.cwd)


def _serve_kernel(connection: int, watched: int, version: str, obstacle: str) -> NoReturn:
    """Run the launcher, when the kernel has sent its channel; end if the kernel has given up."""
    channel = Channel(socket.socket(fileno=connection), ServeKernel)
    root = Channel(socket.socket(fileno=channel.receive().root.take()), OpenSession)
    channel.close()
    launcher.serve(root, watched, version, 0.0, obstacle)
