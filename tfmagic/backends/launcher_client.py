"""Start launchers and talk to them: processes that have imported TensorFlow, and fork task processes.

There is one launcher for each flavour, shared by all clusters of this kernel. The process that we start is
the reaper, whose child is the launcher (see `tfmagic.task.reaper`); the two end together.

`warm` returns at once. Sessions that are opened while the launcher imports TensorFlow, or while a template is
asked for one (`tfmagic.backends.templates`), are served afterwards.
The output of the import is kept in a memory file, which is read only if the import failed.
"""

import atexit
import contextlib
import functools
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import psutil

from tfmagic.backends import templates
from tfmagic.backends.import_variables import import_time_variables, with_changes
from tfmagic.protocol.channel import Channel, channel_pair
from tfmagic.protocol.launcher_messages import (
    LauncherFailed,
    LauncherReady,
    LauncherReport,
    OpenSession,
    SessionEvent,
)
from tfmagic.protocol.module_origins import import_path
from tfmagic.protocol.payload import Handle
from tfmagic.runs import orphans
from tfmagic.system.helper_process import start_in_lasting_thread
from tfmagic.system.inherited_facts import inherited_facts
from tfmagic.system.process_identity import Identity, identify
from tfmagic.system.signal_handlers import name_signal

_REAP_S = 2.0  # between the end of a process' sockets and the end of the process


@dataclass(frozen=True, slots=True)
class Flavour:
    """The settings that need a launcher of their own.

    Attributes:
        env: Variables of all tasks that differ from those of this process.
        early: Variables that only the import sees: a program sets them itself before its import. None removes
            one.
    """

    legacy_keras: bool = False
    isolate: bool = False
    env: tuple[tuple[str, str], ...] = ()
    early: tuple[tuple[str, str | None], ...] = ()

    @property
    def import_time(self) -> dict[str, str]:
        """The variables that the import of a launcher sees."""
        return import_time_variables(_environ_of(self))


@dataclass(frozen=True, slots=True)
class TaskEnviron:
    """The environment of a task, as its launcher sees it.

    Attributes:
        fresh: Whether the task must import TensorFlow itself; `at_import` is its environment then.
        marked: With the mark of the launcher's processes.
    """

    given: Mapping[str, str]
    flavour: Flavour
    fresh: bool
    at_import: Mapping[str, str]
    marked: Mapping[str, str]


class LauncherProcess:
    """One launcher, and the channel on which sessions are requested."""

    def __init__(self, flavour: Flavour):
        self.flavour = flavour
        self.owner_pid = os.getpid()
        self._sessions: list[Channel] = []
        self._imported: LauncherReport | None = None
        self._launcher_pid = 0
        self._environ: TaskEnviron | None = None  # that was asked for last
        self._lock = threading.Lock()
        self._noise = os.memfd_create("tfmagic-import", os.MFD_CLOEXEC)
        self.root, theirs = channel_pair(LauncherReport)
        self.mark = orphans.new_mark()
        self.import_time = flavour.import_time
        self._environment = environment_of(flavour)
        self.facts = self._environment.facts
        self._reaper: Future[subprocess.Popen[bytes] | templates.PidfdProcess | None] = Future()
        self._templates: templates.TemplateClient | None = None
        if templates.can_ask() and not flavour.isolate:
            self._templates = templates.TemplateClient(self._environment)
            threading.Thread(
                None, self._ask, "tfmagic-reaper", (self._templates, theirs), daemon=True
            ).start()
        else:
            with theirs:
                self._reaper.set_result(self._start(theirs))

    def _ask(self, client: templates.TemplateClient, theirs: socket.socket) -> None:
        """Get a launcher from a template, or else start one. Sessions can be opened meanwhile."""
        try:
            with theirs:
                reaper = client.ask(theirs.fileno(), self._noise, self.mark)
                is_needed = reaper is None and self.root.fileno() >= 0
                self._reaper.set_result(self._start(theirs) if is_needed else reaper)
        except Exception as error:  # no more processes, or the interpreter ends
            self._reaper.set_exception(error)

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        code = (
            f"import os; from tfmagic.task import reaper; kernel = {os.getpid()}; "
            "pidfd = reaper.split_off(os.pidfd_open(kernel), kernel); "
            "from tfmagic.task import launcher; "
            f"launcher.main({theirs.fileno()}, pidfd, {self.flavour.isolate}, "
            f"{self._environment.preload!r})"
        )
        return start_in_lasting_thread(
            "tfmagic-reaper",
            code,
            path=import_path(),
            stdout=self._noise,
            stderr=self._noise,
            env={**self._environment.environ, orphans.MARK: self.mark},
            pass_fds=[theirs.fileno()],
        )

    @property
    def process(self) -> subprocess.Popen[bytes] | templates.PidfdProcess:
        """The reaper. Waits for the answer of a template that was asked.

        Raises:
            OSError: No process could be started, or it was closed.
        """
        try:
            reaper = self._reaper.result()
        except Exception as error:
            raise ProcessLookupError(f"no launcher could be started: {error}") from error
        if reaper is None:
            raise ProcessLookupError("the launcher was closed")
        return reaper

    @functools.cached_property
    def reaper(self) -> Identity | None:
        """The identity of the reaper."""
        return identify(self.process.pid)

    @property
    def alive(self) -> bool:
        """True if it takes sessions. The reaper can live longer: it cleans up after its launcher."""
        if self.owner_pid != os.getpid() or (self._reaper.done() and self._has_ended()):
            return False
        root = select.poll()
        root.register(self.root.fileno(), 0)
        return not root.poll(0)  # no event is requested, so only the end is reported

    def own_pids(self) -> dict[str, int]:
        """Return the pids of the reaper and the launcher, as soon as they are forked."""
        if not self._reaper.done() or self._has_ended():
            return {}
        pids = {"reaper": self.process.pid}
        if not self._launcher_pid:
            with contextlib.suppress(OSError, ValueError, psutil.Error):
                (self._launcher_pid,) = (child.pid for child in psutil.Process(self.process.pid).children())
        return {**pids, "launcher": self._launcher_pid} if self._launcher_pid else pids

    def open_session(self) -> Channel:
        """Return a new channel for one cluster. Raise OSError if the launcher has ended."""
        ours, theirs = channel_pair(SessionEvent)
        try:
            with self._lock:
                self.root.send(OpenSession(Handle(theirs.fileno())))
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._sessions = [*(s for s in self._sessions if s.fileno() >= 0), ours]
        return ours

    def task_environ(self, environ: Mapping[str, str], flavour: Flavour) -> TaskEnviron:
        """Return what follows from the environment of a task; mostly many tasks have the same object."""
        found = self._environ
        if found is None or found.given is not environ or found.flavour is not flavour:
            sees = with_changes(environ, dict(flavour.early))
            fresh = import_time_variables(sees) != self.import_time
            marked = {**environ, orphans.MARK: self.mark}
            found = self._environ = TaskEnviron(environ, flavour, fresh, sees if fresh else {}, marked)
        return found

    @property
    def in_use(self) -> bool:
        """True if a cluster has a session with it."""
        return any(session.fileno() >= 0 for session in self._sessions)

    def import_failure(self) -> str:
        """Return why the import failed, or "". To be called when the session has ended."""
        try:
            self.process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            pass
        except OSError as error:
            return str(error)
        if (report := self._read_report()) is not None:
            return report.text if isinstance(report, LauncherFailed) else ""
        if self.process.poll() is None:
            return ""
        size = os.fstat(self._noise).st_size
        text = os.pread(self._noise, 4000, max(size - 4000, 0)).decode("utf-8", "replace")
        code = self.process.poll() or 0
        how = name_signal(-code) if code < 0 else f"exit code {code}"
        return f"{text}\nthe launcher ended with {how}"

    @property
    def obstacle(self) -> str:
        """Why it cannot fork tasks; "" if it can, or as long as its import is not over."""
        report = self._read_report()
        return report.obstacle if isinstance(report, LauncherReady) else ""

    @property
    def left_out(self) -> tuple[str, ...] | None:
        """A line for each private part of TensorFlow that does not fit; None as long as it imports."""
        report = self._read_report()
        return report.left_out if isinstance(report, LauncherReady) else None

    def _read_report(self) -> LauncherReport | None:
        """Return the launcher's report of its import; None while it imports."""
        with self._lock, contextlib.suppress(EOFError, OSError):
            if self._imported is None:
                self._imported = next(iter(self.root.receive_ready()), None)
        return self._imported

    def end_strays(self) -> None:
        """End the tasks that are left if launcher and reaper were both killed. Called after the session."""
        if self._has_ended():
            orphans.end_marked(self.mark)

    def _has_ended(self) -> bool:
        try:
            return self.process.poll() is not None
        except OSError:
            return True

    def close(self) -> None:
        """End the launcher and, with it, every task."""
        if self.owner_pid != os.getpid():
            return  # a fork of the kernel does not own the launcher
        self.root.close()
        if self._templates is not None:
            self._templates.cancel()
        with contextlib.suppress(OSError):
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self._noise)


_launchers: list[LauncherProcess] = []
_launchers_lock = threading.Lock()


def warm(flavour: Flavour) -> LauncherProcess:
    """Return a launcher of this flavour with the present environment, without waiting for its import.

    A launcher is ended as soon as no cluster uses it if the environment, or what processes inherit, has
    changed since its import, or if it imported under variables of a cluster's own and another launcher is
    asked for: each takes memory.
    """
    with _launchers_lock:
        found, facts = _find(flavour), inherited_facts()
        for launcher in [x for x in _launchers if x is not found]:
            is_special = bool(launcher.flavour.env or launcher.flavour.early)
            outdated = (launcher.import_time, launcher.facts) != (launcher.flavour.import_time, facts)
            if not launcher.alive or ((is_special or outdated) and not launcher.in_use):
                _launchers.remove(launcher)
                launcher.close()
        if found is None:
            found = LauncherProcess(flavour)
            _launchers.append(found)
        return found


def _find(flavour: Flavour) -> LauncherProcess | None:
    """Return a launcher that has imported and inherited what one of this flavour would now.

    A umask, limits or processors that this process has set since are those of its next tasks.
    """
    wanted = (flavour.isolate, flavour.import_time, inherited_facts())
    fits = (x for x in _launchers if (x.flavour.isolate, x.import_time, x.facts) == wanted and x.alive)
    return next(fits, None)


def is_warm(flavour: Flavour) -> bool:
    """Return whether a launcher of this flavour runs."""
    return _find(flavour) is not None


def _environ_of(flavour: Flavour) -> dict[str, str]:
    environ = with_changes({**os.environ, **dict(flavour.env)}, dict(flavour.early))
    return {**environ, "TF_USE_LEGACY_KERAS": "1"} if flavour.legacy_keras else environ


def environment_of(flavour: Flavour) -> templates.Environment:
    """Return the environment in which a launcher of this flavour would import TensorFlow now."""
    for_tests = {"pytest"}.intersection(sys.modules)
    return templates.Environment(_environ_of(flavour), ("tfmagic.multi_process_runner", *for_tests))


def running() -> tuple[LauncherProcess, ...]:
    """Return the launchers of this process."""
    with _launchers_lock:
        return tuple(_launchers)


def close_idle(but: Collection[LauncherProcess] = ()) -> None:
    """End the launchers that no cluster uses, except those in `but`."""
    with _launchers_lock:
        for launcher in [x for x in _launchers if x not in but and not x.in_use]:
            _launchers.remove(launcher)
            launcher.close()


def close_all() -> None:
    """End every launcher of this process."""
    with _launchers_lock:
        for launcher in _launchers:
            launcher.close()
        _launchers.clear()


def _leave_to_parent() -> None:
    """Close the channels in a fork of the kernel: a cluster that is stopped ends without it."""
    for launcher in _launchers:
        for channel in (launcher.root, *launcher._sessions):
            if channel.fileno() >= 0:
                channel.close()


atexit.register(close_all)
os.register_at_fork(after_in_child=_leave_to_parent)
