"""Clean-up: the time until the last process has ended, daemons of the tasks included.

Each round has a Jupyter kernel of its own with two tasks. Each task has a strategy, a child and a daemon in a
session of its own. The time runs from the signal, or the request, to the end of the last process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from benchmarks.jupyter_server import run_cell, served_kernel
from benchmarks.report import Row, Sizes, Target
from tfmagic.system.process_identity import Identity, identify

STRAYS = """%%tfcluster
import subprocess, tensorflow as tf
tf.distribute.MultiWorkerMirroredStrategy()
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["setsid", "--fork", "sleep", "1001"]).wait()
"""
CELL = "%%tfcluster --view text\nimport subprocess\nprint('BEGUN')\nsubprocess.run(['sleep', '1002'])\n"
_HELPERS = "list(c.running()[0].own_pids().values())"
_PATIENCE_S = 60.0


class Book:
    """A kernel with a cluster, and the processes below it."""

    def __init__(self, client: BlockingKernelClient, pid: int, manager: KernelManager | None = None):
        self.client, self.pid, self.manager = client, pid, manager
        client.wait_for_ready(timeout=_PATIENCE_S)
        for cell in ("%load_ext tfmagic", "%tfcluster start --workers 2", STRAYS):
            run_cell(client, cell)
        pids = run_cell(client, "from tfmagic.backends import launcher_client as c", _HELPERS)
        self.reaper, self.launcher = pids

    def below(self, *, helpers: bool = True) -> set[Identity]:
        """Return the processes that end with the kernel; without `helpers`, only those of the tasks."""
        children = psutil.Process(self.reaper).children(recursive=True)
        pids = {child.pid for child in children} | {self.reaper, *([self.pid] if helpers else [])}
        found = {identify(pid) for pid in pids - (set() if helpers else {self.reaper, self.launcher})}
        return {process for process in found if process is not None}


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
        task = min(psutil.Process(book.launcher).children(), key=lambda process: process.pid)
        family = {identify(task.pid), *(identify(child.pid) for child in task.children(recursive=True))}
        began = time.perf_counter()
        _kill(task.pid)
        while any(process is not None and process.alive for process in family):
            time.sleep(0.002)
        return time.perf_counter() - began


def _helpers_killed(*which: str) -> float:
    with _book() as book:
        pids = [getattr(book, name) for name in which]
        return _time_until_gone(book.below() - {identify(book.pid)}, lambda: _kill(*pids))


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
    """End the server. The process that has TensorFlow imported for its kernels has to end, too."""
    with served_kernel() as kernel, kernel.client() as client:
        book = Book(client, kernel.pid)
        template = identify(psutil.Process(book.reaper).ppid())
        assert template is not None and template.pid != kernel.pid
        return _time_until_gone(book.below() | {template}, kernel.server.kill)


def _kernel_killed_beside_another() -> float:
    """Kill a kernel whose launcher is from a template, which stays."""
    with served_kernel() as kernel, kernel.client() as client:
        book = Book(client, kernel.pid)
        template = identify(psutil.Process(book.reaper).ppid())
        seconds = _time_until_gone(book.below(), lambda: _kill(book.pid))
        assert template is not None and template.alive
        return seconds


CASES: dict[str, Callable[[], float]] = {
    "kernel SIGKILLed": _kernel_killed,
    "kernel from a template SIGKILLed": _kernel_killed_beside_another,
    "Jupyter server SIGKILLed": _server_killed,
    "kernel asked to restart": _kernel_restarted,
    "Run All interrupted (what the cell started)": _run_all_interrupted,
    "%tfcluster stop": _cluster_stopped,
    "a task SIGKILLed (and its children)": _task_killed,
    "launcher SIGKILLed": lambda: _helpers_killed("launcher"),
    "reaper SIGKILLed": lambda: _helpers_killed("reaper"),
    "reaper and launcher SIGKILLed": lambda: _helpers_killed("reaper", "launcher"),
}
