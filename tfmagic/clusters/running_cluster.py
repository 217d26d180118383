"""One life of a cluster, from its start to its stop: what exists only in between, and the cells that it runs.

    commands ── packed for each task ──→ begin ──→ Job ──→ supervisor ──→ settle: results, or the root failure

`Cluster` is its only user, and calls it under its lock: cells begin in the order in which they were packed.
What ends a cell comes from whoever waits for it, and takes the same lock.
"""

from __future__ import annotations

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
from tfmagic.clusters import environment, outcomes, waiting
from tfmagic.clusters.cell_options import Options
from tfmagic.clusters.job import Job
from tfmagic.clusters.outcomes import CellResult
from tfmagic.clusters.settings import LastPolicy, TFCluster
from tfmagic.clusters.status import Reporter
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

_REJOIN_S = 20.0  # a task between cells answers within milliseconds
_MANY_RESETS = 8  # a process was measured to bear about ten: 97 threads and 41 MiB each


class RunningCluster:
    """See the module.

    Args:
        setting: The value of a setting of `TFCluster` for this cluster.
        main: The ``__main__`` whose functions and variables travel by name.
        lock: The cluster's.
        tasks: Those that are started; by default all of the shape.

    Raises:
        LaunchError: It could not be started.
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        make: TaskSettings,
        setting: Callable[[str], Any],
        main: Callable[[], dict[str, Any]],
        run: RunFolder,
        lock: threading.RLock,
        tasks: tuple[TaskId, ...] | None = None,
    ):
        self._lock = lock
        self.name, self.shape, self.run = name, shape, run
        self.tasks = shape.tasks if tasks is None else tasks
        self._make, self._setting, self._main = make, setting, main
        self.watch = MemoryWatch.begin()
        self._payloads = TaskVariables(make.script)
        self._under_way: dict[int, Job] = {}
        self._refused: Mapping[TaskId, int] = {}  # attempts of which one could not be reset
        self.last: tuple[CellState, FailureContext] | None = None
        backend = LocalBackend(make.flavour, run)
        try:
            self.spec = _spec_of(shape, backend)
        except OSError as error:
            backend.close()
            raise LaunchError(f"no port could be reserved for every task: {error}") from error
        policy = LastPolicy(TFCluster.instance(), setting, make.auto_restart)
        self._reporter = Reporter(name, shape, run, lambda: self.spec.addresses)
        self._shown: Job | None = None  # the last cell of the user's
        self._known_ends: dict[TaskId, int] = {}
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
        """End every task, and the files that they wrote together. Safe to call twice."""
        self.supervisor.close()
        for reason in self.shared_files.close():
            print(f"tfmagic: {reason}", file=sys.stderr)

    @property
    def running(self) -> bool:
        return self.supervisor.thread.is_alive() and not self.supervisor.ended

    def attempts(self, tasks: Iterable[TaskId]) -> dict[TaskId, int]:
        """The present attempt of each."""
        state = self.supervisor.state
        return {task: state.tasks[task].attempt for task in tasks}

    def targets(self, on: Selector) -> dict[TaskId, int]:
        """The present attempt of each task that runs a cell; raises `TaskDied` if one is dead."""
        __tracebackhide__ = True
        tasks = self.shape.cell_tasks if on is None else select(on, self.tasks)
        state = self.supervisor.state
        for task in tasks:
            seen = state.tasks[task]
            if seen.phase is Phase.DEAD and seen.end is not None:
                raise died_error(task, seen.end, self.run, self.watch)
        return self.attempts(tasks)

    def dead_tasks(self) -> tuple[TaskId, ...]:
        """Those whose process has ended, and that have no other."""
        tasks = self.supervisor.state.tasks
        return tuple(task for task, seen in tasks.items() if seen.phase is Phase.DEAD)

    # -- cells --

    def commands(
        self,
        template: RunCell,
        on: Selector,
        wanted: Iterable[str],
        pushed: tuple[str, ...],
        values: Mapping[str, Any] | None = None,
    ) -> dict[TaskId, RunCell]:
        """`template` for each task, with the variables that it lacks; `values` instead of the notebook's."""
        __tracebackhide__ = True
        if template.source:
            self._rejoin_if_possible()
        main, limit = self._main(), self._setting("max_capture_bytes")
        self._note_ended()
        attempts = self.targets(on)
        namespace = main if values is None else values
        return self._payloads.cell_commands(template, wanted, pushed, namespace, main, attempts, limit)

    def call_commands(self, call: Any, on: Selector) -> dict[TaskId, RunCell]:
        """Commands that call (function, args, kwargs)."""
        __tracebackhide__ = True
        self._rejoin_if_possible()
        self._note_ended()
        return self._pack_call(call, self.targets(on))

    def errand(self, call: Any, task: TaskId, group: int) -> Job:
        """Let the present process of the task call (function, args, kwargs), and end with it.

        It has none of the names that an earlier process of the task had. The errands of one group meet at
        barriers: all tasks of the shape.
        """
        __tracebackhide__ = True
        self._note_ended()
        (command,) = self._pack_call(call, self.attempts((task,))).values()
        command = msgspec.structs.replace(command, exits=True, group=group, tasks=self.shape.tasks)
        return self.begin({task: command}, Options(view="quiet", want_value=True), detached=True)

    def new_group(self) -> int:
        """A number under which errands meet."""
        group = next(self._payloads.numbers)
        self.supervisor.ask(GroupChanged(group, {}))
        return group

    def _pack_call(self, call: Any, attempts: Mapping[TaskId, int]) -> dict[TaskId, RunCell]:
        __tracebackhide__ = True
        return self._payloads.call_commands(call, self._main(), attempts, self._setting("max_capture_bytes"))

    def begin(
        self,
        commands: Mapping[TaskId, RunCell],
        options: Options,
        detached: bool = False,
        may_begin: Callable[[], bool] = lambda: True,
    ) -> Job:
        """Start it; for `may_begin` see `RunningCell`."""
        __tracebackhide__ = True
        command = next(iter(commands.values()))
        timeout_s = options.timeout_s or self._setting("timeout_s") or None
        request = CellRequested(command.cell, commands, timeout_s, options.keep_going)
        job = Job(self, request, options, may_begin)
        job.start(takes_ctrl_c=not detached)
        self._under_way[job.number] = job
        if command.source:
            self._shown = job
        if detached:
            self._payloads.expect(commands, self.attempts(commands))
        return job

    def _rejoin_if_possible(self) -> None:
        """Before a cell of the user's is made, so that all of its tasks can meet.

        It may need no strategy at all: what stands in the way is told, once.
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
        """New addresses for all: those alive forget the former processes of their peers, and keep the rest.

        Raises:
            RuntimeError: A task holds something that would not survive it; the message names it.
            TfmagicError: A cell runs, or a task is paused; or no ports are left.
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
        # after that: a task that starts at this moment either has the new addresses or is seen here
        alive = [task for task, seen in self.supervisor.state.tasks.items() if seen.phase in ALIVE]
        number = next(self._payloads.numbers)
        commands = {
            task: RunCell(cell=number, want_value=True, tf_config=self.spec.tf_config(task)) for task in alive
        }
        options = Options(view="quiet", want_value=True, timeout_s=_REJOIN_S)
        resets = waiting.finish(self.begin(commands, options)).results
        often = [name for name, count in resets.items() if (count or 0) >= _MANY_RESETS]
        if often:
            most = max(resets[name] for name in often)
            told = (
                f"tfmagic: {', '.join(often)} got new peers {most} times in the same process, each of which "
                "keeps 97 idle threads and 41 MiB; near ten, take new processes:  %tfcluster restart"
            )
            print(advice.here(told), file=sys.stderr)

    def _observe(self, supervisor: Supervisor) -> None:
        """Tell who looks from outside, and the last panel of a death between cells. By the supervisor."""
        self._reporter.report(supervisor)
        state = supervisor.state
        for task, seen in state.tasks.items():
            if seen.phase is not Phase.DEAD or seen.end is None or self._known_ends.get(task) == seen.attempt:
                continue
            self._known_ends[task] = seen.attempt
            job = self._shown
            outcome = None if job is None else job.outcome
            if job is None or outcome is None or state.cells or outcome.outcomes.get(task) == seen.end:
                continue  # a cell tells it
            how = f"{task} {describe_end(seen.end, self.watch)}"
            when = time.strftime("%H:%M:%S")
            job.add_note(advice.here(f"after this cell, at {when}, {how}; %tfcluster revive brings it back"))

    @property
    def is_busy(self) -> bool:
        """Whether a cell or call has not ended; also one that the supervisor has not seen yet."""
        return self.running and any(job.outcome is None for job in list(self._under_way.values()))

    def forget_names(self) -> None:
        """What the tasks have is not known any more, since they were made to forget it."""
        self._payloads = TaskVariables(self._make.script)

    def _note_ended(self) -> None:
        """What the cells that have ended meanwhile have assigned is the tasks' own."""
        for job in list(self._under_way.values()):
            outcome = job.outcome
            if outcome is not None:
                self._payloads.note(outcome)
                del self._under_way[job.number]

    def settle(self, job: Job, outcome: CellState) -> CellResult:
        """Unpack what the tasks returned, or raise what they raised."""
        __tracebackhide__ = True
        with self._lock:
            self._note_ended()
        outcomes.warn_of_lost_output(outcome, self.run, self.supervisor.closed_logs)
        lost_files = self.shared_files.settle(job.number)
        scene = self._scene(job, stacks.read_grouped(self.run, job.dumps))
        if job.command.source or job.command.call:
            self.last = (outcome, scene)
        error = root_cause.build_error(outcome, scene)
        if error is not None:
            self._note_return(error)
            raise ipython_tracebacks.dress(error)
        if lost_files:
            raise SharedWriterError("; ".join(lost_files))
        return outcomes.unpack_outcome(outcome, job.starts, job.options.pull, self._main(), self.run)

    def _note_return(self, error: BaseException) -> None:
        """A task that died may have another process by now."""
        state = self.supervisor.state
        for task, seen in state.tasks.items():
            if isinstance(error, TaskDied) and error.task == task.name and seen.phase is not Phase.DEAD:
                error.add_note(f"by now {task} has a new process, or gets one, without its variables")

    def _scene(self, job: Job, stacks_text: str = "") -> FailureContext:
        return FailureContext(
            self._main(), self.run, self.watch, stacks_text, ipython_tracebacks.shown_name, job.starts
        )

    def make_view(self, job: Job) -> View:
        """Make what shows a job that was started."""
        command, view = job.command, job.options.view
        if view == "quiet" and (command.source or command.call):
            return QuietView(job.displays)
        context = ViewContext(
            cluster=self.name,
            shape=str(self.shape),
            folder=self.run,
            run=job,
            supervisor=self.supervisor,
            texts=functools.partial(root_cause.full_texts, context=self._scene(job)),
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
        return self._make.boot(task, attempt, self.name, self.spec, self.run, heartbeat_s)


def open_life(
    name: str,
    shape: Shape,
    make: TaskSettings,
    setting: Callable[[str], Any],
    main: Callable[[], dict[str, Any]],
    lock: threading.RLock,
    tasks: tuple[TaskId, ...] | None = None,
) -> RunningCluster:
    """A life in a run folder of its own, begun where the machine bears it; see `RunningCluster`.

    Raises:
        LaunchError: It could not be started; nothing of it is left.
        ClusterSpecError: The shape asks for GPUs that are not there.
    """
    __tracebackhide__ = True
    environment.check_memory(shape, setting("task_bytes"), launcher_client.is_warm(make.flavour))
    for task in shape.tasks:
        make.environ(task, shape)  # a shape that asks for too many GPUs starts nothing
    base = folder.state_dir(setting("state_dir"))
    orphans.reap(base)
    folder.prune_runs(base, setting("keep_runs_days"), setting("keep_runs_bytes"))
    run = folder.create_run(base, name, {"shape": str(shape)})
    return RunningCluster(name, shape, make, setting, main, run, lock, tasks)


def _spec_of(shape: Shape, backend: Backend) -> Spec:
    """The shape with addresses: those that it was given, or ports that are held for it."""
    return shape if isinstance(shape, GivenSpec) else ClusterSpec(shape, backend.allocate(shape.tasks))
