"""Tasks on the hosts of a Ray cluster, compared with plain Ray actors that do the same (`ray_script`).

Both use the same two Ray nodes of this machine, at the same time and in turn: 4 tasks and 4 actors, spread
over the nodes. A node's address decides what is remote for Ray: an array of the second node travels through a
socket.

The delay of output is that from `print` in a task to the bytes in the kernel's run folder; all processes have
one clock. The peer's is that to the driver's standard output.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy
import psutil

from benchmarks.notebook import FIRST_OP, Notebook, muted, notebook
from benchmarks.report import Row, Sizes, Target
from benchmarks.runner import Runner, runner
from scripts.local_ray import LocalRay, local_ray

TASKS = 4
NODES = 2
SCRIPT = Path(__file__).with_name("ray_script.py")
PEER = "Ray actors"
CELLS_PER_ROUND = 50
LINES = 20  # a task and round
ARRAY_BYTES = 64 << 20
CELL_TARGET = Target("value", "<=", 8)
START_TARGET = Target("value", "<=", 1)
DELAY_TARGET = Target("value", "<=", 20)
PULL_TARGET = Target("value", ">=", 200)
PULL_RATIO_TARGET = Target("ratio", ">=", 0.9)
PUSH_TARGET = Target("ratio", "<=", 1.3)
AGENT_TARGET = Target("value", "<=", 60)
_MIB = 1 << 20
_QUIET_S, _QUIET_PERCENT = 30.0, 10.0
_NODES = {2: "the kernel's node", 3: "another node"}  # by the end of the address

PRINT = f"""
import random, time
for _ in range({LINES}):
    print(time.monotonic(), flush=True)
    time.sleep(random.uniform(0.03, 0.07))
"""
ARRAY = "import numpy\narray = numpy.random.default_rng(0).random((64, 1024, 128))\n"

Pairs = tuple[list[float], list[float]]


def measure(sizes: Sizes) -> list[Row]:
    with local_ray(NODES, cpus=TASKS) as ray, _environment(dict(ray.environ)):
        options = f"--backend ray --address {ray.address}"
        with notebook(TASKS, options) as book, runner(ray.address, SCRIPT) as peer, muted():
            rows = _cells(book, peer, sizes.cell_rounds)
            rows += _output(book, peer, sizes.cell_rounds)
            rows += _arrays(book, peer, sizes.array_rounds)
            rows += _pushes(book, peer, sizes.array_rounds)
            rows += _starts(book, peer, options, sizes.starts)
            return [*rows, _memory(ray, peer)]


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Let this process and what it starts connect to Ray; and let Ray print each line of its actors."""
    before = dict(os.environ)
    os.environ.update(variables | {"RAY_DEDUP_LOGS": "0"})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _cells(book: Notebook, peer: Runner, rounds: int) -> list[Row]:
    times_ms: Pairs = ([], [])
    for turn in range(rounds + 1):  # the first one warms up
        ours = [1000 * _timed_s(lambda: book.cell("pass\n")) for _ in range(CELLS_PER_ROUND)]
        theirs = [1000 * seconds for seconds in peer.ask(f"cells {CELLS_PER_ROUND}")]
        if turn:
            times_ms[0].extend(ours)
            times_ms[1].extend(theirs)
    return _percentiles("empty cell, 4 tasks", times_ms, CELL_TARGET)


def _output(book: Notebook, peer: Runner, rounds: int) -> list[Row]:
    delays_ms: Pairs = ([], [])
    book.cell("print()")  # from now on there are logs
    logs = [book.cluster.run_folder.log_path(task) for task in book.cluster.spec.shape.tasks]
    for _ in range(rounds):
        with _Watch(logs) as watch:
            book.cell(PRINT)
        delays_ms[0].extend(1000 * seconds for seconds in watch.delays_s)
        delays_ms[1].extend(1000 * seconds for seconds in peer.ask(f"output {LINES}"))
    assert len(delays_ms[0]) == rounds * LINES * TASKS
    return _percentiles("delay of output", delays_ms, DELAY_TARGET)


class _Watch:
    """Looks at logs each millisecond, in a thread; a line is the time at which it was printed."""

    def __init__(self, paths: Sequence[Path]):
        self.delays_s: list[float] = []
        self._files = [path.open("rb") for path in paths]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Watch:
        for file in self._files:
            file.seek(0, os.SEEK_END)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for file in self._files:
            file.close()

    def _look(self) -> None:
        while not self._ended.wait(0.001):
            for file in self._files:
                lines, now = file.read().splitlines(), time.monotonic()
                self.delays_s += [now - float(line) for line in lines]


def _arrays(book: Notebook, peer: Runner, rounds: int) -> list[Row]:
    """Return the rates of pulls from tasks of the kernel's node, and of those from the other one."""
    book.cell(ARRAY)
    cluster = book.cluster
    ours = [(row["task"], _node(row["host"])) for row in cluster.status()]
    theirs = [_NODES[int(last)] for last in peer.ask("nodes")]
    rates: dict[str, Pairs] = {node: ([], []) for node in _NODES.values()}
    for turn in range(rounds + 1):  # the first one warms up
        for task, node in ours:
            seconds = _timed_s(lambda task=task: cluster.pull("array", on=task))
            if turn:
                rates[node][0].append(ARRAY_BYTES / 1e6 / seconds)
        for node, seconds in zip(theirs, peer.ask("get 1"), strict=True):
            if turn:
                rates[node][1].append(ARRAY_BYTES / 1e6 / seconds)
    rows = []
    for node, pair in rates.items():
        rows.append(_row(f"pull of 64 MiB from {node}", "MB/s", pair, PULL_TARGET))
        rows.append(replace(rows[-1], target=PULL_RATIO_TARGET, rounds=None))
    return rows


def _pushes(book: Notebook, peer: Runner, rounds: int) -> list[Row]:
    """Return the times of an array that goes to all tasks, on both nodes."""
    array = numpy.random.default_rng(0).random((64, 1024, 128))
    times_s: Pairs = ([], [])
    for turn in range(rounds + 1):  # the first one warms up
        array[0, 0, 0] = turn
        ours = _timed_s(lambda: book.cluster.push(array=array))
        (theirs,) = peer.ask("put 1")
        if turn:
            times_s[0].append(ours)
            times_s[1].append(theirs)
    return [_row("push of 64 MiB to 4 tasks", "s", times_s, PUSH_TARGET)]


def _node(address: str) -> str:
    return _NODES[int(address.rpartition(".")[2])]


def _starts(book: Notebook, peer: Runner, options: str, repeats: int) -> list[Row]:
    """Return the times of a further start: agents and launchers are there, tasks and actors are not."""
    ready_s: Pairs = ([], [])
    first_op_s: Pairs = ([], [])
    for _ in range(repeats):
        book.line("stop")
        _await_quiet()
        started = time.perf_counter()
        book.line(f"start --workers {TASKS} {options}")
        ready_s[0].append(time.perf_counter() - started)
        book.cell(FIRST_OP)
        first_op_s[0].append(time.perf_counter() - started)
        _await_quiet()
        for seconds, all_s in zip(peer.ask("start"), (ready_s[1], first_op_s[1]), strict=True):
            all_s.append(seconds)
    return [
        _row("second start of 4 tasks", "s", ready_s, START_TARGET),
        _row("second start of 4 tasks to first op", "s", first_op_s),
    ]


def _await_quiet() -> None:
    """Wait until the machine is quiet: where actors have ended, Ray starts processes for the next ones."""
    deadline = time.monotonic() + _QUIET_S
    while psutil.cpu_percent(0.5) > _QUIET_PERCENT and time.monotonic() < deadline:
        pass


def _memory(ray: LocalRay, peer: Runner) -> Row:
    agents = [
        process.memory_full_info().uss / _MIB
        for process in map(psutil.Process, ray.pids())
        if "".join(process.cmdline()).startswith("ray::RayAgent")
    ]
    assert len(agents) == NODES
    theirs = [size / _MIB for size in peer.ask("memory")]
    return Row("unique memory of an agent", max(agents), "MiB", max(theirs), PEER, AGENT_TARGET)


def _percentiles(what: str, times_ms: Pairs, target: Target) -> list[Row]:
    count = len(times_ms[0])
    medians, last = (tuple(map(function, times_ms)) for function in (statistics.median, _p95))
    return [
        Row(f"{what}, p50 of {count}", medians[0], "ms", medians[1], PEER, target),
        Row(f"{what}, p95 of {count}", last[0], "ms", last[1], PEER),
    ]


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def _row(what: str, unit: str, values: Pairs, target: Target | None = None) -> Row:
    return Row(
        what, *(statistics.median(values[0]), unit, statistics.median(values[1])), PEER, target, values
    )


def _timed_s(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
