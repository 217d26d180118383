"""Which process a pid meant: a pid alone is given to another process one day.

Three facts name a process of this machine for ever: its pid, the clock tick in which it started (field 22
of proc(5)'s stat) and the boot, with the pid namespace, in which both count.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

CLEAR_UP_S = 0.5  # for a resource tracker, of a few milliseconds' work, on a busy machine


@dataclass(frozen=True, slots=True)
class Stat:
    """What proc(5) says of a process; `state` is its letter, `start` in clock ticks since the boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, and no other one that has had its pid or will."""

    pid: int
    start: int
    boot: str

    @property
    def alive(self) -> bool:
        """Whether it runs on this machine; one that only waits to be reaped has ended."""
        stat = read_stat(self.pid) if self.boot == this_boot() else None
        return stat is not None and stat.start == self.start and stat.state not in "ZX"

    def kill(self) -> bool:
        """SIGKILL it, and nobody else; whether there was something to kill."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.alive:  # asked after the pidfd was opened: that is this very process, or none
                return False
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(pidfd)
        return True

    def as_json(self) -> dict[str, object]:
        return {"pid": self.pid, "start": self.start, "boot": self.boot}


def identify(pid: int) -> Identity | None:
    """The process that has this pid now; None where there is none."""
    stat = read_stat(pid)
    return None if stat is None else Identity(pid, stat.start, this_boot())


def from_json(content: Mapping[str, object]) -> Identity:
    """Raises KeyError, TypeError or ValueError where it does not say."""
    return Identity(int(str(content["pid"])), int(str(content["start"])), str(content["boot"]))


def read_stat(pid: int) -> Stat | None:
    """None where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()  # the name before may hold anything
    except OSError:
        return None
    if len(fields) < 20:
        return None
    parent, group, session = map(int, fields[1:4])
    return Stat(pid, fields[0].decode(), parent, group, session, int(fields[19]))


def clears_up(pid: int) -> bool:
    """Whether this is a resource tracker of Python's multiprocessing.

    It removes the shared memory that its processes have made by name as soon as the last of them has ended,
    and then ends by itself; so it is ended last, and given a moment. That is the only use of a name here.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"multiprocessing.resource_tracker" in file.read()
    except OSError:
        return False


@functools.cache
def this_boot() -> str:
    """This boot of this machine, and the pid namespace: a container has pids of its own."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
