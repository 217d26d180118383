"""The environment of a task process, and the check that the machine has memory for a cluster."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tfmagic.errors import ClusterSpecError, LaunchError
from tfmagic.protocol.cluster_spec import Shape, TaskId
from tfmagic.system import memory
from tfmagic.system.memory import format_bytes

_LAUNCHER_BYTES = 700 << 20  # measured: TensorFlow 2.21 imported, and nothing else


def task_environ(
    task: TaskId,
    shape: Shape,
    base: Mapping[str, str],
    extra: Mapping[str, str],
    gpus_per_task: int | None,
    legacy_keras: bool,
) -> dict[str, str]:
    """Return the environment of `task`: our presets, then `base`, then `extra`; later ones win.

    Raises:
        ClusterSpecError: There are too few GPUs.
    """
    presets, forced = {}, {}
    computing = sum(1 for t in shape.tasks if t.type != "ps")
    if computing > 1:  # otherwise the ops of each task would use all cores
        cores = len(os.sched_getaffinity(0))
        presets["TF_NUM_INTRAOP_THREADS"] = str(max(cores // computing, 1))
    gpus = visible_gpus(base)
    if gpus or gpus_per_task:
        presets["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        forced["CUDA_VISIBLE_DEVICES"] = ",".join(assign_gpus(task, shape, gpus, gpus_per_task))
    if legacy_keras:
        forced["TF_USE_LEGACY_KERAS"] = "1"
    return {**presets, **base, **forced, **_without_proxy({**base, **extra}), **extra}


def plain_environ(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a task without our presets: `base`, and `extra` on top."""
    return {**base, **_without_proxy({**base, **extra}), **extra}


def proxy_variable(environ: Mapping[str, str]) -> str:
    """Return the name of the variable from which gRPC takes a proxy, or "".

    Tried with TensorFlow 2.21: the first of these variables that is set decides, also when it is empty. gRPC
    ignores names in capitals, all_proxy, and proxies of another scheme than http.
    """
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        if name in environ:
            return name if environ[name].startswith("http://") else ""
    return ""


def _without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that lets tasks connect directly; through a proxy they would wait for ever.

    Tried likewise: no_grpc_proxy replaces no_proxy for gRPC, and nothing else reads it. An entry matches the
    end of an address. ``*``, ``localhost`` and NO_PROXY have no effect.
    """
    if not proxy_variable(environ):
        return {}
    others = environ.get("no_grpc_proxy", environ.get("no_proxy", ""))
    return {"no_grpc_proxy": ",".join(filter(None, ("127.0.0.1", others)))}


def existing_folder() -> str:
    """Return the working directory, or the home directory if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.path.expanduser("~")


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        named = [g.strip() for g in environ["CUDA_VISIBLE_DEVICES"].split(",") if g.strip()]
        return [] if "-1" in named else named
    found = [p.name for p in Path("/dev").glob("nvidia[0-9]*")]
    return sorted((re.sub(r"\D", "", name) for name in found), key=int)


def assign_gpus(task: TaskId, shape: Shape, gpus: list[str], per_task: int | None) -> list[str]:
    """Return the GPUs of one task. ps and evaluator get none; too few GPUs are shared, one for each task.

    Raises:
        ClusterSpecError: `per_task` needs more GPUs than there are.
    """
    computing = [t for t in shape.tasks if t.type in ("chief", "worker")]
    if shape.ps:
        computing = [t for t in computing if t.type == "worker"]  # the coordinator computes nothing
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


def check_memory(shape: Shape, task_bytes: int, launcher_running: bool) -> None:
    """Raise an error if this machine has too little memory for a cluster.

    Raises:
        LaunchError: The message has the needed and free memory, and how many tasks would fit.
    """
    free = memory.free_bytes()
    needed = needed_bytes(shape, task_bytes, launcher_running)
    if needed > free:
        base = needed - len(shape.tasks) * task_bytes
        fits = max((free - base) // max(task_bytes, 1), 0)
        raise LaunchError(
            f"a cluster of {shape} needs about {format_bytes(needed)} of memory before it computes "
            f"anything, and {format_bytes(free)} are free; nothing was started. Up to {fits} tasks fit."
        )
