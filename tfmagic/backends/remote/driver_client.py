"""Start driver processes and ask them: programs that connect to an engine, for one cluster at a time.

A driver whose cluster was stopped stays connected and keeps its agents, with their launchers, for the next
cluster of the same address. So a second start costs a fraction of a second. It ends by itself when none has
come for some time, since an agent keeps its node from being given back; and with this process.
"""

import atexit
import contextlib
import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping

from tfmagic.backends.remote import ray_head
from tfmagic.backends.remote.messages import (
    CloseHosts,
    Connected,
    DriverReply,
    DriverReport,
    DriverRequest,
    HostsClosed,
    HostsOpened,
    OpenHosts,
    PlaceWanted,
    RequestFailed,
)
from tfmagic.errors import LaunchError
from tfmagic.protocol.channel import channel_pair
from tfmagic.protocol.module_origins import import_path
from tfmagic.system import advice, notices
from tfmagic.system.helper_process import start_in_lasting_thread
from tfmagic.system.signal_handlers import name_signal

CONNECT_S = 15.0
_IMPORT_S = 60.0
_LOOK_MS = 100
_MARGIN_S = 5.0  # the driver knows better than we why something takes too long
_END_S = 5.0

_NO_SHARED_MEMORY = (
    "/dev/shm of this machine is full, in which Ray keeps objects. Make room there (df /dev/shm), and give "
    "this machine's node an --object-store-memory that fits"
)

Waits = Callable[[str], object]


class DriverProcess:
    """One driver process and the two channels to it.

    Attributes:
        reports: What happens on the hosts arrives here, and orders to them go out.
        address: The engine that it is connected to.
    """

    def __init__(self, address: str):
        self.address = address
        self.environ = _environ()
        self.owner_pid = os.getpid()
        self._lock = threading.Lock()
        self._is_connected = False
        self._leaves_at = 0.0
        self._noise = os.memfd_create("tfmagic-ray", os.MFD_CLOEXEC)
        self._control, control = channel_pair(DriverReply)
        self._replies: deque[DriverReply] = deque()
        self.reports, reports = channel_pair(DriverReport)
        code = (
            "from tfmagic.backends.remote import ray_driver; "
            f"ray_driver.main({control.fileno()}, {reports.fileno()}, {advice.front_end().value})"
        )
        self.process = start_in_lasting_thread(
            "tfmagic-ray",
            code,
            path=import_path(),
            stdout=self._noise,
            stderr=self._noise,
            env=ray_head.variables(self.environ),
            pass_fds=[control.fileno(), reports.fileno()],
        )
        control.close()
        reports.close()
        _all.add(self)

    @property
    def alive(self) -> bool:
        return self.owner_pid == os.getpid() and self.process.poll() is None

    @property
    def stays(self) -> bool:
        """Whether it waits for the next cluster: not if it is about to end by itself."""
        return self.alive and time.monotonic() < self._leaves_at - _MARGIN_S

    def open(self, opening: OpenHosts, waits_for: Waits) -> HostsOpened:
        """Return the hosts on which every task has a place.

        Args:
            waits_for: Called several times a second with what is waited for.

        Raises:
            LaunchError: The engine cannot be reached, or has no room.
        """
        with self._lock:
            self._control.send(opening)
            if not self._is_connected:
                self._expect(Connected, _IMPORT_S, "the process that talks to Ray", waits_for)  # its import
                self._expect(Connected, CONNECT_S, self._engine, waits_for)  # its head answers
                self._expect(Connected, _IMPORT_S, self._engine, waits_for)
                self._is_connected = True
            count = len(opening.tasks)
            place = f"{self._engine} to place {count} task{'s' if count > 1 else ''}"
            limit_s = opening.timeout_s + _MARGIN_S
            reply = self._expect(HostsOpened, limit_s, self._engine, lambda who: waits_for(place))
        assert isinstance(reply, HostsOpened)
        return reply

    def ask(self, request: DriverRequest, kind: type[DriverReply], timeout_s: float) -> DriverReply:
        """Return the reply to a request. Raise `LaunchError` where it fails."""
        with self._lock:
            self._control.send(request)
            return self._expect(kind, timeout_s + _MARGIN_S, self._engine)

    def release(self, keep_s: float) -> None:
        """End the tasks on the hosts, and keep the process so long for the next cluster.

        End it at once where that is no time, or fails.
        """
        try:
            with self._lock:
                self._control.send(CloseHosts(keep_s))
                self._drain()
                self._expect(HostsClosed, _END_S, self._engine)
                self._drain()
        except (LaunchError, OSError, EOFError):
            self.close()
        else:
            if keep_s <= _MARGIN_S:
                self.close()
                return
            self._leaves_at = time.monotonic() + keep_s
            with _idle_lock:
                _idle.append(self)

    def close(self) -> None:
        """End the process, and with it the agents. Safe to call twice."""
        if self.owner_pid != os.getpid() or self._control.fileno() < 0:
            return
        self._control.close()
        self.reports.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._noise)

    def how_it_ended(self) -> str:
        """Return a sentence on the end of the process, with its last lines."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
        code = self.process.poll()
        if code is None:
            return self._said()
        if code == -signal.SIGBUS:  # its last lines are Ray's addresses of code
            return f" with SIGBUS: {_NO_SHARED_MEMORY}"
        if code and (gone := ray_head.gone(self.address, self.environ)):  # Ray ends a process then
            return f": {gone}"
        return f" with {name_signal(-code) if code < 0 else f'exit code {code}'}{self._said()}"

    # -- inside --

    @property
    def _engine(self) -> str:
        return f"Ray at {self.address!r}"

    def _expect(
        self, kind: type[DriverReply], timeout_s: float, who: str, waits_for: Waits = lambda what: None
    ) -> DriverReply:
        ready, deadline = select.poll(), time.monotonic() + timeout_s
        ready.register(self._control.fileno(), select.POLLIN)
        while not self._replies:  # one read can bring several
            if ready.poll(_LOOK_MS):
                try:
                    self._replies += self._control.receive_ready()
                except (EOFError, OSError):
                    reason = f"the process that talks to Ray ended{self.how_it_ended()}"
                    raise LaunchError(reason) from None
                continue
            waits_for(who)
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"{who} did not answer within {timeout_s:g} s; nothing was started. Look whether its "
                    f"head is overloaded or hangs:  ray status --address {self.address}{self._said()}"
                )
        reply = self._replies.popleft()
        if isinstance(reply, PlaceWanted):
            notices.say(f"tfmagic: {reply.text}")
            return self._expect(kind, max(deadline - time.monotonic(), 0), who, waits_for)
        if isinstance(reply, RequestFailed):
            raise LaunchError(f"{self._engine}: {reply.reason}")
        if not isinstance(reply, kind):
            raise LaunchError(f"{who} sent an unexpected answer: {type(reply).__name__}")
        return reply

    def _drain(self) -> None:
        """Read reports of a cluster that has ended until an answer is there."""
        ready = select.poll()
        ready.register(self._control.fileno(), select.POLLIN)
        ready.register(self.reports.fileno(), select.POLLIN)
        while any(fd == self.reports.fileno() for fd, _ in ready.poll(0)):
            self.reports.receive_ready()

    def _said(self) -> str:
        size = os.fstat(self._noise).st_size
        text = os.pread(self._noise, 2000, max(size - 2000, 0)).decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if "(raylet)" not in line]  # of other processes, and old
        text = "\n".join(lines).strip()
        return f". It said last:\n{text}" if text else ""


_all: weakref.WeakSet[DriverProcess] = weakref.WeakSet()
_idle: list[DriverProcess] = []
_idle_lock = threading.Lock()


def take(address: str) -> DriverProcess:
    """Return a driver for this address: one that has become free, or a new one."""
    environ = _environ()
    with _idle_lock:
        for driver in list(_idle):
            if not driver.stays or _of_ray(driver.environ) != _of_ray(environ):  # such as another token
                _idle.remove(driver)
                driver.close()
            elif driver.address == address:
                _idle.remove(driver)
                return driver
    return DriverProcess(address)


def close_idle() -> None:
    """End the drivers that no cluster uses."""
    with _idle_lock:
        while _idle:
            _idle.pop().close()


def _leave_to_parent() -> None:
    """Close the channels in a fork: a driver lives as long as the kernel, not as long as all of its forks."""
    for driver in list(_all):
        for channel in (driver._control, driver.reports):
            if channel.fileno() >= 0:
                channel.close()


def _of_ray(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of Ray's connection. A change of others needs no new driver."""
    own = {name: value for name, value in environ.items() if name.startswith(("RAY_", "GRPC_"))}
    return {**own, "": ray_head.token_of(environ)}


def _environ() -> dict[str, str]:
    return dict(os.environ)


atexit.register(close_idle)
os.register_at_fork(after_in_child=_leave_to_parent)
