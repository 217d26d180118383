"""Cells that run in the background: ``%%tfcluster --detach``, and ``%tfcluster wait`` for their end.

In a notebook the event loop follows each cell: its panel stays live, and at its end `--out` and `--pull` are
bound. In a terminal a cell is shown while ``%tfcluster wait`` waits for it. A cell's exception is raised by
``%tfcluster wait``.
"""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from tfmagic.clusters.cells import waiting
from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.cells.results import CellResult, TaskResults
from tfmagic.clusters.cluster import Cluster
from tfmagic.errors import TaskTimeoutError, TfmagicError
from tfmagic.frontends.notebook import awaited_cells, reports, view_choice
from tfmagic.runs import feature_fields
from tfmagic.runs.schemas import (
    CellReport,
    as_json,
    cell_report,
    describe,
    wait_report,
)
from tfmagic.serialization import exceptions
from tfmagic.supervisor import stall_sentences
from tfmagic.views.recorded_text import RecordedText
from tfmagic.views.words import duration

_ACTIVE_S = 2.0  # between two messages; what a server counts as idle is a minute and more


class DetachedJob:
    """A job in the background, and the name `out` to which its results will be bound."""

    def __init__(self, cluster: Cluster, job: Job, out: str | None):
        self.cluster, self.job, self.out = cluster, job, out
        self.error: BaseException | None = None
        self.results: TaskResults[Any] | None = None
        self.is_settled = self.has_ended = False
        self.follower: Any = None  #: The task of the event loop that shows it.

    def settle(self, namespace: dict[str, Any]) -> None:
        """Bind the results, or keep the exception, with what there is if some tasks have returned.

        Does nothing a second time.
        """
        if self.is_settled:
            return
        self.is_settled = True
        try:
            result: CellResult = self.job.settle()
        except BaseException as error:  # raised by `DetachedJobs.wait`
            self.error = error
            if self.job.partial is not None:
                bind(namespace, self.job.partial, self.out)
        else:
            self.results = result.results
            bind(namespace, result, self.out)


class DetachedCell:
    """The value of ``--out NAME`` until the results of a detached cell replace it."""

    def __init__(self, found: DetachedJob, namespace: dict[str, Any]):
        self._found, self._namespace = found, namespace

    @property
    def done(self) -> bool:
        """Whether the cell has ended."""
        return self._found.job.done.is_set()

    def result(self, timeout: float | None = None) -> TaskResults[Any] | None:
        """Wait for the cell, and return its results.

        Raises:
            TaskTimeoutError: It still runs after `timeout` seconds.
            BaseException: What a task raised.
        """
        if not waiting.wait(self._found.job, timeout):
            raise TaskTimeoutError(_still_runs(self._found))
        self._found.settle(self._namespace)
        if self._found.error is not None:
            raise self._found.error
        return self._found.results

    def __repr__(self) -> str:
        return f"<{describe(_report(self._found))}>"

    def __getitem__(self, task: str) -> Any:
        """Return the result of a task. Raise `TfmagicError` while the cell runs, or where it has failed."""
        if not self.done or self._found.results is None:
            raise TfmagicError(f"there is no result: {describe(_report(self._found))}")
        return self._found.results[task]

    def __reduce__(self) -> NoReturn:
        raise TypeError("it stands for the results of a detached cell;  %tfcluster wait  waits for them")


class DetachedJobs:
    """The detached jobs of one notebook, in the order of their start."""

    def __init__(self, shell: Any):
        self._shell = shell
        self._jobs: list[DetachedJob] = []
        self._unseen: list[DetachedJob] = []  # ended while no cell waited; see `View.show_now`
        self._followers: set[Any] = set()  # the event loop keeps its tasks only weakly

    def add(self, cluster: Cluster, job: Job, out: str | None) -> None:
        """Look after a job that has begun. Where no panel shows it, say how to wait and to look."""
        found = DetachedJob(cluster, job, out)
        self._jobs.append(found)
        job.show_now()
        if out:
            self._shell.user_ns[out] = DetachedCell(found, self._shell.user_ns)
        if isinstance(job.view, RecordedText):
            print(_describe_start(found))
        if awaited_cells.can_await(self._shell):
            self._follow(found)

    def running(self) -> list[Job]:
        """Return the jobs that have not ended."""
        return [found.job for found in self._jobs if not found.job.done.is_set()]

    def wait(self, cluster: Cluster, timeout_s: float | None, plain: bool = False) -> str:
        """Wait for the detached cells of a cluster, and return a sentence about them.

        With `plain` it is a `WaitReport` as JSON, which is also printed before an exception is raised.

        Raises:
            BaseException: When a cell has failed: the exception of the first one. Another call raises the
                next one.
        """
        sentences, jobs = self._begin_wait(cluster)
        for found, left_s in _each(jobs, timeout_s):
            found.has_ended = waiting.wait(found.job, left_s)
        return self._end_wait(cluster, jobs, sentences, plain)

    async def wait_async(self, cluster: Cluster, timeout_s: float | None, plain: bool = False) -> str:
        """Do as `wait`, while the event loop goes on."""
        import asyncio

        sentences, jobs = self._begin_wait(cluster)
        for found, left_s in _each(jobs, timeout_s):
            if (
                plain and found.follower is not None
            ):  # which shows its lines below the cell, not above the JSON
                found.has_ended = bool((await asyncio.wait([found.follower], timeout=left_s))[0])
            else:
                found.has_ended = await waiting.wait_async(found.job, left_s)
        return self._end_wait(cluster, jobs, sentences, plain)

    def _begin_wait(self, cluster: Cluster) -> tuple[list[str], list[DetachedJob]]:
        """Return a sentence for each cell of former processes of the cluster, and the jobs to wait for."""
        for found in [found for found in self._unseen if found.cluster.name == cluster.name]:
            self._unseen.remove(found)
            found.job.show_now()
        jobs = [found for found in self._jobs if found.cluster.name == cluster.name]
        run = str(cluster.run_folder)
        former = [found for found in jobs if str(found.job.run) != run and found.job.done.is_set()]
        for found in former:  # the user has stopped that cluster: what failed there is told, not raised
            self._jobs.remove(found)
            found.settle(self._shell.user_ns)
        return [_describe_former(found) for found in former], [found for found in jobs if found not in former]

    def _end_wait(
        self, cluster: Cluster, jobs: Sequence[DetachedJob], sentences: Sequence[str], plain: bool
    ) -> str:
        ended = [found for found in jobs if found.has_ended]
        text = ""
        if plain:
            text = as_json(wait_report(cluster.name, cluster.run_folder, [*map(_report, jobs)]))
        for found in ended:
            found.job.show_now()
            found.settle(self._shell.user_ns)
        failed = [found for found in ended if found.error is not None]
        for found in ended:
            if found in self._jobs and found not in failed[1:]:  # otherwise its follower has removed it
                self._jobs.remove(found)
        if failed and failed[0].error is not None:
            if plain:
                print(text)
            raise failed[0].error
        running = [found for found in jobs if not found.has_ended]
        sentences = [*sentences, *map(_describe_end, ended), *map(_still_runs, running)]
        if running:
            sentences.append("wait again, or end it with  %tfcluster interrupt")
        return text or _describe_wait(cluster.name, sentences)

    def _follow(self, found: DetachedJob) -> None:
        import asyncio

        async def follow() -> None:
            active = asyncio.create_task(self._stay_active())
            try:
                await waiting.wait_async(found.job, answers=False)
            finally:
                active.cancel()
            found.settle(self._shell.user_ns)
            if found.error is None and found in self._jobs and not isinstance(found.job.view, RecordedText):
                self._jobs.remove(found)  # its panel shows the end; that of the others is told by `wait`
                if not view_choice.is_watched(self._shell):
                    self._unseen.append(found)

        task = asyncio.get_running_loop().create_task(follow(), name=f"tfmagic-cell-{found.job.number}")
        found.follower = task
        self._followers.add(task)
        task.add_done_callback(self._followers.discard)

    async def _stay_active(self) -> None:
        """Send a message that no client heeds, now and then: servers end kernels that send none for long."""
        import asyncio

        kernel, content = self._shell.kernel, {"comm_id": "tfmagic-active", "data": {}}
        while True:
            await asyncio.sleep(_ACTIVE_S)
            kernel.send_response(kernel.iopub_socket, "comm_msg", content)


def _each(jobs: Sequence[DetachedJob], timeout_s: float | None) -> Iterator[tuple[DetachedJob, float]]:
    """Yield each job, with the seconds that are left for it."""
    deadline = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
    for found in jobs:
        yield found, deadline - time.monotonic()


def bind(namespace: dict[str, Any], result: CellResult, out: str | None) -> None:
    """Bind what a cell has brought: the variables that were pulled, and its results under the name `out`."""
    namespace.update(result.pulled)
    if out:
        namespace[out] = result.results


def _describe_wait(name: str, sentences: Sequence[str]) -> str:
    return f"tfmagic: cluster {name}: {'; '.join(sentences) or 'no detached cell is left to wait for'}"


def _describe_start(found: DetachedJob) -> str:
    job, more = found.job, reports.naming(found.cluster.name)
    return (
        f"tfmagic: cell [{job.command.prompt}] runs on {', '.join(t.name for t in job.tasks)};  "
        f"%tfcluster wait{more}  waits for it,  %tfcluster wait --timeout 1{more}  says how far it is,  "
        f"%tfcluster logs{more}  shows its lines"
    )


def _describe_end(found: DetachedJob) -> str:
    job, outcome = found.job, found.job.outcome
    seconds = 0.0 if outcome is None else max(outcome.ended_at.values()) - outcome.started
    bound = ", ".join(job.command.pull)
    fields = {task.name: feature_fields.of_task(job.run, task, job.number) for task in job.tasks}
    recorded = ", ".join(feature_fields.describe(fields))
    return (
        f"cell [{job.command.prompt}] done on {', '.join(t.name for t in job.tasks)} after "
        f"{duration(seconds)}{f', {bound} pulled' if bound else ''}{recorded and ': '}{recorded}"
    )


def _describe_former(found: DetachedJob) -> str:
    """Describe a cell of a cluster that was stopped since."""
    if found.error is None:
        return f"{_describe_end(found)}, before the cluster was stopped"
    if found.job.outcome is None:
        return f"cell [{found.job.command.prompt}] was stopped with its cluster"
    return (
        f"cell [{found.job.command.prompt}] had failed before the cluster was stopped "
        f"({exceptions.describe(found.error)})"
    )


def _report(found: DetachedJob) -> CellReport:
    """Return how far a cell is, or how it ended."""
    job, lines = found.job, {}
    state = job.supervisor.state.cells.get(job.number)
    for task in () if state is None else state.waiting_for:
        place = state.place(task) if state is not None else None
        if place is not None:
            lines[task.name] = place.line
    return cell_report(job.describe(job.outcome), job.run, lines)


def _still_runs(found: DetachedJob) -> str:
    job, now = found.job, time.monotonic()
    state, waits = job.supervisor.state.cells.get(job.number), ""
    if state is not None:
        waits = stall_sentences.explain(
            job.supervisor.state, state, job.supervisor.policy(), now, after_s=0.0
        )
    return f"{describe(_report(found))}{waits and '; '}{waits}"
