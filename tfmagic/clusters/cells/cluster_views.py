"""The views of a cluster's cells, and the notes that they get after the end."""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfmagic.clusters.cells import features
from tfmagic.clusters.cells.job import Job
from tfmagic.failures import ipython_tracebacks, root_cause
from tfmagic.failures.deaths import describe_end
from tfmagic.failures.root_cause import FailureContext
from tfmagic.protocol.cluster_spec import Shape, TaskId
from tfmagic.runs.given_hints import append_hint
from tfmagic.supervisor.cell_controls import CellControls
from tfmagic.supervisor.state import CellState, ClusterState, Phase
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system.advice import Step
from tfmagic.views.facts import describe_in_full, find_left, find_news
from tfmagic.views.hints import CellHints
from tfmagic.views.protocol import View, ViewContext
from tfmagic.views.task_widgets import TaskWidgets
from tfmagic.views.text import QuietView, TextView


class ClusterViews:
    """Makes the view of each cell, and tells the last cell's view of tasks that die after it.

    Args:
        name: The cluster's.
        widgets: The widgets of its tasks.
        main: Returns the ``__main__`` of the notebook.
        oom_kills: Processes that the kernel of the machine had killed before for lack of memory.
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        supervisor: Supervisor,
        widgets: TaskWidgets,
        main: Callable[[], Mapping[str, Any]],
        oom_kills: int,
    ):
        self._name, self._shape, self._supervisor = name, str(shape), supervisor
        self.widgets, self.oom_kills, self._main = widgets, oom_kills, main
        self._last_cell: Job | None = None  # of the user
        self._noted_ends: dict[TaskId, int] = {}  # attempts

    def make_view(self, job: Job) -> View:
        """Return the view of a job that was started."""
        command, view = job.command, job.options.view
        job.describe = lambda outcome: describe_in_full(self._context(job), outcome)
        job.note_hints = functools.partial(_note_hints, job)
        if view == "quiet":  # a push or a pull must not hang in silence
            find = find_left if command.source or command.call else find_news
            return QuietView(job.displays, lambda: find(self._context(job)))
        context = self._context(job)
        if callable(view):
            return view(context)
        return TextView(
            job.run,
            job.starts.items(),
            job.displays,
            has_begun=context.has_begun,
            news=functools.partial(find_news, context),
            cell=job.number,
            has_records=lambda: job.has_records,
            hints=CellHints(job.run, job.number, lambda: job.has_hints),
        )

    def _context(self, job: Job) -> ViewContext:
        command = job.command
        return ViewContext(
            cluster=self._name,
            shape=self._shape,
            folder=job.run,
            run=job,
            supervisor=self._supervisor,
            controls=CellControls(self._supervisor, job.number),
            failures=functools.partial(root_cause.describe_failures, context=self.failure_context(job)),
            source=command.source,
            filename=command.filename,
            prompt=command.prompt or ipython_tracebacks.prompt_of(command.filename),
            notifies=job.announces_end,
            widgets=self.widgets,
        )

    def failure_context(self, job: Job, stacks_text: str = "") -> FailureContext:
        """Return the context that explains the failures of a job."""
        return FailureContext(
            self._main(), job.run, self.oom_kills, stacks_text, ipython_tracebacks.shown_name, job.starts
        )

    def note_begun(self, job: Job) -> None:
        """Remember the last cell."""
        if job.command.source:
            self._last_cell = job

    def note_ends(self, state: ClusterState) -> None:
        """Note each death between cells in the view of the last cell. Called on the supervisor's thread."""
        for task, seen in state.tasks.items():
            if seen.phase is not Phase.DEAD or seen.end is None or self._noted_ends.get(task) == seen.attempt:
                continue
            self._noted_ends[task] = seen.attempt
            job = self._last_cell
            outcome = None if job is None else job.outcome
            if job is None or outcome is None or state.cells or outcome.outcomes.get(task) == seen.end:
                continue  # a cell reports it
            how = f"{task} {describe_end(seen.end, self.oom_kills)}"
            self.note(f"{how}; {Step('revive')} brings it back")

    def note(self, what: str) -> None:
        """Show what has happened in the view of the last cell, if that is over."""
        if self._last_cell is not None and self._last_cell.outcome is not None:
            self._last_cell.add_note(f"after this cell, at {time.strftime('%H:%M:%S')}, {what}")


def _note_hints(job: Job, outcome: CellState) -> None:
    """Keep what features find in the end of a job, beside what its tasks have found."""
    for hint in features.find_hints(outcome.outcomes):
        append_hint(job.run, job.number, hint)
        job.has_hints = True
