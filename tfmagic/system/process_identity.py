"""Identify a process and kill exactly that process: Linux gives its pid to another process later.

Three facts identify a process of this machine for ever: its pid, the clock tick in which it started (field
22 of proc(5)'s stat), and the boot with the pid namespace in which both count. psutil's start time would not
do: it is in seconds since 1970, and moves when the clock is set. Machines and containers can share a state
folder: whether a process of another boot or pid namespace lives is not known here.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

# "-c" and its code, as in multiprocessing.resource_tracker, joblib.externals.loky.backend and loky.backend
_TRACKER = re.compile(
    rb"\0-c\0from (multiprocessing|[\w.]*\bloky\.backend)\.resource_tracker import main; ?main\("
)
# for a resource tracker, which needs a few milliseconds; one that has just begun imports joblib first
TRACKER_S = 2.0


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of a process in proc(5)'s stat that are used here."""

    pid: int
    state: str  # a letter
    parent: int
    group: int
    session: int
    start: int  # clock ticks since the boot

    @property
    def identity(self) -> Identity:
        """The process that has this stat."""
        return Identity(self.pid, self.start, this_boot(), *this_machine())


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, and no other one that had its pid before or gets it later."""

    pid: int
    start: int
    boot: str
    host: str = field(default="", compare=False)  #: The name of its machine, which can change.
    machine: str = field(default="", compare=False)  #: machine-id(5), which copies of a machine share.

    @property
    def alive(self) -> bool:
        """Check whether it is known to run; a process that only waits to be reaped has ended."""
        stat = read_stat(self.pid) if self.boot == this_boot() else None
        return stat is not None and stat.start == self.start and stat.state not in "ZX"

    def kill(self) -> bool:
        """SIGKILL this process and no other; return whether it was alive."""
        return self.signal(signal.SIGKILL)

    def signal(self, number: int) -> bool:
        """Send a signal to this process and no other; return whether it was alive."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.alive:  # checked after the pidfd was opened, which is then this very process
                return False
            signal.pidfd_send_signal(pidfd, number)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(pidfd)
        return True

    @property
    def is_elsewhere(self) -> bool:
        """Check whether another machine, container or boot has started it: then it cannot be seen here."""
        return self.boot != this_boot()

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def identify(pid: int) -> Identity | None:
    """Return the process that has this pid now; None where there is none."""
    stat = read_stat(pid)
    return None if stat is None else stat.identity


def from_json(content: Mapping[str, object]) -> Identity:
    """Read what `as_json` gives. Raises KeyError, TypeError or ValueError for other content."""
    host, machine = (str(content.get(key, "")) for key in ("host", "machine"))
    return Identity(int(str(content["pid"])), int(str(content["start"])), str(content["boot"]), host, machine)


def read_stat(pid: int) -> Stat | None:
    """Read proc(5)'s stat of a process; None where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()  # the name before it can hold any character
    except OSError:
        fields = []
    if len(fields) < 20:
        return None
    parent, group, session = map(int, fields[1:4])
    return Stat(pid, fields[0].decode(), parent, group, session, int(fields[19]))


def is_resource_tracker(pid: int) -> bool:
    """Check whether this is a resource tracker, of Python's multiprocessing or of loky, which joblib brings.

    It removes the shared memory and semaphores that its processes have made by name when the last of them has
    ended, and then ends by itself. So it is killed last. No other process is recognized by a name here.
    """
    try:
        return _TRACKER.search(Path(f"/proc/{pid}/cmdline").read_bytes()) is not None
    except OSError:
        return False


def kill_all(find: Callable[[], Iterable[Identity] | None], within_s: float) -> set[Identity]:
    """SIGKILL what `find` finds until it returns None or the time is over; return what was killed.

    A resource tracker is killed only when it has not ended by itself within `TRACKER_S`.
    """
    began = time.monotonic()
    killed: set[Identity] = set()
    while (found := find()) is not None and (past_s := time.monotonic() - began) < within_s:
        killed |= {p for p in found if not (past_s < TRACKER_S and is_resource_tracker(p.pid)) and p.kill()}
        time.sleep(0.002)
    return killed


@functools.cache
def this_boot() -> str:
    """Return an id of this boot of the machine and of the pid namespace: a container has pids of its own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


@functools.cache
def this_machine() -> tuple[str, str]:
    """Return the host name, and machine-id(5) or ""."""
    try:
        return socket.gethostname(), Path("/etc/machine-id").read_text().strip()
    except OSError:
        return socket.gethostname(), ""


def booted_at() -> float:
    """Return when this machine was started, in seconds since the epoch."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
