"""Cells that run in the background: ``%%tfcluster --detach``, and ``%tfcluster wait`` for their end.

In a notebook the event loop follows each cell: its panel stays live, and at its end `--out` and `--pull` are
bound. In a terminal a cell is shown while ``%tfcluster wait`` waits for it. A cell's exception is raised by
``%tfcluster wait``.
"""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tfmagic.clusters import waiting
from tfmagic.clusters.cluster import Cluster
from tfmagic.clusters.job import Job
from tfmagic.clusters.results import CellResult
from tfmagic.errors import TaskTimeoutError
from tfmagic.frontends.notebook import awaited_cells, view_choice
from tfmagic.supervisor import stalls
from tfmagic.views.static_html import duration


class DetachedJob:
    """A job in the background, and the name `out` to which its results will be bound."""

    def __init__(self, cluster: Cluster, job: Job, out: str | None):
        self.cluster, self.job, self.out = cluster, job, out
        self.error: BaseException | None = None
        self.is_settled = False

    def settle(self, namespace: dict[str, Any]) -> None:
        """Bind the results, or keep the exception. Does nothing a second time."""
        if self.is_settled:
            return
        self.is_settled = True
        try:
            result: CellResult = self.job.settle()
        except BaseException as error:  # raised by `DetachedJobs.wait`
            self.error = error
            return
        namespace.update(result.pulled)
        if self.out:
            namespace[self.out] = result.results


class DetachedJobs:
    """The detached jobs of one notebook, in the order of their start."""

    def __init__(self, shell: Any):
        self._shell = shell
        self._jobs: list[DetachedJob] = []
        self._unseen: list[DetachedJob] = []  # ended while no cell waited; see `View.show_now`
        self._followers: set[Any] = set()  # the event loop keeps its tasks only weakly

    def add(self, cluster: Cluster, job: Job, out: str | None) -> None:
        """Look after a job that has begun."""
        found = DetachedJob(cluster, job, out)
        self._jobs.append(found)
        job.show_now()
        if awaited_cells.can_await(self._shell):
            self._follow(found)

    def running(self) -> list[Job]:
        """Return the jobs that have not ended."""
        return [found.job for found in self._jobs if not found.job.done.is_set()]

    def wait(self, name: str, timeout_s: float | None) -> str:
        """Wait for the detached cells of the cluster of that name, and return a sentence about them.

        Raises:
            BaseException: The exception of the first cell that failed; another call waits for the rest.
            TaskTimeoutError: A cell still runs after `timeout_s` seconds.
        """
        ended = []
        for found, left_s in self._of(name, timeout_s):
            ended.append(self._take(found, waiting.wait(found.job, left_s)))
        return _describe_wait(name, ended)

    async def wait_async(self, name: str, timeout_s: float | None) -> str:
        """Do as `wait`, while the event loop goes on."""
        ended = []
        for found, left_s in self._of(name, timeout_s):
            ended.append(self._take(found, await waiting.wait_async(found.job, left_s)))
        return _describe_wait(name, ended)

    def _of(self, name: str, timeout_s: float | None) -> Iterator[tuple[DetachedJob, float]]:
        """Yield the jobs of a cluster, each with the seconds that are left for it."""
        for found in [found for found in self._unseen if found.cluster.name == name]:
            self._unseen.remove(found)
            found.job.show_now()
        deadline = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
        for found in [found for found in self._jobs if found.cluster.name == name]:
            yield found, deadline - time.monotonic()

    def _take(self, found: DetachedJob, has_ended: bool) -> Job:
        if not has_ended:
            raise _still_runs(found)
        if found in self._jobs:  # otherwise its follower has removed it
            self._jobs.remove(found)
        found.job.show_now()
        found.settle(self._shell.user_ns)
        if found.error is not None:
            raise found.error
        return found.job

    def _follow(self, found: DetachedJob) -> None:
        import asyncio

        async def follow() -> None:
            await waiting.wait_async(found.job, answers=False)
            found.settle(self._shell.user_ns)
            if found.error is None and found in self._jobs:  # nothing is left to wait for
                self._jobs.remove(found)
                if not view_choice.is_watched(self._shell):
                    self._unseen.append(found)

        task = asyncio.get_running_loop().create_task(follow(), name=f"tfmagic-cell-{found.job.number}")
        self._followers.add(task)
        task.add_done_callback(self._followers.discard)


def _describe_wait(name: str, ended: Sequence[Job]) -> str:
    texts = []
    for job in ended:
        outcome = job.outcome
        seconds = 0.0 if outcome is None else max(outcome.ended_at.values()) - outcome.started
        bound = ", ".join(job.options.pull)
        texts.append(
            f"cell [{job.command.prompt}] done on {', '.join(t.name for t in job.tasks)} after "
            f"{duration(seconds)}{f', {bound} pulled' if bound else ''}"
        )
    return f"tfmagic: cluster {name}: {'; '.join(texts) or 'no detached cell is left to wait for'}"


def _still_runs(found: DetachedJob) -> TaskTimeoutError:
    state = found.job.supervisor.state.cells.get(found.job.number)
    places = []
    for task in found.job.tasks if state is None else state.waiting_for:
        progress = None if state is None else state.progress.get(task)
        place = None if progress is None else progress.place
        places.append(task.name if place is None else f"{task} (line {place.line})")
    waits = ""
    if state is not None:
        supervisor, now = found.job.supervisor, time.monotonic()
        waits = stalls.explain(supervisor.state, state, supervisor.policy(), now, after_s=0.0)
    return TaskTimeoutError(
        f"the detached cell still runs on {', '.join(places)}; {waits}{waits and '; '}it goes on. "
        "Wait again, or end it with  %tfcluster interrupt"
    )
