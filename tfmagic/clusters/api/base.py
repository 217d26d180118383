"""What the parts of `Cluster`'s interface have in common: the running cluster, if there is one.

ClusterBase ←── Calls, Variables, Hosts, Stories, Exports; those of features ←── Cluster
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tfmagic.clusters.cells import waiting
from tfmagic.clusters.cells.cell_plan import CellPlan, Options
from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.running_cluster import RunningCluster
from tfmagic.errors import TfmagicError
from tfmagic.protocol.cluster_spec import Selector, TaskId
from tfmagic.protocol.commands import CellKind
from tfmagic.system.advice import Step


class Beside(Protocol):
    """What a feature lets run beside a cluster."""

    @property
    def at_work(self) -> bool:
        """Whether who uses the cluster next would notice it in the tasks."""

    def close(self) -> object:
        """End it. Do nothing if it has ended."""


class ClusterBase(ABC):
    """A cluster that may run, and how the parts of its interface reach it."""

    name: str
    tasks: tuple[TaskId, ...]
    _latest: RunningCluster | None  # the present one, or the last one
    _beside: dict[str, Beside]  # by the name of its feature; the end of the cluster ends it
    _lock: threading.RLock
    _has_left = False  # a ``with`` block has ended, and the cluster was not started since

    @abstractmethod
    def start(self) -> object:
        """Start every task and wait until all are ready. Do nothing if the cluster runs."""

    @abstractmethod
    def _main(self) -> dict[str, Any]:
        """Return the ``__main__`` whose functions and variables travel by name."""

    @property
    def running(self) -> bool:
        """True after `start` and before `stop`."""
        return self._latest is not None and self._latest.processes.running

    @property
    def is_disturbed(self) -> bool:
        """True if something on purpose disturbs the tasks: a fault, or a link that was changed."""
        hosts = self._running_cluster().hosts
        is_changed = hosts is not None and hosts.has_changed
        return is_changed or any(part.at_work for part in self._beside.values())

    def _running_cluster(self) -> RunningCluster:
        if self._latest is None or not self._latest.processes.running:
            raise TfmagicError(f"cluster {self.name!r} does not run; start it with {Step('start it')}")
        return self._latest

    def _started(self) -> RunningCluster:
        """Return the present or the last running cluster."""
        if self._latest is None:
            raise TfmagicError(f"cluster {self.name!r} has never been started")
        return self._latest

    def begin_cell(
        self, plan: CellPlan, detached: bool = False, may_begin: Callable[[], bool] | None = None
    ) -> Job:
        """Start a cell. Unless it is `detached`, `tfmagic.clusters.cells.waiting.finish` must be called next.

        Args:
            detached: The cell needs no waiting thread, and Ctrl-C does not interrupt it.
            may_begin: Called when the tasks are free; False makes the cell do nothing.

        Raises:
            CaptureError: Something cannot travel.
            TaskDied: A task that is to run it has no process.
            TfmagicError: The ``with`` block of the cluster has ended.
        """
        with self._lock:
            if self._has_left:
                raise TfmagicError(
                    f"the `with` block of cluster {self.name!r} has ended, and with it the variables of its "
                    f"tasks: run this inside the block, or start the cluster anew with {Step('start it')}"
                )
            self.start()
            return self._running_cluster().cells.begin(plan, detached, may_begin)

    def _ask_tasks(self, on: Selector, fn: Callable[..., Any], *args: Any) -> Mapping[str, Any]:
        """Call a function of tfmagic's own on the tasks; it is no call of the user's."""
        plan = CellPlan(call=(fn, args, {}), kind=CellKind.ASIDE, options=Options(on=on, view="quiet"))
        with self._lock:
            job = self._running_cluster().cells.begin(plan)
        return waiting.finish(job).results
