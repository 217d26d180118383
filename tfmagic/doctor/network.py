"""Whether tasks will reach each other over this machine's own network."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from tfmagic.backends.ports import HeldPorts
from tfmagic.doctor.findings import Case, Finding, refused, trouble

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
    """A proxy for web pages, through which gRPC would connect the tasks as well, and hang."""
    name = _proxy_variable(case.environ)
    if not name or _is_exempt(case.environ):
        return
    exempt = "no_grpc_proxy" if "no_grpc_proxy" in case.environ else "no_proxy"
    old = case.environ.get(exempt, "")
    value = f"{_ADDRESS},{old}" if old else _ADDRESS
    yield trouble(
        f"{name} is set, and {exempt} does not name {_ADDRESS}",
        f"TensorFlow's tasks would look for each other through the proxy and wait for ever:  "
        f"%env {exempt}={value}",
    )


def _proxy_variable(environ: Mapping[str, str]) -> str:
    """The variable that gRPC takes its proxy from, or "".

    Tried with TensorFlow 2.21: the first of these that is set decides, also when it is empty; names in
    capitals, all_proxy and proxies of another scheme than http are not looked at.
    """
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        if name in environ:
            return name if environ[name].startswith("http://") else ""
    return ""


def _is_exempt(environ: Mapping[str, str]) -> bool:
    """Whether gRPC connects to the tasks' address directly.

    Tried likewise: no_grpc_proxy replaces no_proxy; an entry is the end of an address or a network
    such as 127.0.0.0/8; ``*``, ``localhost`` and NO_PROXY mean nothing.
    """
    text = environ.get("no_grpc_proxy", environ.get("no_proxy", ""))
    for entry in filter(None, (part.strip() for part in text.split(","))):
        if _ADDRESS.endswith(entry):
            return True
        with contextlib.suppress(ValueError):
            if "/" in entry and ipaddress.ip_address(_ADDRESS) in ipaddress.ip_network(entry, strict=False):
                return True
    return False
