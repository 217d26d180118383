"""Arrays: a float64 array of 64 MiB, pushed to 4 tasks and pulled from them.

The peer is ipyparallel's DirectView with 4 engines. The rate counts every copy that arrives: 4 × 64 MiB. The
array changes before each push, so that no copy can be skipped, and the copies are compared. The two sides run
one after the other, not in turn: the gigabytes that one side frees make the next pages of the other slow.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.notebook import notebook
from benchmarks.report import Row, Sizes, Target

TASKS = 4
SHAPE = (64, 1024, 128)
TARGET = Target("value", ">=", 4.0)
WARM_UP_ROUNDS = 5  # until the host of this virtual machine has given back the pages that others freed

Transfer = Callable[[], Any]


def measure(sizes: Sizes) -> list[Row]:
    array = np.random.default_rng(0).random(SHAPE)
    with notebook(TASKS) as book:
        cluster = book.cluster
        ours: dict[str, Transfer] = {
            "push": lambda: cluster.push({"array": array}),
            "pull": lambda: list(cluster.pull("array")["array"].values()),
        }
        rates = _alternate(ours, array, sizes.array_rounds)
    with peers.engines(TASKS) as client:
        view = client[:]
        theirs: dict[str, Transfer] = {
            "their push": lambda: view.push({"array": array}, block=True),
            "their pull": lambda: view.pull("array", block=True),
        }
        rates |= _alternate(theirs, array, sizes.array_rounds)
    return [
        Row("push of 64 MiB to 4 tasks", rates["push"], "GB/s", rates["their push"], "DirectView", TARGET),
        Row("pull of 64 MiB from 4 tasks", rates["pull"], "GB/s", rates["their pull"], "DirectView", TARGET),
    ]


def _alternate(transfers: dict[str, Transfer], array: np.ndarray, rounds: int) -> dict[str, float]:
    """Return the rate of each transfer in GB/s, the median of its rounds."""
    times_s: dict[str, list[float]] = {name: [] for name in transfers}
    for number in range(WARM_UP_ROUNDS + rounds):
        array[0, 0, 0] = number
        for name, transfer in transfers.items():
            started = time.perf_counter()
            arrived = transfer()
            seconds = time.perf_counter() - started
            if name.endswith("pull"):
                assert len(arrived) == TASKS and all(np.array_equal(copy, array) for copy in arrived), name
            del arrived
            if number >= WARM_UP_ROUNDS:
                times_s[name].append(seconds)
    return {name: TASKS * array.nbytes / 1e9 / statistics.median(times) for name, times in times_s.items()}
