"""Ask a template for a launcher: a process that has imported TensorFlow in the same environment.

    the owner's folder ── digest of the environment ──→ a template's socket ── ForkLauncher ──→ PidfdProcess
                                       └ none: start one, which is the owner's and not ours

A launcher of our own is started instead where nobody owns templates, or this one refuses, has ended, or does
not answer. `tfmagic.task.template` has the other side.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tfmagic.errors import LaunchError, ProtocolError
from tfmagic.protocol.channel import Channel
from tfmagic.protocol.module_origins import import_path
from tfmagic.protocol.payload import Handle
from tfmagic.protocol.template_messages import (
    EndIfIdle,
    ForkLauncher,
    LauncherForked,
    LauncherRefused,
    ServeKernel,
    TemplateAnswer,
)
from tfmagic.runs import orphans
from tfmagic.runs.folder import state_dir
from tfmagic.runs.warm_folder import NEW, Warm, announce, announced_idle_s, find, make, warm_folder
from tfmagic.system import notices
from tfmagic.system.advice import Step
from tfmagic.system.helper_process import start_interpreter
from tfmagic.system.inherited_facts import inherited_facts
from tfmagic.system.process_identity import Identity, identify
from tfmagic.system.version import VERSION

_ANSWER_S = 1.0  # of a template that has imported TensorFlow; it needs 0.05 s
_IMPORT_S = 40.0  # of one that imports it; it needs 4 s, and a start waits 120 s for an import of its own
_LOCK_S = 0.5
_LOOK_S = 0.05
_OF_ONE_PROCESS = frozenset({  # variables that differ between kernels and shells, and that no import reads
    orphans.MARK, "_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "WINDOWID", "TERM_SESSION_ID", "STY",
    "ITERM_SESSION_ID", "TMUX", "TMUX_PANE", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK",
    "XDG_SESSION_ID", "GPG_TTY", "INVOCATION_ID", "JOURNAL_STREAM", "JPY_PARENT_PID", "JPY_SESSION_NAME",
    "JPY_INTERRUPT_EVENT", "IPY_INTERRUPT_EVENT", "PYDEVD_USE_FRAME_EVAL", "PYTEST_CURRENT_TEST",
    "PYTEST_XDIST_WORKER", "TF_CONFIG",
})  # fmt: skip

_owner: tuple[Identity, float] | None = None  # and how long its templates stay without a kernel


def join(pid: int, idle_s: float, must_announce: bool = True) -> None:
    """Let launchers of this process come from templates that end with the process `pid`.

    Args:
        idle_s: How long a template stays without a kernel; 0: use none.
        must_announce: Do so only if that process, a Jupyter server, allows it, and for as long as it says.
    """
    global _owner
    _owner = None
    owner = identify(pid)
    if owner is None or idle_s <= 0:
        return
    if must_announce:
        idle_s = min(idle_s, announced_idle_s(owner))
    else:
        with contextlib.suppress(OSError, LaunchError):
            announce(owner, idle_s)
    if idle_s > 0:
        _owner = owner, idle_s


def can_ask() -> bool:
    """Check whether there can be a template for this process."""
    return _owner is not None or warm_folder(None).exists()


class PidfdProcess:
    """A reaper that a template has forked, with the methods of `subprocess.Popen`: it is not our child."""

    def __init__(self, pid: int, pidfd: int):
        self.pid, self._pidfd = pid, pidfd
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return 0 if it has ended, however that was; None as long as it runs."""
        return self._wait_ms(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raise `subprocess.TimeoutExpired` if it runs on."""
        if self._wait_ms(None if timeout is None else timeout * 1000) is None:
            raise subprocess.TimeoutExpired("the reaper", timeout or 0)
        return 0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _wait_ms(self, timeout_ms: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if poll.poll(timeout_ms):
                self.returncode = 0
                os.close(self._pidfd)
        return self.returncode


class Environment:
    """Everything that a template must have in common with a kernel, but files.

    Args:
        environ: The environment under which TensorFlow is imported.
        preload: Further modules that are imported for the tasks.
    """

    def __init__(self, environ: Mapping[str, str], preload: tuple[str, ...]):
        self.environ, self.preload = dict(environ), preload

    @functools.cached_property
    def facts(self) -> dict[str, str]:
        """What this process has inherited."""
        return inherited_facts()

    @functools.cached_property
    def digest(self) -> str:
        """The name of the environment."""
        seen = sorted(item for item in self.environ.items() if item[0] not in _OF_ONE_PROCESS)
        versions = [VERSION, sys.version, *_interpreter()]
        whole = json.dumps([versions, self.preload, seen, sorted(self.facts.items())])
        return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class TemplateClient:
    """Asks for one launcher; `cancel` ends that from another thread."""

    def __init__(self, environment: Environment):
        self._environment = environment
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._is_cancelled = False

    def ask(self, root: int, output: int, mark: str) -> PidfdProcess | None:
        """Return the reaper of a new launcher; None if no template serves us.

        One whose import takes too long, since it is stopped for example, is named on standard error.

        Args:
            root: The launcher's end of its root channel.
            output: The file that gets what the launcher writes.
            mark: Identifies all processes below the launcher.
        """
        with contextlib.suppress(OSError, LaunchError, ProtocolError, EOFError):
            for folder, idle_s in _folders():
                for _ in range(2):  # the first one can be outdated
                    answer = self._ask_in(folder, idle_s, root, output, mark)
                    if isinstance(answer, LauncherForked):
                        return PidfdProcess(answer.pid, answer.pidfd.take())
                    if not (isinstance(answer, LauncherRefused) and answer.outdated):
                        break
        return None

    def cancel(self) -> None:
        """Give up: what a template forks for us nevertheless ends by itself."""
        with self._lock:
            self._is_cancelled = True
            if self._channel is not None:
                with contextlib.suppress(OSError):
                    self._channel.sock.shutdown(socket.SHUT_RDWR)

    def _ask_in(
        self, folder: Path, idle_s: float, root: int, output: int, mark: str
    ) -> TemplateAnswer | None:
        found = self._connect(folder, idle_s)
        if found is None:
            return None
        channel, patience_s = Channel(found[0], TemplateAnswer), found[1]
        environ = {**self._environment.environ, orphans.MARK: mark}
        try:
            with self._lock:
                if self._is_cancelled:
                    return None
                self._channel = channel
            channel.send(ForkLauncher(Handle(output), environ, tuple(import_path()), _folder(), mark))
            channel.sock.settimeout(patience_s)
            try:
                answer: TemplateAnswer = channel.receive()
            except TimeoutError:
                if patience_s == _IMPORT_S:
                    self._name_slow(folder)
                raise
            if isinstance(answer, LauncherForked):
                channel.send(ServeKernel(Handle(root)))
            return answer
        finally:
            with self._lock:
                self._channel = None
                channel.close()

    def _name_slow(self, folder: Path) -> None:
        path = folder / self._environment.digest
        for warm in find(folder.parent.parent):
            if warm.place.path == path:
                notices.say(
                    f"tfmagic: pid {warm.process.pid}, which imports TensorFlow for all kernels of this "
                    f"environment, did not get ready within {_IMPORT_S:g} s, so this one imports it itself. "
                    f"If it is stopped or hangs:  {Step('type', f'kill -9 {warm.process.pid}')}"
                )

    def _connect(self, folder: Path, idle_s: float) -> tuple[socket.socket, float] | None:
        """Return a socket of a template, which can be a new one, and how long its answer can take."""
        digest = self._environment.digest
        with locked(folder) as at:
            for name, patience_s in ((digest, _ANSWER_S), (digest + NEW, _IMPORT_S)):
                if (sock := _connect(at, name)) is not None:
                    return sock, patience_s
            if _owner is None or folder != warm_folder(_owner[0]):
                return None
            others = [name for name in os.listdir(at) if len(name) == len(digest)]
            start(at, folder, self._environment, _owner[0], idle_s)
            for name in others:  # each takes memory
                if (other := _connect(at, name)) is not None:
                    Channel(other, TemplateAnswer).send(EndIfIdle())
                    other.close()
            sock = _connect(at, digest + NEW)
            return None if sock is None else (sock, _IMPORT_S)


def _folders() -> Iterator[tuple[Path, float]]:
    if (asked := warm_folder(None)).exists():
        yield asked, 0.0
    if _owner is not None:
        yield warm_folder(_owner[0]), _owner[1]


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Yield a descriptor of a folder of templates that no other process changes meanwhile.

    Raises:
        OSError: It is not this user's alone, or another process holds it.
    """
    make(folder)
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(at, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.005)
        yield at
    finally:
        os.close(at)


def _connect(at: int, name: str) -> socket.socket | None:
    """Return a connection to a socket in a folder; None where nothing of this user listens."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(_ANSWER_S)
    try:
        sock.connect(_short(at, name))
        user = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if user == os.geteuid():
            return sock
    except ConnectionRefusedError:  # its process has ended
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=at)
    except OSError:
        pass
    sock.close()
    return None


def _short(at: int, name: str) -> str:
    """Return a path of a socket that is not too long for the system."""
    return f"/proc/self/fd/{at}/{name}"


def start(
    at: int,
    folder: Path,
    environment: Environment,
    owner: Identity | None,
    idle_s: float,
    output: int = subprocess.DEVNULL,
) -> None:
    """Start a template. Kernels can connect at once; it answers when it has imported TensorFlow.

    It is no child of ours, so that nothing that ends this process with all its descendants ends it.

    Args:
        at: A descriptor of its folder, which is locked.
        owner: The process with which it ends; None: it ends after `idle_s`.
        output: A file for what it writes.

    Raises:
        OSError: The owner has ended.
    """
    name = environment.digest + NEW
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=at)
        listener.bind(_short(at, name))
        listener.listen(64)
        pass_fds, owner_fd = [listener.fileno()], -1
        if owner is not None:
            owner_fd = os.pidfd_open(owner.pid)
            stack.callback(os.close, owner_fd)
            if not owner.alive:  # checked after the pidfd was opened
                raise ProcessLookupError(owner.pid)
            pass_fds.append(owner_fd)
        arguments = (listener.fileno(), owner_fd, str(folder / environment.digest), idle_s)
        process = start_interpreter(
            "import os\nif os.fork():\n    os._exit(0)\n"
            "from tfmagic.task.import_record import ImportRecord; record = ImportRecord(); "
            "from tfmagic.task import template; "
            f"template.main(record, *{arguments!r}, {environment.preload!r})",
            path=import_path(),
            stdout=output,
            stderr=output,
            env={**environment.environ, orphans.MARK: orphans.NO_MARK},
            pass_fds=pass_fds,
        )
        process.wait()


def start_asked(environment: Environment, lasts_s: float) -> Warm:
    """Start a template that any kernel of this user can use, and wait until it has imported TensorFlow.

    Raises:
        LaunchError: There is one, or it could not be started; the message says why.
    """
    folder = warm_folder(None)
    path = folder / environment.digest
    output = os.memfd_create("tfmagic-import", os.MFD_CLOEXEC)
    try:
        with locked(folder) as at:
            for name in (environment.digest, environment.digest + NEW):
                if (found := _connect(at, name)) is not None:
                    found.close()
                    raise LaunchError(
                        "a process of this environment has TensorFlow imported already, or imports it now: "
                        "tfmagic status  shows it, and  tfmagic reap  ends it"
                    )
            start(at, folder, environment, None, lasts_s, output)
            waiting = _connect(at, environment.digest + NEW)
        if waiting is not None:
            with waiting:
                _wait_for_import(waiting, path)
        for warm in find(state_dir()):
            if warm.place.path == path and path.exists():
                return warm
        text = os.pread(output, 4000, 0).decode("utf-8", "replace").strip()
        raise LaunchError(f"TensorFlow could not be kept ready:\n{text or 'the process was killed'}")
    except OSError as error:
        raise LaunchError(f"{folder} cannot be used: {error}") from error
    finally:
        os.close(output)


def _wait_for_import(waiting: socket.socket, path: Path) -> None:
    """Wait until a template answers at once, or has ended, by a connection to it."""
    poll = select.poll()
    poll.register(waiting, select.POLLIN)
    while not path.exists() and not poll.poll(_LOOK_S * 1000):
        pass


@functools.cache
def _interpreter() -> tuple[str, str]:
    info = os.stat(sys.executable)
    return sys.executable, f"{info.st_ino} {info.st_mtime_ns}"
