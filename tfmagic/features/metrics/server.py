"""The clusters as Prometheus metrics, on Jupyter Server's own page ``/metrics``.

    cells.jsonl ── CellsFile ──> EndedCells ──┐
    status.json ── read_snapshot ─────────────┴─> ClusterCollector ──> /metrics

The registry calls `ClusterCollector` while it writes the page, on the server's event loop. The collector
reads a bounded number of small files and keeps only the histogram of ended cells. The page also holds the
server's own metrics. Files in a state folder can hold anything, so nothing here raises for their content,
follows a link or waits for a pipe.
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tfmagic.runs.ended_cells import CellsFile, EndedCell
from tfmagic.runs.status_reader import CELL_STATES, Snapshot, newest_runs, read_snapshot

MAX_RUNS = 50
DIED_S = 900.0  # how long a cluster whose kernel died is reported as down, so that an alert sees it
BUCKETS_S = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)
"""From an empty cell on warm tasks, 1 ms, to a training of some hours."""

_CLUSTER = ("cluster", "run")
_TASK = ("cluster", "run", "task")
_GAUGES = (
    ("cluster_up", "1: it runs; 0: its kernel died a short while ago", _CLUSTER),
    ("status_timestamp_seconds", "When the kernel last wrote its status", _CLUSTER),
    ("cells", "Cells of the run by state", (*_CLUSTER, "state")),
    ("kernel_cpu_percent", "CPU of the kernel, 100 is one core", _CLUSTER),
    ("kernel_memory_bytes", "Memory of the kernel", _CLUSTER),
    ("launcher_cpu_percent", "CPU of the launcher, 100 is one core", _CLUSTER),
    ("launcher_memory_bytes", "Memory of the launcher", _CLUSTER),
    ("task_state", "1 for the state that the task is in", (*_TASK, "state")),
    ("task_memory_bytes", "Memory of the task: unique to it, or shared with others", (*_TASK, "kind")),
    ("unreadable_runs", "Run folders whose status cannot be read", ()),
)
_TASK_NUMBERS: tuple[tuple[str, type[GaugeMetricFamily | CounterMetricFamily], str, str], ...] = (
    ("cpu_percent", GaugeMetricFamily, "cpu_percent", "CPU of the task's processes, 100 is one core"),
    ("cpu_s", CounterMetricFamily, "cpu_seconds", "CPU time that the task's process has taken"),
    ("threads", GaugeMetricFamily, "threads", "Threads of the task's process"),
    ("open_files", GaugeMetricFamily, "open_files", "Open file descriptors of the task's process"),
    ("restarts", CounterMetricFamily, "restarts", "Times the task got a new process"),
    ("stalls", CounterMetricFamily, "stalls", "Times the task was found stalled"),
    ("log_bytes", GaugeMetricFamily, "log_bytes", "Size of the task's log"),
    ("uptime_s", GaugeMetricFamily, "uptime_seconds", "Age of the task's process"),
)
_MEMORY = (("memory_bytes", "unique"), ("shared_bytes", "shared"))

_SCRAPE_BYTES = 1 << 18  # 300 cells of 4 tasks, 10 ms of parsing; the next scrape reads the rest
Families = dict[str, GaugeMetricFamily | CounterMetricFamily]


class EndedCells:
    """The ended cells of all runs, each returned by one scrape.

    The first scrape reads the end of the history that it finds, up to `_SCRAPE_BYTES`. The rest is never
    read: later it would look like cells that end now.
    """

    def __init__(self) -> None:
        self._files: dict[Path, CellsFile] = {}
        self._has_begun = False

    def read(self, folders: Iterable[Path]) -> list[EndedCell]:
        """Return the cells that these runs have recorded since the last call, in bounded time."""
        found, budget = [], _SCRAPE_BYTES
        for folder in folders:
            file = self._files.get(folder)
            if file is None:
                file = self._files[folder] = CellsFile(folder / "cells.jsonl")
                if not self._has_begun:
                    file.skip_all_but(budget)
            if budget > 0:
                cells, size = file.read_ended(budget)
                found += cells
                budget -= size
        self._has_begun = True
        # a run that is not among the newest now can come back, and its cells have been counted
        for folder in [folder for folder in self._files if not folder.exists()]:
            del self._files[folder]
        return found


class ClusterCollector(Collector):
    """Reads the run folders below `base` at each scrape.

    The histogram outlives the folders: a counter that sank when an old run is pruned would be read as a
    restart of the server.
    """

    def __init__(self, base: Path):
        self._base = base
        self._ended_cells = EndedCells()
        name, labels = "tfmagic_cell_duration_seconds", ("cluster", "verdict")
        text = "How long cells took that have ended"
        self._durations = Histogram(name, text, labels, registry=None, buckets=BUCKETS_S)
        self._lock = threading.Lock()  # a registry can be collected by several threads

    def describe(self) -> Iterable[Metric]:
        """Return the names only. Without this method the registry would collect everything to learn them."""
        return [*_new_families().values(), *self._durations.describe()]

    def collect(self) -> Iterable[Metric]:
        families = _new_families()
        unreadable = 0
        with self._lock:
            folders = newest_runs(self._base, MAX_RUNS)
            for folder in folders:
                try:
                    snapshot = read_snapshot(folder)
                # the page is the whole server's: a folder that breaks the reader costs that folder only
                except Exception:
                    logging.getLogger(__name__).debug("cannot read %s", folder, exc_info=True)
                    unreadable += 1
                    continue
                if snapshot is not None:
                    unreadable += not snapshot.readable
                    _add_snapshot(families, snapshot)
            for cell in self._ended_cells.read(folders):
                self._durations.labels(cell.cluster, cell.verdict).observe(cell.seconds)
        families["tfmagic_unreadable_runs"].add_metric((), unreadable)
        return [*families.values(), *self._durations.collect()]


def register(base: Path, registry: CollectorRegistry = REGISTRY) -> None:
    """Add the metrics to the registry that Jupyter Server's ``/metrics`` shows."""
    with suppress(ValueError):  # another server in this process has registered them
        registry.register(ClusterCollector(base))


def _new_families() -> Families:
    families: list[GaugeMetricFamily | CounterMetricFamily]
    families = [GaugeMetricFamily(f"tfmagic_{name}", text, labels=labels) for name, text, labels in _GAUGES]
    families += [kind(f"tfmagic_task_{name}", text, labels=_TASK) for _, kind, name, text in _TASK_NUMBERS]
    return {family.name: family for family in families}


def _add_snapshot(families: Families, snapshot: Snapshot) -> None:
    labels = (snapshot.cluster, snapshot.run)
    if snapshot.died and time.time() - snapshot.written < DIED_S:
        families["tfmagic_cluster_up"].add_metric(labels, 0)
    if not snapshot.live:
        return
    families["tfmagic_cluster_up"].add_metric(labels, 1)
    families["tfmagic_status_timestamp_seconds"].add_metric(labels, snapshot.written)
    for process, numbers in snapshot.processes.items():
        for key, value in numbers.items():
            families[f"tfmagic_{process}_{key}"].add_metric(labels, value)
    for state in CELL_STATES:
        if snapshot.cells and state in snapshot.cells:
            families["tfmagic_cells"].add_metric((*labels, state), snapshot.cells[state])
    for task in snapshot.tasks:
        _add_task(families, (*labels, task.task), task.state, task.numbers)


def _add_task(families: Families, labels: tuple[str, ...], state: str, numbers: Mapping[str, float]) -> None:
    if state:  # not the other six as 0: they would be half of the page
        families["tfmagic_task_state"].add_metric((*labels, state), 1)
    for key, kind in _MEMORY:
        if key in numbers:
            families["tfmagic_task_memory_bytes"].add_metric((*labels, kind), numbers[key])
    for key, _, name, _ in _TASK_NUMBERS:
        if key in numbers:
            families[f"tfmagic_task_{name}"].add_metric(labels, numbers[key])
