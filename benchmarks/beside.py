"""Second starts: with pyarrow beside tfmagic, whose import starts a thread, and without it.

`scripts/beside .venv arrow` installs the environment with pyarrow. Each process starts a cluster of two
tasks, stops it, and times the next one, up to its first TensorFlow op.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.report import Row, Sizes, Target

BESIDE = Path(__file__).parents[1] / ".venv-beside" / "arrow" / "bin" / "python"
TARGET = Target("ratio", "<=", 1.3)
SECOND_START = """
import time
import tfmagic

def first_op():
    import tensorflow as tf
    return float(tf.constant(1.0) + 1)

times_s = []
for _ in range(4):
    started = time.perf_counter()
    with tfmagic.Cluster(workers=2) as cluster:
        cluster.run(first_op, view="quiet")
        times_s.append(time.perf_counter() - started)
print(sorted(times_s[1:])[1])
"""


def measure(sizes: Sizes) -> list[Row]:
    times_s: dict[str, list[float]] = {sys.executable: [], os.fspath(BESIDE): []}
    for _ in range(sizes.starts):
        for python, found in times_s.items():
            command = [python, "-c", SECOND_START]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            found.append(float(done.stdout))
    without_s, beside_s = map(statistics.median, times_s.values())
    return [Row("second start beside pyarrow", beside_s, "s", without_s, "without pyarrow", TARGET)]
