"""The hosts of a cluster that does not run on this machine: what is asked of Ray, and what must agree."""

import contextlib
import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from msgspec import structs

from tfmagic.backends.remote import own_modules
from tfmagic.backends.remote.backend import RemoteBackend
from tfmagic.backends.remote.messages import AgentSetup, HostFacts, HostRequest
from tfmagic.backends.remote.own_modules import OwnModules
from tfmagic.backends.remote.versions import describe_differences, own_versions
from tfmagic.clusters.launch.arguments import PLACEMENTS, read_duration
from tfmagic.clusters.launch.cluster_options import BackendOptions, options_in
from tfmagic.clusters.launch.kept_clusters import KeptRun
from tfmagic.clusters.launch.startup import Progress
from tfmagic.clusters.launch.task_settings import TaskSettings, computing_tasks
from tfmagic.errors import BackendError, ClusterSpecError, LaunchError
from tfmagic.protocol import module_origins
from tfmagic.protocol.cluster_spec import Shape
from tfmagic.runs.folder import RunFolder
from tfmagic.supervisor import lifecycle
from tfmagic.system import notices
from tfmagic.system.advice import Step, front_end
from tfmagic.system.memory import format_bytes


def request_of(
    asked: BackendOptions,
    gpus: float | None = None,
    *,
    default_backend: str = "local",
    default_address: str = "auto",
) -> HostRequest | None:
    """Return the request to the backend; None for processes of this machine.

    Args:
        gpus: Of each task that computes.

    Raises:
        BackendError: There is no such backend.
        ClusterSpecError: An argument makes no sense, or needs another backend.
    """
    backend, placement = asked.backend or default_backend, asked.placement
    cpus, resources = asked.cpus_per_task, asked.resources
    if backend == "local" and asked.keep is not None:
        raise ClusterSpecError("keep needs backend='ray': a process of this machine ends with its kernel")
    if backend == "local":
        names = [option.name for option in options_in(BackendOptions) if option.name != "backend"]
        foreign = [name for name in names if getattr(asked, name) not in (None, {})]
        if foreign:
            raise ClusterSpecError(f"{', '.join(foreign)} is for tasks on other machines: add backend='ray'")
        return None
    if backend != "ray":
        raise BackendError(f"there is no backend {backend!r}; there are local and ray")
    if placement is not None and placement not in PLACEMENTS:
        raise ClusterSpecError(f"placement is {', '.join(PLACEMENTS)}, not {placement!r}")
    for name, count in {"cpus_per_task": cpus, **(resources or {})}.items():
        if count is not None and not (isinstance(count, int | float) and 0 <= count < float("inf")):
            raise ClusterSpecError(f"{name} is a number of 0 or more, not {count!r}")
    try:
        keep_s = 0.0 if asked.keep is None else read_duration(asked.keep)
    except ValueError as error:
        raise ClusterSpecError(f"keep: {error}") from None
    return HostRequest(
        asked.address or default_address,
        placement or "spread",
        1 if cpus is None else cpus,
        gpus or 0,
        dict(resources or {}),
        keep_s,
    )


def open_hosts(
    request: HostRequest,
    cluster: str,
    shape: Shape,
    settings: TaskSettings,
    run: RunFolder,
    setting: Callable[[str], Any],
    *,
    progress: Progress | None,
    kept: KeptRun | None = None,
) -> RemoteBackend:
    """Start an agent on each host, and check that it has what this notebook has.

    Args:
        kept: A run to whose agents this kernel attaches, instead of starting new ones.

    Raises:
        BackendError: Ray is not installed.
        LaunchError: There is no room, or a host has other versions; no process is left.
    """
    if find_spec("ray") is None:
        raise BackendError("the Ray backend needs Ray:  pip install 'tfmagic[ray]'")
    kept_as = kept.cluster.kept_as if kept else f"{run}-{secrets.token_hex(4)}" if request.keep_s else ""
    setup = _setup_of(cluster, settings, run, setting, request.keep_s, kept_as)
    request = structs.replace(request, trusts_network=setting("trust_network"))
    modules = collect_modules(settings, setting("max_module_bytes"))  # raises before anything is started
    tell_left_out(modules, setting("max_module_bytes"))
    backend = RemoteBackend(
        request,
        setup,
        run,
        shape.tasks,
        tuple(computing_tasks(shape)) if request.gpus else (),
        setting("start_timeout_s"),
        setting("suspect_s"),
        modules,
        kept is not None,
        () if kept is None else tuple(kept.cluster.cells),
        functools.partial(_show_wait, progress, shape),
        functools.partial(setting, "keep_hosts_s"),
    )
    with contextlib.ExitStack() as refused:
        refused.callback(backend.close if kept is None else backend.leave)
        check_versions(backend.hosts, own_versions())
        refused.pop_all()
    return backend


def _show_wait(progress: Progress | None, shape: Shape, what: str) -> None:
    if progress is not None:
        progress(structs.replace(lifecycle.new_state(shape.tasks), waits_for=what))


def _setup_of(
    cluster: str,
    settings: TaskSettings,
    run: RunFolder,
    setting: Callable[[str], Any],
    keep_s: float,
    kept_as: str,
) -> AgentSetup:
    return AgentSetup(
        run=str(run),
        cluster=cluster,
        legacy_keras=settings.keras == 2,
        early=settings.early,
        environ=settings.load_time_environ(),
        lease_s=setting("lease_s"),
        keep_s=keep_s,
        kept_as=kept_as,
        task_env=settings.env,
        max_log_bytes=setting("max_log_bytes"),
        front_end=front_end(),
    )


def collect_modules(settings: TaskSettings, max_bytes: int) -> OwnModules:
    """Collect this notebook's own files for the hosts, as they are now.

    Raises:
        LaunchError: The modules alone are too large.
    """
    further = [origin.file for origin in module_origins.find_origins()]
    further += [settings.script.file] if settings.script is not None else []
    return own_modules.collect(module_origins.import_path(), further, max_bytes)


def tell_left_out(modules: OwnModules, max_bytes: int) -> None:
    """Print which data of packages is too large to be sent."""
    if modules.too_large:
        largest = sorted(modules.too_large.items(), key=lambda item: -item[1])[:3]
        names = ", ".join(f"{folder} ({format_bytes(size)})" for folder, size in largest)
        more = Step("configure", max_module_bytes=4 * max_bytes)
        notices.say(
            f"tfmagic: hosts get no data of {names}: with the notebook's modules it is larger than "
            f"{format_bytes(max_bytes)}. To send it:  {more}"
        )


def check_versions(hosts: Sequence[HostFacts], own: Mapping[str, str]) -> None:
    """Compare the versions on the hosts with those here.

    Raises:
        LaunchError: Some differ; the message has both of each.
    """
    if found := describe_differences([(host.address, host.versions) for host in hosts], own):
        raise LaunchError(f"nothing was started, since hosts have other versions than this notebook: {found}")
