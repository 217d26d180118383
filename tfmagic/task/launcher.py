"""The launcher: imports TensorFlow once, then forks a task process in milliseconds on request.

    kernel ── root channel: OpenSession(channel) ──→ launcher ──fork──→ task process (own session)
           ←─ LauncherReady | LauncherFailed           │  one channel a cluster: ForkTask →
                                                       └→ ← TaskForked(pidfd), TaskReaped(exit code)

It has one thread. `multiprocessing`'s forkserver is no replacement: it is a singleton with the user's
settings, hides import errors, and reaps children, so that a signal can reach another process with that pid.

A fork is safe only from one thread and before TensorFlow's context exists. Both are checked before each
fork (`import_conditions`); if one is not so, the child becomes a fresh interpreter. The garbage collector is
frozen, so that collections in the children do not copy the memory of the import.

No process outlives the kernel. The root channel ends with the kernel, which the reaper (our parent) watches
too. Task processes get SIGKILL when the launcher ends. A task's process group ends with the task. Processes
that a task has put into a session of their own become children of the launcher (a subreaper), which ends them
with the last cluster. The reaper ends all that a killed launcher leaves.
"""

import contextlib
import functools
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from tfmagic.protocol.channel import Channel
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.launcher_messages import (
    ForkFailed,
    ForkTask,
    LauncherFailed,
    LauncherReady,
    OpenSession,
    SessionEvent,
    SessionFailed,
    TaskForked,
    TaskReaped,
)
from tfmagic.protocol.payload import Handle
from tfmagic.system import namespaces, processes
from tfmagic.system.process_identity import is_resource_tracker
from tfmagic.task import import_conditions
from tfmagic.task.reaper import end_descendants
from tfmagic.task.tensorflow import patches


def main(fd: int, reaper: int, isolate: bool, preload: tuple[str, ...] = ()) -> NoReturn:
    """Run the launcher on its root channel until the kernel or the reaper is gone. Never returns.

    Args:
        fd: The root channel.
        reaper: A pidfd of our parent; see `tfmagic.task.reaper`.
        isolate: Whether tasks get a network of their own.
        preload: Further modules to import for the tasks.
    """
    root = Channel(socket.socket(fileno=fd), OpenSession)
    try:
        os.getcwd()
    except FileNotFoundError:  # it was deleted; tasks get a folder with their first message
        os.chdir("/")
    started = time.perf_counter()
    try:
        if isolate:
            namespaces.enter_own_network()
            namespaces.start_loopback()
        version = import_for_tasks(preload)
    except BaseException as error:  # an import can raise anything, and the kernel reports it
        text = "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError):
            root.send(LauncherFailed(text))
        os._exit(1)
    serve(root, reaper, version, time.perf_counter() - started)


def serve(root: Channel, reaper: int, version: str, seconds: float, obstacle: str = "") -> NoReturn:
    """Report that everything is imported, and run the launcher. Never returns.

    Args:
        version: TensorFlow's.
        seconds: The time that the import took.
        obstacle: What makes a fork unsafe although it cannot be seen here: it was a thread of the template.
    """
    processes.become_subreaper()
    found = obstacle or import_conditions.obstacle_to_fork()
    root.send(LauncherReady(version, seconds, found, patches.probe_all()))
    Launcher(root, reaper, obstacle).serve()
    os._exit(0)


def import_for_tasks(modules: tuple[str, ...]) -> str:
    """Import what every task needs, with one thread. Return TensorFlow's version."""
    gc.disable()
    import_conditions.load_triton()
    with import_conditions.one_thread():
        version = _import_all(modules)
    gc.freeze()  # a collection before it takes 0.3 s, and finds 3,500 objects among 680,000
    gc.enable()
    return version


def _import_all(modules: tuple[str, ...]) -> str:
    from tfmagic.serialization import own_dill  # noqa: F401 - before TensorFlow, which imports dill, too

    with _annotations_compiled_once():
        import tensorflow as tf

    if os.environ.get("TF_USE_LEGACY_KERAS", "") in ("1", "True", "true"):
        import tf_keras  # noqa: F401 - tf.keras is then this one
    _touch_lazy_modules(tf)
    from tfmagic.task import program, shell  # noqa: F401

    shell.make_shell()
    for name in modules:
        importlib.import_module(name)
    patches.probe_all()
    return str(tf.__version__)


@contextlib.contextmanager
def _annotations_compiled_once() -> Iterator[None]:
    """Let `typing` compile equal annotations once: TensorFlow has 18,000 strings, a tenth of its import."""
    vars(typing)["compile"] = functools.cache(compile)  # found before the built-in function
    try:
        yield
    finally:
        del vars(typing)["compile"]


def _touch_lazy_modules(tf: Any) -> None:
    """Load parts of TensorFlow that it loads on first use, so that no task has to."""
    if os.environ.get("KERAS_BACKEND", "") in ("", "tensorflow"):  # others start threads, or are missing
        _ = (tf.keras.Sequential, tf.keras.layers.Dense, tf.keras.optimizers.SGD)
    _ = (tf.data.Dataset, tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.ParameterServerStrategy)
    _ = tf.distribute.coordinator.ClusterCoordinator
    _ = (tf.distribute.cluster_resolver.TFConfigClusterResolver, tf.train.Checkpoint, tf.nn.relu)


@dataclass(frozen=True, slots=True)
class _Child:
    session: Channel
    task: TaskId
    attempt: int
    pid: int


class Launcher:
    """The sessions (one for each cluster), the children, and one poll for all of them."""

    def __init__(self, root: Channel, reaper_fd: int, obstacle: str = ""):
        self.root, self.reaper_fd, self.obstacle = root, reaper_fd, obstacle
        self.poll = select.poll()
        self.asked_to_end = False
        self.sessions: dict[int, Channel] = {}
        self.children: dict[int, _Child] = {}  # by pidfd
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake: adopted orphans must be reaped
        signal.signal(signal.SIGTERM, self._on_terminate)
        # from here on we watch the reaper's pidfd, unless we are stopped
        processes.set_parent_death_signal(signal.SIGCONT)
        for fd in (root.fileno(), self.reaper_fd, self.wake_read):
            self.poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Work until the kernel or the reaper ends; then end all descendants."""
        try:
            self._serve_all()
        except BaseException as error:  # every cluster gets to know why its tasks end
            self.root.close()  # no new cluster comes here
            for session in self.sessions.values():
                with contextlib.suppress(OSError):
                    session.send(SessionFailed(f"its launcher failed with {type(error).__name__}: {error}"))
            end_descendants()
            raise

    def _serve_all(self) -> None:
        while True:
            for fd, _ in self.poll.poll():
                if fd == self.reaper_fd or self.asked_to_end or not self._serve_one(fd):
                    end_descendants()
                    with contextlib.suppress(OSError):  # it has ended; else it can be stopped
                        signal.pidfd_send_signal(self.reaper_fd, signal.SIGCONT)
                    return

    def _on_terminate(self, number: int, frame: object) -> None:
        self.asked_to_end = True

    def _serve_one(self, fd: int) -> bool:
        """Handle one ready descriptor; return False when the root channel has ended."""
        if fd in self.children:
            self._reap(fd)
        elif fd in self.sessions:
            self._serve_session(fd)
        elif fd == self.wake_read:
            with contextlib.suppress(BlockingIOError):
                os.read(fd, 4096)
            self._tend_orphans()
        elif fd == self.root.fileno():
            try:
                messages = self.root.receive_ready()
            except (EOFError, OSError):
                return False
            for message in messages:
                channel = Channel(socket.socket(fileno=message.channel.take()), ForkTask)
                self.sessions[channel.fileno()] = channel
                self.poll.register(channel.fileno(), select.POLLIN)
        return True

    def _serve_session(self, fd: int) -> None:
        try:
            for message in self.sessions[fd].receive_ready():
                if fd in self.sessions:  # a report could not be sent
                    self._fork(fd, message)
        except (EOFError, ConnectionError):
            self._close_session(fd)
        except OSError as error:
            self._close_session(fd, f"the channel of its launcher failed: {error}")

    def _fork(self, session: int, request: ForkTask) -> None:
        pid = 0
        try:
            obstacle = "" if request.fresh else self.obstacle or import_conditions.obstacle_to_fork()
            fresh = request.fresh or bool(obstacle)
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                self._become_task(request, fresh)
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            if pid:  # it cannot be watched
                os.kill(pid, signal.SIGKILL)
            self._report(self.sessions[session], ForkFailed(request.task, request.attempt, str(error)))
            return
        self.children[pidfd] = _Child(self.sessions[session], request.task, request.attempt, pid)
        self.poll.register(pidfd, select.POLLIN)
        forked = TaskForked(request.task, request.attempt, pid, Handle(pidfd), fresh, obstacle)
        self._report(self.sessions[session], forked)

    def _report(self, session: Channel, event: SessionEvent) -> None:
        """Send a report; the kernel of a session that does not take it must not wait for it."""
        try:
            session.send(event)
        except ConnectionError:
            pass  # the session ends, which we read next
        except OSError as error:
            if session.fileno() in self.sessions:
                self._close_session(session.fileno(), f"the channel of its launcher failed: {error}")

    def _become_task(self, request: ForkTask, fresh: bool) -> NoReturn:
        """Drop the launcher's state in the child, and start the task program."""
        log = request.log.take()
        try:
            launcher = os.getppid()
            if request.where is not None:
                namespaces.enter(
                    [handle.take() for handle in request.where.namespaces], request.where.hosts_file
                )
            namespaces.drop_rights()
            processes.set_parent_death_signal(signal.SIGKILL)
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if os.getppid() != launcher or launcher == 1:
                os._exit(0)
            channel = request.channel.take()
            for target in (1, 2):
                os.dup2(log, target)
            processes.close_all_but(channel)
            if fresh:
                os.set_inheritable(channel, True)
                os.execve(sys.executable, fresh_command(channel), dict(request.environ or os.environ))
            from tfmagic.task import program

            import_conditions.start_threads()
            program.run_task(channel)
        except BaseException:  # must not reach the launcher's loop; the log gets it
            with contextlib.suppress(OSError):  # already closed
                os.dup2(log, 2)
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _reap(self, pidfd: int) -> None:
        """Kill the process group of a task that has ended, then reap it, which frees its pid."""
        child = self.children.pop(pidfd)
        self.poll.unregister(pidfd)
        os.close(pidfd)
        self._kill_group(child.pid)
        _, status, usage = os.wait4(child.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._report(child.session, TaskReaped(child.task, child.attempt, code, usage.ru_maxrss * 1024))

    def _close_session(self, fd: int, reason: str = "") -> None:
        self.poll.unregister(fd)
        session = self.sessions.pop(fd)
        with contextlib.suppress(OSError):
            if reason:
                session.send(SessionFailed(reason))
        session.close()
        # their groups are killed when they are reaped
        _kill_but_trackers(c.pid for c in self.children.values() if c.session is session)
        self._tend_orphans()

    def _kill_group(self, pid: int) -> None:
        """Kill the group of a task that has ended; one by one if its resource tracker is still working."""
        orphans = [p for p in self._orphans() if p != pid and _group_of(p) == pid]
        if any(map(is_resource_tracker, orphans)):
            family = [member for orphan in orphans for member in (orphan, *processes.descendants(orphan))]
            _kill_but_trackers(member for member in family if _group_of(member) == pid)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def _orphans(self) -> set[int]:
        return processes.children() - {child.pid for child in self.children.values()}

    def _tend_orphans(self) -> None:
        """Reap processes whose task has ended; kill those that are left when no cluster is."""
        for pid in self._orphans():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not self.sessions:
            _kill_but_trackers(self._orphans())


def fresh_command(channel_fd: int) -> list[str]:
    """Return the command of a task in a fresh interpreter, with this process' import path."""
    code = (
        f"import gc, sys; sys.path[:] = {sys.path!r}; "
        "from tfmagic.serialization import own_dill; "
        "from tfmagic.task import import_conditions; import_conditions.load_triton(); "
        "gc.disable(); import tensorflow; gc.freeze(); gc.enable(); "
        f"from tfmagic.task import program; program.run_task({channel_fd})"
    )
    return [sys.executable, "-c", code]


def _kill_but_trackers(pids: Iterable[int]) -> None:
    """Kill these processes; resource trackers end by themselves, or with us."""
    for pid in pids:
        if not is_resource_tracker(pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _group_of(pid: int) -> int:
    """Return the process group; 0 of a process that has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
