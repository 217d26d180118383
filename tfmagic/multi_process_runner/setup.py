"""What a runner passes on to its processes: cluster specs, the state of TensorFlow here, GPUs, and `install`.

`install` replaces TensorFlow's runner module in this process, and in those that a runner starts. TensorFlow's
own helpers (`multi_worker_test_base.create_multi_process_cluster`, the pools of `combinations` and
`strategy_combinations`) have imported the runner by name. So every loaded module that has the module, or a
function or class of it, gets ours. TensorFlow is not imported for that.
"""

import contextlib
import os
import socket
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tfmagic.clusters.launch.task_settings import visible_gpus
from tfmagic.protocol.cluster_spec import GivenSpec, TaskId
from tfmagic.task.tensorflow.testing_setup import Setup, call_plain, prepare_plain

T = TypeVar("T")
_PACKAGE = "tensorflow.python.distribute"
_THEIRS = f"{_PACKAGE}.multi_process_runner"
_OURS = "tfmagic.multi_process_runner"
_keep: list[types.ModuleType] = []  # a module that is collected empties the globals of its functions
ClusterSpecDict = Mapping[str, Sequence[str]]


def create_cluster_spec(
    has_chief: bool = False, num_workers: int = 1, num_ps: int = 0, has_eval: bool = False
) -> dict[str, list[str]]:
    """Return a cluster spec with free ports of this machine: {task type: ["localhost:port", ...]}."""
    counts = {"worker": num_workers, "ps": num_ps, "evaluator": int(has_eval), "chief": int(has_chief)}
    with contextlib.ExitStack() as held:  # all at once, so that no port comes twice
        spec: dict[str, list[str]] = {}
        for task_type, count in counts.items():
            for _ in range(count):
                sock = held.enter_context(socket.socket())
                sock.bind(("", 0))
                spec.setdefault(task_type, []).append(f"localhost:{sock.getsockname()[1]}")
    return spec


def check_spec(cluster_spec: ClusterSpecDict) -> None:
    """Raise `ValueError` where a cluster spec has no task, or several chiefs."""
    chiefs = len(cluster_spec.get("chief", ()))
    if chiefs > 1:
        raise ValueError(
            "If chief exists in the cluster, there must be at most one chief. Current `cluster_spec` has "
            f"{chiefs} chiefs."
        )
    if not any(cluster_spec.values()):
        raise ValueError(f"the cluster spec names no task: {dict(cluster_spec)!r}")


def present_setup(tf_config: str = "") -> Setup:
    """Return the modes of TensorFlow in this process; the defaults where it is not imported."""
    tf2, eager = sys.modules.get("tensorflow.python.tf2"), sys.modules.get("tensorflow.python.eager.context")
    return Setup(
        is_v2=tf2 is None or tf2.enabled(),
        is_eager=eager is None or eager.executing_eagerly(),
        argv=tuple(sys.argv),
        tf_config=tf_config,
    )


def divide_gpus(cluster_spec: ClusterSpecDict) -> dict[TaskId, dict[str, str]]:
    """Return CUDA_VISIBLE_DEVICES of each task that computes: the GPUs in turn."""
    module = sys.modules.get("tensorflow.python.eager.context")
    if module is not None:
        count = len(module.context().list_physical_devices("GPU"))
    else:
        count = len(visible_gpus(os.environ))
    computing = [task for task in GivenSpec(cluster_spec).tasks if task.type in ("chief", "worker")]
    shares = {task: range(place, count, len(computing)) for place, task in enumerate(computing)}
    return {t: {"CUDA_VISIBLE_DEVICES": ",".join(map(str, share))} for t, share in shares.items() if share}


def install() -> None:
    """Replace ``tensorflow.python.distribute.multi_process_runner`` by this module.

    This holds for modules that have imported it or will import it, in this process and in all that a runner
    or a pool starts. A script is then imported by its processes, as `multiprocessing` does it, and
    `MultiProcessRunner` waits for peers by default. A second call replaces what was imported since the first.
    """
    ours, theirs = sys.modules[_OURS], sys.modules.get(_THEIRS)
    sys.modules[_THEIRS] = ours
    if theirs is None or theirs is ours:
        return
    names = [name for name in vars(ours)["__all__"] if name in vars(theirs)]
    ours_for = {id(vars(theirs)[name]): getattr(ours, name) for name in names} | {id(theirs): ours}
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and module not in (ours, theirs):
            found = {k: ours_for[id(v)] for k, v in list(vars(module).items()) if id(v) in ours_for}
            vars(module).update(found)
    _keep.append(theirs)


def is_installed() -> bool:
    """Check whether `install` was called in this process."""
    return sys.modules.get(_THEIRS) is sys.modules[_OURS]


def call_installed(setup: Setup, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Do as `call_plain`, in a process whose starter has called `install`."""
    install()
    return call_plain(setup, fn, *args, **kwargs)


def prepare_installed(setup: Setup) -> None:
    """Do as `prepare_plain`, in a process whose starter has called `install`."""
    install()
    prepare_plain(setup)
