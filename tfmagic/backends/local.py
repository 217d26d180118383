"""Task processes on this machine, forked by the launcher.

    supervisor thread ─ launch ─→ session channel ─ ForkTask(channel end, log) ─→ launcher ─ fork ─→ task
          ↑ wait: one selector over the session, every control channel and a wake-up descriptor

The launcher, as the parent, reports each end (`TaskReaped`). If the launcher dies, the kernel kills its tasks
(parent-death signal), and each task gets a `TaskLost`.
"""

import contextlib
import errno
import os
import selectors
import signal
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tfmagic.backends import launcher_client
from tfmagic.backends.held_ports import HeldPorts
from tfmagic.backends.simulated.hosts import SimulatedHosts
from tfmagic.errors import LaunchError, ProtocolError
from tfmagic.protocol.channel import Channel, channel_pair, encode
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import Command, TaskBoot
from tfmagic.protocol.events import Event, HostCutOff, TaskEvent, TaskExited, TaskLost, TaskStarted
from tfmagic.protocol.launcher_messages import ForkFailed, ForkTask, SessionFailed, TaskForked, TaskReaped
from tfmagic.protocol.payload import Handle, HandleLost
from tfmagic.runs import orphans
from tfmagic.runs.folder import GAVE_UP, RunFolder, file_size
from tfmagic.system.process_identity import Identity
from tfmagic.system.usage import Usage

_SILENT_S = 5.0  # from the end of a channel to that of its process, which frees memory or writes a core
_NO_MEMORY_S = 0.05  # until the system is asked again
_FOREIGN_WRITER = "the cell wrote to a file descriptor that is not its own"
_FOREIGN_CLOSER = "the cell closed file descriptors that are not its own, as os.closerange() does"


@dataclass(slots=True)
class _Process:
    """One launched process."""

    attempt: int
    channel: Channel
    pidfd: int = -1  # until the launcher has forked it
    signals: list[int] = field(default_factory=list)  # to be sent when it is forked
    ended: bool = False
    reason: str = ""  # why the backend has killed it


class LocalBackend:
    """A `tfmagic.backends.protocol.Backend` for this machine.

    Args:
        hosts: Simulated hosts of the tasks, which end with the backend.

    Attributes:
        simulated: The simulated hosts; None without them.

    Raises:
        LaunchError: The launcher has ended.
    """

    runs_here = True
    has_ended = False

    def __init__(self, flavour: launcher_client.Flavour, run: RunFolder, hosts: SimulatedHosts | None = None):
        self._run, self.simulated = run, hosts
        self._selector = selectors.DefaultSelector()
        self._processes: dict[TaskId, _Process] = {}
        self._silent: dict[TaskId, float] = {}  # since when: channel closed, process running
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed, self._wake_lock = False, threading.RLock()  # signal handlers call `wake` too
        self._ready: list[tuple[selectors.SelectorKey, int]] = []
        self._unreported: list[Event] = []
        self._encoded: tuple[Command, bytes, list[Handle]] | None = None  # the command that was sent last
        self._noted: set[Identity] = set()
        self._ports: HeldPorts | None = None
        self._flavour = flavour
        self._session: Channel | None = None
        try:
            self._open_session()
        except OSError as error:
            self._selector.close()
            os.close(self._wake)
            if hosts is not None:
                hosts.close()
            raise LaunchError(
                "the launcher process ended before the cluster started:\n" + self.launcher.import_failure()
            ) from error
        self._selector.register(self._wake, selectors.EVENT_READ, "wake")
        if hosts is not None:
            self._selector.register(hosts.pidfd, selectors.EVENT_READ, "hosts")

    def allocate(self, tasks: Iterable[TaskId]) -> Mapping[TaskId, str]:
        if self.simulated is not None:
            return self.simulated.allocate(tasks)
        ports, self._ports = self._ports, HeldPorts(tasks)
        if ports is not None:
            ports.close()
        return self._ports.addresses

    def launch(self, boot: TaskBoot) -> None:
        task = boot.task
        self._forget(task)
        try:
            log = Handle(self._run.open_log(task))
            try:
                ours, theirs = channel_pair(TaskEvent)
            except OSError:
                os.close(log.fd)
                raise
        except OSError as error:  # too many open files here, a full disk
            self._unreported.append(TaskLost(task, boot.attempt, f"it could not be started: {error}"))
            self.wake()
            return
        self._processes[task] = _Process(boot.attempt, ours)
        self._selector.register(ours, selectors.EVENT_READ, task)
        try:
            if self._session is None:  # the launcher was killed: a new one takes its place
                self._open_session()
            assert self._session is not None
            environ = self.launcher.task_environ(boot.environ, self._flavour)
            where = None if self.simulated is None else self.simulated.place_of(task)
            channel = Handle(theirs.fileno())
            fork = ForkTask(task, boot.attempt, channel, log, environ.at_import, environ.fresh, where)
            self._session.send(fork)
            self.send(task, msgspec.structs.replace(boot, environ=environ.marked))
        except ConnectionError:
            self._unreported += self._read_last()
            self.wake()
        except OSError as error:
            self._unreported += self._session_ended(f"the channel to its launcher failed: {error}")
            self.wake()
        finally:
            os.close(log.fd)
            theirs.close()

    def send(self, task: TaskId, command: Command) -> None:
        if self._encoded is None or self._encoded[0] is not command:  # mostly all tasks get the same one
            self._encoded = (command, *encode(command))
        self.send_frame(task, *self._encoded[1:])

    def send_frame(self, task: TaskId, frame: bytes, handles: list[Handle]) -> None:
        """Send a command that is encoded."""
        process = self._processes.get(task)
        if process is None or process.ended or process.channel.closed:
            return
        try:
            if not process.channel.post_frame(frame, handles):
                both = selectors.EVENT_READ | selectors.EVENT_WRITE
                self._selector.modify(process.channel, both, task)
        except ConnectionError:
            pass  # the task is gone: the launcher reports its end, and what it sent before is read
        except OSError as error:
            self._channel_failed(task, process, error)

    def signal(self, task: TaskId, number: int) -> None:
        process = self._processes.get(task)
        if process is None or process.ended:
            return
        if process.pidfd < 0:
            process.signals.append(number)
            return
        with contextlib.suppress(OSError):  # the process has just ended
            signal.pidfd_send_signal(process.pidfd, number)

    def wait(self, timeout_s: float | None) -> None:
        self._encoded = None  # its variables can be large
        try:
            self._ready = self._selector.select(timeout_s)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            time.sleep(_NO_MEMORY_S)

    def take_events(self) -> Sequence[Event]:
        events: list[Event] = []
        ready, self._ready = self._ready, []
        for key, mask in ready:
            if key.data == "wake":
                with contextlib.suppress(OSError):  # else it is ready once more
                    os.eventfd_read(self._wake)
            elif key.data == "session":
                events += self._read_session()
            elif key.data == "hosts" and self.simulated is not None:
                self._selector.unregister(key.fileobj)
                events.append(HostCutOff(self.simulated.lose()))
            else:
                events += self._serve_task(key.data, mask)
        events += self._unreported
        self._unreported = []
        if self._silent:
            self._end_silent()
        return events

    def usage(self, closely: Collection[TaskId]) -> Mapping[TaskId, Usage]:
        return {}

    def own_pids(self) -> Mapping[str, int]:
        pids = self.launcher.own_pids() if self._session is not None else {}
        return pids if self.simulated is None else {**pids, **self.simulated.pids()}

    def wake(self) -> None:
        with self._wake_lock:
            if not self._closed:
                with contextlib.suppress(OSError):  # the loop looks at its mailbox every second in any case
                    os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        with self._wake_lock:  # the number of the descriptor can be used again at once
            self._closed = True
        for task in list(self._processes):
            self._forget(task)
        if self._session is not None:
            self._session.close()
        if self._ports is not None:
            self._ports.close()
        if self.simulated is not None:
            self.simulated.close()
        self._selector.close()
        os.close(self._wake)
        self._run.clear_scratch()

    # -- inside --

    def _open_session(self) -> None:
        self.launcher = launcher_client.warm(self._flavour)
        self._session = self.launcher.open_session()
        self._selector.register(self._session, selectors.EVENT_READ, "session")

    def _forget(self, task: TaskId) -> None:
        process = self._processes.pop(task, None)
        self._silent.pop(task, None)
        if process is not None:
            self._close_channel(process)
            if process.pidfd >= 0:
                os.close(process.pidfd)

    def _close_channel(self, process: _Process) -> None:
        if not process.channel.closed:
            with contextlib.suppress(KeyError):
                self._selector.unregister(process.channel)
            process.channel.close()

    def _serve_task(self, task: TaskId, mask: int) -> list[Event]:
        process = self._processes.get(task)
        if process is None or process.channel.closed:
            return []
        events: list[Event] = []
        try:
            if mask & selectors.EVENT_WRITE and _has_sent_all(process.channel):
                self._selector.modify(process.channel, selectors.EVENT_READ, task)
            if mask & selectors.EVENT_READ:
                arrived: list[TaskEvent] = process.channel.receive_ready()
                for event in arrived:  # with the key of our tables, which a dict finds without a comparison
                    if event.task == task:
                        msgspec.structs.force_setattr(event, "task", task)
                events += arrived
        except (EOFError, ConnectionError):
            self._close_channel(process)
            self._silent[task] = time.monotonic()
        except OSError as error:
            self._channel_failed(task, process, error)
        except ProtocolError as error:
            # the task is killed: its messages are damaged; with its channel closed it would end by itself
            self._end(task, process, f"{error}; {_FOREIGN_WRITER}")
            self._close_channel(process)
        return events

    def _channel_failed(self, task: TaskId, process: _Process, error: OSError) -> None:
        """End a task that can no longer be reached."""
        self._end(task, process, f"its control channel failed: {error}")
        self._close_channel(process)

    def _end(self, task: TaskId, process: _Process, reason: str) -> None:
        process.reason = reason
        self.signal(task, signal.SIGKILL)

    def _end_silent(self) -> None:
        """Kill processes that have closed their channel and run on: no command reaches them any more."""
        for task, since in tuple(self._silent.items()):
            process = self._processes[task]
            if process.ended:
                del self._silent[task]
            elif time.monotonic() - since > _SILENT_S:
                del self._silent[task]
                self._end(task, process, f"its control channel was closed from inside; {_FOREIGN_CLOSER}")

    def _read_session(self) -> list[Event]:
        assert self._session is not None
        try:
            messages = self._session.receive_ready()
        except (EOFError, ConnectionError):
            return self._session_ended()
        except (OSError, ProtocolError) as error:
            return self._session_ended(f"the channel to its launcher failed: {error}")
        events: list[Event] = []
        for message in messages:
            match message:
                case TaskForked(task, attempt, pid, pidfd, fresh, obstacle):
                    events.append(TaskStarted(task, attempt, pid, fresh, obstacle))
                    events += self._forked(task, attempt, pid, pidfd)
                case ForkFailed(task, attempt, reason):
                    lost = TaskLost(task, attempt, f"no process could be started: {reason}")
                    events += self._ended(task, attempt, lost)
                case SessionFailed(reason):
                    return events + self._session_ended(reason)
                case TaskReaped(task, attempt, exit_code, peak_bytes):
                    log_end = file_size(self._run.log_path(task))
                    reason = self._reason_of(task, attempt, exit_code)
                    ended = TaskExited(task, attempt, exit_code, peak_bytes, log_end, reason)
                    events += self._ended(task, attempt, ended)
        return events

    def _read_last(self) -> list[Event]:
        """Read what a launcher has sent before it closed the session: it can say why."""
        if self._session is None:
            return self._session_ended()
        events: list[Event] = []
        while self._session is not None:
            events += self._read_session()
        return events

    def _reason_of(self, task: TaskId, attempt: int, exit_code: int) -> str:
        """Return why tfmagic has ended this process, from here or in the process itself; or ""."""
        process = self._processes.get(task)
        if exit_code == -signal.SIGKILL:
            return process.reason if process is not None and process.attempt == attempt else ""
        return self._run.end_reason(task, attempt) if exit_code == GAVE_UP else ""

    def _forked(self, task: TaskId, attempt: int, pid: int, pidfd: Handle) -> list[Event]:
        process = self._processes.get(task)
        if process is None or process.attempt != attempt:
            return []
        try:
            process.pidfd = pidfd.take()
        except HandleLost as error:  # without a pidfd it cannot be signalled; it ends with its channel
            return self._ended(task, attempt, TaskLost(task, attempt, f"it {error.strerror}"))
        self._note(task.name, pid)
        for number in process.signals:
            self.signal(task, number)
        return []

    def _note(self, role: str, pid: int) -> None:
        """Note the process and its launcher in the run folder, so that a later kernel can end orphans."""
        family = orphans.lineage(pid)
        if family[2:] != (self.launcher.reaper,):  # it has ended, and its pid is now another process's
            return
        for name, process in zip((role, "launcher", "reaper"), family, strict=True):
            if process not in self._noted:
                self._noted.add(process)
                orphans.note_process(self._run, name, process, self.launcher.mark)

    def _ended(self, task: TaskId, attempt: int, event: Event) -> list[Event]:
        """Return the last events of a process: what is left in its channel, then its end."""
        process = self._processes.get(task)
        if process is None or process.attempt != attempt or process.ended:
            return []
        events: list[Event] = []
        with contextlib.suppress(EOFError, OSError, ProtocolError):
            while not process.channel.closed and (more := process.channel.receive_ready()):
                events += more
        process.ended = True
        self._close_channel(process)
        self._run.clear_scratch(f"{task.name}-{attempt}")
        return [*events, event]

    def _session_ended(self, reason: str = "") -> list[Event]:
        """Report the tasks of a dead launcher as lost, and end the processes that they leave."""
        if self._session is not None:
            self._selector.unregister(self._session)
            self._session.close()
            self._session = None
        events: list[Event] = []
        reason = reason or self.launcher.import_failure() or "its launcher process was killed"
        for task, process in self._processes.items():
            if process.ended:
                continue
            events += self._ended(task, process.attempt, TaskLost(task, process.attempt, reason))
        self.launcher.end_strays()
        return events


def _has_sent_all(channel: Channel) -> bool:
    """Send more of the queue. Return True if it is empty or the process has ended."""
    try:
        return channel.flush()
    except ConnectionError:
        return True
