"""What a cluster spec and this process say about the processes that are to be started."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence

from tfmagic.clusters import environment
from tfmagic.protocol.cluster_spec import GivenSpec, TaskId
from tfmagic.task.tensorflow.test_setup import Setup

ClusterSpecDict = Mapping[str, Sequence[str]]


def create_cluster_spec(
    has_chief: bool = False, num_workers: int = 1, num_ps: int = 0, has_eval: bool = False
) -> dict[str, list[str]]:
    """A cluster spec with free ports of this machine: {task type: ["localhost:port", ...]}."""
    counts = {"worker": num_workers, "ps": num_ps, "evaluator": int(has_eval), "chief": int(has_chief)}
    ports = _free_ports(sum(counts.values()))
    return {
        task_type: [f"localhost:{next(ports)}" for _ in range(count)]
        for task_type, count in counts.items()
        if count
    }


def check_spec(cluster_spec: ClusterSpecDict) -> None:
    chiefs = len(cluster_spec.get("chief", ()))
    if chiefs > 1:
        raise ValueError(
            "If chief exists in the cluster, there must be at most one chief. Current `cluster_spec` has "
            f"{chiefs} chiefs."
        )
    if not any(cluster_spec.values()):
        raise ValueError(f"the cluster spec names no task: {dict(cluster_spec)!r}")


def present_setup(tf_config: str = "") -> Setup:
    """How this process has TensorFlow; as it is by default where it has not imported it."""
    tf2, eager = sys.modules.get("tensorflow.python.tf2"), sys.modules.get("tensorflow.python.eager.context")
    return Setup(
        is_v2=tf2 is None or tf2.enabled(),
        is_eager=eager is None or eager.executing_eagerly(),
        argv=tuple(sys.argv),
        tf_config=tf_config,
    )


def divide_gpus(cluster_spec: ClusterSpecDict) -> dict[TaskId, dict[str, str]]:
    """CUDA_VISIBLE_DEVICES of each task that computes: the GPUs in turn."""
    module = sys.modules.get("tensorflow.python.eager.context")
    if module is not None:
        count = len(module.context().list_physical_devices("GPU"))
    else:
        count = len(environment.visible_gpus(os.environ))
    computing = [task for task in GivenSpec(cluster_spec).tasks if task.type in ("chief", "worker")]
    shares = {task: range(place, count, len(computing)) for place, task in enumerate(computing)}
    return {t: {"CUDA_VISIBLE_DEVICES": ",".join(map(str, share))} for t, share in shares.items() if share}


def _free_ports(count: int) -> Iterator[int]:
    """Ports that nobody listens at now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("", 0))
        ports = [sock.getsockname()[1] for sock in sockets]
    return iter(ports)
