"""A cluster between its start and its stop: its backend, supervisor, run folder and jobs.

    commands ── packed for each task ──→ begin ──→ Job ──→ supervisor ──→ settle: results, or the root failure

`Cluster` and `OneShotTasks` own one each, and call it under their lock: cells begin in the order in which
they were packed. The thread that waits for a job calls `settle`, which takes the same lock.
"""

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from tfmagic.backends import launcher_client
from tfmagic.backends.local import LocalBackend
from tfmagic.backends.protocol import Backend
from tfmagic.clusters import environment, results, waiting
from tfmagic.clusters.job import Job, Options
from tfmagic.clusters.results import CellResult
from tfmagic.clusters.settings import TFCluster, policy_source
from tfmagic.clusters.status import StatusWriter
from tfmagic.clusters.task_settings import TaskSettings
from tfmagic.clusters.task_variables import TaskVariables
from tfmagic.errors import LaunchError, TaskDied, TfmagicError
from tfmagic.failures import ipython_tracebacks, root_cause, stacks
from tfmagic.failures.deaths import MemoryWatch, describe_end, died_error
from tfmagic.failures.root_cause import FailureContext
from tfmagic.hdf5.errors import SharedWriterError
from tfmagic.hdf5.shared_writer.task_files import TaskFiles
from tfmagic.protocol.cluster_spec import ClusterSpec, GivenSpec, Selector, Shape, Spec, TaskId, select
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.protocol.events import CellRequested, GroupChanged
from tfmagic.runs import folder, orphans
from tfmagic.runs.folder import RunFolder
from tfmagic.supervisor.restarts import must_rejoin
from tfmagic.supervisor.state import ALIVE, CellState, Phase
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system import advice
from tfmagic.system.usage import Usage
from tfmagic.views.facts import find_news
from tfmagic.views.protocol import View, ViewContext
from tfmagic.views.text import QuietView, TextView

Call = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
"""A function, its positional arguments and its keyword arguments."""

_REJOIN_S = 20.0  # a task between cells answers within milliseconds
_MANY_RESETS = 8  # measured: a process survives about ten, of 97 threads and 41 MiB each


class RunningCluster:
    """The processes of a cluster, and the jobs that they run.

    Args:
        setting: Returns the value of a setting of `TFCluster` for this cluster.
        main: Returns the ``__main__`` whose functions and variables travel by name.
        lock: The owner's.
        tasks: The tasks that are started; by default all of the shape.

    Attributes:
        last: The outcome of the last cell or call of the user, and the context of its failures.

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
        tasks: tuple[TaskId, ...] | None = None,
    ):
        __tracebackhide__ = True
        self._lock = lock
        self.run = run = _create_run_folder(name, shape, task_settings, setting)
        self.name, self.shape = name, shape
        self.tasks = shape.tasks if tasks is None else tasks
        self._task_settings, self._setting, self._main = task_settings, setting, main
        self.watch = MemoryWatch.begin()
        self._variables = TaskVariables(task_settings.script)
        self._under_way: dict[int, Job] = {}
        self._refused: Mapping[TaskId, int] = {}  # attempts that could not all be reset
        self.last: tuple[CellState, FailureContext] | None = None
        backend = LocalBackend(task_settings.flavour, run)
        try:
            self.spec = _spec_of(shape, backend)
        except OSError as error:
            backend.close()
            raise LaunchError(f"no port could be reserved for every task: {error}") from error
        policy = policy_source(TFCluster.instance(), setting, task_settings.auto_restart)
        self._status_writer = StatusWriter(name, shape, run, lambda: self.spec.addresses)
        self._last_cell: Job | None = None  # of the user
        self._noted_ends: dict[TaskId, int] = {}  # attempts
        self.supervisor = Supervisor(
            backend,
            self.tasks,
            policy,
            self._boot,
            run,
            setting("max_log_bytes"),
            self._observe,
            name=name,
        )
        self.shared_files = TaskFiles()
        self.supervisor.listen(self.shared_files.hear)
        self.supervisor.on_end(self.shared_files.finish)
        self.supervisor.start()

    def close(self) -> None:
        """End every task, and close the HDF5 files that they share. Safe to call twice."""
        self.supervisor.close()
        for reason in self.shared_files.close():
            print(f"tfmagic: {reason}", file=sys.stderr)

    @property
    def running(self) -> bool:
        return self.supervisor.thread.is_alive() and not self.supervisor.ended

    def attempts(self, tasks: Iterable[TaskId]) -> dict[TaskId, int]:
        """Return the present attempt of each task."""
        state = self.supervisor.state
        return {task: state.tasks[task].attempt for task in tasks}

    def targets(self, on: Selector) -> dict[TaskId, int]:
        """Return the present attempt of each selected task. Raise `TaskDied` if one is dead."""
        __tracebackhide__ = True
        tasks = self.shape.cell_tasks if on is None else select(on, self.tasks)
        state = self.supervisor.state
        for task in tasks:
            seen = state.tasks[task]
            if seen.phase is Phase.DEAD and seen.end is not None:
                raise died_error(task, seen.end, self.run, self.watch)
        return self.attempts(tasks)

    def dead_tasks(self) -> tuple[TaskId, ...]:
        """Return the tasks whose last process has ended."""
        tasks = self.supervisor.state.tasks
        return tuple(task for task, seen in tasks.items() if seen.phase is Phase.DEAD)

    # -- cells --

    def commands(
        self,
        template: RunCell,
        on: Selector,
        reads: Iterable[str],
        pushed: tuple[str, ...],
        values: Mapping[str, Any] | None = None,
    ) -> dict[TaskId, RunCell]:
        """Return `template` for each task, with the variables that it lacks.

        Args:
            reads: The names that the cell might need.
            pushed: The names that are sent in any case.
            values: Replaces the notebook's variables.
        """
        __tracebackhide__ = True
        if template.source:
            self._rejoin_if_possible()
        main, limit = self._main(), self._setting("max_capture_bytes")
        self._note_ended()
        attempts = self.targets(on)
        namespace = main if values is None else values
        return self._variables.cell_commands(template, reads, pushed, namespace, main, attempts, limit)

    def call_commands(self, call: Call, on: Selector) -> dict[TaskId, RunCell]:
        """Return commands that make the call."""
        __tracebackhide__ = True
        self._rejoin_if_possible()
        self._note_ended()
        return self._pack_call(call, self.targets(on))

    def begin_one_shot(self, call: Call, task: TaskId, group: int) -> Job:
        """Let the present process of the task make the call and exit.

        The process has none of the names that an earlier process of the task had. The tasks of the shape meet
        at barriers under the number `group`.
        """
        __tracebackhide__ = True
        self._note_ended()
        (command,) = self._pack_call(call, self.attempts((task,))).values()
        command = msgspec.structs.replace(command, exits=True, group=group, tasks=self.shape.tasks)
        return self.begin({task: command}, Options(view="quiet", want_value=True), detached=True)

    def new_group(self) -> int:
        """Return a number under which one-shot tasks meet at barriers."""
        group = next(self._variables.numbers)
        self.supervisor.ask(GroupChanged(group, {}))
        return group

    def _pack_call(self, call: Call, attempts: Mapping[TaskId, int]) -> dict[TaskId, RunCell]:
        __tracebackhide__ = True
        limit = self._setting("max_capture_bytes")
        return self._variables.call_commands(call, self._main(), attempts, limit)

    def begin(
        self,
        commands: Mapping[TaskId, RunCell],
        options: Options,
        detached: bool = False,
        may_begin: Callable[[], bool] = lambda: True,
    ) -> Job:
        """Start a job. A job that is not `detached` must be passed to `waiting.finish` next.

        `may_begin` is described at `RunningCell`.
        """
        __tracebackhide__ = True
        command = next(iter(commands.values()))
        timeout_s = options.timeout_s or self._setting("timeout_s") or None
        request = CellRequested(command.cell, commands, timeout_s, options.keep_going)
        job = Job(self, request, options, may_begin)
        job.start(takes_ctrl_c=not detached)
        self._under_way[job.number] = job
        if command.source:
            self._last_cell = job
        if detached:
            self._variables.expect(commands, self.attempts(commands))
        return job

    def _rejoin_if_possible(self) -> None:
        """Rejoin restarted tasks before a cell of the user, so that all of its tasks can meet.

        The cell might need no strategy at all, so an obstacle is only printed, once.
        """
        state = self.supervisor.state
        attempts = self.attempts(self.tasks)
        if not must_rejoin(state) or state.cells or attempts == self._refused:
            return
        try:
            self.rejoin()
        except (RuntimeError, TfmagicError) as error:
            self._refused = attempts
            print(f"tfmagic: {error}", file=sys.stderr)

    def rejoin(self) -> None:
        """Give all tasks new addresses: living processes forget their former peers, and keep the rest.

        Raises:
            RuntimeError: A task holds an object that would not survive; the message names it.
            TfmagicError: A cell runs, a task is paused, or no ports are left.
            TaskTimeoutError: A task did not answer, and was given a new process.
        """
        __tracebackhide__ = True
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
            self.spec = _spec_of(self.shape, self.supervisor.backend)
        except OSError as error:
            raise TfmagicError(f"no port could be reserved for every task: {error}") from error
        # read only now: a task that starts at this moment has the new addresses, or is seen here
        alive = [task for task, seen in self.supervisor.state.tasks.items() if seen.phase in ALIVE]
        number = next(self._variables.numbers)
        commands = {
            task: RunCell(cell=number, want_value=True, tf_config=self.spec.tf_config(task)) for task in alive
        }
        options = Options(view="quiet", want_value=True, timeout_s=_REJOIN_S)
        resets = waiting.finish(self.begin(commands, options)).results
        often = [name for name, count in resets.items() if (count or 0) >= _MANY_RESETS]
        if often:
            most = max(resets[name] for name in often)
            warning = (
                f"tfmagic: {', '.join(often)} got new peers {most} times in the same process, each of which "
                "keeps 97 idle threads and 41 MiB; near ten, take new processes:  %tfcluster restart"
            )
            print(advice.here(warning), file=sys.stderr)

    def _observe(self, supervisor: Supervisor) -> None:
        """Write the status file; note a death between cells in the last panel. Called by the supervisor."""
        self._status_writer.write_if_due(supervisor)
        state = supervisor.state
        for task, seen in state.tasks.items():
            if seen.phase is not Phase.DEAD or seen.end is None or self._noted_ends.get(task) == seen.attempt:
                continue
            self._noted_ends[task] = seen.attempt
            job = self._last_cell
            outcome = None if job is None else job.outcome
            if job is None or outcome is None or state.cells or outcome.outcomes.get(task) == seen.end:
                continue  # a cell reports it
            how = f"{task} {describe_end(seen.end, self.watch)}"
            when = time.strftime("%H:%M:%S")
            job.add_note(advice.here(f"after this cell, at {when}, {how}; %tfcluster revive brings it back"))

    @property
    def is_busy(self) -> bool:
        """True if a cell or call has not ended, including those that the supervisor has not seen yet."""
        return self.running and any(job.outcome is None for job in list(self._under_way.values()))

    def forget_names(self) -> None:
        """Forget which names the tasks have, since they have deleted them."""
        self._variables = TaskVariables(self._task_settings.script)

    def _note_ended(self) -> None:
        """Record the names that the cells which have ended meanwhile assigned in the tasks."""
        for job in list(self._under_way.values()):
            outcome = job.outcome
            if outcome is not None:
                self._variables.note(outcome)
                del self._under_way[job.number]

    def settle(self, job: Job, outcome: CellState) -> CellResult:
        """Unpack what the tasks returned, or raise what they raised."""
        __tracebackhide__ = True
        with self._lock:
            self._note_ended()
        results.warn_of_lost_output(outcome, self.run, self.supervisor.closed_logs)
        lost_files = self.shared_files.settle(job.number)
        context = self._failure_context(job, stacks.read_grouped(self.run, job.dumps))
        if job.command.source or job.command.call:
            self.last = (outcome, context)
        error = root_cause.build_error(outcome, context)
        if error is not None:
            self._note_new_process(error)
            raise ipython_tracebacks.dress(error)
        if lost_files:
            raise SharedWriterError("; ".join(lost_files))
        return results.unpack_outcome(outcome, job.starts, job.options.pull, self._main(), self.run)

    def _note_new_process(self, error: BaseException) -> None:
        """Add a note to `error` if the task that died has another process by now."""
        for task, seen in self.supervisor.state.tasks.items():
            if isinstance(error, TaskDied) and error.task == task.name and seen.phase is not Phase.DEAD:
                error.add_note(f"by now {task} has a new process, or gets one, without its variables")

    def _failure_context(self, job: Job, stacks_text: str = "") -> FailureContext:
        return FailureContext(
            self._main(), self.run, self.watch, stacks_text, ipython_tracebacks.shown_name, job.starts
        )

    def make_view(self, job: Job) -> View:
        """Return the view of a job that was started."""
        command, view = job.command, job.options.view
        if view == "quiet" and (command.source or command.call):
            return QuietView(job.displays)
        context = ViewContext(
            cluster=self.name,
            shape=str(self.shape),
            folder=self.run,
            run=job,
            supervisor=self.supervisor,
            texts=functools.partial(root_cause.full_texts, context=self._failure_context(job)),
            source=command.source,
            filename=command.filename,
            prompt=ipython_tracebacks.prompt_of(command.filename),
        )
        if callable(view):
            return view(context)
        news = functools.partial(find_news, context)
        if view == "quiet":  # a push or a pull, which must not hang in silence
            return QuietView(job.displays, news)
        return TextView(self.run, job.starts.items(), job.displays, has_begun=context.has_begun, news=news)

    def _boot(self, task: TaskId, attempt: int) -> TaskBoot:
        heartbeat_s = self._setting("heartbeat_timeout_s")
        return self._task_settings.boot(task, attempt, self.name, self.spec, self.run, heartbeat_s)


def _create_run_folder(
    name: str, shape: Shape, task_settings: TaskSettings, setting: Callable[[str], Any]
) -> RunFolder:
    """Check memory and GPUs, clean up after former runs, and return a new run folder."""
    environment.check_memory(shape, setting("task_bytes"), launcher_client.is_warm(task_settings.flavour))
    for task in shape.tasks:
        task_settings.environ(task, shape)  # raises if there are too few GPUs
    base = folder.state_dir(setting("state_dir"))
    orphans.reap(base)
    folder.prune_runs(base, setting("keep_runs_days"), setting("keep_runs_bytes"))
    return folder.create_run(base, name, {"shape": str(shape)})


def _spec_of(shape: Shape, backend: Backend) -> Spec:
    """Return the shape with the addresses that it was given, or with ports that the backend holds for it."""
    return shape if isinstance(shape, GivenSpec) else ClusterSpec(shape, backend.allocate(shape.tasks))
