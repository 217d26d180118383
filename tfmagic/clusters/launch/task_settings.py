"""How the task processes of a cluster are made: settings, environment, and the memory that they need."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import structs

from tfmagic.backends.import_variables import import_time_variables
from tfmagic.backends.launcher_client import Flavour
from tfmagic.backends.remote.messages import HostRequest
from tfmagic.backends.simulated.hosts import NetworkRequest
from tfmagic.backends.simulated.messages import address_of
from tfmagic.clusters.launch.cluster_options import TaskOptions
from tfmagic.errors import ClusterSpecError, LaunchError
from tfmagic.protocol import module_origins
from tfmagic.protocol.cluster_spec import GivenSpec, Shape, Spec, TaskId
from tfmagic.protocol.commands import MainScript, TaskBoot
from tfmagic.runs.folder import RunFolder
from tfmagic.system import advice, memory, notices
from tfmagic.system.memory import format_bytes
from tfmagic.system.process_options import ProcessOptions

_INLINE = "module://matplotlib_inline.backend_inline"
_OF_TENSORFLOW = ("TF_", "KERAS_", "XLA_", "GRPC_", "ABSL_")
_LAUNCHER_BYTES = 700 << 20  # measured: TensorFlow 2.21 imported, and nothing else
NOT_REPAIRED = (
    "tfmagic: Keras 3 is not repaired (--no-keras-fix): under a multi-worker strategy fit fails, and so do "
    "gradient_accumulation_steps and LossScaleOptimizer in a loop; clipped gradients, uneven batches, masks "
    "and shuffled arrays train other weights than in one process"
)
Purpose = Literal["cells", "script", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings(TaskOptions):
    """The settings of task processes: the options of a cluster that are for tasks, and what is no option.

    Attributes:
        purpose: Tasks for ``cells`` get all presets and repairs; with ``script``, the script starts its
            servers itself; a ``plain`` task has an unchanged TensorFlow, and all GPUs.
        task_env: Further environment of single tasks.
        script: The caller's script, if tasks import it.
        hosts: What is asked of the engine whose hosts run the tasks; None for processes of this machine.
        network: The simulated hosts of these processes; None for none.
        early: Variables that only TensorFlow's import sees; the program sets them itself. None removes one.

    Raises:
        ClusterSpecError: There is no such version of Keras, or `env` is no environment.
    """

    purpose: Purpose = "cells"
    task_env: Mapping[TaskId, Mapping[str, str]] = field(default_factory=dict)
    script: MainScript | None = None
    hosts: HostRequest | None = None
    network: NetworkRequest | None = None
    early: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.keras not in (2, 3):
            raise ClusterSpecError(f"keras is 2 or 3, not {self.keras!r}")
        if self.isolate and self.hosts is not None:
            raise ClusterSpecError("isolate gives tasks a network within this machine; leave it out on Ray")
        if self.isolate and self.network is not None:
            raise ClusterSpecError("simulated hosts have a network of their own already; leave isolate out")
        if self.hosts is not None and self.network is not None:
            raise ClusterSpecError(
                "hosts and network simulate machines on this one; with backend='ray' tasks are on real ones, "
                "which placement chooses"
            )
        for name, value in self.env.items():
            if not (isinstance(name, str) and isinstance(value, str)):
                raise ClusterSpecError(f"env is {{text: text}}, not {name!r}: {value!r}")
            if not name or "=" in name or "\0" in name + value:
                raise ClusterSpecError(
                    f"the environment cannot hold {name!r}: {value!r}; a name has no '=', and nothing a NUL"
                )

    @classmethod
    def of(cls, own: TaskOptions, hosts: HostRequest | None, network: NetworkRequest | None) -> TaskSettings:
        """Return the settings of the tasks of a cluster, on these hosts."""
        return cls(
            **{field.name: getattr(own, field.name) for field in fields(own)}, hosts=hosts, network=network
        )

    @property
    def keep_s(self) -> float:
        """How long the tasks go on after the kernel has ended, in seconds; 0: they end with it."""
        return self.hosts.keep_s if self.hosts is not None else 0.0

    @property
    def of_process(self) -> ProcessOptions:
        """The options that each task process obeys itself."""
        return msgspec.convert(self, ProcessOptions, from_attributes=True)

    @property
    def flavour(self) -> Flavour:
        """The kind of launcher from which the tasks are forked."""
        env = tuple(sorted(import_time_variables(self.env).items()))
        return Flavour(self.keras == 2, self.isolate, env, tuple(sorted(self.early.items())))

    def environ(
        self, task: TaskId | None, shape: Shape, base: Mapping[str, str] = os.environ
    ) -> dict[str, str]:
        """Return the task's environment: our presets, then `base`, then the task's own; later ones win.

        None is a task that has no GPU and no environment of its own.

        Raises:
            ClusterSpecError: There are too few GPUs.
        """
        presets, forced, own = {}, {}, {**self.env, **(self.task_env.get(task, {}) if task else {})}
        if self.purpose == "cells":
            presets["MPLBACKEND"] = _INLINE
        if self.hosts is not None:  # an agent adds the environment of its host
            return {**self.load_time_environ(base), **presets, **own}
        if self.purpose != "plain":
            computing = sum(1 for t in shape.tasks if t.type != "ps")
            if computing > 1:  # otherwise the ops of each task would use all cores
                cores = len(os.sched_getaffinity(0))
                presets["TF_NUM_INTRAOP_THREADS"] = str(max(cores // computing, 1))
            gpus = visible_gpus(base)
            if gpus or self.gpus_per_task:
                presets["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
                forced["CUDA_VISIBLE_DEVICES"] = ",".join(assign_gpus(task, shape, gpus, self.gpus_per_task))
            if self.keras == 2:
                forced["TF_USE_LEGACY_KERAS"] = "1"
        return {**presets, **base, **forced, **self.without_proxy({**base, **own}), **own}

    def without_proxy(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variable that lets tasks connect directly, if this environment names a proxy."""
        addresses = [address_of(n) for n in range(self.network.hosts)] if self.network else ["127.0.0.1"]
        return _without_proxy(environ, addresses)

    def load_time_environ(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the variables that other machines get as well: those of TensorFlow and its libraries."""
        found = {name: value for name, value in base.items() if name.startswith(_OF_TENSORFLOW)}
        found |= {name: value for name, value in self.env.items() if name.startswith(_OF_TENSORFLOW)}
        return {**found, **({"TF_USE_LEGACY_KERAS": "1"} if self.keras == 2 else {})}

    def _has_keras_3_on_tensorflow(self) -> bool:
        """Check whether Keras is the one that needs a repair; a task imports no other one on our account."""
        seen = self.flavour.import_time
        is_legacy = seen.get("TF_USE_LEGACY_KERAS") in ("1", "True", "true")
        return not is_legacy and seen.get("KERAS_BACKEND", "") in ("", "tensorflow")

    def boots(
        self, cluster: str, spec: Spec, run: RunFolder, heartbeat_s: float
    ) -> Callable[[TaskId, int], TaskBoot]:
        """Return what makes the first message to an attempt of a task; what all have in common is as now."""
        shape, base = spec if isinstance(spec, GivenSpec) else spec.shape, dict(os.environ)
        common = self._common_boot(cluster, spec, shape, self.environ(None, shape, base), heartbeat_s)
        differs = self.hosts is None and bool(visible_gpus(base) or self.gpus_per_task)

        def boot(task: TaskId, attempt: int) -> TaskBoot:
            has_own = differs or task in self.task_env
            return structs.replace(
                common,
                task=task,
                attempt=attempt,
                tf_config=spec.tf_config(task),
                environ=self.environ(task, shape, base) if has_own else common.environ,
                stacks_path=str(run.stacks_path(task)),
            )

        return boot

    def _common_boot(
        self, cluster: str, spec: Spec, shape: Shape, environ: Mapping[str, str], heartbeat_s: float
    ) -> TaskBoot:
        # with its key a task reaches the managers (`multiprocessing.Manager`) that this process has made
        processes = sys.modules.get("multiprocessing.process")
        has_keras_3 = self.purpose != "plain" and self._has_keras_3_on_tensorflow()
        if has_keras_3 and not self.keras_fix:
            _tell_what_fails()
        return TaskBoot(
            task=shape.leader,
            attempt=0,
            cluster=cluster,
            shape_tasks=shape.tasks,
            tf_config="",
            environ=environ,
            cwd=existing_folder(),
            sys_path=tuple(module_origins.import_path()),
            stacks_path="",
            leader=shape.leader,
            heartbeat_ms=int(heartbeat_s * 1000),
            keras_fix=self.keras_fix and has_keras_3,
            loopback_only=spec.is_local,
            starts_servers=self.purpose == "cells",
            is_plain=self.purpose == "plain",
            authkey=bytes(processes.current_process().authkey) if processes is not None else b"",
            origins=module_origins.find_origins(),
            options=self.of_process,
            script=self.script,
            front_end=advice.front_end(),
            is_interactive=self.purpose == "cells" and bool(getattr(sys, "ps1", "") or sys.flags.interactive),
        )


@functools.cache  # once in this process
def _tell_what_fails() -> None:
    notices.say(NOT_REPAIRED)


def proxy_variable(environ: Mapping[str, str]) -> str:
    """Return the name of the variable from which gRPC takes a proxy, or "".

    Tried with TensorFlow 2.21: the first of these variables that is set decides, also when it is empty. gRPC
    ignores names in capitals, all_proxy, and proxies of another scheme than http.
    """
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        if name in environ:
            return name if environ[name].startswith("http://") else ""
    return ""


def _without_proxy(environ: Mapping[str, str], addresses: Sequence[str]) -> dict[str, str]:
    """Return the variable that lets tasks connect directly; through a proxy they would wait for ever.

    Tried likewise: no_grpc_proxy replaces no_proxy for gRPC, and nothing else reads it. An entry matches the
    end of an address. ``*``, ``localhost`` and NO_PROXY have no effect.
    """
    if not proxy_variable(environ):
        return {}
    others = environ.get("no_grpc_proxy", environ.get("no_proxy", ""))
    return {"no_grpc_proxy": ",".join(filter(None, (*addresses, others)))}


def existing_folder() -> str:
    """Return the working directory, or the home directory if it was deleted; ``/`` without a home."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        home = os.path.expanduser("~")
        return home if os.path.isdir(home) else "/"


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        named = [g.strip() for g in environ["CUDA_VISIBLE_DEVICES"].split(",") if g.strip()]
        return [] if "-1" in named else named
    found = [p.name for p in Path("/dev").glob("nvidia[0-9]*")]
    return sorted((re.sub(r"\D", "", name) for name in found), key=int)


def computing_tasks(shape: Shape) -> list[TaskId]:
    """Return the tasks that get GPUs: workers and chief; the coordinator of a ps computes nothing."""
    has_ps = any(task.type == "ps" for task in shape.tasks)
    return [t for t in shape.tasks if t.type == "worker" or (t.type == "chief" and not has_ps)]


def assign_gpus(task: TaskId | None, shape: Shape, gpus: list[str], per_task: int | None) -> list[str]:
    """Return the GPUs of one task. ps and evaluator get none; too few GPUs are shared, one for each task.

    Raises:
        ClusterSpecError: `per_task` needs more GPUs than there are.
    """
    computing = computing_tasks(shape)
    if task not in computing:
        return []
    count = len(gpus) // len(computing) if per_task is None else per_task
    if count * len(computing) > len(gpus):
        raise ClusterSpecError(
            f"{len(computing)} tasks with {count} GPUs each need {count * len(computing)}; this machine "
            f"shows {len(gpus)}. Ask for fewer with --gpus-per-task, or for fewer tasks."
        )
    place = computing.index(task)
    if count == 0 and per_task is None:
        return [gpus[place % len(gpus)]] if gpus else []
    return gpus[place * count : (place + 1) * count]


def needed_bytes(shape: Shape, task_bytes: int, launcher_running: bool) -> int:
    """Return the memory, in bytes, of a cluster before it computes anything."""
    return (0 if launcher_running else _LAUNCHER_BYTES) + len(shape.tasks) * task_bytes


def check_memory(shape: Shape, task_bytes: int, launcher_running: bool, freed_bytes: int = 0) -> None:
    """Raise an error if this machine has too little memory for a cluster.

    Args:
        freed_bytes: Memory that will be free beforehand.

    Raises:
        LaunchError: The message has the needed and free memory, and how many tasks would fit.
    """
    free = memory.free_bytes() + freed_bytes
    needed = needed_bytes(shape, task_bytes, launcher_running)
    if needed > free:
        base = needed - len(shape.tasks) * task_bytes
        fits = max((free - base) // max(task_bytes, 1), 0)
        raise LaunchError(
            f"a cluster of {shape} needs about {format_bytes(needed)} of memory before it computes "
            f"anything, and {format_bytes(free)} are free; nothing was started. Up to {fits} tasks fit."
        )
