"""TFRecord files: written in shards by 4 tasks, and verified.

Writing: a cell on 4 tasks and 4 plain scripts with tf.io.TFRecordWriter, in turn. Each reports the time of
its loop; the slowest counts. Verifying: the peers are a loop over a TFRecordDataset, its reduce, where no
record reaches Python, and batches, its fastest way. Each pair reads one file in the page cache.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from benchmarks.report import Row, Sizes, Target

TASKS = 4
RECORDS, LENGTH = 60_000, 1024  # a task
ROUNDS = 3
WRITING, VERIFYING = Target("ratio", ">=", 0.95), Target("ratio", ">=", 3.0)
SPEED = Target("value", ">=", 1.0)  # GB/s of two cores
_SCRIPT = """
import os, sys, time
import tensorflow as tf
tf.io.TFRecordWriter(sys.argv[1]).close()
record = os.urandom({length})
print("ready", flush=True)
for line in sys.stdin:
    started = time.perf_counter()
    with tf.io.TFRecordWriter(line.strip()) as writer:
        for _ in range({records}):
            writer.write(record)
    print(time.perf_counter() - started, flush=True)
"""


def measure(sizes: Sizes) -> list[Row]:
    rounds = min(ROUNDS, sizes.training_rounds)
    with tempfile.TemporaryDirectory(prefix="tfmagic-records-") as folder:
        return [_writing(Path(folder), rounds), *_verifying(Path(folder), rounds)]


def _writing(folder: Path, rounds: int) -> Row:
    import tfmagic

    ours: list[float] = []
    theirs: list[float] = []
    with tfmagic.Cluster(workers=TASKS) as cluster, _Scripts(folder) as scripts:
        cluster.run(_write, str(folder / "warm.tfrecord"), 10, LENGTH, view="quiet")
        for number in range(rounds):
            base = str(folder / f"ours-{number}.tfrecord")
            turns: list[tuple[list[float], Callable[[], float]]] = [
                (
                    ours,
                    lambda base=base: max(cluster.run(_write, base, RECORDS, LENGTH, view="quiet").values()),
                ),
                (theirs, lambda number=number: scripts.write(f"plain-{number}")),
            ]
            for times, run in turns if number % 2 == 0 else turns[::-1]:
                times.append(run())
    for path in folder.iterdir():
        path.unlink()
    size = TASKS * RECORDS * LENGTH / 1e6
    rates = [size / s for s in ours], [size / s for s in theirs]
    ours_rate, peer = (statistics.median(found) for found in rates)
    what = "sharded writing from 4 tasks, 1 KB records"
    return Row(what, ours_rate, "MB/s", peer, "TFRecordWriter in 4 scripts", WRITING, rates)


def _write(base: str, records: int, length: int) -> float:
    """Write on a task. Return the seconds."""
    import tfmagic

    record = os.urandom(length)
    tfmagic.barrier()
    started = time.perf_counter()
    with tfmagic.tfrecord.ShardWriter(base) as writer:
        for _ in range(records):
            writer.write(record)
    return time.perf_counter() - started


class _Scripts:
    """4 plain processes that live as long as the cluster, so that they import TensorFlow once."""

    def __init__(self, folder: Path):
        self.folder = folder
        code = _SCRIPT.format(length=LENGTH, records=RECORDS)
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(folder / f"warm-{index}")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )
            for index in range(TASKS)
        ]  # fmt: skip

    def __enter__(self) -> Self:
        for process in self.processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *reason: object) -> None:
        for process in self.processes:
            process.kill()
            with process:
                pass

    def write(self, name: str) -> float:
        """Write in all scripts at once. Return the seconds of the slowest."""
        for index, process in enumerate(self.processes):
            assert process.stdin is not None
            process.stdin.write(f"{self.folder / name}-{index}\n")
            process.stdin.flush()
        return max(float(process.stdout.readline()) for process in self.processes if process.stdout)


def _verifying(folder: Path, rounds: int) -> list[Row]:
    import tensorflow  # noqa: F401 - before anything is timed

    loop, reduce = ("for record in dataset", _loop), ("dataset.reduce", _reduce)
    batches = ("for batch in dataset.batch(1024)", _batches)
    rows = []
    for what, length, size, peers in (
        ("1 KB records, 16 MB", 1 << 10, 16 << 20, [loop, reduce]),  # these peers take 0.15 ms a record
        ("1 KB records, 512 MB", 1 << 10, 512 << 20, [batches]),
        ("100 KB records, 512 MB", 100 << 10, 512 << 20, [loop, batches]),
    ):
        path = _make_file(folder, length, size)
        rows += [_verify(path, f"verify, {what}", peer, read, rounds) for peer, read in peers]
        path.unlink()
    return rows


def _make_file(folder: Path, length: int, size: int) -> Path:
    from tfmagic.tfrecord import ShardWriter

    record = os.urandom(length)
    with ShardWriter(folder / "made.tfrecord", overwrite=True) as writer:
        for _ in range(size // length):
            writer.write(record)
    return writer.paths[0].rename(folder / "records")  # without its manifest: records only


def _verify(path: Path, what: str, peer: str, read: Callable[[Path], bool], rounds: int) -> Row:
    """Verify and read one file in turn. The target is a speed for the fastest peer, otherwise a ratio."""
    from tfmagic.tfrecord import verify

    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_seconds(lambda: verify(path).ok))
        theirs.append(_seconds(lambda: read(path)))
    size = path.stat().st_size / 1e9
    rates = [size / s for s in ours], [size / s for s in theirs]
    target = SPEED if read is _batches else VERIFYING
    return Row(what, statistics.median(rates[0]), "GB/s", statistics.median(rates[1]), peer, target, rates)


def _loop(path: Path) -> bool:
    import tensorflow as tf

    return sum(1 for _ in tf.data.TFRecordDataset(str(path))) > 0


def _batches(path: Path) -> bool:
    import tensorflow as tf

    return sum(1 for _ in tf.data.TFRecordDataset(str(path)).batch(1024)) > 0


def _reduce(path: Path) -> bool:
    import tensorflow as tf

    add = tf.autograph.experimental.do_not_convert(lambda count, _: count + 1)
    return int(tf.data.TFRecordDataset(str(path)).reduce(0, add)) > 0


def _seconds(run: Callable[[], bool]) -> float:
    started = time.perf_counter()
    if not run():
        raise RuntimeError("it did not read what was written")
    return time.perf_counter() - started
