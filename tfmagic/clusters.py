"""A cluster as an object: start, run, push, pull, fault and stop. The magic uses this and nothing else.

    run / run_cell ── capture ──→ RunCell for each task ──→ supervisor ──→ CellRun
         ↑ view.update() while waiting, Ctrl-C → interrupt           │
         └──── TaskResults, or the root failure raised ←── outcome ──┘

Values are unpickled here, in the thread that waits, and nowhere else in this process.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar

import psutil

from tfmagic import capture, environment, failures, lifecycle, pickling, runs
from tfmagic.backends import launching
from tfmagic.backends.local import LocalBackend
from tfmagic.capture import Captured, TaskNames
from tfmagic.config import TFCluster
from tfmagic.errors import BackendError, CaptureError, ClusterSpecError, LaunchError, TfmagicError
from tfmagic.events import CellRequested, CellReturned, Packed, RunCell, TaskBoot
from tfmagic.lifecycle import CellState, ClusterState, Phase, Policy
from tfmagic.results import RemoteValue, TaskResults
from tfmagic.runs import Run
from tfmagic.spec import ClusterShape, ClusterSpec, TaskId, select
from tfmagic.supervisor import CellRun, Supervisor
from tfmagic.tasklog import read_output, tail_lines
from tfmagic.views import View
from tfmagic.views.text import QuietView, TextView

T = TypeVar("T")
P = ParamSpec("P")
ViewName = Literal["text", "quiet"]
Progress = Callable[[ClusterState], None]

_LOOK_S = 0.1  # how often a start is shown
_STACKS_WAIT_S = 1.0  # a task's fault handler answers within milliseconds or not at all
_cell_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell, ready to run: Python source whose line numbers are the notebook's.

    `reads` are the names that it may need from the notebook; `show` whether the value of its last
    expression is displayed.
    """

    source: str
    filename: str = ""
    reads: frozenset[str] = frozenset()
    show: bool = True


@dataclass(frozen=True, slots=True)
class Options:
    """How one cell or call runs; the fields are the options of ``%%tfcluster``."""

    on: str | None = None
    push: tuple[str, ...] = ()
    pull: tuple[str, ...] = ()
    capture: bool = True
    timeout_s: float | None = None
    keep_going: bool = False
    want_value: bool = False
    view: Callable[[CellRun, Mapping[TaskId, int]], View] | ViewName = "text"


@dataclass(slots=True)
class CellResult:
    """What a cell gave: results by task, and each pulled name as {task name: value}."""

    results: TaskResults[Any]
    pulled: dict[str, dict[str, Any]] = field(default_factory=dict)


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
        self._names: dict[TaskId, tuple[int, TaskNames]] = {}
        self._lock = threading.RLock()
        self._started_at = 0.0

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
            warm = flavour in launching._launchers
            environment.check_memory(self.shape, self.setting("task_bytes"), warm)
            self._environs()  # a shape that asks for too many GPUs starts nothing
            base = runs.state_dir(self.setting("state_dir"))
            runs.prune_runs(base, self.setting("keep_runs_days"), self.setting("keep_runs_bytes"))
            self._run = runs.create_run(base, self.name, {"shape": str(self.shape)})
            try:
                self._launch(flavour)
                self._wait_until_ready(self.tasks, progress)
            except BaseException:
                self.stop()
                raise
            self._started_at = time.time()
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
            attempts = {t: supervisor.state.tasks[t].attempt for t in chosen}
            supervisor.relaunch(chosen)
            self._wait_until_ready(chosen, progress, attempts)
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
        """
        __tracebackhide__ = True
        options = Options(on=on, timeout_s=timeout, keep_going=keep_going, want_value=True, view=view)
        with self._lock:
            self.start()
            result = self._execute(self._call_commands((fn, args, kwargs), options), options)
        for name, value in result.results.items():
            if isinstance(value, RemoteValue):
                raise CaptureError(
                    f"what {name} returned cannot travel: {value.reason}. Return plain data, such as "
                    "numbers, strings or numpy arrays."
                )
        return result.results

    def submit(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> concurrent.futures.Future[TaskResults[T]]:
        """`run` in the background, quietly. Calls of one cluster run one after the other."""
        future: concurrent.futures.Future[TaskResults[T]] = concurrent.futures.Future()
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
            tasks = self._select(options.on)
            wanted = cell.reads if options.capture else frozenset()
            main = self._main()
            names = self._capture(tasks, wanted, options.push, main)
            command = RunCell(
                cell=next(_cell_numbers),
                source=cell.source,
                filename=cell.filename,
                pull=options.pull,
                want_value=options.want_value,
                show_value=cell.show,
                tasks=tasks,
            )
            return self._execute(_with_names(command, names), options)

    def push(self, values: Mapping[str, Any] | None = None, *, on: str | None = "all", **more: Any) -> None:
        """Bind variables on the tasks.

        Raises:
            CaptureError: A value cannot travel; nothing was sent.
        """
        __tracebackhide__ = True
        bound = {**(values or {}), **more}
        with self._lock:
            self.start()
            tasks = self._select(on)
            names = self._capture(tasks, frozenset(), tuple(bound), bound)
            command = RunCell(cell=next(_cell_numbers), tasks=tasks)
            self._execute(_with_names(command, names), Options(view="quiet"))

    def pull(self, *names: str, on: str | None = None) -> dict[str, dict[str, Any]]:
        """Fetch variables: {name: {task name: value}}. Tensors come as numpy arrays.

        Raises:
            NameError: A task does not have one of them.
            CaptureError: A value cannot travel.
        """
        __tracebackhide__ = True
        with self._lock:
            self._require_running()
            tasks = self._select(on)
            command = RunCell(cell=next(_cell_numbers), pull=names, tasks=tasks)
            return self._execute(dict.fromkeys(tasks, command), Options(view="quiet", pull=names)).pulled

    # -- faults and looks --

    def interrupt(self) -> None:
        """As Ctrl-C: the running cell is interrupted on every task."""
        self._require_running().interrupt()

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
            gone = (Phase.DEAD, Phase.STARTING, Phase.PLANNED)
            supervisor.wait_for(lambda s: all(s.tasks[t].phase in gone or s.tasks[t].restarts for t in chosen), 5)

    def stacks(self, *tasks: str) -> dict[str, str]:
        """The Python stacks of every thread, by task name; also of a task that is stuck in C++."""
        supervisor = self._require_running()
        chosen = select(",".join(tasks or ("all",)), self.tasks)
        before = {t: _size(self.run_folder.stacks_path(t)) for t in chosen}
        for task in chosen:
            if pid := supervisor.state.tasks[task].pid:
                os.kill(pid, signal.SIGUSR1)
        return self._read_stacks(before)

    def status(self) -> list[dict[str, Any]]:
        """A row for each task: task, state, pid, host, uptime_s, cpu_percent, memory_bytes, address."""
        supervisor = self._require_running()
        return [self._status_row(task, supervisor.state) for task in self.tasks]

    def logs(self, *tasks: str, tail: int = 20) -> dict[str, list[str]]:
        """The last lines of tasks' logs, by task name; also of a cluster that was stopped."""
        chosen = select(",".join(tasks or ("all",)), self.tasks)
        return {task.name: tail_lines(self.run_folder.log_path(task), tail) for task in chosen}

    # -- inside: starting --

    def _launch(self, flavour: launching.Flavour) -> None:
        assert self._run is not None
        backend = LocalBackend(flavour, self._run)
        try:
            self._spec = ClusterSpec(self.shape, backend.allocate(self.tasks))
        except OSError as error:
            backend.close()
            raise LaunchError(f"no port could be reserved for every task: {error}") from error
        self._names.clear()
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
            abort_grace_s=self.setting("abort_grace_s"),
            auto_restart=self._auto_restart,
        )

    def _environs(self) -> dict[TaskId, dict[str, str]]:
        return {
            task: environment.task_environ(
                task, self.shape, os.environ, self._env, self._gpus_per_task, self._legacy_keras
            )
            for task in self.tasks
        }

    def _boot(self, task: TaskId, attempt: int) -> TaskBoot:
        assert self._spec is not None and self._run is not None
        return TaskBoot(
            task=task,
            attempt=attempt,
            cluster=self.name,
            shape_tasks=self.tasks,
            tf_config=self._spec.tf_config(task),
            environ=self._environs()[task],
            cwd=os.getcwd(),
            sys_path=tuple(sys.path),
            log_path=str(self._run.log_path(task)),
            leader=self.shape.leader,
            heartbeat_ms=int(self.setting("heartbeat_timeout_s") * 1000),
            keras_fix=self._keras_fix,
        )

    def _wait_until_ready(
        self,
        tasks: tuple[TaskId, ...],
        progress: Progress | None,
        attempts: Mapping[TaskId, int] | None = None,
    ) -> None:
        """Wait for new processes of `tasks`. Raises `LaunchError`; an interrupt passes through."""
        supervisor = self._supervisor
        assert supervisor is not None
        old = attempts or dict.fromkeys(tasks, 0)

        def settled(state: ClusterState) -> bool:
            fresh = all(state.tasks[t].attempt > old[t] for t in tasks)
            phases = {state.tasks[t].phase for t in tasks}
            return fresh and (phases <= {Phase.READY, Phase.RUNNING} or Phase.DEAD in phases)

        deadline = time.monotonic() + self.setting("start_timeout_s")
        while not supervisor.wait_for(settled, _LOOK_S):
            if progress is not None:
                progress(supervisor.state)
            if not supervisor.thread.is_alive():
                raise LaunchError("the cluster's supervisor ended") from supervisor.crashed
            if time.monotonic() > deadline:
                late = [t.name for t in tasks if supervisor.state.tasks[t].phase is not Phase.READY]
                raise LaunchError(
                    f"{', '.join(late)} did not get ready within {self.setting('start_timeout_s'):g} s; "
                    "the cluster was stopped. See start_timeout_s, and the machine's load."
                )
        if progress is not None:
            progress(supervisor.state)
        self._raise_failed_start(tasks, supervisor)

    def _raise_failed_start(self, tasks: tuple[TaskId, ...], supervisor: Supervisor) -> None:
        dead = {t: supervisor.state.tasks[t].end for t in tasks if supervisor.state.tasks[t].phase is Phase.DEAD}
        for task, end in dead.items():
            assert end is not None
            lines = tail_lines(self.run_folder.log_path(task), 20)
            raise LaunchError(
                "\n".join(
                    [f"{task} {failures.describe_end(end)} while it was started.", *(f"    {x}" for x in lines)]
                )
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

    def _select(self, on: str | None) -> tuple[TaskId, ...]:
        return self.shape.cell_tasks if on is None else select(on, self.tasks)

    def _task_names(self, tasks: Iterable[TaskId]) -> dict[TaskId, TaskNames]:
        """What each task has; a task with a new process has nothing."""
        state = self._require_running().state
        for task in tasks:
            attempt = state.tasks[task].attempt
            if self._names.get(task, (0,))[0] != attempt:
                self._names[task] = (attempt, TaskNames())
        return {task: self._names[task][1] for task in tasks}

    def _capture(
        self,
        tasks: tuple[TaskId, ...],
        wanted: Iterable[str],
        pushed: tuple[str, ...],
        namespace: Mapping[str, Any],
    ) -> dict[TaskId, Captured]:
        __tracebackhide__ = True
        if not wanted and not pushed:
            return dict.fromkeys(tasks, Captured())
        limit = self.setting("max_capture_bytes")
        main = self._main()
        lookup = namespace if namespace is main else {**main, **namespace}
        return capture.capture(wanted, pushed, lookup, main, self._task_names(tasks), limit)

    def _call_commands(self, call: Any, options: Options) -> dict[TaskId, RunCell]:
        __tracebackhide__ = True
        tasks, main = self._select(options.on), self._main()
        wanted = capture.names_of_call(call, main)
        names = self._capture(tasks, wanted, (), main)
        packed = capture.pack_call(call, main, lambda name: name in wanted)
        command = RunCell(cell=next(_cell_numbers), call=packed, want_value=True, tasks=tasks)
        return _with_names(command, names)

    def _execute(self, commands: Mapping[TaskId, RunCell], options: Options) -> CellResult:
        """Run, show, wait; then unpack or raise."""
        __tracebackhide__ = True
        supervisor = self._require_running()
        self._refuse_dead(tuple(commands), supervisor.state)
        starts = {t: _size(self.run_folder.log_path(t)) for t in commands}
        stacks = {t: _size(self.run_folder.stacks_path(t)) for t in commands} if options.timeout_s else {}
        number = next(iter(commands.values())).cell
        request = CellRequested(number, commands, options.timeout_s, options.keep_going)
        run = supervisor.run_cell(request)
        outcome = self._wait(run, self._make_view(run, starts, options), supervisor)
        self._note_names(outcome)
        texts = _group(self._read_stacks(stacks)) if outcome.timed_out else ""
        error = failures.build_error(outcome, self._main(), self.run_folder, texts)
        if error is not None:
            raise error
        return self._unpack(outcome, starts, options)

    def _refuse_dead(self, tasks: tuple[TaskId, ...], state: ClusterState) -> None:
        for task in tasks:
            seen = state.tasks[task]
            if seen.phase is Phase.DEAD and seen.end is not None:
                raise failures.died_error(task, seen.end, self.run_folder)

    def _make_view(self, run: CellRun, starts: Mapping[TaskId, int], options: Options) -> View:
        if callable(options.view):
            return options.view(run, starts)
        if options.view == "quiet":
            return QuietView()
        return TextView(self.run_folder, starts.items(), run.displays)

    def _wait(self, run: CellRun, view: View, supervisor: Supervisor) -> CellState:
        """Wait for the outcome; Ctrl-C interrupts the tasks, a second one kills what is left."""
        __tracebackhide__ = True
        while not run.done.is_set():
            try:
                while not run.done.wait(view.interval_s):
                    view.update()
            except KeyboardInterrupt:
                supervisor.interrupt()
        view.finish(run.outcome)
        if run.outcome is None:
            raise TfmagicError(
                f"cluster {self.name!r} was stopped while the cell ran"
            ) from supervisor.crashed
        return run.outcome

    def _note_names(self, outcome: CellState) -> None:
        for task, result in outcome.outcomes.items():
            owned = getattr(result, "owned", None)
            if owned is not None:
                self._task_names([task])[task].owned = frozenset(owned)

    def _unpack(self, outcome: CellState, starts: Mapping[TaskId, int], options: Options) -> CellResult:
        __tracebackhide__ = True
        values: dict[TaskId, Any] = {}
        seconds: dict[TaskId, float] = {}
        spans: dict[TaskId, tuple[int, int]] = {}
        pulled: dict[str, dict[str, Any]] = {name: {} for name in options.pull}
        for task in sorted(outcome.outcomes):
            result = outcome.outcomes[task]
            assert isinstance(result, CellReturned)
            values[task] = self._value_of(task, result)
            seconds[task] = result.seconds
            spans[task] = (starts[task], result.log_end)
            for name, packed in result.pulled.items():
                pulled[name][task.name] = self._load(task, packed)
        self._raise_failed_pulls(outcome)
        return CellResult(TaskResults(values, seconds, spans, self.run_folder), pulled)

    def _value_of(self, task: TaskId, result: CellReturned) -> Any:
        if result.value_error:
            return RemoteValue(task.name, result.value_error)
        return None if result.value is None else self._load(task, result.value)

    def _load(self, task: TaskId, packed: Packed) -> Any:
        try:
            return pickling.loads(packed, self._main(), import_tensorflow=False)
        except pickling.NeedsTensorFlow as error:
            reason = f"it needs {error}, and this process has not imported TensorFlow"
            return RemoteValue(task.name, reason)

    def _raise_failed_pulls(self, outcome: CellState) -> None:
        failed: dict[str, dict[str, str]] = {}
        for task, result in outcome.outcomes.items():
            for name, reason in getattr(result, "failed_pulls", {}).items():
                failed.setdefault(f"{name}: {reason}", {})[task.name] = name
        if not failed:
            return
        lines = [f"  on {', '.join(tasks)}: {what}" for what, tasks in failed.items()]
        missing = all("no such variable" in what for what in failed)
        raise (NameError if missing else CaptureError)("cannot pull\n" + "\n".join(lines))

    # -- inside: looking --

    def _read_stacks(self, before: Mapping[TaskId, int]) -> dict[str, str]:
        """What the fault handlers have written since; waits until each has written something."""
        paths = {t: self.run_folder.stacks_path(t) for t in before}
        deadline = time.monotonic() + _STACKS_WAIT_S
        sizes: dict[TaskId, int] = {}
        while time.monotonic() < deadline:
            seen = {t: _size(path) for t, path in paths.items()}
            if seen == sizes and any(seen[t] > before[t] for t in seen):
                break
            sizes = seen
            time.sleep(0.02)
        texts = {t.name: read_output(paths[t], start, _size(paths[t])) for t, start in before.items()}
        return {name: text.strip() for name, text in texts.items() if text.strip()}

    def _status_row(self, task: TaskId, state: ClusterState) -> dict[str, Any]:
        seen = state.tasks[task]
        row: dict[str, Any] = {
            "task": task.name,
            "state": seen.phase.value,
            "pid": seen.pid or None,
            "host": seen.host,
            "uptime_s": None,
            "cpu_percent": None,
            "memory_bytes": None,
            "address": self.spec.addresses[task],
        }
        if seen.pid:
            try:
                process = psutil.Process(seen.pid)
                row["uptime_s"] = round(time.time() - process.create_time(), 1)
                row["cpu_percent"] = process.cpu_percent(0.0)
                row["memory_bytes"] = process.memory_full_info().uss
            except psutil.Error:
                pass  # it ended while we looked: the next look says so
        return row


def cluster(**shape: Any) -> Callable[[Callable[P, T]], Callable[P, TaskResults[T]]]:
    """Decorate a function so that each call runs it on a cluster of this shape, started and ended.

    Args:
        **shape: The arguments of `Cluster`.
    """

    def decorate(fn: Callable[P, T]) -> Callable[P, TaskResults[T]]:
        @functools.wraps(fn)
        def run_on_cluster(*args: P.args, **kwargs: P.kwargs) -> TaskResults[T]:
            with Cluster(**shape) as started:
                return started.run(functools.partial(fn, *args, **kwargs))

        return run_on_cluster

    return decorate


def _with_names(command: RunCell, captured: Mapping[TaskId, Captured]) -> dict[TaskId, RunCell]:
    """The command for each task with the variables for it; one object where they are the same."""
    made: dict[tuple[int, tuple[tuple[str, str], ...]], RunCell] = {}
    commands = {}
    for task, found in captured.items():
        key = (id(found.names), found.sources)
        if key not in made:
            made[key] = dataclasses.replace(command, names=found.names, sources=found.sources)
        commands[task] = made[key]
    return commands


def _group(stacks: Mapping[str, str]) -> str:
    """Stacks by task, equal ones once; of the user's threads, down to where tfmagic's frames begin."""
    grouped: dict[str, list[str]] = {}
    for name, text in stacks.items():
        frames = [_user_frames(block) for block in text.split("\n\n")]
        grouped.setdefault("\n".join(filter(None, frames)) or text, []).append(name)
    return "\n".join(f"{', '.join(names)}:\n{text}" for text, names in grouped.items())


def _user_frames(block: str) -> str:
    """The frames of one thread in a fault handler's dump, most recent first, ours left out."""
    lines = [line for line in block.splitlines() if line.lstrip().startswith("File ")]
    ours = [i for i, line in enumerate(lines) if f"{os.sep}tfmagic{os.sep}task{os.sep}" in line]
    return "\n".join(lines[: ours[0]] if ours else lines)


def _size(path: os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
