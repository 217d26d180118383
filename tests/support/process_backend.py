"""The backend that docs/backends.md builds: each task is a fresh process of this machine. No launcher, no fork."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from dataclasses import dataclass, field

from tfmagic.backends.held_ports import HeldPorts
from tfmagic.protocol.channel import Channel, channel_pair
from tfmagic.protocol.events import Event, TaskEvent, TaskExited, TaskStarted

PROGRAM = "import sys; from tfmagic.task.program import run_task; run_task(int(sys.argv[1]))"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}  # what TensorFlow's import says would be the task's output


@dataclass
class Process:
    attempt: int
    popen: subprocess.Popen
    channel: Channel
    pidfd: int
    early: list[Event] = field(default_factory=list)


class ProcessBackend:
    """A `tfmagic.backends.protocol.Backend`."""

    runs_here = True
    has_ended = False

    def __init__(self, run):
        self._run, self._ports = run, None
        self._processes = {}
        self._events = []
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ)

    def allocate(self, tasks):
        former, self._ports = self._ports, HeldPorts(tasks)
        if former is not None:
            former.close()
        return self._ports.addresses

    def launch(self, boot):
        log, (channel, theirs) = self._run.open_log(boot.task), channel_pair(TaskEvent)
        popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**QUIET, **boot.environ, "PYTHONPATH": os.pathsep.join(boot.sys_path)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        os.close(log)
        theirs.close()
        process = Process(boot.attempt, popen, channel, os.pidfd_open(popen.pid))
        self._processes[boot.task] = process
        self._events.append(TaskStarted(boot.task, boot.attempt, popen.pid, fresh=True))
        for source in (channel, process.pidfd):
            self._selector.register(source, selectors.EVENT_READ, boot.task)
        self.send(boot.task, boot)  # the first message of each process

    def send(self, task, command):
        if (process := self._processes.get(task)) is not None:
            with contextlib.suppress(OSError):  # it has just ended
                process.channel.post(command)

    def signal(self, task, number):
        if (process := self._processes.get(task)) is not None:
            signal.pidfd_send_signal(process.pidfd, number)

    def wait(self, timeout_s):
        for process in self._processes.values():
            with contextlib.suppress(OSError):
                process.channel.flush()
        ready = self._selector.select(0 if self._events else timeout_s)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for task in dict.fromkeys(key.data for key, _ in ready if key.data is not None):
            self._read(task, self._processes[task])

    def _read(self, task, process):
        code = process.popen.poll()  # before the channel is read: nothing comes after the end
        with contextlib.suppress(EOFError, OSError):
            while messages := process.channel.receive_ready():
                self._events += messages
        if code is not None:
            log_end = self._run.log_path(task).stat().st_size
            self._events.append(TaskExited(task, process.attempt, code, log_end=log_end))
            self._forget(task)

    def _forget(self, task):
        process = self._processes.pop(task)
        for source in (process.channel, process.pidfd):
            self._selector.unregister(source)
        process.channel.close()
        os.close(process.pidfd)

    def take_events(self):
        events, self._events = self._events, []
        return events

    def usage(self, closely):
        return {}

    def own_pids(self):
        return {}

    def wake(self):
        os.eventfd_write(self._wake, 1)

    def close(self):
        for task, process in list(self._processes.items()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.popen.pid, signal.SIGKILL)  # with the children that it has started
            process.popen.wait()
            self._forget(task)
        if self._ports is not None:
            self._ports.close()
