"""A cluster between its start and its stop: its backend, supervisor, run folder and jobs.

    begin_cell ── CellPlan ── commands for each task ──→ Job ──→ supervisor ──→ settle: results, or an error

`Cluster` and `OneShotTasks` own one each, and call it under their lock: cells begin in the order in which
they were packed. The thread that waits for a job calls `settle`, which takes the same lock.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from tfmagic.backends.local import LocalBackend
from tfmagic.clusters.cells import reloading, results, traces, waiting
from tfmagic.clusters.cells.cell_plan import Call, CellPlan, Options, ViewChoice
from tfmagic.clusters.cells.cluster_views import ClusterViews
from tfmagic.clusters.cells.job import Job
from tfmagic.clusters.cells.results import CellResult
from tfmagic.clusters.cells.task_variables import Prepared, TaskVariables
from tfmagic.clusters.launch import kept_clusters, open_backend
from tfmagic.clusters.launch.kept_clusters import KeptRun
from tfmagic.clusters.launch.settings import TFCluster, policy_source
from tfmagic.clusters.launch.startup import Progress
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.clusters.tools import tensorboard
from tfmagic.clusters.tools.status import StatusWriter
from tfmagic.clusters.tools.timeline_recorder import TimelineRecorder
from tfmagic.errors import LaunchError, TaskDied, TfmagicError
from tfmagic.failures import ipython_tracebacks, root_cause, stacks
from tfmagic.failures.deaths import DeathReports
from tfmagic.failures.root_cause import FailureContext
from tfmagic.hdf5.errors import SharedWriterError
from tfmagic.hdf5.shared_writer.sessions import TaskFiles
from tfmagic.protocol.cluster_spec import GivenSpec, Selector, Shape, TaskId, select
from tfmagic.protocol.commands import TaskBoot
from tfmagic.protocol.events import CellRequested, GroupChanged, LaunchRequested
from tfmagic.supervisor.restarts import must_rejoin
from tfmagic.supervisor.state import ALIVE, CellState, Phase
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system import advice, memory
from tfmagic.system.usage import Usage
from tfmagic.views.task_widgets import TaskWidgets, WidgetPage
from tfmagic.views.time_shares import Profile, compare

_REJOIN_S = 70.0  # mostly milliseconds, but TensorFlow can take up to 60 s to delete an iterator
_QUIET = Options(view="quiet")
_MANY_RESETS = 8  # measured: a process survives about ten, of 97 threads and 41 MiB each


class RunningCluster:
    """The processes of a cluster, and the jobs that they run.

    Args:
        setting: Returns the value of a setting of `TFCluster` for this cluster.
        main: Returns the ``__main__`` whose functions and variables travel by name.
        lock: The owner's.
        widget_page: Where widgets of tasks are shown.
        tasks: The tasks that are started; by default all of the shape.
        progress: Called while the hosts of the tasks are not there yet.
        kept: A run whose tasks are taken over instead, and whose cells are shown by `view`.

    Attributes:
        hosts: The simulated hosts; None without them.
        last: The outcome of the last cell or call of the user, and the context of its failures.
        resumed: The jobs that a former kernel has started.
        imported_under: The variables that TensorFlow's import could see.
        told_late: Names of variables that cells set later, and about which the user was told.

    Raises:
        LaunchError: It could not be started; no process is left.
        ClusterSpecError: The shape needs more GPUs than there are.
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        task_settings: TaskSettings,
        setting: Callable[[str], Any],
        main: Callable[[], dict[str, Any]],
        lock: threading.RLock,
        widget_page: WidgetPage | None = None,
        tasks: tuple[TaskId, ...] | None = None,
        progress: Progress | None = None,
        kept: KeptRun | None = None,
        view: ViewChoice = "text",
    ):
        self._lock = lock
        self.run = run = (
            kept.run if kept else open_backend.create_run_folder(name, shape, task_settings, setting)
        )
        self.name, self.shape = name, shape
        self.tasks = shape.tasks if tasks is None else tasks
        self._task_settings, self._setting, self._main = task_settings, setting, main
        self.imported_under = task_settings.flavour.import_time
        self.told_late: set[str] = set()
        self.oom_kills = memory.count_oom_kills()
        self.forget_names()
        self._under_way: dict[int, Job] = {}
        self._refused: Mapping[TaskId, int] = {}  # attempts that could not all be reset
        self.last: tuple[CellState, FailureContext] | None = None
        backend = open_backend.open_backend(name, shape, task_settings, run, setting, progress, kept)
        self.hosts = backend.simulated if isinstance(backend, LocalBackend) else None
        try:
            self.spec = kept.spec if kept else open_backend.spec_of(shape, backend)
        except OSError as error:
            backend.close()
            raise LaunchError(f"no port could be reserved for every task: {error}") from error
        policy = policy_source(TFCluster.instance(), setting, task_settings.auto_restart)
        self._status_writer = StatusWriter(name, shape, run, lambda: self.spec.addresses)
        self._log_starts: dict[TaskId, Mapping[TaskId, int]] = {}  # of the last cell of each task
        self._deaths = DeathReports()
        self.supervisor = Supervisor(
            backend,
            self.tasks,
            policy,
            self._boot,
            run,
            setting("max_log_bytes"),
            self._observe,
            name=name,
            outlives_us=task_settings.keep_s > 0,
        )
        self.shared_files = TaskFiles()
        self.supervisor.listen(self.shared_files.hear)
        self.widgets = TaskWidgets(widget_page, self.supervisor.ask, lambda: self.is_busy)
        self.supervisor.listen(self.widgets.hear)
        self.supervisor.on_end(self.widgets.end)
        self._views = ClusterViews(name, shape, self.supervisor, self.widgets, main, self.oom_kills)
        self.timeline = TimelineRecorder(run)
        self.supervisor.watch(self.timeline.note)
        self.supervisor.on_end(self.timeline.end)
        self.supervisor.on_end(self.shared_files.finish)
        self.keeper = kept_clusters.Keeper(backend, run, name, self.spec, task_settings, kept)
        self.resumed = self._resume(view) if kept else []
        self.supervisor.start()
        for job in self.resumed:
            job.show_resumed()

    def close(self) -> None:
        """End every task, and close the HDF5 files that they share. Safe to call twice."""
        self.supervisor.close()
        self.keeper.close()
        for reason in self.shared_files.close():
            print(f"tfmagic: {reason}", file=sys.stderr)

    def _resume(self, view: ViewChoice) -> list[Job]:
        """Go on with the tasks of a cluster that has outlived its kernel; return the jobs that go on."""
        found = self.keeper.resume()
        self._task_settings = replace(self._task_settings, env=found.env)
        self._variables.resume(found.owned, found.last_number)
        jobs = []
        for cell in found.cells:
            request = cell.request
            how = Options(
                timeout_s=request.timeout_s, keep_going=request.keep_going, out=cell.opened.out, view=view
            )
            job = self._make_job(request, how)
            job.resume(cell.starts, cell.age_s)
            jobs.append(job)
            self._note_begun(job)
            self._variables.expect(cell.request.commands, {task: found.owned[task][0] for task in job.tasks})
        self.supervisor.resume(found.state, jobs)
        return jobs

    @property
    def task_env(self) -> Mapping[str, str]:
        """The environment that the user gave the tasks."""
        return self._task_settings.env

    @property
    def running(self) -> bool:
        return self.supervisor.thread.is_alive() and not self.supervisor.ended

    def attempts(self, tasks: Iterable[TaskId]) -> dict[TaskId, int]:
        """Return the present attempt of each task; a process that is planned counts as present."""
        state = self.supervisor.state
        return {task: state.tasks[task].next_attempt for task in tasks}

    def targets(self, on: Selector) -> dict[TaskId, int]:
        """Return the present attempt of each selected task. Raise `TaskDied` if one is dead."""
        tasks = self.shape.cell_tasks if on is None else select(on, self.tasks)
        state = self.supervisor.state
        for task in tasks:
            seen = state.tasks[task]
            if seen.phase is Phase.DEAD and seen.end is not None:
                since = self._log_starts.get(task, {}).get(task, 0)
                raise self._deaths.error_of(seen.end, self.run, self.oom_kills, since)
        return self.attempts(tasks)

    def relaunch(self, tasks: tuple[TaskId, ...]) -> dict[TaskId, int]:
        """Request new processes. Return the attempts that the tasks had until now."""
        seen = self.supervisor.state.tasks
        self.supervisor.ask(LaunchRequested(tasks))
        return {task: seen[task].attempt if task in seen else 0 for task in tasks}

    def dead_tasks(self) -> tuple[TaskId, ...]:
        """Return the tasks whose last process has ended."""
        tasks = self.supervisor.state.tasks
        return tuple(task for task, seen in tasks.items() if seen.phase is Phase.DEAD)

    # -- cells --

    def begin_cell(
        self, plan: CellPlan, detached: bool = False, may_begin: Callable[[], bool] = lambda: True
    ) -> Job:
        """Start a cell or call; see `Cluster.begin_cell`. `may_begin` is described at `RunningCell`."""
        if plan.source or plan.call is not None:
            self._rejoin_if_possible()
        self._note_ended()
        attempts = self.targets(plan.options.on)
        prepared = self._variables.commands_for(plan, attempts)
        if not plan.aside:
            self._warn_of_old_modules(attempts)
        return self._begin(prepared, plan.options, detached, may_begin)

    def _warn_of_old_modules(self, attempts: Mapping[TaskId, int]) -> None:
        reloading.warn_of_old_modules(self._variables, attempts, self.supervisor.backend.runs_here)

    def note_reloaded(self, found: Mapping[str, Mapping[str, str]]) -> None:
        """Record the modules that tasks have reloaded: their digests by name, by name of the task."""
        for task in self.tasks:
            if task.name in found:
                self._variables.note_reloaded(self.attempts((task,)), found[task.name])

    def begin_one_shot(self, call: Call, task: TaskId, group: int) -> Job:
        """Let the present process of the task make the call and exit.

        The process has none of the names that an earlier process of the task had. The tasks of the shape meet
        at barriers under the number `group`.
        """
        self._note_ended()
        plan = CellPlan(call=call, exits=True, group=group, meets=self.shape.tasks, options=_QUIET)
        return self._begin_on(plan, (task,), detached=True)

    def new_group(self) -> int:
        """Return a number under which one-shot tasks meet at barriers."""
        group = next(self._variables.numbers)
        self.supervisor.ask(GroupChanged(group, {}))
        return group

    def _begin_on(self, plan: CellPlan, tasks: Iterable[TaskId], detached: bool = False) -> Job:
        """Start a cell of tfmagic's own on these tasks, whatever state they are in."""
        return self._begin(self._variables.commands_for(plan, self.attempts(tasks)), plan.options, detached)

    def _begin(
        self,
        prepared: Prepared,
        options: Options,
        detached: bool,
        may_begin: Callable[[], bool] = lambda: True,
    ) -> Job:
        """Start a job. A job that is not `detached` must be passed to `waiting.finish` next."""
        commands = prepared.commands
        command = next(iter(commands.values()))
        timeout_s = options.timeout_s or self._setting("timeout_s") or None
        if command.tf_config:  # no task is killed since it rejoins slowly
            timeout_s = None
        request = CellRequested(command.cell, commands, timeout_s, options.keep_going)
        job = self._make_job(request, options, may_begin)
        self.keeper.begin(job)
        job.servers = traces.begin(job, self.supervisor.state, self._run_empty)
        job.start(takes_ctrl_c=not detached)
        self._variables.handed_over(prepared)
        self._note_begun(job)
        if detached:
            self._variables.expect(commands, self.attempts(commands))
        return job

    def _make_job(
        self, request: CellRequested, options: Options, may_begin: Callable[[], bool] = lambda: True
    ) -> Job:
        return Job(
            request, options, self.supervisor, self.widgets, self._views.make_view, self.settle, may_begin
        )

    def _run_empty(self, plan: CellPlan, tasks: Iterable[TaskId]) -> Job:
        return self._begin_on(plan, tasks, detached=True)

    def _note_begun(self, job: Job) -> None:
        self._under_way[job.number] = job
        self._views.note_begun(job)
        if job.command.is_users:
            self._log_starts.update(dict.fromkeys(job.tasks, job.starts))

    def _rejoin_if_possible(self) -> None:
        """Rejoin restarted tasks before a cell of the user, so that all of its tasks can meet.

        The cell might need no strategy at all, so an obstacle is only printed, once.
        """
        state = self.supervisor.state
        attempts = self.attempts(self.tasks)
        if not self.must_rejoin() or state.cells or attempts == self._refused:
            return
        try:
            self.rejoin()
        except (RuntimeError, TfmagicError) as error:
            self._refused = attempts
            print(f"tfmagic: {error}", file=sys.stderr)

    def must_rejoin(self) -> bool:
        """Check whether all tasks need new addresses: a peer has another process, or is on another host."""
        state = self.supervisor.state
        if must_rejoin(state) or self.supervisor.backend.runs_here or isinstance(self.shape, GivenSpec):
            return must_rejoin(state)
        known = {task: where.rpartition(":")[0] for task, where in self.spec.addresses.items()}
        hosts = {task: state.tasks[task].host for task in known if state.tasks[task].phase in ALIVE}
        return any(host not in ("", known[task]) for task, host in hosts.items())

    def rejoin(self) -> None:
        """Give all tasks new addresses: living processes forget their former peers, and keep the rest.

        Raises:
            RuntimeError: A task holds an object that would not survive; the message names it.
            TfmagicError: A cell runs, a task is paused, no ports are left, or a task has not answered yet.
        """
        state = self.supervisor.state
        paused = [task.name for task in self.tasks if self.supervisor.usage.get(task, Usage()).paused]
        if paused:
            raise TfmagicError(
                f"the tasks need new addresses, and {', '.join(paused)} is stopped (SIGSTOP):  "
                f"%tfcluster resume {' '.join(paused)}"
            )
        busy = sorted({task.name for cell in state.cells.values() for task in cell.waiting_for})
        if busy:
            raise TfmagicError(
                f"a cell runs on {', '.join(busy)}, whose TensorFlow cannot be reset now. Wait for it with  "
                "%tfcluster wait , or end it with  %tfcluster interrupt"
            )
        if isinstance(self.shape, GivenSpec):
            raise TfmagicError(
                "the tasks need new addresses, and theirs were given to this cluster; give all of them new "
                "processes, with Cluster.restart()"
            )
        try:
            self.spec = open_backend.spec_of(self.shape, self.supervisor.backend)
        except OSError as error:
            raise TfmagicError(f"no port could be reserved for every task: {error}") from error
        self.keeper.move(self.spec)
        # read only now: a task that starts at this moment has the new addresses, or is seen here
        alive = [task for task, seen in self.supervisor.state.tasks.items() if seen.phase in ALIVE]
        addresses = {task: self.spec.tf_config(task) for task in alive}
        job = self._begin_on(CellPlan(tf_configs=addresses, want_value=True, options=_QUIET), alive)
        try:
            has_ended = waiting.wait(job, _REJOIN_S)
        finally:
            job.ctrl_c.give_back()
        if not has_ended:
            known = self.supervisor.state.cells.get(job.number)
            late = " ".join(task.name for task in alive if known is not None and task in known.waiting_for)
            raise TfmagicError(
                f"{late} did not take new addresses within {_REJOIN_S:g} s; it goes on, and later cells wait "
                f"for it. Where it is:  %tfcluster stacks {late} ; a new process:  %tfcluster restart {late}"
            )
        resets = job.settle().results
        often = [name for name, count in resets.items() if (count or 0) >= _MANY_RESETS]
        if often:
            most = max(resets[name] for name in often)
            warning = (
                f"tfmagic: {', '.join(often)} got new peers {most} times in the same process, each of which "
                "keeps 97 idle threads and 41 MiB; near ten, take new processes:  %tfcluster restart"
            )
            print(advice.here(warning), file=sys.stderr)

    def _observe(self, supervisor: Supervisor) -> None:
        self._status_writer.write_if_due(supervisor)
        self._views.note_ends(supervisor.state)

    @property
    def is_busy(self) -> bool:
        """True if a cell or call has not ended, including those that the supervisor has not seen yet."""
        return self.running and any(job.outcome is None for job in list(self._under_way.values()))

    def forget_names(self) -> None:
        """Forget which names the tasks have, since they have deleted them."""
        self._variables = TaskVariables(self._main, self._setting, self._task_settings.script)

    def _note_ended(self) -> None:
        """Record the names that the cells which have ended meanwhile assigned in the tasks."""
        for job in list(self._under_way.values()):
            outcome = job.outcome
            if outcome is not None:
                self._variables.note(outcome)
                del self._under_way[job.number]

    def settle(self, job: Job, outcome: CellState) -> CellResult:
        """Unpack what the tasks returned, or raise what they raised."""
        if job.options.profile_s:
            job.profile = self._profile_of(job, outcome)
        with self._lock:
            self._note_ended()
            self.keeper.settle(job.number)
        results.warn_of_lost_output(outcome, self.run, self.supervisor.closed_logs)
        results.report_restored_folder(self.run)
        lost_files = self.shared_files.settle(job.number)
        context = self._views.failure_context(job, stacks.read_grouped(self.run, job.dumps))
        if job.command.is_users:
            self.last = (outcome, context)
        self._deaths.note(outcome.outcomes)
        error = root_cause.build_error(outcome, context)
        starts, pull, names = job.starts, job.command.pull, self._main()
        unpack = functools.partial(
            results.unpack_outcome, outcome, starts, pull, names, self.run, job.profile
        )
        if error is not None:
            if job.options.keep_going:
                job.partial = unpack(in_part=True)
            self._note_new_process(error)
            raise ipython_tracebacks.dress(error)
        if lost_files:
            raise SharedWriterError("; ".join(lost_files))
        try:
            return unpack()
        except NameError as missing:  # a variable that was pulled
            raise ipython_tracebacks.dress(missing)  # noqa: B904 - the same

    def _profile_of(self, job: Job, outcome: CellState) -> Profile:
        found = traces.end(job, outcome, self._run_empty)
        if self.supervisor.backend.runs_here:
            return compare(found, {}, tensorboard.profile_advice(self.run))
        return compare(found, {task.name: seen.host for task, seen in self.supervisor.state.tasks.items()})

    def _note_new_process(self, error: BaseException) -> None:
        """Add a note to `error` if the task that died has another process by now."""
        for task, seen in self.supervisor.state.tasks.items():
            if isinstance(error, TaskDied) and error.task == task.name and seen.phase is not Phase.DEAD:
                error.add_note(f"by now {task} has a new process, or gets one, without its variables")

    def _boot(self, task: TaskId, attempt: int) -> TaskBoot:
        heartbeat_s = self._setting("heartbeat_timeout_s")
        return self._task_settings.boot(task, attempt, self.name, self.spec, self.run, heartbeat_s)
