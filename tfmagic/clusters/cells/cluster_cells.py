"""The cells and calls of a cluster, from their plan to their results.

CellPlan ── TaskVariables ──→ a command for each task ──→ Job ──→ supervisor
                                                           └── settle: results, or an error ←── outcome
"""

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tfmagic.clusters.cells import features, results
from tfmagic.clusters.cells.cell_plan import CellPlan, Options, ViewChoice
from tfmagic.clusters.cells.cluster_views import ClusterViews
from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.cells.rejoining import rejoin
from tfmagic.clusters.cells.results import CellResult
from tfmagic.clusters.cells.task_variables import Prepared, TaskVariables
from tfmagic.clusters.cells.unseen_output import UnseenOutput
from tfmagic.clusters.launch.cluster_processes import ClusterProcesses
from tfmagic.clusters.launch.kept_clusters import Resumed
from tfmagic.errors import TaskDied, TfmagicError
from tfmagic.failures import ipython_tracebacks, root_cause, stacks
from tfmagic.failures.deaths import DeathReports
from tfmagic.failures.root_cause import FailureContext
from tfmagic.protocol.cluster_spec import Selector, TaskId, select
from tfmagic.protocol.commands import CellKind, Rejoin
from tfmagic.protocol.events import CellRequested, GroupChanged
from tfmagic.runs.given_hints import read_hints
from tfmagic.serialization import exceptions
from tfmagic.supervisor.state import CellState, Phase
from tfmagic.system import notices


class ClusterCells:
    """Starts the cells of one cluster, under the lock of its owner, and settles them, by any thread.

    Args:
        companions: What features have beside the cluster.
        main: Returns the ``__main__`` whose functions and variables travel by name.

    Attributes:
        last: The outcome of the last cell or call of the user, and the context of its failures.
    """

    def __init__(
        self,
        processes: ClusterProcesses,
        views: ClusterViews,
        variables: TaskVariables,
        companions: Sequence[features.Companion],
        main: Callable[[], dict[str, Any]],
        lock: threading.RLock,
    ):
        self._processes, self._views, self._variables = processes, views, variables
        self._supervisor, self._kept_record = processes.supervisor, processes.kept_record
        self._main, self._lock = main, lock
        self._cell_tasks = processes.shape.cell_tasks
        self._companions = companions
        self._context = features.Context(processes.setting, processes.supervisor, self._run_empty)
        self._under_way: dict[int, Job] = {}
        self._refused: Mapping[TaskId, int] = {}  # attempts that could not all be reset
        self._log_starts: dict[TaskId, Mapping[TaskId, int]] = {}  # of the last cell of each task
        self._deaths = DeathReports()
        self._unseen = UnseenOutput(self._supervisor)
        self.last: tuple[CellState, FailureContext] | None = None

    # -- what the tasks have --

    @property
    def is_busy(self) -> bool:
        """True if a cell or call has not ended, including those that the supervisor has not seen yet."""
        return self._processes.running and any(job.outcome is None for job in list(self._under_way.values()))

    def forget_names(self) -> None:
        """Forget which names the tasks have, since they have deleted them."""
        self._variables.forget()

    def note_renewed(self) -> None:
        """Let features forget what the tasks have done: all have new processes."""
        features.renewed(self._context)

    def note_reloaded(self, found: Mapping[str, Mapping[str, str]]) -> None:
        """Record the modules that tasks have reloaded: their digests by name, by name of the task."""
        for task in self._processes.tasks:
            if task.name in found:
                self._variables.note_reloaded(self._processes.attempts((task,)), found[task.name])

    def targets(self, on: Selector) -> dict[TaskId, int]:
        """Return the present attempt of each selected task. Raise `TaskDied` if one is dead."""
        processes = self._processes
        tasks = self._cell_tasks if on is None else select(on, processes.tasks)
        state = self._supervisor.state
        for task in tasks:
            seen = state.tasks[task]
            if seen.phase is Phase.DEAD and seen.end is not None:
                since = self._log_starts.get(task, {}).get(task, 0)
                raise self._deaths.error_of(seen.end, processes.run, self._views.oom_kills, since)
        return processes.attempts(tasks)

    # -- begin --

    def begin(
        self, plan: CellPlan, detached: bool = False, may_begin: Callable[[], bool] | None = None
    ) -> Job:
        """Start a cell or call. Unless it is `detached`, `waiting.finish` must be called next.

        `may_begin` is described at `RunningCell`. Raise as `Cluster.begin_cell`.
        """
        if plan.source or plan.call is not None:
            self._rejoin_if_possible()
        self._note_ended()
        attempts = self.targets(plan.options.on)
        prepared = self._variables.commands_for(plan, attempts)
        if plan.kind is not CellKind.ASIDE:
            features.old_modules(lambda: self._variables.find_old_modules(prepared), self._context)
            self._variables.tell_left_out(prepared)
            if not plan.options.is_quiet:
                self._unseen.tell()
        return self._start(prepared, plan.options, detached, may_begin)

    def begin_on(self, plan: CellPlan, tasks: Iterable[TaskId], detached: bool = False) -> Job:
        """Start a cell on the present processes of these tasks, in whatever state they are."""
        self._note_ended()
        prepared = self._variables.commands_for(plan, self._processes.attempts(tasks))
        return self._start(prepared, plan.options, detached)

    def new_group(self) -> int:
        """Return a number under which one-shot tasks meet at barriers."""
        group = next(self._variables.numbers)
        self._supervisor.ask(GroupChanged(group, {}))
        return group

    def resume(self, found: Resumed, view: ViewChoice) -> list[Job]:
        """Go on with the cells of a former kernel; return their jobs, which the supervisor must get."""
        self._variables.resume(found.owned, found.last_number)
        jobs = []
        for cell in found.cells:
            request = cell.request
            options = Options(None, request.timeout_s, request.keep_going, cell.out, view)
            job = self._make_job(request, options)
            job.resume(cell.starts, cell.age_s)
            jobs.append(job)
            self._note_begun(job)
            self._variables.expect(request.commands, {task: found.owned[task][0] for task in job.tasks})
        return jobs

    def rejoin(self) -> None:
        """Give all tasks new addresses; see `rejoining.rejoin`."""
        rejoin(self._processes, self.begin_on)

    def _rejoin_if_possible(self) -> None:
        """Rejoin restarted tasks before a cell of the user, so that all of its tasks can meet.

        The cell might need no strategy at all, so an obstacle is only printed, once.
        """
        if not self._processes.must_rejoin() or self._supervisor.state.cells:
            return
        if (attempts := self._processes.attempts(self._processes.tasks)) == self._refused:
            return
        try:
            self.rejoin()
        except (RuntimeError, TfmagicError) as error:
            self._refused = attempts
            notices.say(f"tfmagic: {error}")

    def _start(
        self,
        prepared: Prepared,
        options: Options,
        detached: bool,
        may_begin: Callable[[], bool] | None = None,
    ) -> Job:
        commands = prepared.commands
        command = next(iter(commands.values()))
        timeout_s = options.timeout_s or self._processes.setting("timeout_s") or None
        if isinstance(command.kind, Rejoin):  # no task is killed since it rejoins slowly
            timeout_s = None
        request = CellRequested(command.cell, commands, timeout_s, options.keep_going, attended=not detached)
        job = self._make_job(request, options, may_begin)
        self._kept_record.begin(job)
        features.begin(job, self._context)
        job.start(takes_ctrl_c=not detached)
        self._variables.handed_over(prepared)
        self._note_begun(job)
        features.begun(job, self._context)
        if detached:
            self._variables.expect(commands, self._processes.attempts(commands))
        return job

    def _make_job(
        self, request: CellRequested, options: Options, may_begin: Callable[[], bool] | None = None
    ) -> Job:
        views = self._views
        return Job(
            request, options, self._supervisor, views.widgets, views.make_view, self._settle, may_begin
        )

    def _run_empty(self, plan: CellPlan, tasks: Iterable[TaskId]) -> Job:
        with self._lock:  # a thread that settles has not taken it
            return self.begin_on(plan, tasks, detached=True)

    def _note_begun(self, job: Job) -> None:
        self._under_way[job.number] = job
        self._views.note_begun(job)
        self._unseen.note_begun(job)
        if job.command.is_users:
            self._log_starts.update(dict.fromkeys(job.tasks, job.starts))

    # -- settle --

    def _note_ended(self) -> None:
        """Record the names that the cells which have ended meanwhile assigned in the tasks."""
        for job in list(self._under_way.values()):
            outcome = job.outcome
            if outcome is not None:
                self._variables.note(outcome)
                self._unseen.note_ended(job, outcome)
                del self._under_way[job.number]

    def _settle(self, job: Job, outcome: CellState) -> CellResult:
        """Unpack what the tasks returned, or raise what they raised."""
        features.end(job, outcome.outcomes, self._context)
        with self._lock:
            self._note_ended()
            self._kept_record.settle(job.number)
        run = self._processes.run
        results.warn_of_lost_output(outcome, run, self._supervisor.closed_logs)
        results.report_restored_folder(run)
        faults = [each.settle(job.number) for each in self._companions]
        context = self._views.failure_context(job, stacks.read_grouped(run, job.dumps))
        if job.command.is_users:
            self.last = (outcome, context)
        self._deaths.note(outcome.outcomes)
        error = root_cause.build_error(outcome, context)
        starts, pull, names = job.starts, job.command.pull, self._main()
        what = (outcome, starts, pull, names, run, job.found)
        unpack = functools.partial(results.unpack_outcome, *what, writable=job.options.copies)
        if error is not None:
            for hint in read_hints(run, job.number) if job.has_hints else ():
                exceptions.add_note(error, hint.note)
            if job.options.keep_going:
                job.partial = unpack(in_part=True)
            self._note_new_process(error)
            explain = functools.partial(root_cause.explain, outcome, error, context)
            raise ipython_tracebacks.hide_our_frames(error, explain)
        if (fault := next(filter(None, faults), None)) is not None:
            raise fault
        try:
            return unpack()
        except NameError as missing:  # a variable that was pulled
            raise ipython_tracebacks.hide_our_frames(missing)  # noqa: B904 - the same

    def _note_new_process(self, error: BaseException) -> None:
        """Add a note to `error` if the task that died has another process by now."""
        for task, seen in self._supervisor.state.tasks.items():
            if isinstance(error, TaskDied) and error.task == task.name and seen.phase is not Phase.DEAD:
                error.add_note(f"by now {task} has a new process, or gets one, without its variables")
