"""Simulated hosts: what they cost beside plain tasks, in training and in a start.

The same loop of two workers runs on two simulated hosts without a limit, and without hosts, in new processes
each time, in turn. A start is timed from the call to the last task that is ready, with a warm launcher.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import tfmagic
from benchmarks import training
from benchmarks.report import Row, Sizes, Target

TASKS = 4
TRAINING_TARGET = Target("ratio", ">=", 0.97)
START_TARGET = Target("value", "<=", 0.3)


def measure(sizes: Sizes) -> list[Row]:
    os.environ["BENCH_TRAINING_BLOCKS"] = str(sizes.training_blocks)
    source = training.SCRIPT.read_text()
    with (
        tfmagic.Cluster(training.WORKERS, name="plain") as plain,
        tfmagic.Cluster(training.WORKERS, name="hosts", hosts=training.WORKERS) as on_hosts,
    ):
        ours, theirs = _in_turn(
            sizes.training_rounds, lambda: _train(on_hosts, source), lambda: _train(plain, source)
        )
    starts, plain_starts = _in_turn(
        2 * sizes.starts, lambda: _start_s(hosts=TASKS), lambda: _start_s(hosts=None)
    )
    more_s = statistics.median(starts) - statistics.median(plain_starts)
    return [
        Row(
            "training, 2 workers on 2 simulated hosts",
            statistics.median(ours),
            "steps/s",
            statistics.median(theirs),
            "without hosts",
            TRAINING_TARGET,
            (ours, theirs),
        ),
        Row("start of 4 tasks on 4 simulated hosts, more than on none", more_s, "s", target=START_TARGET),
    ]


def _in_turn(
    rounds: int, ours: Callable[[], float], theirs: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Call both so often, each first every other time; return what they returned."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        turns = list(zip(found, (ours, theirs), strict=True))
        for values, call in turns if number % 2 == 0 else turns[::-1]:
            values.append(call())
    return found


def _train(cluster: tfmagic.Cluster, source: str) -> float:
    """Return the steps a second of the slower worker, in new task processes."""

    def run(source: str) -> dict[str, float]:
        names: dict[str, float] = {}
        exec(source, names)
        return {name: names[name] for name in training.RESULTS}

    cluster.restart()
    return training.check(list(cluster.run(run, source, view="quiet").values()))


def _start_s(hosts: int | None) -> float:
    began = time.perf_counter()
    with tfmagic.Cluster(TASKS, hosts=hosts):
        return time.perf_counter() - began
