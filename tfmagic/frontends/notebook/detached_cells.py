"""Cells that nobody waits for: ``%%tfcluster --detach``, and ``%tfcluster wait``.

In a notebook each is followed on the event loop: its panel stays live, and when it has ended, `--out` and
`--pull` are bound. In a terminal a cell is shown when somebody waits for it. What it raised is raised then.
"""

from __future__ import annotations

import time
from typing import Any

from tfmagic.clusters import waiting as execution
from tfmagic.clusters.cluster import Cluster
from tfmagic.clusters.job import Job
from tfmagic.clusters.outcomes import CellResult
from tfmagic.errors import TaskTimeoutError
from tfmagic.frontends.notebook import awaited_cells


class DetachedJob:
    """A job that goes on by itself, and what is to be bound when it has ended."""

    def __init__(self, cluster: Cluster, job: Job, out: str | None):
        self.cluster, self.job, self.out = cluster, job, out
        self.error: BaseException | None = None
        self.is_settled = False

    def settle(self, namespace: dict[str, Any]) -> None:
        """Bind its results, or keep what it raised. Does nothing a second time."""
        if self.is_settled:
            return
        self.is_settled = True
        try:
            result: CellResult = self.job.settle()
        except BaseException as error:  # it belongs to whoever waits
            self.error = error
            return
        namespace.update(result.pulled)
        if self.out:
            namespace[self.out] = result.results


class DetachedJobs:
    """Those of one notebook, in their order."""

    def __init__(self, shell: Any):
        self._shell = shell
        self._jobs: list[DetachedJob] = []
        self._followers: set[Any] = set()  # the loop itself keeps its tasks only weakly

    def add(self, cluster: Cluster, job: Job, out: str | None) -> None:
        """Look after a job that has begun."""
        found = DetachedJob(cluster, job, out)
        self._jobs.append(found)
        if awaited_cells.can_await(self._shell):
            self._follow(found)

    def running(self) -> list[Job]:
        """The jobs that have not ended."""
        return [found.job for found in self._jobs if not found.job.run.done.is_set()]

    def wait(self, name: str, timeout_s: float | None) -> None:
        """Wait for the cells that were detached on the cluster of that name; raise what they raised.

        Raises:
            BaseException: What the first of them that failed has raised; the others can be waited for.
            TaskTimeoutError: One goes on after `timeout_s` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for found in self._of(name):
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not execution.wait(found.job, left_s):
                raise _still_runs(found)
            self._take(found)

    async def wait_async(self, name: str, timeout_s: float | None) -> None:
        """As `wait`, while the event loop goes on."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for found in self._of(name):
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not await execution.wait_async(found.job, left_s):
                raise _still_runs(found)
            self._take(found)

    def _of(self, name: str) -> list[DetachedJob]:
        return [found for found in self._jobs if found.cluster.name == name]

    def _take(self, found: DetachedJob) -> None:
        if found in self._jobs:  # else its follower was first
            self._jobs.remove(found)
        found.settle(self._shell.user_ns)
        if found.error is not None:
            raise found.error

    def _follow(self, found: DetachedJob) -> None:
        import asyncio

        async def follow() -> None:
            await execution.follow(found.job)
            found.settle(self._shell.user_ns)
            if found.error is None and found in self._jobs:  # nothing is left to wait for
                self._jobs.remove(found)

        task = asyncio.get_running_loop().create_task(follow(), name=f"tfmagic-cell-{found.job.number}")
        self._followers.add(task)
        task.add_done_callback(self._followers.discard)


def _still_runs(found: DetachedJob) -> TaskTimeoutError:
    state = found.job.supervisor.state.cells.get(found.job.number)
    waiting = found.job.tasks if state is None else state.waiting_for
    places = []
    for task in waiting:
        mark = None if state is None else state.marks.get(task)
        place = None if mark is None else mark.place
        places.append(task.name if place is None else f"{task} (line {place.line})")
    return TaskTimeoutError(
        f"the detached cell still runs on {', '.join(places)}; it goes on. Wait again, or end it with  "
        "%tfcluster interrupt"
    )
