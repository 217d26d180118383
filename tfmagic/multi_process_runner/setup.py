"""What a runner passes on to its processes: cluster specs, the state of TensorFlow here, and GPUs."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence

from tfmagic.clusters import environment
from tfmagic.protocol.cluster_spec import GivenSpec, TaskId
from tfmagic.task.tensorflow.test_setup import Setup

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
        count = len(environment.visible_gpus(os.environ))
    computing = [task for task in GivenSpec(cluster_spec).tasks if task.type in ("chief", "worker")]
    shares = {task: range(place, count, len(computing)) for place, task in enumerate(computing)}
    return {t: {"CUDA_VISIBLE_DEVICES": ",".join(map(str, share))} for t, share in shares.items() if share}
