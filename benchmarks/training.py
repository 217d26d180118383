"""Training: the same program of two workers in a cell, and as plain processes started from a shell.

`train_script.py`, a loop, and `fit_script.py`, which calls `fit` of Keras 2 (that of Keras 3 does not run
in plain processes), run unchanged both ways, in new processes each time, in turn. The plain processes get the
same TF_NUM_INTRAOP_THREADS as our tasks (the cores divided by the tasks), or they would compete for cores.
The figure is the cost of a cell, not the gain from that setting.
"""

from __future__ import annotations

import json
import math
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
FIT = Path(__file__).with_name("fit_script.py")
RESULTS = ("steps_per_s", "last_loss", "checksum")
TARGET = Target("ratio", ">=", 0.98)
_PATIENCE_S = 240.0


def measure(sizes: Sizes) -> list[Row]:
    os.environ["BENCH_TRAINING_BLOCKS"] = str(sizes.training_blocks)  # the tasks and scripts inherit it
    with notebook(WORKERS) as book:
        return [
            _compare(book, sizes.training_rounds, script, what)
            for script, what in (
                (SCRIPT, "training, 2 workers, same threads"),
                (FIT, "fit of Keras 2, the same"),
            )
        ]


def _compare(book: Notebook, rounds: int, script: Path, what: str) -> Row:
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(rounds):
        turns = [(ours, lambda: train_in_cell(book, script=script)), (theirs, lambda: _scripts(script))]
        for rates, run in turns if number % 2 == 0 else turns[::-1]:  # a drift affects both sides equally
            rates.append(run())
    peer = statistics.median(theirs)
    return Row(what, statistics.median(ours), "steps/s", peer, "2 plain scripts", TARGET, (ours, theirs))


def train_in_cell(book: Notebook, option: str = "", script: Path = SCRIPT) -> float:
    """Return the steps a second of the slower worker, in new task processes.

    Args:
        option: A further option of the cell.
    """
    with muted():
        book.cluster.restart()
        book.cell(script.read_text(), f"--pull {','.join(RESULTS)} {option}")
    pulled = [book.shell.user_ns[name] for name in RESULTS]
    return check([{name: p[task] for name, p in zip(RESULTS, pulled, strict=True)} for task in pulled[0]])


def _scripts(script: Path) -> float:
    """Return the same for plain processes."""
    addresses = free_addresses(WORKERS)
    started = [_start(script, addresses, index) for index in range(WORKERS)]
    try:
        outputs = [process.communicate(timeout=_PATIENCE_S) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, (_, errors) in zip(started, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"{script.name} exited with {process.returncode}:\n{errors[-2000:]}")
    return check([json.loads(text.splitlines()[-1]) for text, _ in outputs])


def check(results: list[dict[str, float]]) -> float:
    """Return the slower worker's steps a second. Raise RuntimeError if the two did not train one model."""
    first, second = results
    same = all(math.isclose(first[name], second[name], rel_tol=1e-4) for name in ("last_loss", "checksum"))
    if not same:
        raise RuntimeError(f"the workers disagree: {results}")
    return min(first["steps_per_s"], second["steps_per_s"])


def _start(script: Path, addresses: list[str], index: int) -> subprocess.Popen[str]:
    threads = max(len(os.sched_getaffinity(0)) // WORKERS, 1)  # as clusters/launch/task_settings presets it
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    environ = {
        "TF_NUM_INTRAOP_THREADS": str(threads),  # the user's own value has precedence, as in tasks
        **os.environ,
        "TF_CONFIG": json.dumps(config),
    }
    return subprocess.Popen(
        [sys.executable, str(script)],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_addresses(count: int) -> list[str]:
    """Return loopback addresses whose ports are free at the moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in sockets]
    for server in sockets:
        server.close()
    return addresses
