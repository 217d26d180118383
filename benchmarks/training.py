"""Training: the same program of two workers in a cell, and as plain processes started from a shell.

`train_script.py`, a loop, and `fit_script.py`, which calls `fit` of Keras 2 (that of Keras 3 does not run
in plain processes), run unchanged both ways, in new processes each time, in turn. The plain processes get the
same TF_NUM_INTRAOP_THREADS as our tasks (the cores divided by the tasks), or they would compete for cores.
The figures are the cost of a cell, not the gain from that setting; but for the row with the ends of epochs:
there plain processes wait for TensorFlow's own thread, and ours do not
(`tfmagic.task.tensorflow.untuned_data`).
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
RATE = "steps_per_s"
RESULTS = (RATE, "last_loss", "checksum")
WITH_ENDS = "all_steps_per_s"  # a further result of FIT
TARGET = Target("ratio", ">=", 0.98)
_PATIENCE_S = 240.0
_Results = list[dict[str, float]]  # of each worker


def measure(sizes: Sizes) -> list[Row]:
    os.environ["BENCH_TRAINING_BLOCKS"] = str(sizes.training_blocks)  # the tasks and scripts inherit it
    loop = {RATE: "training, 2 workers, same threads"}
    fit = {RATE: "fit of Keras 2, the same", WITH_ENDS: "fit of Keras 2, with the ends of its epochs"}
    with notebook(WORKERS) as book:
        rounds = sizes.training_rounds
        return [*_compare(book, rounds, SCRIPT, loop), *_compare(book, rounds, FIT, fit)]


def _compare(book: Notebook, rounds: int, script: Path, figures: dict[str, str]) -> list[Row]:
    """Return a row for each figure: the name of a result, and what the row says."""
    ours: list[_Results] = []
    theirs: list[_Results] = []
    names = tuple(dict.fromkeys((*RESULTS, *figures)))
    for number in range(rounds):
        turns = [(ours, lambda: _in_cell(book, script, names)), (theirs, lambda: _scripts(script))]
        for found, run in turns if number % 2 == 0 else turns[::-1]:  # a drift affects both sides equally
            found.append(run())
    return [_row(what, name, ours, theirs) for name, what in figures.items()]


def _row(what: str, name: str, ours: list[_Results], theirs: list[_Results]) -> Row:
    sides = ([check(found, name) for found in ours], [check(found, name) for found in theirs])
    mine, peer = map(statistics.median, sides)
    return Row(what, mine, "steps/s", peer, "2 plain scripts", TARGET, sides)


def train_in_cell(book: Notebook, option: str = "") -> float:
    """Return the steps a second of the slower worker, in new task processes.

    Args:
        option: A further option of the cell.
    """
    return check(_in_cell(book, SCRIPT, RESULTS, option))


def _in_cell(book: Notebook, script: Path, names: tuple[str, ...], option: str = "") -> _Results:
    with muted():
        book.cluster.restart()
        book.cell(script.read_text(), f"--pull {','.join(names)} {option}")
    pulled = [book.shell.user_ns[name] for name in names]
    return [{name: p[task] for name, p in zip(names, pulled, strict=True)} for task in pulled[0]]


def _scripts(script: Path) -> _Results:
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
    return [json.loads(text.splitlines()[-1]) for text, _ in outputs]


def check(results: _Results, rate: str = RATE) -> float:
    """Return the slower worker's rate. Raise RuntimeError if the two did not train one model."""
    first, second = results
    same = all(math.isclose(first[name], second[name], rel_tol=1e-4) for name in ("last_loss", "checksum"))
    if not same:
        raise RuntimeError(f"the workers disagree: {results}")
    return min(first[rate], second[rate])


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
