"""One round of `benchmarks.compare`: time one version of tfmagic, and print seconds by name as JSON.

It uses what all versions have: the magics and `Cluster`. The first path of PYTHONPATH says which version.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import tfmagic
from benchmarks.notebook import FIRST_OP, muted, notebook

LINES = 100_000  # a task
ARRAY = np.random.default_rng(0).random((64, 1024, 128))  # 64 MiB


def measure() -> dict[str, float]:
    """Return the seconds of each kind of work, on two tasks."""
    found = {}

    def timed(name, work, count=1):
        times_s = []
        for _ in range(count):
            started = time.perf_counter()
            work()
            times_s.append(time.perf_counter() - started)
        found[name] = statistics.median(times_s)

    started = time.perf_counter()
    with notebook(2) as book, muted():

        def start_again():
            book.line("stop")
            book.line("start --workers 2")
            book.cell(FIRST_OP)

        book.cell(FIRST_OP)
        found["first start"] = time.perf_counter() - started
        timed("start", start_again, 3)
        timed("restart", lambda: (book.line("restart"), book.cell(FIRST_OP)), 3)
        timed("warm", lambda: book.cell("pass\n"), 30)
        timed("empty cell", lambda: book.cell("pass\n"), 1000)
        timed("pool", lambda: list(book.cluster.map(abs, range(200), view="quiet")), 3)
        timed("output", lambda: book.cell(f"for _ in range({LINES}): print('x' * 69)\n"), 2)
        cluster = book.cluster
        cluster.push({"array": ARRAY})
        timed("pull", lambda: cluster.pull("array"), 15)
    del found["warm"]
    return found


if __name__ == "__main__":
    assert Path(tfmagic.__file__).is_relative_to(sys.argv[1]), tfmagic.__file__
    json.dump(measure(), sys.stdout)
