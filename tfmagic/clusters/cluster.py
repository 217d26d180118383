"""`tfmagic.Cluster`: start, run, push, pull, injure and stop a cluster. The front ends use no other object.

run / begin_cell ── CellPlan ──→ RunCell for each task ──→ supervisor ──→ Job
     ↑ view.update() while waiting, Ctrl-C → interrupt                    │
     └──── TaskResults, or the root failure raised ←────── outcome ───────┘
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfmagic.backends.simulated.hosts import read_request
from tfmagic.clusters.api.call_api import Calls
from tfmagic.clusters.api.host_api import Hosts
from tfmagic.clusters.api.story_api import Stories
from tfmagic.clusters.api.variable_api import Variables
from tfmagic.clusters.launch import remote_hosts
from tfmagic.clusters.launch.checks import check, check_options, check_settings
from tfmagic.clusters.launch.cluster_options import BackendOptions, NetworkOptions, TaskOptions
from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.clusters.launch.startup import Progress, Start
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.clusters.running_cluster import RunningCluster
from tfmagic.clusters.tools.status import own_rows, status_rows
from tfmagic.errors import ClusterSpecError
from tfmagic.failures import root_cause, stacks
from tfmagic.features.bases import FeatureMethods
from tfmagic.protocol.cluster_spec import ClusterShape, GivenSpec, Shape, Spec, TaskId, check_name, select
from tfmagic.runs.cell_records import ErrorRecord
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.line_search import LineSearch
from tfmagic.runs.log_reader import find_lines
from tfmagic.supervisor.state import ClusterState
from tfmagic.views.facts import cell_news
from tfmagic.views.task_widgets import WidgetPage


class Cluster(Calls, Variables, Hosts, Stories, FeatureMethods):
    """A TensorFlow cluster of task processes.

    Methods that take tasks take selectors, and raise `ClusterSpecError` if there is no such task.

    Args:
        workers, ps, chief, evaluator: The shape; see `ClusterShape`. Two workers by default.
        name: Names the cluster in messages and run folders.
        cluster_spec: Addresses (``host:port``) by task type instead of a shape; used unchanged.
        backend: ``local``: processes of this machine; ``ray``: of the machines of a Ray cluster. By default
            `TFCluster.backend`.
        address: Of Ray's head, as ``10.0.0.1:6379``; by default `TFCluster.address`.
        placement: ``pack`` the tasks on few machines, ``spread`` them, or ``strict-spread``: one each.
        cpus_per_task, resources: What Ray reserves for each task: CPUs (1), and custom resources by name.
        keep: With Ray: how long tasks and cells go on after this kernel has ended, as ``2h`` or in seconds;
            `tfmagic.attach` takes them over. By default they end with it.
        env: Environment variables of the task processes.
        gpus_per_task: GPUs of each task that computes; by default those there are, divided.
        keras: 3, or 2 for tf_keras.
        keras_fix: Repair `model.fit` of Keras 3 under multi-worker strategies.
        auto_restart: How often a task that died gets a new process.
        isolate: Put the tasks into a network of their own, without access to others.
        nice: Priority of the task processes, from -20 (the highest) to 19; by default that of this process.
        hosts: Spread the tasks over that number of simulated machines, with a network and a name each.
        network: The link of each simulated host, ``RATE[,LATENCY[,LOSS]]`` as ``1gbit,0.5ms``; without
            `hosts`, each task has a host of its own.
        namespace: The ``__main__`` whose functions and variables travel by name.
        task_settings: Replaces the options of tasks, from `env` on; for other packages of tfmagic.
        **settings: Any setting of `TFCluster`, such as ``failure_grace_s=5``.

    Attributes:
        widget_page: Where widgets of tasks are shown; the magics set it in a notebook.

    Raises:
        TypeError, ValueError: An argument or a setting has another type or value than is allowed.
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
        backend: str | None = None,
        address: str | None = None,
        placement: str | None = None,
        cpus_per_task: float | None = None,
        resources: Mapping[str, float] | None = None,
        keep: str | float | None = None,
        env: Mapping[str, str] | None = None,
        gpus_per_task: int | None = None,
        keras: int = 3,
        keras_fix: bool = True,
        auto_restart: int = 0,
        isolate: bool = False,
        nice: int | None = None,
        hosts: int | None = None,
        network: str | None = None,
        namespace: dict[str, Any] | None = None,
        task_settings: TaskSettings | None = None,
        **settings: Any,
    ):
        given = dict(locals())  # the options among them have their rules in `cluster_options`
        self.config, self._settings = TFCluster.instance(), check_settings(settings)
        own = TaskOptions(**check_options(TaskOptions, given))
        asked = BackendOptions(**check_options(BackendOptions, given))
        of_hosts = NetworkOptions(**check_options(NetworkOptions, given))
        cluster_spec = check("cluster_spec", cluster_spec)
        if cluster_spec is not None and (workers is not None or ps or chief or evaluator):
            raise ClusterSpecError("cluster_spec says which tasks there are; leave out workers, ps and so on")
        count = self.setting("workers") if workers is None else workers
        self.shape: Shape = (
            ClusterShape(count, ps, chief, evaluator) if cluster_spec is None else GivenSpec(cluster_spec)
        )
        self.tasks, self.name = self.shape.tasks, check_name(name)
        request = remote_hosts.request_of(
            asked,
            own.gpus_per_task,
            default_backend=self.setting("backend"),
            default_address=self.setting("address"),
        )
        if request is not None and (cluster_spec is not None or own.isolate):
            raise ClusterSpecError("cluster_spec and isolate are for tasks of this machine, not for Ray's")
        simulated = read_request(of_hosts.hosts, of_hosts.network, self.tasks)
        if simulated is not None and cluster_spec is not None:
            raise ClusterSpecError(
                "cluster_spec gives addresses, and simulated hosts have their own; leave one out"
            )
        self.task_settings = task_settings or TaskSettings.of(own, request, simulated)
        self._namespace = check("namespace", namespace)
        self.widget_page: WidgetPage | None = None
        self._latest = None
        self._beside = {}
        self._begun: Start | None = None
        self._lock = threading.RLock()

    # -- start and stop --

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._has_left = True

    def __repr__(self) -> str:
        return f"<Cluster {self.name!r}: {self.shape}, {'running' if self.running else 'not running'}>"

    @property
    def busy(self) -> bool:
        """True if a cell or call has not ended, including those that wait for their turn."""
        return self._latest is not None and self._latest.cells.is_busy

    @property
    def idle_stop_s(self) -> float:
        """The limit after which the cluster ended by itself, for want of a cell; 0 if it did not."""
        return 0.0 if self._latest is None or self.running else self._latest.idle_stop_s

    @property
    def starting(self) -> bool:
        """True if the cluster runs, and some task of its start is not ready."""
        return self._begun is not None and not self._begun.is_over and self.running

    @property
    def state(self) -> ClusterState | None:
        """The present state of the tasks, or the last one before `stop`; None before the first start."""
        return None if self._latest is None else self._latest.supervisor.state

    @property
    def spec(self) -> Spec:
        """The shape with its addresses. Raises `TfmagicError` while the cluster does not run."""
        return self._running_cluster().spec

    @property
    def imported_under(self) -> Mapping[str, str]:
        """The variables that TensorFlow's import could see."""
        return self._running_cluster().imported_under

    @property
    def told_late(self) -> set[str]:
        """The names of variables that cells set too late, and about which the user was told."""
        return self._running_cluster().told_late

    @property
    def run_folder(self) -> RunFolder:
        """The folder with the logs since the last start."""
        return self._started().run

    def setting(self, name: str) -> Any:
        """Return a setting as given to this cluster, or else as configured."""
        return self._settings[name] if name in self._settings else getattr(self.config, name)

    def start(self, progress: Progress | None = None) -> Cluster:
        """Start every task and wait until all are ready. Do nothing if the cluster runs.

        Args:
            progress: Called with the state, several times a second, to show it.

        Raises:
            LaunchError: It could not be started; no process is left.
        """
        with self._lock:
            try:
                if (begun := self.begin_start(progress)) is not None:
                    begun.wait()
            except BaseException:
                self.stop()
                raise
        return self

    def begin_start(self, progress: Progress | None = None) -> Start | None:
        """Start every task; return what waits for them, or None if all were ready before."""
        with self._lock:
            self._has_left = False
            if not self.running:
                supervisor, old = self._open(progress=progress).supervisor, dict.fromkeys(self.tasks, 0)
                self._begun = Start(supervisor, old, self.setting("start_timeout_s"))
            return None if self._begun is None or self._begun.is_over else self._begun.shown_by(progress)

    def stop(self) -> None:
        """End every task; the logs stay on disk. Do nothing if the cluster does not run."""
        for part in (*self._beside.values(), self._latest):
            if part is not None:
                part.close()

    def restart(self, *tasks: str, progress: Progress | None = None) -> Cluster:
        """Give the named tasks, or all, new processes at the same addresses, and wait until they are ready.

        Raises:
            LaunchError: A task did not come back.
        """
        if not self.running and not tasks:
            return self.start(progress)
        with self._lock:
            self._relaunch(self._select(tasks) if tasks else self.tasks, progress)
        return self

    def revive(self, *tasks: str) -> tuple[str, ...]:
        """Give dead tasks new processes, while the others keep their Python state; return their names.

        Where a collective strategy had been made, or a task comes back on another host, all tasks get new
        addresses, and the living tasks leave their old cluster: their variables stay, a new strategy works.
        Each such leave keeps some memory; a warning comes near ten.

        Args:
            *tasks: Selectors; by default every dead task. A living task that is named is killed first.

        Raises:
            LaunchError: A task did not come back.
            RuntimeError: A task holds an object of TensorFlow's that would not survive.
        """
        with self._lock:
            running = self._running_cluster()
            chosen = self._select(tasks) if tasks else running.dead_tasks()
            if chosen:
                self._relaunch(chosen)
                running = self._running_cluster()  # a new one if its backend had ended
            if running.processes.must_rejoin():
                running.cells.rejoin()
        return tuple(task.name for task in chosen)

    def forget_variables(self) -> None:
        """Send functions and variables again when they are needed: the tasks have deleted them."""
        self._running_cluster().cells.forget_names()

    # -- failures --

    def interrupt(self, *tasks: str) -> None:
        """Interrupt the running cell as Ctrl-C does, on every task or only on these."""
        supervisor = self._running_cluster().supervisor
        supervisor.interrupt(self._select(tasks) if tasks else ())

    def errors(self, *tasks: str) -> dict[str, str]:
        """Return every failure of the last cell in full, as text by task name; the root cause first."""
        return {name: error.text for name, error in self.failures(*tasks).items()}

    def failures(self, *tasks: str) -> dict[str, ErrorRecord]:
        """Return a record of every failure of the last cell, by task name; the root cause first."""
        chosen = {t.name for t in self._select(tasks or ("all",))}
        last = None if self._latest is None else self._latest.last
        found = root_cause.describe_failures(*last) if last else {}
        return {name: error for name, error in found.items() if name in chosen}

    # -- what is shown --

    def stacks(self, *tasks: str) -> dict[str, str]:
        """Return the Python stacks of every thread, by task name; also of a task that is stuck in C++."""
        running = self._running_cluster()
        return stacks.take_stacks(running.supervisor, running.run, self._select(tasks or ("all",)))

    def grouped_stacks(self, *tasks: str) -> str:
        """Return the stacks of the user's code as text, equal ones once, with what each waits for."""
        taken, state = self.stacks(*tasks), self._running_cluster().supervisor.state
        return stacks.describe(taken, state, self._select(tasks or ("all",)))

    def news(self) -> str:
        """Name the tasks that hold up the running cells (they wait or are dead), or return ""."""
        supervisor = self._running_cluster().supervisor
        news = (cell_news(supervisor, cell) for cell in supervisor.state.cells.values())
        return "\n".join(filter(None, news))

    def status(self) -> list[dict[str, Any]]:
        """Return a row for each task; see `tfmagic.clusters.tools.status.status_rows`."""
        running = self._running_cluster()
        return status_rows(running.supervisor, running.spec.addresses, running.run)

    def attempts(self) -> dict[str, int]:
        """Return how many processes each task has had since `start`, the present one included."""
        return {task.name: n for task, n in self._running_cluster().processes.attempts(self.tasks).items()}

    def own_share(self) -> list[dict[str, Any]]:
        """Return the use of kernel and launcher; see `tfmagic.clusters.tools.status.own_rows`."""
        return own_rows(self._running_cluster().supervisor)

    def logs(self, *tasks: str, tail: int | None = 20, grep: str = "") -> dict[str, list[str]]:
        """Return the lines of tasks' logs, by task name; also of a cluster that was stopped.

        Args:
            tail: The number of lines, from the end; None for all.
            grep: A regular expression; only lines that match are returned.

        Raises:
            ValueError: `grep` is no regular expression, or the search takes too long.
        """
        chosen, tail = self._select(tasks or ("all",)), check("tail", tail)
        files = {task.name: self.run_folder.log_path(task) for task in chosen}
        with LineSearch(check("grep", grep)) as search:
            choose = search.matching if grep else None
            return {name: list(find_lines(path, tail, choose)) for name, path in files.items()}

    # -- inside --

    def _open(self, **how: Any) -> RunningCluster:
        shape, settings, page = self.shape, self.task_settings, self.widget_page
        opened = RunningCluster(
            self.name, shape, settings, self.setting, self._main, self._lock, widget_page=page, **how
        )
        self._latest = opened
        return opened

    def _select(self, tasks: Iterable[str]) -> tuple[TaskId, ...]:
        return select(tuple(tasks), self.tasks)

    def _relaunch(self, tasks: tuple[TaskId, ...], progress: Progress | None = None) -> None:
        running = self._running_cluster()
        if running.supervisor.backend.has_ended:
            self.stop()
            self.start(progress)
            return
        if set(tasks) == set(self.tasks):
            running.cells.note_renewed()
        running.processes.renew_modules(tasks)
        starts = {task: running.run.log_bytes(task) for task in tasks}
        old, timeout_s = running.processes.relaunch(tasks), self.setting("start_timeout_s")
        then = "the cluster stays, and waits for them"
        Start(running.supervisor, old, timeout_s, progress, starts, then=then).wait()

    def _main(self) -> dict[str, Any]:
        return sys.modules["__main__"].__dict__ if self._namespace is None else self._namespace
