"""The clusters as Prometheus metrics, on the page that Jupyter Server has for that: ``/metrics``.

`ClusterCollector` is asked by the registry while the page is written, on the server's event loop: it reads
a bounded number of small files then and keeps nothing but the counts of ended cells. The page is also the
server's own, so nothing that lies in a run folder may make it raise.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tfmagic.runs.status_reader import CELL_STATES, Snapshot, newest_runs, read_snapshot
from tfmagic.server.durations import CellDurations

MAX_RUNS = 50
DIED_S = 900.0  # a kernel that died with its cluster is told as down that long, so that an alert sees it

_CLUSTER = ("cluster", "run")
_TASK = ("cluster", "run", "task")
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

Family = GaugeMetricFamily | CounterMetricFamily


class ClusterCollector(Collector):
    """Reads the run folders below `base` when it is asked."""

    def __init__(self, base: Path):
        self._base = base
        self._durations = CellDurations()
        self._lock = threading.Lock()  # a registry may be asked from several threads

    def describe(self) -> Iterable[Metric]:
        """The names alone: without this the registry would read everything to learn them."""
        return [*_families().values(), _durations_family()]

    def collect(self) -> Iterable[Metric]:
        families, durations = _families(), _durations_family()
        unreadable = 0
        with self._lock:
            folders = newest_runs(self._base, MAX_RUNS)
            for folder in folders:
                try:
                    snapshot = read_snapshot(folder)
                # the page is the whole server's: a folder that nobody foresaw costs that folder only
                except Exception:
                    logging.getLogger(__name__).debug("cannot read %s", folder, exc_info=True)
                    unreadable += 1
                    continue
                if snapshot is not None:
                    unreadable += not snapshot.readable
                    _add_snapshot(families, snapshot)
            self._durations.update(folders)
            for labels, histogram in self._durations.histograms.items():
                durations.add_metric(labels, histogram.cumulated, histogram.sum_s)
        families["tfmagic_unreadable_runs"].add_metric((), unreadable)
        return [*families.values(), durations]


def register(base: Path, registry: CollectorRegistry = REGISTRY) -> None:
    """Add the metrics to the registry that Jupyter Server's ``/metrics`` shows."""
    with suppress(ValueError):  # another server in this process has done so
        registry.register(ClusterCollector(base))


def _families() -> dict[str, Family]:
    return {family.name: family for family in _new_families()}


def _new_families() -> Iterator[Family]:
    gauge = GaugeMetricFamily
    yield gauge("tfmagic_cluster_up", "1: it runs; 0: its kernel died a short while ago", labels=_CLUSTER)
    yield gauge(
        "tfmagic_status_timestamp_seconds", "When the cluster's kernel last said how it is", labels=_CLUSTER
    )
    yield gauge("tfmagic_cells", "Cells of the run by state", labels=(*_CLUSTER, "state"))
    for who in ("kernel", "launcher"):
        yield gauge(f"tfmagic_{who}_cpu_percent", f"CPU of the {who}, 100 is one core", labels=_CLUSTER)
        yield gauge(f"tfmagic_{who}_memory_bytes", f"Memory of the {who}", labels=_CLUSTER)
    yield gauge("tfmagic_task_state", "1 for the state that the task is in", labels=(*_TASK, "state"))
    yield gauge(
        "tfmagic_task_memory_bytes",
        "Memory of the task: its own, and what it shares with the others",
        labels=(*_TASK, "kind"),
    )
    for _, family, name, text in _TASK_NUMBERS:
        yield family(f"tfmagic_task_{name}", text, labels=_TASK)
    yield gauge("tfmagic_unreadable_runs", "Run folders whose status cannot be read", labels=())


def _durations_family() -> HistogramMetricFamily:
    return HistogramMetricFamily(
        "tfmagic_cell_duration_seconds", "How long cells took that have ended", labels=("cluster", "verdict")
    )


def _add_snapshot(families: dict[str, Family], snapshot: Snapshot) -> None:
    labels = (snapshot.cluster, snapshot.run)
    if snapshot.died and time.time() - snapshot.written < DIED_S:
        families["tfmagic_cluster_up"].add_metric(labels, 0)
    if not snapshot.live:
        return
    families["tfmagic_cluster_up"].add_metric(labels, 1)
    families["tfmagic_status_timestamp_seconds"].add_metric(labels, snapshot.written)
    for who, numbers in snapshot.processes.items():
        for key, value in numbers.items():
            families[f"tfmagic_{who}_{key}"].add_metric(labels, value)
    for state in CELL_STATES:
        if snapshot.cells and state in snapshot.cells:
            families["tfmagic_cells"].add_metric((*labels, state), snapshot.cells[state])
    for task in snapshot.tasks:
        _add_task(families, (*labels, task.task), task.state, task.numbers)


def _add_task(
    families: dict[str, Family], labels: tuple[str, ...], state: str, numbers: Mapping[str, float]
) -> None:
    if state:  # not the other six as 0: that would be half of the page
        families["tfmagic_task_state"].add_metric((*labels, state), 1)
    for key, kind in _MEMORY:
        if key in numbers:
            families["tfmagic_task_memory_bytes"].add_metric((*labels, kind), numbers[key])
    for key, _, name, _ in _TASK_NUMBERS:
        if key in numbers:
            families[f"tfmagic_task_{name}"].add_metric(labels, numbers[key])
