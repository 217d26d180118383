"""Whether tasks will reach each other over this machine's own network."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

from tfmagic.backends.held_ports import HeldPorts
from tfmagic.clusters.environment import proxy_variable
from tfmagic.frontends.doctor.findings import Case, Finding, refused, trouble

_ADDRESS = "127.0.0.1"  # where tasks listen
_CONNECT_S = 1.0
_TRIED_PORTS = 64  # the system's search for a free port takes seconds for thousands of them


def loopback(case: Case) -> Iterator[Finding]:
    """Ports for every task, and a connection to one."""
    if case.running:
        return
    tasks = case.shape.tasks
    try:
        HeldPorts(tasks[:_TRIED_PORTS]).close()
        reason = "" if len(tasks) <= _count_ports() else f"the system hands out {_count_ports()}"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        mend = "end what holds them, or ask for fewer tasks:  !ss -tan | wc -l"
        yield refused(f"no port for each of {len(tasks)} tasks ({reason})", mend)
        return
    if case.make.isolate:  # they get a loopback of their own
        return
    with socket.create_server((_ADDRESS, 0)) as server:
        try:
            socket.create_connection(server.getsockname(), _CONNECT_S).close()
        except OSError as error:
            mend = "tasks cannot reach each other: bring the loopback interface up:  ip link set lo up"
            yield trouble(f"nobody can connect to {_ADDRESS} ({error.strerror or error})", mend)
            return
    yield Finding(f"network: {_ADDRESS}, with a port for each of {len(tasks)} tasks")


def _count_ports(limits: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> int:
    """How many ports the system has for whoever asks for any (ip(7))."""
    try:
        first, last = map(int, limits.read_text().split())
    except (OSError, ValueError):
        return 1 << 16
    return last - first + 1


def proxy(case: Case) -> Iterator[Finding]:
    """A proxy for web pages: tasks are told to speak with each other past it."""
    name = proxy_variable(case.environ)
    if name:
        yield Finding(f"{name} is set: tasks connect to each other past it, and to the world through it")
