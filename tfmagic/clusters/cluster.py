"""A cluster as an object: start, run, push, pull, fault and stop. The magic uses this and nothing else.

run / run_cell ── capture ──→ RunCell for each task ──→ supervisor ──→ CellRun
     ↑ view.update() while waiting, Ctrl-C → interrupt           │
     └──── TaskResults, or the root failure raised ←── outcome ──┘
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tfmagic.clusters import startup, waiting
from tfmagic.clusters.background_calls import lock_running
from tfmagic.clusters.call_api import Call, Calls
from tfmagic.clusters.cell_options import Options
from tfmagic.clusters.fault_lab import FaultLab
from tfmagic.clusters.job import Job
from tfmagic.clusters.running_cluster import RunningCluster, open_life
from tfmagic.clusters.settings import TFCluster
from tfmagic.clusters.startup import Progress
from tfmagic.clusters.status import own_rows, status_rows
from tfmagic.clusters.task_settings import TaskSettings
from tfmagic.clusters.tensorboard import TensorBoardProcess, find_logdir, open_board
from tfmagic.errors import BackendError, ClusterSpecError, TfmagicError
from tfmagic.failures import root_cause, stacks
from tfmagic.protocol.cluster_spec import (
    ClusterShape,
    GivenSpec,
    Selector,
    Shape,
    Spec,
    TaskId,
    check_name,
    select,
)
from tfmagic.protocol.commands import RunCell
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.log_reader import find_lines
from tfmagic.supervisor.restarts import must_rejoin
from tfmagic.supervisor.state import ClusterState
from tfmagic.views.facts import cell_news


class Cluster(Calls):
    """A TensorFlow cluster of task processes.

    Args:
        workers, ps, chief, evaluator: The shape; see `ClusterShape`. Two workers by default.
        name: Names the cluster in messages and run folders.
        cluster_spec: Addresses (``host:port``) by task type instead of a shape; they stand as they are.
        backend: ``local``: processes of this machine.
        env: Environment variables of the task processes.
        gpus_per_task: GPUs of each task that computes; by default those there are, divided.
        keras: 3, or 2 for tf_keras.
        keras_fix: Repair `model.fit` of Keras 3 under multi-worker strategies.
        auto_restart: How often a task that died is given a new process.
        isolate: Put the tasks into a network of their own, without access to others.
        namespace: The ``__main__`` whose functions and variables travel by name.
        task_settings: Replaces `env` to `isolate`; for other packages of tfmagic.
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
        cluster_spec: Mapping[str, Sequence[str]] | None = None,
        backend: str = "local",
        env: Mapping[str, str] | None = None,
        gpus_per_task: int | None = None,
        keras: int = 3,
        keras_fix: bool = True,
        auto_restart: int = 0,
        isolate: bool = False,
        namespace: dict[str, Any] | None = None,
        task_settings: TaskSettings | None = None,
        **settings: Any,
    ):
        self.config = TFCluster.instance()
        unknown = sorted(set(settings) - set(self.config.trait_names(config=True)))
        if unknown:
            raise TypeError(f"Cluster() has no argument or setting {', '.join(unknown)}")
        self._settings = settings
        if cluster_spec is not None and (workers is not None or ps or chief or evaluator):
            raise ClusterSpecError("cluster_spec says which tasks there are; leave out workers, ps and so on")
        count = self.setting("workers") if workers is None else workers
        self.shape: Shape = (
            ClusterShape(count, ps, chief, evaluator) if cluster_spec is None else GivenSpec(cluster_spec)
        )
        self.tasks = self.shape.tasks
        if backend != "local":
            raise BackendError(f"there is no backend {backend!r} in this version; use local")
        check_name(name)
        self.name = name
        self.make = task_settings or TaskSettings(
            dict(env or {}), gpus_per_task, keras, keras_fix, auto_restart, isolate
        )
        self._namespace = namespace
        self._life: RunningCluster | None = None  # the present one, or the last
        self._faults: FaultLab | None = None
        self._board: TensorBoardProcess | None = None
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
        return self._life is not None and self._life.running

    @property
    def busy(self) -> bool:
        """Whether a cell or call has not ended, including those that wait for their turn."""
        return self._life is not None and self._life.is_busy

    @property
    def state(self) -> ClusterState | None:
        """The present state of the tasks, or the last one before the stop; None before the first start."""
        return None if self._life is None else self._life.supervisor.state

    @property
    def spec(self) -> Spec:
        """The shape with its addresses. Raises `TfmagicError` while it does not run."""
        return self._running_life().spec

    @property
    def run_folder(self) -> RunFolder:
        """Where the logs of the present or last life are."""
        if self._life is None:
            raise TfmagicError(f"cluster {self.name!r} has never been started")
        return self._life.run

    def setting(self, name: str) -> Any:
        """A setting as given to this cluster, else as configured."""
        return self._settings[name] if name in self._settings else getattr(self.config, name)

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
            if self._faults is not None:
                self._faults.close()
            life = open_life(self.name, self.shape, self.make, self.setting, self._main, self._lock)
            self._life, self._faults = life, FaultLab(life.supervisor, self.name)
            try:
                timeout_s = self.setting("start_timeout_s")
                startup.wait_until_ready(life.supervisor, dict.fromkeys(self.tasks, 0), timeout_s, progress)
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """End every task. Its logs stay on disk. Does nothing if it does not run."""
        if self._faults is not None:
            self._faults.close()
        if self._board is not None:
            self._board.close()
        if self._life is not None:
            self._life.close()

    def restart(self, *tasks: str, progress: Progress | None = None) -> Cluster:
        """Give the named tasks, or all, new processes at the same addresses, and wait for them.

        Raises:
            ClusterSpecError: There is no such task.
            LaunchError: A task did not come back.
        """
        __tracebackhide__ = True
        if not self.running and not tasks:
            return self.start(progress)
        with self._lock:
            self._relaunch(self._select(tasks) if tasks else self.tasks, progress)
        return self

    def revive(self, *tasks: str) -> tuple[str, ...]:
        """Bring dead tasks back, while the others keep their Python state; the names of those that came.

        Where a collective strategy had been made, all tasks get new addresses, and those that live leave
        their old cluster: their variables stay, a new strategy works. Each such leave keeps some memory,
        so that it is counted, and warned of near ten.

        Args:
            *tasks: Selectors; by default every task that is dead. A live one that is named is killed first.

        Raises:
            ClusterSpecError: There is no such task.
            LaunchError: A task did not come back.
            RuntimeError: A task holds something of TensorFlow's that would not survive it.
        """
        __tracebackhide__ = True
        with self._lock:
            life = self._running_life()
            chosen = self._select(tasks) if tasks else life.dead_tasks()
            if chosen:
                self._relaunch(chosen)
            if must_rejoin(life.supervisor.state):
                life.rejoin()
        return tuple(task.name for task in chosen)

    # -- running --

    def _begin_call(
        self,
        call: Call,
        options: Options,
        detached: bool = True,
        may_begin: Callable[[], bool] = lambda: True,
    ) -> Job:
        __tracebackhide__ = True
        with self._lock:
            self.start()
            life = self._running_life()
            return life.begin(life.call_commands(call, options.on), options, detached, may_begin)

    async def _begin_awaited(self, call: Call, options: Options) -> Job:
        __tracebackhide__ = True
        await lock_running(self._lock, self)
        try:
            return self._begin_call(call, options)
        finally:
            self._lock.release()

    def _targets(self, on: Selector) -> tuple[TaskId, ...]:
        __tracebackhide__ = True
        with self._lock:
            self.start()
            return tuple(self._running_life().targets(on))

    def begin_cell(
        self, command: RunCell, reads: frozenset[str], options: Options, detached: bool = False
    ) -> Job:
        """Start a cell; `tfmagic.clusters.waiting.finish` must follow, unless it is `detached`.

        Args:
            command: The source; its number and its variables are added here.
            reads: The names of variables that it can need from the notebook.
            detached: Let it go on by itself: no thread waits for it, and Ctrl-C is not for it.

        Raises:
            CaptureError: Something cannot travel.
            TaskDied: A task that is to run it has no process.
        """
        __tracebackhide__ = True
        with self._lock:
            self.start()
            template = msgspec.structs.replace(command, pull=options.pull, want_value=options.want_value)
            life = self._running_life()
            return life.begin(life.commands(template, options.on, reads, options.push), options, detached)

    def push(self, values: Mapping[str, Any] | None = None, *, on: Selector = "all", **more: Any) -> None:
        """Bind variables on the tasks.

        Raises:
            CaptureError: A value cannot travel; nothing was sent.
        """
        __tracebackhide__ = True
        bound = {**(values or {}), **more}
        with self._lock:
            self.start()
            life = self._running_life()
            commands = life.commands(RunCell(cell=0), on, (), tuple(bound), bound)
            job = life.begin(commands, Options(view="quiet"))
        waiting.finish(job)

    def forget_variables(self) -> None:
        """Send functions and variables again when they are needed: the tasks have deleted them."""
        self._running_life().forget_names()

    def pull(self, *names: str, on: Selector = None) -> dict[str, dict[str, Any]]:
        """Fetch variables: {name: {task name: value}}. Tensors come as numpy arrays.

        Raises:
            NameError: A task does not have one of them.
            CaptureError: A value cannot travel.
        """
        __tracebackhide__ = True
        with self._lock:
            life = self._running_life()
            commands = life.commands(RunCell(cell=0, pull=names), on, (), ())
            job = life.begin(commands, Options(view="quiet", pull=names))
        return waiting.finish(job).pulled

    # -- faults and looks --

    def interrupt(self, *tasks: str) -> None:
        """As Ctrl-C: the running cell is interrupted, on every task or only on these.

        Raises:
            ClusterSpecError: There is no such task.
        """
        supervisor = self._running_life().supervisor
        supervisor.interrupt(self._select(tasks) if tasks else ())

    def errors(self, *tasks: str) -> dict[str, str]:
        """Every failure of the last cell in full, as text by task name; the root cause first."""
        chosen = {t.name for t in self._select(tasks or ("all",))}
        last = None if self._life is None else self._life.last
        texts = root_cause.full_texts(*last) if last else {}
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
            life = self._running_life()
            job = life.begin(life.commands(RunCell(cell=0, debug=True), task, (), ()), Options())
        waiting.finish(job)

    @property
    def faults(self) -> FaultLab:
        """Crashes, hangs, slowness, preemption, floods and chaos, on purpose."""
        self._running_life()
        assert self._faults is not None  # made with the life
        return self._faults

    @property
    def board(self) -> TensorBoardProcess | None:
        """The TensorBoard of this cluster; None where none runs."""
        return self._board if self._board is not None and self._board.running else None

    def tensorboard(
        self,
        logdir: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
    ) -> TensorBoardProcess:
        """A TensorBoard, which ends with this cluster. One that shows the same is kept, another one ended.

        One that does not answer within 5 s, for one because it was stopped, is ended too.

        Args:
            logdir: By default the last folder that a task gave to `tfmagic.logdir.tensorboard_dir`.
            port: By default a free one.
            host: Where it listens. It has no password.

        Raises:
            TfmagicError: It is not installed, or there is no such folder.
            LaunchError: The port is taken, or it did not start.
        """
        __tracebackhide__ = True
        with self._lock:
            run = self._running_life().run
            asked = None if logdir is None else os.fspath(logdir)
            wanted = find_logdir(asked, run)
            board = self.board
            if board is not None and board.shows(wanted, port, host) and board.answers():
                return board
            if board is not None:
                board.close()
            self._board = open_board(wanted, port, host, run)
            return self._board

    def kill(self, *tasks: str, signal_number: int = signal.SIGKILL) -> None:
        """Signal task processes: a crash, on purpose. See `faults` for other ones.

        Raises:
            ClusterSpecError: There is no such task.
        """
        self.faults.kill(*tasks, signal_number=signal_number)

    def stacks(self, *tasks: str) -> dict[str, str]:
        """The Python stacks of every thread, by task name; also of a task that is stuck in C++."""
        life = self._running_life()
        return stacks.take_stacks(life.supervisor, life.run, self._select(tasks or ("all",)))

    def news(self) -> str:
        """What somebody should know of the cells that run: who waits for whom, who is dead; "" if nothing."""
        supervisor = self._running_life().supervisor
        cells = supervisor.state.cells.values()
        return "\n".join(filter(None, (cell_news(supervisor, cell) for cell in cells)))

    def grouped_stacks(self, *tasks: str) -> str:
        """`stacks` as people read them: of the user's code, equal ones once, and what is waited for there."""
        taken, state = self.stacks(*tasks), self._running_life().supervisor.state
        chosen = {task.name for task in self._select(tasks or ("all",))}
        silent = [
            f"{task}: no answer; its process is {'stopped' if stacks.can_answer(state, task) else word}"
            for task, word in ((t, state.tasks[t].phase.value) for t in self.tasks)
            if task.name in chosen - set(taken)
        ]
        return "\n".join([text for text in (stacks.name_groups(taken, state), *silent) if text])

    def status(self) -> list[dict[str, Any]]:
        """A row for each task; see `tfmagic.clusters.status.status_rows`."""
        life = self._running_life()
        return status_rows(life.supervisor, life.spec.addresses, life.run)

    def attempts(self) -> dict[str, int]:
        """How many processes each task has had in this life of the cluster, the present one included."""
        return {task.name: n for task, n in self._running_life().attempts(self.tasks).items()}

    def own_share(self) -> list[dict[str, Any]]:
        """What the kernel and its launcher use: process, pid, cpu_percent (lately), memory_bytes (unique)."""
        return own_rows(self._running_life().supervisor)

    def logs(self, *tasks: str, tail: int | None = 20, grep: str = "") -> dict[str, list[str]]:
        """The lines of tasks' logs, by task name; also of a cluster that was stopped.

        Args:
            tail: How many, the last ones; None for all.
            grep: A regular expression: only lines in which it is found.
        """
        chosen, pattern = self._select(tasks or ("all",)), re.compile(grep) if grep else None
        return {t.name: list(find_lines(self.run_folder.log_path(t), tail, pattern)) for t in chosen}

    # -- inside --

    def _running_life(self) -> RunningCluster:
        if self._life is None or not self._life.running:
            raise TfmagicError(
                f"cluster {self.name!r} does not run; start it with %tfcluster start or Cluster.start()"
            )
        return self._life

    def _select(self, tasks: Iterable[str]) -> tuple[TaskId, ...]:
        return select(tuple(tasks), self.tasks)

    def _relaunch(self, tasks: tuple[TaskId, ...], progress: Progress | None = None) -> None:
        __tracebackhide__ = True
        life = self._running_life()
        attempts = life.attempts(tasks)
        life.supervisor.relaunch(tasks)
        startup.wait_until_ready(life.supervisor, attempts, self.setting("start_timeout_s"), progress)

    def _main(self) -> dict[str, Any]:
        return sys.modules["__main__"].__dict__ if self._namespace is None else self._namespace
