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
from types import TracebackType
from typing import Any, TypeVar

from tfmagic import environment, execution, failures, outcomes, rendering, runs, stacks, startup
from tfmagic.backends import launching
from tfmagic.backends.local import LocalBackend
from tfmagic.cells import Cell, Options, ViewName
from tfmagic.config import TFCluster
from tfmagic.deaths import MemoryWatch, died_error
from tfmagic.errors import BackendError, ClusterSpecError, LaunchError, TfmagicError
from tfmagic.events import CellRequested, RunCell, TaskBoot
from tfmagic.failures import Scene
from tfmagic.outcomes import CellResult
from tfmagic.payloads import Payloads
from tfmagic.results import TaskResults
from tfmagic.runs import Run, file_size
from tfmagic.spec import ClusterShape, ClusterSpec, TaskId, select
from tfmagic.startup import Progress
from tfmagic.states import CellState, Phase, Policy
from tfmagic.status import status_row
from tfmagic.supervisor import CellRun, Supervisor
from tfmagic.tasklog import tail_lines
from tfmagic.views import View
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
        if backend != "local":
            raise BackendError(f"there is no backend {backend!r} in this version; use local")
        if keras not in (2, 3):
            raise ClusterSpecError(f"keras is 2 or 3, not {keras!r}")
        if name != os.path.basename(name) or not name or name.startswith("."):
            raise ClusterSpecError(f"{name!r} cannot name a cluster: use letters, digits, - and _")
        self.name = name
        self._env, self._gpus_per_task = dict(env or {}), gpus_per_task
        self._legacy_keras, self._keras_fix = keras == 2, keras_fix and keras == 3
        self._auto_restart, self._isolate = auto_restart, isolate
        self._namespace = namespace
        self._supervisor: Supervisor | None = None
        self._run: Run | None = None
        self._spec: ClusterSpec | None = None
        self._watch: MemoryWatch | None = None
        self._last_cell: CellState | None = None
        self._last_stacks = ""
        self._starts: dict[TaskId, int] = {}
        self._payloads = Payloads()
        self._lock = threading.RLock()

    # -- life --

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self.running else "not running"
        return f"<Cluster {self.name!r}: {self.shape}, {state}>"

    @property
    def running(self) -> bool:
        """Whether it has been started and not stopped."""
        return self._supervisor is not None and self._supervisor.thread.is_alive()

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        return self.shape.tasks

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
            flavour = launching.Flavour(self._legacy_keras, self._isolate)
            environment.check_memory(self.shape, self.setting("task_bytes"), launching.is_warm(flavour))
            for task in self.tasks:
                self._environ(task)  # a shape that asks for too many GPUs starts nothing
            base = runs.state_dir(self.setting("state_dir"))
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
            attempts = self._targets(on)
            limit = self.setting("max_capture_bytes")
            commands = self._payloads.call_commands((fn, args, kwargs), self._main(), attempts, limit)
            result = self._execute(commands, options)
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
            return self._execute(self._commands(template, options.on, wanted, options.push), options)

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
            self._execute(commands, Options(view="quiet"))

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
            return self._execute(commands, Options(view="quiet", pull=names)).pulled

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
        texts = failures.full_texts(self._last_cell, self._scene()) if self._last_cell else {}
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
            self._execute(commands, Options())

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
        before = stacks.stack_offsets(self.run_folder, chosen)
        for task in chosen:
            if pid := supervisor.state.tasks[task].pid:
                os.kill(pid, signal.SIGUSR1)
        return stacks.read_stacks(self.run_folder, before)

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
        self._payloads, self._watch, self._last_cell = Payloads(), MemoryWatch.begin(), None
        self._supervisor = Supervisor(
            backend,
            self.tasks,
            self._policy,
            self._boot,
            self._run,
            self.setting("max_log_bytes"),
            name=self.name,
        )
        self._supervisor.start()

    def _policy(self) -> Policy:
        return Policy(
            failure_grace_s=self.setting("failure_grace_s"),
            interrupt_grace_s=self.setting("interrupt_grace_s"),
            cancel_grace_s=self.setting("cancel_grace_s"),
            abort_grace_s=self.setting("abort_grace_s"),
            auto_restart=self._auto_restart,
        )

    def _environ(self, task: TaskId) -> dict[str, str]:
        return environment.task_environ(
            task, self.shape, os.environ, self._env, self._gpus_per_task, self._legacy_keras
        )

    def _boot(self, task: TaskId, attempt: int) -> TaskBoot:
        assert self._spec is not None and self._run is not None
        return TaskBoot(
            task=task,
            attempt=attempt,
            cluster=self.name,
            shape_tasks=self.tasks,
            tf_config=self._spec.tf_config(task),
            environ=self._environ(task),
            cwd=environment.existing_folder(),
            sys_path=tuple(sys.path),
            stacks_path=str(self._run.stacks_path(task)),
            leader=self.shape.leader,
            heartbeat_ms=int(self.setting("heartbeat_timeout_s") * 1000),
            keras_fix=self._keras_fix,
        )

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
        attempts = self._targets(on)
        namespace = main if values is None else values
        return self._payloads.cell_commands(template, wanted, pushed, namespace, main, attempts, limit)

    def _execute(self, commands: Mapping[TaskId, RunCell], options: Options) -> CellResult:
        """Run, show, wait; then unpack or raise."""
        __tracebackhide__ = True
        supervisor = self._require_running()
        self._starts = starts = {t: file_size(self.run_folder.log_path(t)) for t in commands}
        command = next(iter(commands.values()))
        request = CellRequested(command.cell, commands, options.timeout_s, options.keep_going)
        view = functools.partial(self._make_view, starts=starts, options=options)
        run, outcome = execution.run_cell(supervisor, request, view)
        self._payloads.note(outcome)
        outcomes.warn_of_lost_output(outcome, self.run_folder)
        if command.source or command.call:
            self._last_cell, self._last_stacks = outcome, stacks.read_grouped(self.run_folder, run.dumps)
        error = failures.build_error(outcome, self._scene())
        if error is not None:
            raise rendering.dress(error)
        return outcomes.unpack_outcome(outcome, starts, options.pull, self._main(), self.run_folder)

    def _scene(self) -> Scene:
        main, stacks_text = self._main(), self._last_stacks
        return Scene(main, self.run_folder, self._watch, stacks_text, rendering.shown_name, self._starts)

    def _make_view(self, run: CellRun, starts: Mapping[TaskId, int], options: Options) -> View:
        if callable(options.view):
            return options.view(run, starts)
        if options.view == "quiet":
            return QuietView(run.displays)
        return TextView(self.run_folder, starts.items(), run.displays)
