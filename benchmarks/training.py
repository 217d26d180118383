"""Training: the same loop of two workers in a cell, and as plain processes started from a shell.

`train_script.py` is run word for word both ways, in new processes each time, in turn. The plain processes
get the TF_NUM_INTRAOP_THREADS that our tasks get (the cores divided by the tasks), or they would fight
for cores: the figure is what a cell costs, not what that setting brings.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.notebook import Notebook, muted, notebook
from benchmarks.report import Row, Sizes, Target

WORKERS = 2
SCRIPT = Path(__file__).with_name("train_script.py")
TARGET = Target("ratio", ">=", 0.98)
_PATIENCE_S = 240.0


def measure(sizes: Sizes) -> list[Row]:
    os.environ["BENCH_TRAINING_BLOCKS"] = str(sizes.training_blocks)  # the tasks and scripts inherit it
    ours, theirs = [], []
    with notebook(WORKERS) as book:
        for number in range(sizes.training_rounds):
            turns = [(ours, lambda: _cell(book)), (theirs, _scripts)]
            for rates, run in turns if number % 2 == 0 else turns[::-1]:  # a drift meets both alike
                rates.append(run())
    what = "training, 2 workers, same threads"
    peer = statistics.median(theirs)
    return [Row(what, statistics.median(ours), "steps/s", peer, "2 plain scripts", TARGET)]


def _cell(book: Notebook) -> float:
    """Steps a second of the slower worker, in new task processes."""
    with muted():
        book.cluster.restart()
        book.cell(SCRIPT.read_text(), "--pull steps_per_s")
    return min(book.shell.user_ns["steps_per_s"].values())


def _scripts() -> float:
    """The same as plain processes."""
    addresses = _free_addresses()
    started = [_start(addresses, index) for index in range(WORKERS)]
    try:
        outputs = [process.communicate(timeout=_PATIENCE_S) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, (_, errors) in zip(started, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"{SCRIPT.name} exited with {process.returncode}:\n{errors[-2000:]}")
    return min(float(text.rpartition("steps/s ")[2]) for text, _ in outputs)


def _start(addresses: list[str], index: int) -> subprocess.Popen[str]:
    threads = max(len(os.sched_getaffinity(0)) // WORKERS, 1)  # as tfmagic.environment presets it
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    environ = {
        "TF_NUM_INTRAOP_THREADS": str(threads),  # the user's own wins, as it does in tasks
        **os.environ,
        "TF_CONFIG": json.dumps(config),
    }
    return subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _free_addresses() -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(WORKERS)]
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in sockets]
    for server in sockets:
        server.close()
    return addresses
