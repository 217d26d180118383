"""Real Ray nodes on this machine: one `ray start --block` a node.

    with RayNodes() as nodes:
        nodes.start(cpus=4)                                # the head: 127.0.0.2
        other = nodes.add(cpus=2, resources={"rack": 1})   # 127.0.0.3
        with nodes.driver_environment():
            ray.init(nodes.address)
        nodes.kill_raylet(other)

Each node has an address of its own, so that Ray treats them as different machines: of the loopback device (Ray
replaces 127.0.0.1 by the address of the network card), or those of `NetworkHosts`:

    with ray_on_hosts(3, tls=True) as (hosts, nodes):
        driver = hosts.popen(0, [sys.executable, "driver.py", nodes.address], env=nodes.driver_variables())
        hosts.cut(2)

Ray listens on all addresses of the machine whatever its own is, and runs what anybody sends: each cluster has a
token.

A node is ready when `ray start` says so, which it does when the GCS (Ray's head service) knows the node. What a test
does not need is left out: see `ray_start_hook`. All processes of a node are in one session, and get SIGKILL with it;
`ray start` gets SIGKILL when this thread ends, and takes its processes along.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from conftest import wait_until
from network_hosts import NetworkHosts, address_of

from tfmagic.system.processes import set_parent_death_signal

READY_S = 120.0  # 6 s on an idle machine with two cores
FAST_DETECTION = {  # a lost node is known after about 3 s instead of 65 s
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "2",
}
START_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_START_HOOK": "ray_start_hook.start_less",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_memory_monitor_refresh_ms": "0",  # it kills actors when the machine's memory is nearly full
    "RAY_prestart_worker_first_driver": "0",  # the first `ray.init` would wait for a process for each CPU
    "RAY_worker_niceness": "0",  # Ray's default is 15: on a busy machine, an actor would hardly run
}
# the command `ray`, also where an environment shares the packages of another one and not its commands
_RAY = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; main()"
_OBJECT_STORE_BYTES = 200_000_000  # at least 75 MiB, Ray says; the pages are allocated when used


@dataclass(frozen=True)
class RayNode:
    """One `ray start --block` and what it has started."""

    address: str
    process: subprocess.Popen[bytes]
    output: Path

    def pids(self) -> set[int]:
        """Return the processes of the node, zombies excluded."""
        return {pid for pid in psutil.pids() if _session(pid) == self.process.pid}

    def pid_of(self, program: str) -> int:
        """Return the pid of `raylet` or `gcs_server`."""
        (found,) = (p.pid for p in psutil.Process(self.process.pid).children() if p.name() == program)
        return found


class RayNodes:
    """A Ray cluster of this machine; the context ends it.

    Args:
        token: The token that every node and driver needs; None for a new one, "" for no authentication.
        settings: Further environment variables of all nodes.
        runtime_env: Start what actors with a `runtime_env` need; without it, such an actor never starts.
        hosts: Where the nodes run, one on each host; None for loopback addresses.
        folder: Ray's temporary folder, which each of the hosts has for itself.
    """

    def __init__(
        self,
        token: str | None = None,
        settings: Mapping[str, str] = FAST_DETECTION,
        *,
        runtime_env: bool = False,
        hosts: NetworkHosts | None = None,
        folder: Path | None = None,
    ):
        self.folder = folder or short_folder()
        self._hosts = hosts
        self.nodes: list[RayNode] = []
        self.address = ""
        self.token = secrets.token_hex(16) if token is None else token
        self._tls = {k: v for k, v in settings.items() if k.startswith(("RAY_TLS_", "RAY_USE_TLS"))}
        self._environ = {**START_SETTINGS, **settings, **self.driver_variables()}
        self._environ["RAY_NODES_FOLDER"] = str(self.folder)
        self._environ["RAY_NODES_RUNTIME_ENV"] = "1" if runtime_env else ""

    def __enter__(self) -> RayNodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def driver_variables(self) -> dict[str, str]:
        """Return the environment variables that a driver needs."""
        common = {"RAY_USAGE_STATS_ENABLED": "0", **self._tls}
        return {**common, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token} if self.token else common

    @contextmanager
    def driver_environment(self) -> Iterator[None]:
        """Let this process be a driver: the variables are in its environment for the block."""
        variables = self.driver_variables()
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})

    def start(self, cpus: int = 4, **options: Any) -> RayNode:
        """Start the head and return it when it is ready."""
        port = _free_port()
        busy = socket.create_server(("127.0.0.1", _free_port()))
        taken = str(busy.getsockname()[1])  # a dashboard whose port is taken is not started
        words = ["--head", "--port", str(port), "--no-monitor", "--dashboard-port", taken, *_NO_LOG_MONITOR]
        with busy:
            self.address = f"{self._address_of(0)}:{port}"
            head = self._launch(words, cpus, **options)
            self._wait_ready([head])
        return head

    def add(self, cpus: int = 4, count: int = 1, **options: Any) -> RayNode:
        """Start further nodes at the same time, and return the last when all are ready."""
        words = ["--address", self.address, *_NO_LOG_MONITOR]
        added = [self._launch(words, cpus, **options) for _ in range(count)]
        self._wait_ready(added)
        return added[-1]

    def _address_of(self, number: int) -> str:
        return address_of(number) if self._hosts else f"127.0.0.{number + 2}"

    def _launch(
        self,
        words: Sequence[str],
        cpus: int,
        resources: Mapping[str, float] | None = None,
        gpus: int = 0,
        import_path: str = "",
        store_bytes: int = _OBJECT_STORE_BYTES,
        settings: Mapping[str, str] | None = None,
    ) -> RayNode:
        address = self._address_of(len(self.nodes))
        output = self.folder / f"{address}.out"
        words = [
            *(sys.executable, "-c", _RAY, "start", "--block", *words),
            *("--node-ip-address", address, "--num-cpus", str(cpus), "--num-gpus", str(gpus)),
            *("--object-store-memory", str(store_bytes), "--disable-usage-stats"),
            *("--resources", json.dumps(dict(resources or {}))),
            *("--runtime-env-agent-port", str(_free_port())),
        ]
        if not self.nodes or self._hosts:
            words += ["--temp-dir", str(self.folder)]
        everything = {**os.environ, **self._environ, **(settings or {})}
        tests = Path(__file__).parents[1]
        folders = (str(tests / "support"), str(tests), str(tests.parent / "scripts"))  # the last has the hook
        paths = (import_path, *folders, everything.get("PYTHONPATH"))
        everything["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with output.open("wb") as file:
            options: dict[str, Any] = {
                "env": {name: value for name, value in everything.items() if value},
                "stdin": subprocess.DEVNULL,
                "stdout": file,
                "stderr": file,
                "start_new_session": True,
            }
            if self._hosts:
                process = self._hosts.popen(len(self.nodes), words, **options)
            else:
                die_with_us = partial(set_parent_death_signal, signal.SIGKILL)
                process = subprocess.Popen(words, preexec_fn=die_with_us, **options)
        self.nodes.append(RayNode(address, process, output))
        return self.nodes[-1]

    def _wait_ready(self, nodes: Sequence[RayNode]) -> None:
        for node in nodes:

            def ready_or_ended(node: RayNode = node) -> bool:
                return b"Ray runtime started" in node.output.read_bytes() or node.process.poll() is not None

            try:
                wait_until(ready_or_ended, READY_S)
                assert node.process.poll() is None
            except AssertionError as error:
                logs = [node.output, *(self.folder / "session_latest" / "logs").glob("raylet*.*")]
                for log in logs:
                    error.add_note(f"--- {log.name}\n{log.read_text()[-3000:]}")
                raise

    def kill_raylet(self, node: RayNode) -> None:
        """SIGKILL the raylet of a node. `ray start` ends the rest of the node within a second."""
        os.kill(node.pid_of("raylet"), signal.SIGKILL)

    def kill_node(self, node: RayNode) -> None:
        """SIGKILL all processes of a node at once, as when its machine loses power."""
        _kill_sessions([node])

    def kill_head(self) -> None:
        """SIGKILL all processes of the head."""
        self.kill_node(self.nodes[0])

    def stop(self) -> None:
        """SIGKILL every process of the nodes, and remove their files."""
        _kill_sessions(self.nodes)
        shutil.rmtree(self.folder, ignore_errors=True)


_NO_LOG_MONITOR = ("--include-log-monitor", "false")


@contextmanager
def ray_on_hosts(count: int, *, tls: bool = False, **options: Any) -> Iterator[tuple[NetworkHosts, RayNodes]]:
    """Start a head and further nodes on hosts with a network of their own.

    Args:
        count: The number of hosts, the head's included.
        tls: Encrypt and authenticate all of Ray's connections with certificates of a new authority.
        **options: Those of `RayNodes`.
    """
    folder, secret = short_folder(), short_folder()
    settings = {**FAST_DETECTION, **options.pop("settings", {})}
    if tls:
        settings |= write_certificates(secret, [address_of(host) for host in range(count)])
    try:
        with (
            NetworkHosts(count, private=["/dev/shm", str(folder)]) as hosts,
            RayNodes(settings=settings, hosts=hosts, folder=folder, **options) as nodes,
        ):
            nodes.start()
            nodes.add(count=count - 1)
            yield hosts, nodes
    finally:
        shutil.rmtree(secret)


def write_certificates(folder: Path, addresses: Sequence[str]) -> dict[str, str]:
    """Write an authority and a certificate for these addresses; return Ray's settings that name them."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority, node = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("authority", "node")
    )

    def certificate(subject: x509.Name, public: Any, extension: x509.ExtensionType) -> bytes:
        made = x509.CertificateBuilder(issuer_name=authority, subject_name=subject, public_key=public)
        made = made.serial_number(x509.random_serial_number()).add_extension(extension, critical=False)
        made = made.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        return made.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    names = [x509.IPAddress(ipaddress.ip_address(address)) for address in (*addresses, "127.0.0.1")]
    files = {
        "RAY_TLS_CA_CERT": certificate(
            authority, authority_key.public_key(), x509.BasicConstraints(ca=True, path_length=None)
        ),
        "RAY_TLS_SERVER_CERT": certificate(node, key.public_key(), x509.SubjectAlternativeName(names)),
        "RAY_TLS_SERVER_KEY": key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    }
    for name, text in files.items():
        (folder / name).touch(0o600)
        (folder / name).write_bytes(text)
    return {"RAY_USE_TLS": "1", **{name: str(folder / name) for name in files}}


def _kill_sessions(nodes: Sequence[RayNode]) -> None:
    sessions = {node.process.pid for node in nodes}

    def ended() -> bool:
        left = [pid for pid in psutil.pids() if _session(pid) in sessions]
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not left

    wait_until(ended, 20)
    for node in nodes:
        node.process.wait(20)  # its main thread can be a zombie while others still end


def _session(pid: int) -> int:
    """Return the session of a process, 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[3])


def short_folder() -> Path:
    """Make a folder for Ray's sockets, whose paths have at most 107 bytes."""
    return Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))


_given = {52365}  # Ray's dashboard agent; and the system gives a port again that nobody listens on yet


def _free_port() -> int:
    """Return a free port that was not returned before."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = int(sock.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port
