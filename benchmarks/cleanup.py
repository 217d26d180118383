"""Clean-up: the time until the last process has ended, daemons of the tasks included.

Each round has a Jupyter kernel of its own with two tasks. Each task has a strategy, a child and a daemon in a
session of its own. The time runs from the signal, or the request, to the end of the last process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import psutil
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from benchmarks.report import Row, Sizes, Target
from benchmarks.training import free_addresses
from tfmagic.system.process_identity import Identity, identify

STRAYS = """%%tfcluster
import subprocess, tensorflow as tf
tf.distribute.MultiWorkerMirroredStrategy()
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["setsid", "--fork", "sleep", "1001"]).wait()
"""
CELL = "%%tfcluster --view text\nimport subprocess\nprint('BEGUN')\nsubprocess.run(['sleep', '1002'])\n"
_PATIENCE_S = 60.0


class Book:
    """A kernel with a cluster, and the processes below it."""

    def __init__(self, client: BlockingKernelClient, pid: int, manager: KernelManager | None = None):
        self.client, self.pid, self.manager = client, pid, manager
        client.wait_for_ready(timeout=_PATIENCE_S)
        for cell in ("%load_ext tfmagic", "%tfcluster start --workers 2", STRAYS):
            self.run(cell)

    def run(self, cell: str) -> None:
        reply = self.client.execute_interactive(cell, timeout=_PATIENCE_S, output_hook=lambda message: None)
        assert reply["content"]["status"] == "ok", reply["content"]

    def below(self, *, helpers: bool = True) -> set[Identity]:
        """Return the processes below the kernel; without `helpers`, only those of the tasks."""
        keeper, launcher = self.helpers()
        pids = {child.pid for child in psutil.Process(self.pid).children(recursive=True)}
        found = {identify(pid) for pid in pids - (set() if helpers else {keeper, launcher})}
        return {process for process in found if process is not None}

    def helpers(self) -> tuple[int, int]:
        """Return the pids of the keeper and of the launcher."""
        (keeper,) = [p for p in psutil.Process(self.pid).children() if "keeper" in " ".join(p.cmdline())]
        return keeper.pid, keeper.children()[0].pid


def measure(sizes: Sizes) -> list[Row]:
    rows = []
    for what, case in CASES.items():
        seconds = [case() for _ in range(sizes.deaths)]
        text = f"{what}: to the last process gone (max {max(seconds):.2f} s)"
        limit = 2.0 if "server" in what else 1.0  # a kernel checks once a second whether its server runs
        rows.append(Row(text, statistics.median(seconds), "s", target=Target("value", "<=", limit)))
    return rows


@contextlib.contextmanager
def _book() -> Iterator[Book]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(extra_arguments=["--IPKernelApp.log_level=40"])
    client = manager.client()
    client.start_channels()
    try:
        yield Book(client, int(manager.provisioner.pid), manager)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def _time_until_gone(processes: set[Identity], end: Callable[[], Any]) -> float:
    assert len(processes) >= 2
    began = time.perf_counter()
    end()
    while any(process.alive for process in processes):
        assert time.perf_counter() - began < _PATIENCE_S, processes
        time.sleep(0.002)
    return time.perf_counter() - began


def _kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _kernel_killed() -> float:
    with _book() as book:
        return _time_until_gone(book.below(), lambda: _kill(book.pid))


def _kernel_restarted() -> float:
    with _book() as book:
        assert book.manager is not None
        return _time_until_gone(book.below(), book.manager.request_shutdown)


def _cluster_stopped() -> float:
    with _book() as book:
        return _time_until_gone(book.below(helpers=False), lambda: book.client.execute("%tfcluster stop"))


def _task_killed() -> float:
    """Kill one task of two. Return the seconds until it and its child have ended."""
    with _book() as book:
        task = min(psutil.Process(book.helpers()[1]).children(), key=lambda process: process.pid)
        family = {identify(task.pid), *(identify(child.pid) for child in task.children(recursive=True))}
        began = time.perf_counter()
        _kill(task.pid)
        while any(process is not None and process.alive for process in family):
            time.sleep(0.002)
        return time.perf_counter() - began


def _helpers_killed(*which: int) -> float:
    with _book() as book:
        pids = [book.helpers()[place] for place in which]
        return _time_until_gone(book.below(), lambda: _kill(*pids))


def _run_all_interrupted() -> float:
    """Interrupt two cells. Return the seconds until the processes that the first started have ended."""
    with _book() as book:
        before = book.below()
        book.client.execute(CELL)
        book.client.execute(CELL)  # queued behind it, as in Run All
        while len(started := book.below() - before) < 2:
            time.sleep(0.01)
        assert book.manager is not None
        return _time_until_gone(started, book.manager.interrupt_kernel)


def _server_killed() -> float:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        port = free_addresses(1)[0].rpartition(":")[2]
        flags = ["--no-browser", "--allow-root", f"--notebook-dir={folder}"]
        flags += ["--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"]
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", f"--port={port}", *flags],
            env={**os.environ, "JUPYTER_CONFIG_DIR": folder, "JUPYTER_RUNTIME_DIR": f"{folder}/runtime"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            kernel = _start_kernel(f"http://127.0.0.1:{port}/api/kernels")
            client = BlockingKernelClient(connection_file=f"{folder}/runtime/kernel-{kernel}.json")
            client.load_connection_file()
            client.start_channels(hb=False)  # the heartbeat reports a kernel that is still starting as dead
            children = psutil.Process(server.pid).children()
            (pid,) = [p.pid for p in children if kernel in " ".join(p.cmdline())]
            book = Book(client, pid)
            seconds = _time_until_gone(book.below(), server.kill)
            client.stop_channels()
            return seconds
        finally:
            server.kill()
            server.wait()


def _start_kernel(address: str) -> str:
    """Wait for the server, start a kernel and return its id."""
    deadline = time.monotonic() + _PATIENCE_S
    kernel = ""
    while not kernel:
        try:
            body = json.dumps({"name": "python3"}).encode()
            with urllib.request.urlopen(urllib.request.Request(address, data=body)) as reply:
                kernel = str(json.load(reply)["id"])
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    return kernel


CASES: dict[str, Callable[[], float]] = {
    "kernel SIGKILLed": _kernel_killed,
    "Jupyter server SIGKILLed": _server_killed,
    "kernel asked to restart": _kernel_restarted,
    "Run All interrupted (what the cell started)": _run_all_interrupted,
    "%tfcluster stop": _cluster_stopped,
    "a task SIGKILLed (and its children)": _task_killed,
    "launcher SIGKILLed": lambda: _helpers_killed(1),
    "keeper SIGKILLed": lambda: _helpers_killed(0),
    "keeper and launcher SIGKILLed": lambda: _helpers_killed(0, 1),
}
