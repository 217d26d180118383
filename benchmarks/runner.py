"""`multi_process_runner` and TensorFlow's runner: runs of a function that does nothing, and calls of a pool.

A cold run is timed from the start of a fresh Python process to the end of its first run. Warm runs and pool
calls are made in turn in one process of each side, which lives all the time. TensorFlow's runner starts new
processes for each run, and each of them imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Row, Sizes, Target

SCRIPT = Path(__file__).with_name("runner_script.py")
WORKERS = (2, 4)
POOL_CALLS = 100  # a round
COLD_TARGET = Target("ratio", "<=", 1.0)
WARM_TARGET = Target("ratio", "<=", 0.1)
POOL_TARGET = Target("ratio", "<=", 1.0)
THEIRS = "TensorFlow's"


class Runner:
    """A process that runs `runner_script`, or another one that answers requests in the same way."""

    def __init__(self, whose: str, script: Path = SCRIPT):
        self.started = time.perf_counter()
        ours, theirs = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, script, whose, str(theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            pass_fds=[theirs],
        )
        os.close(theirs)
        self._answers = open(ours)  # noqa: SIM115  # closed with the process

    def ask(self, line: str) -> list[float]:
        """Send a request. Return the seconds that the process reports."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError(f"the process that was asked to {line!r} ended: {self._process.wait()}")
        return [float(seconds) for seconds in answer.split()]

    def close(self) -> None:
        with self._process, self._answers:
            assert self._process.stdin is not None
            self._process.stdin.close()


@contextlib.contextmanager
def runner(whose: str, script: Path = SCRIPT) -> Iterator[Runner]:
    started = Runner(whose, script)
    try:
        yield started
    finally:
        started.close()


def measure(sizes: Sizes) -> list[Row]:
    rows = [_cold(workers, sizes.engine_starts) for workers in WORKERS]
    with runner("ours") as ours, runner("theirs") as theirs:
        for side in (ours, theirs):  # the first run of a process has more to do
            side.ask("run 2")
        rows += [_warm(ours, theirs, workers, sizes.starts) for workers in WORKERS]
        rows += [_pool(ours, theirs, workers, sizes.cell_rounds) for workers in WORKERS]
    return rows


def _cold(workers: int, repeats: int) -> Row:
    times_s: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(repeats):
        for whose, seconds in times_s.items():
            with runner(whose) as fresh:
                fresh.ask(f"run {workers}")
                seconds.append(time.perf_counter() - fresh.started)
    return _row(
        f"run on {workers} workers, cold process", "s", times_s["ours"], times_s["theirs"], COLD_TARGET
    )


def _warm(ours: Runner, theirs: Runner, workers: int, repeats: int) -> Row:
    times_s: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for side, seconds in zip((ours, theirs), times_s, strict=True):
            seconds += side.ask(f"run {workers}")
    return _row(f"run on {workers} workers, warm", "s", *times_s, WARM_TARGET)


def _pool(ours: Runner, theirs: Runner, workers: int, rounds: int) -> Row:
    medians_ms: tuple[list[float], list[float]] = ([], [])
    for side in (ours, theirs):
        side.ask(f"pool {workers} {POOL_CALLS}")
    for _ in range(rounds):
        for side, medians in zip((ours, theirs), medians_ms, strict=True):
            medians.append(1000 * statistics.median(side.ask(f"pool {workers} {POOL_CALLS}")))
    return _row(f"pool call on {workers} workers, p50", "ms", *medians_ms, POOL_TARGET)


def _row(what: str, unit: str, ours: list[float], theirs: list[float], target: Target) -> Row:
    medians = statistics.median(ours), statistics.median(theirs)
    return Row(what, medians[0], unit, medians[1], THEIRS, target, (ours, theirs))
