"""A cluster as an object: start, run, push, pull, fault and stop. The magic uses this and nothing else.

run / run_cell ── capture ──→ RunCell for each task ──→ supervisor ──→ CellRun
     ↑ view.update() while waiting, Ctrl-C → interrupt           │
     └──── TaskResults, or the root failure raised ←── outcome ──┘
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from tfmagic import environment, execution, failures, leftovers, outcomes, rendering, runs, stacks, startup
from tfmagic.backends import launching
from tfmagic.backends.local import LocalBackend
from tfmagic.cells import Cell, Options, ViewName
from tfmagic.config import TFCluster, policy_of
from tfmagic.deaths import MemoryWatch, died_error
from tfmagic.errors import BackendError, ClusterSpecError, LaunchError, TfmagicError
from tfmagic.events import CellRequested, RunCell, TaskBoot
from tfmagic.failures import Scene
from tfmagic.jobs import Job
from tfmagic.makes import Make
from tfmagic.outcomes import CellResult
from tfmagic.payloads import Payloads
from tfmagic.results import TaskResults
from tfmagic.runs import Run
from tfmagic.spec import ClusterShape, ClusterSpec, TaskId, select
from tfmagic.startup import Progress
from tfmagic.states import CellState, Phase
from tfmagic.status import status_row
from tfmagic.supervisor import CellRun, Supervisor
from tfmagic.tasklog import tail_lines
from tfmagic.views import Stage, View, has_begun
from tfmagic.views.text import QuietView, TextView

T = TypeVar("T")


class Cluster:
    """A TensorFlow cluster of task processes.

    Args:
        workers, ps, chief, evaluator: The shape; see `ClusterShape`. Two workers by default.
        name: Names the cluster in messages and run folders.
        backend: ``local``: processes of this machine.
        env: Environment variables of the task processes.
        gpus_per_task: GPUs of each task that computes; by default those there are, divided.
        keras: 3, or 2 for tf_keras.
        keras_fix: Repair `model.fit` of Keras 3 under multi-worker strategies.
        auto_restart: How often a task that died is given a new process.
        isolate: Put the tasks into a network of their own, without access to others.
        namespace: The ``__main__`` whose functions and variables travel by name.
        **settings: Any setting of `TFCluster`, such as ``failure_grace_s=5``.

    Raises:
        ClusterSpecError: The shape makes no sense.
        BackendError: There is no such backend.
    """

    def __init__(
        self,
        workers: int | None = None,
        ps: int = 0,
        chief: bool = False,
        evaluator: bool = False,
        *,
        name: str = "default",
        backend: str = "local",
        env: Mapping[str, str] | None = None,
        gpus_per_task: int | None = None,
        keras: int = 3,
        keras_fix: bool = True,
        auto_restart: int = 0,
        isolate: bool = False,
        namespace: dict[str, Any] | None = None,
        **settings: Any,
    ):
        self.config = TFCluster.instance()
        unknown = sorted(set(settings) - set(self.config.trait_names(config=True)))
        if unknown:
            raise TypeError(f"Cluster() has no argument or setting {', '.join(unknown)}")
        self._settings = settings
        count = self.setting("workers") if workers is None else workers
        self.shape = ClusterShape(count, ps, chief, evaluator)
        self.tasks = self.shape.tasks
        if backend != "local":
            raise BackendError(f"there is no backend {backend!r} in this version; use local")
        if name != os.path.basename(name) or not name or name.startswith("."):
            raise ClusterSpecError(f"{name!r} cannot name a cluster: use letters, digits, - and _")
        self.name = name
        self._make = Make(dict(env or {}), gpus_per_task, keras, keras_fix, auto_restart, isolate)
        self._namespace = namespace
        self._supervisor: Supervisor | None = None
        self._run: Run | None = None
        self._spec: ClusterSpec | None = None
        self._watch: MemoryWatch | None = None
        self._last: tuple[CellState, Scene] | None = None
        self._under_way: dict[int, Job] = {}
        self._payloads = Payloads()
        self._lock = threading.RLock()

    # -- life --

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self.running else "not running"
        return f"<Cluster {self.name!r}: {self.shape}, {state}>"

    @property
    def running(self) -> bool:
        """Whether it has been started and not stopped."""
        return self._supervisor is not None and self._supervisor.thread.is_alive()

    @property
    def spec(self) -> ClusterSpec:
        """The shape with its addresses. Raises `TfmagicError` while it does not run."""
        self._require_running()
        assert self._spec is not None
        return self._spec

    @property
    def run_folder(self) -> Run:
        """Where the logs of the present or last life are."""
        if self._run is None:
            raise TfmagicError(f"cluster {self.name!r} has never been started")
        return self._run

    def setting(self, name: str) -> Any:
        """A setting as given to this cluster, else as configured."""
        return self._settings.get(name, getattr(self.config, name))

    def start(self, progress: Progress | None = None) -> Cluster:
        """Start every task and wait until all are ready. Does nothing if it runs.

        Args:
            progress: Called now and then with the state, to show it.

        Raises:
            LaunchError: It could not be started; nothing of it is left.
        """
        __tracebackhide__ = True
        with self._lock:
            if self.running:
                return self
            flavour = self._make.flavour
            environment.check_memory(self.shape, self.setting("task_bytes"), launching.is_warm(flavour))
            for task in self.tasks:
                self._make.environ(task, self.shape)  # a shape that asks for too many GPUs starts nothing
            base = runs.state_dir(self.setting("state_dir"))
            leftovers.reap(base)
            runs.prune_runs(base, self.setting("keep_runs_days"), self.setting("keep_runs_bytes"))
            self._run = runs.create_run(base, self.name, {"shape": str(self.shape)})
            try:
                self._launch(flavour)
                supervisor = self._require_running()
                timeout_s = self.setting("start_timeout_s")
                startup.wait_until_ready(supervisor, dict.fromkeys(self.tasks, 0), timeout_s, progress)
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """End every task. Its logs stay on disk. Does nothing if it does not run."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.close()

    def restart(self, *tasks: str, progress: Progress | None = None) -> Cluster:
        """Give the named tasks, or all, new processes at the same addresses, and wait for them.

        Raises:
            ClusterSpecError: There is no such task.
            LaunchError: A task did not come back.
        """
        __tracebackhide__ = True
        if not self.running and not tasks:
            return self.start(progress)
        supervisor = self._require_running()
        with self._lock:
            chosen = select(",".join(tasks), self.tasks) if tasks else self.tasks
            attempts = self._attempts(chosen)
            supervisor.relaunch(chosen)
            startup.wait_until_ready(supervisor, attempts, self.setting("start_timeout_s"), progress)
        return self

    # -- running --

    def run(
        self,
        fn: Callable[..., T],
        *args: Any,
        on: str | None = None,
        timeout: float | None = None,
        keep_going: bool = False,
        view: ViewName = "text",
        **kwargs: Any,
    ) -> TaskResults[T]:
        """Call ``fn(*args, **kwargs)`` on the tasks and return what each returned.

        Args:
            fn: Any function; one of ``__main__`` takes the globals that it uses along.
            on: Selector of tasks; by default those that run a cell.
            timeout: Seconds after which the call is stopped.
            keep_going: Let the others finish when one fails.
            view: ``text`` prints the tasks' output, prefixed; ``quiet`` prints nothing.

        Raises:
            BaseException: The root failure of the tasks, as what it was.
            CaptureError: Something cannot travel; nothing was run.
            TaskTimeoutError: After `timeout`.
            ValueError: `timeout` is not above 0.
        """
        __tracebackhide__ = True
        options = Options(on=on, timeout_s=timeout, keep_going=keep_going, want_value=True, view=view)
        with self._lock:
            self.start()
            self._note_ended()
            attempts = self._targets(on)
            limit = self.setting("max_capture_bytes")
            commands = self._payloads.call_commands((fn, args, kwargs), self._main(), attempts, limit)
            job = self._begin(commands, options)
        result = execution.finish(job)
        outcomes.require_values(result.results)
        return result.results

    def submit(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> Future[TaskResults[T]]:
        """`run` in the background, quietly. Calls of one cluster run one after the other."""
        future: Future[TaskResults[T]] = Future()
        kwargs.setdefault("view", "quiet")

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(self.run(fn, *args, **kwargs))
                except BaseException as error:  # it belongs to whoever asks the future
                    future.set_exception(error)

        threading.Thread(target=work, name="tfmagic-submit", daemon=True).start()
        return future

    def run_cell(self, cell: Cell, options: Options) -> CellResult:
        """Run source on the tasks, in their namespaces.

        Raises:
            As `run`.
        """
        __tracebackhide__ = True
        return execution.finish(self.begin_cell(cell, options))

    def begin_cell(self, cell: Cell, options: Options, detached: bool = False) -> Job:
        """Start a cell. `tfmagic.execution.finish` waits for it, and must be called next.

        One that is `detached` goes on by itself: nobody need wait for it, and Ctrl-C is not for it.

        Raises:
            CaptureError: Something cannot travel.
            TaskDied: A task that is to run it has no process.
        """
        __tracebackhide__ = True
        with self._lock:
            self.start()
            wanted = cell.reads if options.capture else frozenset()
            template = RunCell(
                cell=0,
                source=cell.source,
                filename=cell.filename,
                pull=options.pull,
                want_value=options.want_value,
                show_value=cell.show,
            )
            commands = self._commands(template, options.on, wanted, options.push)
            return self._begin(commands, options, detached)

    def push(self, values: Mapping[str, Any] | None = None, *, on: str | None = "all", **more: Any) -> None:
        """Bind variables on the tasks.

        Raises:
            CaptureError: A value cannot travel; nothing was sent.
        """
        __tracebackhide__ = True
        bound = {**(values or {}), **more}
        with self._lock:
            self.start()
            commands = self._commands(RunCell(cell=0), on, (), tuple(bound), bound)
            job = self._begin(commands, Options(view="quiet"))
        execution.finish(job)

    def pull(self, *names: str, on: str | None = None) -> dict[str, dict[str, Any]]:
        """Fetch variables: {name: {task name: value}}. Tensors come as numpy arrays.

        Raises:
            NameError: A task does not have one of them.
            CaptureError: A value cannot travel.
        """
        __tracebackhide__ = True
        with self._lock:
            self._require_running()
            commands = self._commands(RunCell(cell=0, pull=names), on, (), ())
            job = self._begin(commands, Options(view="quiet", pull=names))
        return execution.finish(job).pulled

    # -- faults and looks --

    def interrupt(self, *tasks: str) -> None:
        """As Ctrl-C: the running cell is interrupted, on every task or only on these.

        Raises:
            ClusterSpecError: There is no such task.
        """
        supervisor = self._require_running()
        supervisor.interrupt(select(",".join(tasks), self.tasks) if tasks else ())

    def errors(self, *tasks: str) -> dict[str, str]:
        """Every failure of the last cell in full, as text by task name; the root cause first."""
        chosen = {t.name for t in select(",".join(tasks or ("all",)), self.tasks)}
        texts = failures.full_texts(*self._last) if self._last else {}
        return {name: text for name, text in texts.items() if name in chosen}

    def debug(self, task: str) -> None:
        """Look at the last failure of a task with pdb, in the task, with its live frames.

        Raises:
            ClusterSpecError: There is no such task, or the name means several.
            TfmagicError: No cell has failed in its process.
        """
        __tracebackhide__ = True
        chosen = select(task, self.tasks)
        if len(chosen) != 1:
            raise ClusterSpecError(f"a debugger looks at one task; {task!r} means {len(chosen)}")
        with self._lock:
            commands = self._commands(RunCell(cell=0, debug=True), task, (), ())
            job = self._begin(commands, Options())
        execution.finish(job)

    def kill(self, *tasks: str, signal_number: int = signal.SIGKILL) -> None:
        """Signal task processes: a crash, on purpose.

        Raises:
            ClusterSpecError: There is no such task.
        """
        supervisor = self._require_running()
        chosen = select(",".join(tasks), self.tasks)
        for task in chosen:
            if pid := supervisor.state.tasks[task].pid:
                os.kill(pid, signal_number)
        if signal_number == signal.SIGKILL:
            killed = self._attempts(chosen)
            supervisor.wait_for(
                lambda s: all(s.tasks[t].attempt > n or not s.tasks[t].pid for t, n in killed.items()), 5
            )

    def stacks(self, *tasks: str) -> dict[str, str]:
        """The Python stacks of every thread, by task name; also of a task that is stuck in C++."""
        supervisor = self._require_running()
        chosen = select(",".join(tasks or ("all",)), self.tasks)
        return stacks.take_stacks(self.run_folder, {t: supervisor.state.tasks[t].pid for t in chosen})

    def status(self) -> list[dict[str, Any]]:
        """A row for each task; see `tfmagic.status.status_row`."""
        tasks, addresses = self._require_running().state.tasks, self.spec.addresses
        return [status_row(task, tasks[task], addresses[task]) for task in self.tasks]

    def logs(self, *tasks: str, tail: int = 20) -> dict[str, list[str]]:
        """The last lines of tasks' logs, by task name; also of a cluster that was stopped."""
        chosen = select(",".join(tasks or ("all",)), self.tasks)
        return {t.name: tail_lines(self.run_folder.log_path(t), tail) for t in chosen}

    # -- inside: starting --

    def _launch(self, flavour: launching.Flavour) -> None:
        assert self._run is not None
        backend = LocalBackend(flavour, self._run)
        try:
            self._spec = ClusterSpec(self.shape, backend.allocate(self.tasks))
        except OSError as error:
            backend.close()
            raise LaunchError(f"no port could be reserved for every task: {error}") from error
        self._payloads, self._watch, self._last = Payloads(), MemoryWatch.begin(), None
        self._under_way.clear()
        self._supervisor = Supervisor(
            backend,
            self.tasks,
            functools.partial(policy_of, self.setting, self._make.auto_restart),
            self._boot,
            self._run,
            self.setting("max_log_bytes"),
            name=self.name,
        )
        self._supervisor.start()

    def _boot(self, task: TaskId, attempt: int) -> TaskBoot:
        assert self._spec is not None and self._run is not None
        heartbeat_s = self.setting("heartbeat_timeout_s")
        return self._make.boot(task, attempt, self.name, self._spec, self._run, heartbeat_s)

    # -- inside: running --

    def _require_running(self) -> Supervisor:
        if self._supervisor is None or not self._supervisor.thread.is_alive():
            raise TfmagicError(
                f"cluster {self.name!r} does not run; start it with %tfcluster start or Cluster.start()"
            )
        return self._supervisor

    def _main(self) -> dict[str, Any]:
        return sys.modules["__main__"].__dict__ if self._namespace is None else self._namespace

    def _attempts(self, tasks: Iterable[TaskId]) -> dict[TaskId, int]:
        state = self._require_running().state
        return {task: state.tasks[task].attempt for task in tasks}

    def _targets(self, on: str | None) -> dict[TaskId, int]:
        """The present attempt of each task that runs a cell; raises `TaskDied` if one is dead."""
        __tracebackhide__ = True
        tasks = self.shape.cell_tasks if on is None else select(on, self.tasks)
        state = self._require_running().state
        for task in tasks:
            seen = state.tasks[task]
            if seen.phase is Phase.DEAD and seen.end is not None:
                raise died_error(task, seen.end, self.run_folder, self._watch)
        return self._attempts(tasks)

    def _commands(
        self,
        template: RunCell,
        on: str | None,
        wanted: Iterable[str],
        pushed: tuple[str, ...],
        values: Any = None,
    ) -> dict[TaskId, RunCell]:
        __tracebackhide__ = True
        main, limit = self._main(), self.setting("max_capture_bytes")
        self._note_ended()
        attempts = self._targets(on)
        namespace = main if values is None else values
        return self._payloads.cell_commands(template, wanted, pushed, namespace, main, attempts, limit)

    def _begin(self, commands: Mapping[TaskId, RunCell], options: Options, detached: bool = False) -> Job:
        """Start it, under the lock: cells begin in the order in which they were packed."""
        command = next(iter(commands.values()))
        request = CellRequested(command.cell, commands, options.timeout_s, options.keep_going)
        view = functools.partial(self._make_view, command, options)
        settle = functools.partial(self._settle, command, options)
        job = Job(self._require_running(), request, view, settle)
        (job.start if detached else functools.partial(execution.begin, job))()
        self._under_way[command.cell] = job
        if detached:
            self._payloads.expect(commands, self._attempts(commands))
        return job

    def _note_ended(self) -> None:
        """What the cells that have ended meanwhile have assigned is the tasks' own."""
        for job in list(self._under_way.values()):
            outcome = job.outcome
            if outcome is not None:
                self._payloads.note(outcome)
                del self._under_way[job.number]

    def _settle(self, command: RunCell, options: Options, run: CellRun, outcome: CellState) -> CellResult:
        """Unpack what the tasks returned, or raise what they raised."""
        __tracebackhide__ = True
        with self._lock:
            self._note_ended()
        outcomes.warn_of_lost_output(outcome, self.run_folder)
        scene = self._scene(run, stacks.read_grouped(self.run_folder, run.dumps))
        if command.source or command.call:
            self._last = (outcome, scene)
        error = failures.build_error(outcome, scene)
        if error is not None:
            raise rendering.dress(error)
        return outcomes.unpack_outcome(outcome, run.starts, options.pull, self._main(), self.run_folder)

    def _scene(self, run: CellRun, stacks_text: str = "") -> Scene:
        main = self._main()
        return Scene(main, self.run_folder, self._watch, stacks_text, rendering.shown_name, run.starts)

    def _make_view(self, command: RunCell, options: Options, run: CellRun) -> View:
        if options.view == "quiet":
            return QuietView(run.displays)
        if not callable(options.view):
            begun = functools.partial(has_begun, run, self._require_running())
            return TextView(self.run_folder, run.starts.items(), run.displays, has_begun=begun)
        texts = functools.partial(failures.full_texts, scene=self._scene(run))
        supervisor, prompt = self._require_running(), rendering.prompt_of(command.filename)
        made = (self.name, str(self.shape), self.run_folder, run, supervisor, texts)
        return options.view(Stage(*made, command.source, command.filename, prompt))
