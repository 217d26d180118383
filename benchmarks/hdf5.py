"""HDF5 files of many tasks: 64 parts become one file, by reference and by copy; 4 tasks append to one file.

The peers of `consolidate` are scripts with h5py alone: one opens each part for the length of its dataset and
builds the virtual dataset, the other copies dataset after dataset. Neither checks anything. They run in turn,
in one process, with the files in the page cache. The peer of the shared file is one process that writes as
many rows with h5py alone: it resizes the dataset and assigns.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.report import Row, Sizes, Target

PARTS = 64
ROWS, WIDTH = 1024, 1024  # float32: 4 MiB a part
ONE_SECOND = Target("value", "<=", 1.0)
TASKS, APPENDS, APPEND_ROWS = 4, 200, 256  # float32 [256, 1024]: 1 MiB each
THREE_HUNDRED = Target("value", ">=", 300.0)


def measure(sizes: Sizes) -> list[Row]:
    return [*_measure_consolidation(sizes), _measure_shared(sizes)]


def _measure_shared(sizes: Sizes) -> Row:
    from tfmagic import Cluster

    with (
        tempfile.TemporaryDirectory(prefix="tfmagic-hdf5-") as folder,
        Cluster(workers=TASKS, name="bench") as cluster,
    ):
        path = os.path.join(folder, "shared.h5")
        ours, theirs = [], []
        for number in range(sizes.array_rounds + 1):
            spans = cluster.run(_append, path, view="quiet").values()
            seconds = max(end for _, end in spans) - min(start for start, _ in spans)
            alone = _append_alone(path)
            if number:
                ours.append(TASKS * APPENDS * APPEND_ROWS * WIDTH * 4 / 1e6 / seconds)
                theirs.append(TASKS * APPENDS * APPEND_ROWS * WIDTH * 4 / 1e6 / alone)
    name = f"rows of {TASKS} tasks into one HDF5 file"
    medians = (statistics.median(ours), statistics.median(theirs))
    return Row(name, medians[0], "MB/s", medians[1], "one h5py process", THREE_HUNDRED, (ours, theirs))


def _append(path: str) -> tuple[float, float]:
    """Append on a task. Return the times of the start and of the flush, on the machine's monotonic clock."""
    import time

    import numpy as np

    import tfmagic
    from tfmagic.hdf5 import SharedWriter

    rows = np.full((APPEND_ROWS, WIDTH), tfmagic.current_task().index, np.float32)
    with SharedWriter(path) as writer:
        writer.append("x", rows[:0])  # the process that writes has started
        tfmagic.barrier()
        started = time.monotonic()
        for _ in range(APPENDS):
            writer.append("x", rows)
        writer.flush()
        return started, time.monotonic()


def _append_alone(path: str) -> float:
    import h5py
    import numpy as np

    rows = np.full((APPEND_ROWS, WIDTH), 1, np.float32)
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", (0, WIDTH), "f4", maxshape=(None, WIDTH), chunks=rows.shape)
        started = time.monotonic()
        for number in range(TASKS * APPENDS):
            made.resize((number + 1) * APPEND_ROWS, 0)
            made[number * APPEND_ROWS :] = rows
        file.flush()
        return time.monotonic() - started


def _measure_consolidation(sizes: Sizes) -> list[Row]:
    import numpy as np

    from tfmagic.hdf5 import TaskFile, consolidate

    with tempfile.TemporaryDirectory(prefix="tfmagic-hdf5-") as folder:
        base = os.path.join(folder, "results.h5")
        rows = np.random.default_rng(0).random((ROWS, WIDTH), dtype=np.float32)
        for number in range(PARTS):
            with TaskFile(base, task=f"worker-{number}") as file:
                file["x"] = rows
        paths = [os.path.join(folder, f"results.worker-{number}.h5") for number in range(PARTS)]
        target = os.path.join(folder, "theirs.h5")
        rounds = sizes.array_rounds
        ours, theirs = _alternate(lambda: consolidate(base), lambda: _map_by_hand(paths, target), rounds)
        virtual = Row(
            f"{PARTS} HDF5 parts to one, virtual", ours, "s", theirs, "h5py script, unchecked", ONE_SECOND
        )
        ours, theirs = _alternate(
            lambda: consolidate(base, "copy"), lambda: _copy_by_hand(paths, target), rounds
        )
        size = PARTS * rows.nbytes / 1e6
        copied = Row(
            f"{PARTS} HDF5 parts to one, copy", size / ours, "MB/s", size / theirs, "h5py script, unchecked"
        )
    return [virtual, copied]


def _alternate(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Return the median seconds of each; a first round is not counted."""
    times_s: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for call, times in zip((ours, theirs), times_s, strict=True):
            started = time.perf_counter()
            call()
            if number:
                times.append(time.perf_counter() - started)
    return statistics.median(times_s[0]), statistics.median(times_s[1])


def _map_by_hand(paths: list[str], target: str) -> None:
    import h5py

    sources = []
    for path in paths:
        with h5py.File(path) as file:
            sources.append(h5py.VirtualSource(file["x"]))
    layout = h5py.VirtualLayout((sum(source.shape[0] for source in sources), WIDTH), "f4")
    start = 0
    for source in sources:
        layout[start : start + source.shape[0]] = source
        start += source.shape[0]
    with h5py.File(target, "w") as file:
        file.create_virtual_dataset("x", layout)


def _copy_by_hand(paths: list[str], target: str) -> None:
    import h5py

    with h5py.File(target, "w") as file:
        whole = file.create_dataset("x", (PARTS * ROWS, WIDTH), "f4")
        for number, path in enumerate(paths):
            with h5py.File(path) as part:
                whole[number * ROWS : (number + 1) * ROWS] = part["x"][:]
