"""The task processes of a cluster: where they live, what each one is told first, and their addresses."""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import psutil

from tfmagic.backends.local import LocalBackend
from tfmagic.backends.remote.backend import RemoteBackend
from tfmagic.clusters.launch import open_backend
from tfmagic.clusters.launch.kept_clusters import KeptClusterRecord, KeptRun, Resumed
from tfmagic.clusters.launch.remote_hosts import collect_modules, tell_left_out
from tfmagic.clusters.launch.settings import TFCluster, policy_source
from tfmagic.clusters.launch.startup import Progress
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.errors import LaunchError, TfmagicError
from tfmagic.protocol.cluster_spec import GivenSpec, Shape, TaskId
from tfmagic.protocol.commands import TaskBoot
from tfmagic.protocol.events import LaunchRequested
from tfmagic.supervisor.restarts import must_rejoin
from tfmagic.supervisor.state import ALIVE, Phase
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system import features
from tfmagic.system.advice import Step
from tfmagic.system.usage import Usage, is_paused


class ClusterProcesses:
    """Opens the backend and the run folder of a cluster; launches its tasks, by the supervisor that it makes.

    Args:
        setting: Returns the value of a setting of `TFCluster` for this cluster.
        tasks: The tasks that are started; by default all of the shape.
        observer: Of the supervisor.
        progress: Called while the hosts of the tasks are not there yet.
        kept: A run whose tasks are taken over instead.

    Attributes:
        spec: The shape with its present addresses.
        hosts: The simulated hosts; None without them.
        kept_record: Notes what another kernel needs to attach.

    Raises:
        LaunchError: It could not be opened; no process is left.
        ClusterSpecError: The shape needs more GPUs than there are.
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        task_settings: TaskSettings,
        setting: Callable[[str], Any],
        *,
        tasks: tuple[TaskId, ...] | None,
        observer: Callable[[Supervisor], object],
        progress: Progress | None,
        kept: KeptRun | None,
    ):
        self.name, self.shape, self.setting, self.task_settings = name, shape, setting, task_settings
        self.tasks = shape.tasks if tasks is None else tasks
        self.run = run = (
            kept.run if kept else open_backend.create_run_folder(name, shape, task_settings, setting)
        )
        backend = open_backend.open_backend(name, shape, task_settings, run, setting, progress, kept)
        self.hosts = backend.simulated if isinstance(backend, LocalBackend) else None
        try:
            self.spec = kept.spec if kept else open_backend.spec_of(shape, backend)
        except OSError as error:
            backend.close()
            raise LaunchError(f"no port could be reserved for every task: {error}") from error
        self.supervisor = Supervisor(
            backend,
            self.tasks,
            policy_source(TFCluster.instance(), setting, task_settings.auto_restart),
            self._boots,
            run,
            setting("max_log_bytes"),
            observer,
            name=name,
            outlives_us=task_settings.keep_s > 0,
        )
        self.kept_record = KeptClusterRecord(backend, run, name, self.spec, task_settings, kept)

    def _boots(self) -> Callable[[TaskId, int], TaskBoot]:
        heartbeat_s = self.setting("heartbeat_timeout_s")
        return self.task_settings.boots(self.name, self.spec, self.run, heartbeat_s)

    def resume(self) -> Resumed:
        """Take over the tasks of a run that was kept, and return what its hosts have reported."""
        found = self.kept_record.resume()
        self.task_settings = replace(self.task_settings, env=found.env)
        return found

    @property
    def running(self) -> bool:
        """True until the supervisor has ended."""
        return not self.supervisor.ended and self.supervisor.pid == os.getpid()

    def attempts(self, tasks: Iterable[TaskId]) -> dict[TaskId, int]:
        """Return the present attempt of each task; a process that is planned counts as present."""
        state = self.supervisor.state
        return {task: state.tasks[task].next_attempt for task in tasks}

    def relaunch(self, tasks: tuple[TaskId, ...]) -> dict[TaskId, int]:
        """Request new processes. Return the attempts that the tasks had until now."""
        seen = self.supervisor.state.tasks
        self.supervisor.ask(LaunchRequested(tasks))
        return {task: seen[task].attempt if task in seen else 0 for task in tasks}

    def renew_modules(self, tasks: Iterable[TaskId]) -> None:
        """Give all tasks, before they are relaunched, the notebook's modules as they are now.

        For hosts of Ray. Does nothing for some of the tasks: they get the copy that the others have.

        Raises:
            LaunchError: The modules are too large; nothing was ended.
        """
        backend = self.supervisor.backend
        if isinstance(backend, RemoteBackend) and not set(self.tasks) - set(tasks):
            limit = self.setting("max_module_bytes")
            backend.use_modules(found := collect_modules(self.task_settings, limit))
            tell_left_out(found, limit)

    def stamp_sent(self, file: str) -> tuple[str, int, int] | None:
        """Return the time and size of a file of which hosts of Ray have a copy; see `OwnModules.stamp_of`."""
        backend = self.supervisor.backend
        return backend.modules.stamp_of(file) if isinstance(backend, RemoteBackend) else None

    def send_changes(self, names: Iterable[str]) -> Mapping[str, bytes]:
        """Return the changed files of these modules for hosts of Ray. A process that starts later has them.

        Raises:
            LaunchError: The modules are too large.
        """
        backend = self.supervisor.backend
        if not isinstance(backend, RemoteBackend):
            return {}
        now = collect_modules(self.task_settings, self.setting("max_module_bytes"))
        return backend.change_modules(now, names)

    def dead_tasks(self) -> tuple[TaskId, ...]:
        """Return the tasks whose last process has ended."""
        tasks = self.supervisor.state.tasks
        return tuple(task for task, seen in tasks.items() if seen.phase is Phase.DEAD)

    def must_rejoin(self) -> bool:
        """Check whether all tasks need new addresses: a peer has another process, or is on another host."""
        state = self.supervisor.state
        if must_rejoin(state):
            return True
        if self.supervisor.backend.runs_here or isinstance(self.shape, GivenSpec):
            return False
        known = {task: where.rpartition(":")[0] for task, where in self.spec.addresses.items()}
        hosts = {task: state.tasks[task].host for task in known if state.tasks[task].phase in ALIVE}
        return any(host not in ("", known[task]) for task, host in hosts.items())

    def _is_paused(self, task: TaskId) -> bool:
        """Check whether a task is stopped; the last look can be from before it was told to go on."""
        paused = self.supervisor.usage.get(task, Usage()).paused
        if paused and self.supervisor.backend.runs_here:
            with contextlib.suppress(psutil.Error):
                return is_paused(psutil.Process(self.supervisor.state.tasks[task].pid))
        return paused

    def renew_addresses(self) -> dict[TaskId, str]:
        """Give all tasks new addresses. Return the TF_CONFIG that each living task must be told.

        Raises:
            TfmagicError: A cell runs, a task is paused, the addresses were given, or no ports are left.
        """
        paused = [task.name for task in self.tasks if self._is_paused(task)]
        if paused:
            raise TfmagicError(
                f"the tasks need new addresses, and {', '.join(paused)} is stopped (SIGSTOP)"
                f"{features.propose('let go on', ':  {}', *paused)}"
            )
        cells = self.supervisor.state.cells.values()
        if busy := sorted({task.name for cell in cells for task in cell.waiting_for}):
            raise TfmagicError(
                f"a cell runs on {', '.join(busy)}, whose TensorFlow cannot be reset now. Wait for it with  "
                f"{Step('wait')} , or end it with  {Step('interrupt')}"
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
        self.kept_record.move(self.spec)
        # read only now: a task that starts at this moment has the new addresses, or is seen here
        alive = [task for task, seen in self.supervisor.state.tasks.items() if seen.phase in ALIVE]
        return {task: self.spec.tf_config(task) for task in alive}
