"""Clusters for tests: made to a marker's wish, lent for one test, or for several one after the other.

    marker, parameter ──→ Wish ──→ Lender.prepare ──→ Loan ── begin ──→ the test ── end ──→ stopped
                                                                               or kept, when all is whole

A shared cluster is kept only if the test has passed, nothing of it goes on, every task has the process that
it had, and the tasks could be tidied (`tfmagic.task.test_cleanup`). Else it is stopped, and the next test
starts it anew, which takes a tenth of a second: cheaper than to find out what is still good in it.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfmagic.clusters.cluster import Cluster
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.folder import RunFolder, file_size
from tfmagic.supervisor.state import Phase
from tfmagic.task import test_cleanup

_IN_ORDER = ("workers", "ps", "chief", "evaluator")  # of Cluster
SCOPES = ("function", "class", "module", "session")
_SETTLE_S = 6.0  # an interrupt ends a cell, or its process, within two seconds; a busy machine needs more
_TIDY_S = 20.0  # milliseconds; the first call in a process that has made a big graph collects that
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """What a test wants: the arguments of `Cluster`, and for how long the cluster lives."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    scope: str = "function"

    def make(self, name: str, timeout_s: float = 0.0) -> Cluster:
        """The cluster, not started.

        Raises:
            TypeError, ValueError: The arguments make no sense.
            BackendError: There is no such backend.
        """
        return Cluster(**{"name": name, "timeout_s": timeout_s, **self.arguments})

    @property
    def key(self) -> str:
        """Equal for wishes that one cluster can fulfil."""
        made = self.make("any")
        return repr((made.shape, made.make, sorted(self.arguments.items(), key=lambda item: item[0])))


def read_wish(
    arguments: tuple[Any, ...], keywords: Mapping[str, Any], param: object = None
) -> ClusterRequest:
    """The wish of a marker's arguments, with a parameter of the fixture on top: a mapping, or of workers.

    Raises:
        TypeError, ValueError: They make no sense.
        BackendError: There is no such backend.
    """
    if len(arguments) > len(_IN_ORDER):
        raise TypeError(f"only {', '.join(_IN_ORDER)} can be given by place; name the others")
    placed = dict(zip(_IN_ORDER, arguments, strict=False))
    if twice := sorted(placed.keys() & keywords.keys()):
        raise TypeError(f"{', '.join(twice)} is given twice")
    wanted = {**placed, **keywords}
    if isinstance(param, Mapping):
        wanted.update(param)
    elif isinstance(param, int):
        wanted["workers"] = param
    elif param is not None:
        raise TypeError(f"a parameter is a number of workers, or a dict of arguments, not {param!r}")
    scope = wanted.pop("scope", "function")
    if scope not in SCOPES:
        raise ValueError(f"scope is one of {', '.join(SCOPES)}, not {scope!r}")
    wish = ClusterRequest(wanted, scope)
    wish.make("any")
    return wish


class ClusterPool:
    """The clusters of a test session.

    Args:
        timeout_s: Seconds after which a call without a limit of its own is stopped; 0: never.
    """

    def __init__(self, timeout_s: float = 0.0):
        self._timeout_s = timeout_s
        self._shared: dict[tuple[str, str], Cluster] = {}

    def prepare(self, wish: ClusterRequest, owner: str, name: str) -> ClusterLease:
        """A loan that has not begun.

        Args:
            owner: Whose tests share a cluster: the id of a class, a module or the session.
            name: Of the test.
        """
        if wish.scope == "function":
            return ClusterLease(wish.make(_name_cluster(name), self._timeout_s), False)
        key = (owner, wish.key)
        if key not in self._shared:
            self._shared[key] = wish.make(_name_cluster(owner or wish.scope), self._timeout_s)
        return ClusterLease(self._shared[key], True)

    def close(self, owner: str | None = None) -> None:
        """End the shared clusters of this owner, or all."""
        for key in [key for key in self._shared if owner in (None, key[0])]:
            cluster = self._shared.pop(key)
            cluster.stop()


def _name_cluster(test: str) -> str:
    name = re.sub(r"[^\w-]+", "-", test.rpartition("/")[2]).strip("-")
    return name[:60] or "test"


class ClusterLease:
    """A cluster for the time of one test.

    Attributes:
        starts: Where in each task's log the test began.
        run: Where the logs are; None before there are any.
    """

    def __init__(self, cluster: Cluster, shared: bool):
        self.cluster, self.shared = cluster, shared
        self.starts: dict[TaskId, int] = {}
        self._began_in: RunFolder | None = None
        self._attempts: dict[TaskId, int] = {}
        self._threads: set[threading.Thread] = set()

    @property
    def run(self) -> RunFolder | None:
        life = self.cluster._life
        return None if life is None else life.run

    def start_of(self, task: TaskId) -> int:
        """The length of the task's log when the test began."""
        return self.starts.get(task, 0) if self.run is self._began_in else 0

    def begin(self) -> Cluster:
        """The cluster, running, with every task whole.

        Raises:
            LaunchError: It could not be started.
        """
        __tracebackhide__ = True
        cluster = self.cluster
        self._threads = set(threading.enumerate())
        if cluster.running and self._is_whole():
            assert self.run is not None
            self.starts = {task: file_size(self.run.log_path(task)) for task in cluster.tasks}
        else:
            cluster.stop()
            cluster.start()
            if self.shared:
                cluster.run(test_cleanup.remember, on="all", view="quiet")
        self._began_in = self.run
        self._attempts = cluster._running_life().attempts(cluster.tasks)
        return cluster

    def end(self, failed: bool) -> None:
        """Take the cluster back: what goes on is interrupted; it is kept for others only if it is clean."""
        was_busy = self._settle()
        if self.shared and not (failed or was_busy) and self._is_clean():
            return
        folder = None if self.run is None else self.run.folder
        self.cluster.stop()
        if folder is not None and not (failed or self.shared):
            shutil.rmtree(folder, ignore_errors=True)  # thousands of tests would slow every start

    def _settle(self) -> bool:
        """Interrupt what the test has left under way, and wait for its end; whether there was something."""
        deadline = time.monotonic() + _SETTLE_S
        was_busy, asked = False, False
        while (busy := self._is_busy()) or self._is_settling():
            was_busy = True
            if busy and not asked:
                self.cluster.interrupt()
            asked = busy
            if time.monotonic() > deadline:
                self.cluster.stop()
                break
            time.sleep(_LOOK_S)
        return was_busy

    def _is_busy(self) -> bool:
        life = self.cluster._life
        return life is not None and life.is_busy

    def _is_settling(self) -> bool:
        """Whether a thread of `Cluster.submit` has still to settle its future."""
        fresh = set(threading.enumerate()) - self._threads
        return any(thread.name == "tfmagic-call" for thread in fresh)

    def _is_whole(self) -> bool:
        state = self.cluster._running_life().supervisor.state
        ready = all(seen.phase is Phase.READY for seen in state.tasks.values())
        return ready and not state.cells and not self.cluster.faults.at_work

    def _is_clean(self) -> bool:
        cluster = self.cluster
        if not cluster.running or not self._is_whole():
            return False
        life = cluster._running_life()
        if self.run is not self._began_in or life.attempts(cluster.tasks) != self._attempts:
            return False
        try:
            reasons = cluster.run(test_cleanup.tidy, on="all", view="quiet", timeout=_TIDY_S)
        except Exception:  # whatever the test has done to its task: the process is not used again
            return False
        life.forget_names()
        return not any(reasons.values())
