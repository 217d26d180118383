"""Profiling: the training of `training`, in a cell with and without ``--profile``, in turn.

What the profile costs after the cell (writing and reading the trace) is not part of the steps a second.
"""

from __future__ import annotations

import os
import statistics

from benchmarks.notebook import notebook
from benchmarks.report import Row, Sizes
from benchmarks.training import WORKERS, train_in_cell


def measure(sizes: Sizes) -> list[Row]:
    os.environ["BENCH_TRAINING_BLOCKS"] = str(sizes.training_blocks)
    traced, plain = [], []
    with notebook(WORKERS) as book:
        for number in range(sizes.training_rounds):
            turns = [(traced, "--profile"), (plain, "")]
            for rates, option in turns if number % 2 == 0 else turns[::-1]:
                rates.append(train_in_cell(book, option))
    what = "training with --profile, 2 workers"
    peer = statistics.median(plain)
    return [Row(what, statistics.median(traced), "steps/s", peer, "without it", None, (traced, plain))]
