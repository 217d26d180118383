"""Open what a running cluster needs: its run folder, its backend, and the addresses of its tasks."""

import os
from collections.abc import Callable
from typing import Any

from tfmagic.backends import launcher_client
from tfmagic.backends.local import LocalBackend
from tfmagic.backends.protocol import Backend
from tfmagic.backends.simulated.hosts import SimulatedHosts
from tfmagic.clusters.launch import remote_hosts
from tfmagic.clusters.launch.kept_clusters import KeptRun
from tfmagic.clusters.launch.startup import Progress
from tfmagic.clusters.launch.task_settings import TaskSettings, check_memory, computing_tasks, existing_folder
from tfmagic.errors import LaunchError
from tfmagic.protocol.cluster_spec import ClusterSpec, GivenSpec, Shape, Spec
from tfmagic.runs import folder, kernels, orphans
from tfmagic.runs.folder import RunFolder
from tfmagic.system import notices, process_options


def check_room(
    shape: Shape, task_settings: TaskSettings, setting: Callable[[str], Any], freed_bytes: int = 0
) -> None:
    """Raise an error if tasks here would have too little memory or too few GPUs, or cannot obey an option.

    Args:
        freed_bytes: Memory that another cluster gives back before.
    """
    if task_settings.hosts is None:
        if problem := process_options.find_problem(task_settings.of_process):
            raise LaunchError(f"nothing was started: {problem}")
        is_warm = launcher_client.is_warm(task_settings.flavour)
        check_memory(shape, setting("task_bytes"), is_warm, freed_bytes)
        for task in computing_tasks(shape)[:1]:
            task_settings.environ(task, shape)  # raises if there are too few GPUs for all of them


def create_run_folder(
    name: str, shape: Shape, task_settings: TaskSettings, setting: Callable[[str], Any]
) -> RunFolder:
    """Check memory and GPUs, clean up after former runs, and return a new run folder."""
    check_room(shape, task_settings, setting)
    try:
        os.getcwd()
    except FileNotFoundError:
        where = f"the tasks begin in {existing_folder()}; change to another folder before the start"
        notices.say(f"tfmagic: the current folder was deleted: {where}")
    base = folder.state_dir(setting("state_dir"))
    folder.check_private(base)
    orphans.reap(base)
    kernels.prune_runs(base, setting("keep_runs_days"), setting("keep_runs_bytes"))
    return folder.create_run(base, name, {"shape": str(shape)})


def open_backend(
    name: str,
    shape: Shape,
    settings: TaskSettings,
    run: RunFolder,
    setting: Callable[[str], Any],
    progress: Progress | None,
    kept: KeptRun | None,
) -> Backend:
    """Return the backend that the settings ask for, ready to launch tasks."""
    if settings.hosts is None:
        network = settings.network
        hosts = None if network is None else SimulatedHosts(shape.tasks, network, run.folder / "hosts")
        backend = LocalBackend(settings.flavour, run, hosts)
        try:
            if hosts is not None:
                hosts.wait_until_made()
        except BaseException:
            backend.close()
            raise
        return backend
    return remote_hosts.open_hosts(
        settings.hosts, name, shape, settings, run, setting, progress=progress, kept=kept
    )


def spec_of(shape: Shape, backend: Backend) -> Spec:
    """Return the shape with the addresses that it was given, or with ports that the backend holds for it."""
    return shape if isinstance(shape, GivenSpec) else ClusterSpec(shape, backend.allocate(shape.tasks))
