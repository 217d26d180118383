"""A Ray cluster of this machine for demonstrations and benchmarks: one `ray start --block` a node.

    with local_ray(2, cpus=2) as ray:
        os.environ.update(ray.environ)
        tfmagic.Cluster(workers=4, backend="ray", address=ray.address)

Each node has an address of the loopback device, so Ray treats the nodes as different machines. The cluster
has a token. It ends with the block: every process of it is in a session that we started.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from tfmagic.system.processes import set_parent_death_signal

_HERE = Path(__file__).parent
_READY_S = 180.0  # about 10 s on two idle cores
_END_S = 30.0
_STORE_BYTES = 600_000_000  # pages are allocated when they are used
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_START_HOOK": "ray_start_hook.start_less",
    "RAY_raylet_start_wait_time_s": "150",  # 30 s are too short for a busy machine
    "RAY_worker_niceness": "0",  # Ray's default is 15: what else runs on this machine would come first
    "RAY_prestart_worker_first_driver": "0",  # a connection would wait for an idle process for each CPU
}


@dataclass(frozen=True, slots=True)
class LocalRay:
    """A running cluster.

    Attributes:
        address: Of the head.
        environ: The variables that a process needs to connect.
    """

    address: str
    environ: Mapping[str, str]
    _started: Sequence[subprocess.Popen[bytes]]

    def pids(self) -> list[int]:
        """Return the processes of all nodes: those in the sessions that we have started."""
        sessions = {process.pid for process in self._started}
        return [pid for pid in psutil.pids() if _session_of(pid) in sessions]


@contextlib.contextmanager
def local_ray(nodes: int, cpus: int) -> Iterator[LocalRay]:
    """Start nodes at 127.0.0.2, 127.0.0.3 and so on, with so many CPUs each; end them with the block."""
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16), "RAY_USAGE_STATS_ENABLED": "0"}
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # a socket's path has at most 107 bytes
    environ = {**os.environ, **_SETTINGS, **own}
    environ["RAY_NODES_FOLDER"] = str(folder)
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_HERE), os.environ.get("PYTHONPATH"))))
    started: list[subprocess.Popen[bytes]] = []
    address = f"127.0.0.2:{_free_port()}"
    head = ["--head", "--port", address.rpartition(":")[2], "--temp-dir", str(folder)]
    head += ["--include-dashboard", "false"]
    cluster = LocalRay(address, own, started)
    try:
        with (folder / "nodes.out").open("wb") as output:
            start = partial(_start, started, environ, output, cpus)
            start("127.0.0.2", head)
            _wait_ready(started, folder / "nodes.out")
            for number in range(1, nodes):
                start(f"127.0.0.{number + 2}", ["--address", address])
            _wait_ready(started, folder / "nodes.out")
        yield cluster
    finally:
        _end(cluster, started)
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    started: list[subprocess.Popen[bytes]],
    environ: Mapping[str, str],
    output: object,
    cpus: int,
    address: str,
    words: Sequence[str],
) -> None:
    ray = str(Path(sys.executable).with_name("ray"))
    limits = ["--num-cpus", str(cpus), "--num-gpus", "0", "--object-store-memory", str(_STORE_BYTES)]
    ports = ["--runtime-env-agent-port", str(_free_port())]
    process = subprocess.Popen(
        [ray, "start", "--block", "--node-ip-address", address, *limits, *ports, *words],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=output,  # type: ignore[call-overload]
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=partial(set_parent_death_signal, signal.SIGKILL),
    )
    started.append(process)


def _wait_ready(started: Sequence[subprocess.Popen[bytes]], output: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while output.read_bytes().count(b"Ray runtime started") < len(started):
        if time.monotonic() > deadline or any(process.poll() is not None for process in started):
            raise RuntimeError(f"Ray did not start:\n{output.read_text()[-3000:]}")
        time.sleep(0.1)


def _end(cluster: LocalRay, started: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline and (left := cluster.pids()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in started:
            process.poll()
        time.sleep(0.05)


def _session_of(pid: int) -> int:
    """Return the session of a process; 0 if it has ended."""
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return 0
        return os.getsid(pid)
    except (psutil.Error, ProcessLookupError):
        return 0


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
