import json
import os
import re
from collections.abc import Mapping
from typing import Any


def tf_config(roles: Mapping[str, int], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return TF_CONFIG of this process: the one that the platform has set, else computed from its variables.

    Args:
        roles: How many tasks are chief, ps and evaluator; all others are workers.
    """
    given = json.loads(environ.get("TF_CONFIG") or "{}")
    if given.get("cluster"):  # Vertex AI, SageMaker, TFJob, tfmagic, Compose, run_local.sh
        return given
    if "SLURM_STEP_NODELIST" in environ:
        addresses, rank = _of_slurm(environ)
    elif "JOB_COMPLETION_INDEX" in environ:
        addresses, rank = _of_kubernetes(environ)
    elif "SKYPILOT_NODE_IPS" in environ:
        addresses = [f"{ip}:2222" for ip in environ["SKYPILOT_NODE_IPS"].split()]
        rank = int(environ["SKYPILOT_NODE_RANK"])
    elif "SLURM_JOB_ID" in environ:
        raise SystemExit("In this Slurm job no step has started this process: use  srun python main.py")
    else:
        raise SystemExit(
            "TF_CONFIG is not set, and there are no variables of a Slurm step, of a pod of an indexed Job or "
            "of SkyPilot to compute it from; start this program with run_local.sh, or set TF_CONFIG"
        )
    return _with_roles(addresses, rank, roles)


def set_tf_config(config: Mapping[str, Any]) -> None:
    """Set TF_CONFIG for TensorFlow, and print it. Through a proxy the tasks would wait for ever."""
    os.environ["TF_CONFIG"] = json.dumps(config)
    print("TF_CONFIG:", os.environ["TF_CONFIG"], flush=True)
    hosts = {address.rpartition(":")[0]: None for found in config["cluster"].values() for address in found}
    os.environ.setdefault("no_grpc_proxy", ",".join([*hosts, os.environ.get("no_proxy", "")]))


def _with_roles(addresses: list[str], rank: int, roles: Mapping[str, int]) -> dict[str, Any]:
    """Return TF_CONFIG of one of these tasks: the chief is the first; workers, ps and evaluator follow."""
    workers = len(addresses) - sum(roles.values())
    if workers < (0 if roles.get("chief") else 1):
        raise SystemExit(f"{len(addresses)} processes are too few for {dict(roles)} and a worker")
    counts = {"worker": workers, **roles}
    names = [(kind, n) for kind in ("chief", "worker", "ps", "evaluator") for n in range(counts.get(kind, 0))]
    cluster: dict[str, list[str]] = {}
    for (kind, _), address in zip(names, addresses, strict=True):
        if kind != "evaluator":  # a chief waits for ever for an evaluator in its cluster
            cluster.setdefault(kind, []).append(address)
    return {"cluster": cluster, "task": {"type": names[rank][0], "index": names[rank][1]}}


def _of_slurm(environ: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the addresses of a Slurm step in the order of its ranks, and the rank of this process."""
    entries = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", environ["SLURM_STEP_NODELIST"])
    nodes = [name for entry in entries for name in _expand(entry)]
    counts = [
        int(count)
        for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", environ["SLURM_STEP_TASKS_PER_NODE"])
        for _ in range(int(times or 1))
    ]
    first = 20000 + int(environ["SLURM_JOB_ID"]) % 12000  # jobs that share a node have different ports
    return [
        f"{node}:{first + local}" for node, count in zip(nodes, counts, strict=True) for local in range(count)
    ], int(environ["SLURM_PROCID"])


def _expand(names: str) -> list[str]:
    """Return the names that an entry of Slurm's node list means: ``node[08-10,12]`` are four."""
    found = re.match(r"([^\[]*)\[([^\]]*)\](.*)", names)
    if not found:
        return [names]
    head, ranges, rest = found.groups()
    numbers: list[str] = []
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        numbers += [str(n).zfill(len(low)) for n in range(int(low), int(high or low) + 1)]
    return [f"{head}{number}{tail}" for number in numbers for tail in _expand(rest)]


def _of_kubernetes(environ: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the addresses of the pods of an indexed Job or a JobSet, and the place of this pod."""
    missing = [name for name in ("TASKS", "JOB_NAME") if not environ.get(name)]
    if missing:
        raise SystemExit(
            f"The manifest of this pod does not set {' and '.join(missing)}: TASKS is the number of pods, or "
            "of each replicated job (chief=1,worker=2); JOB_NAME is the name of the Job or the JobSet"
        )
    name, index = environ["JOB_NAME"], int(environ["JOB_COMPLETION_INDEX"])
    jobs = [job.rpartition("=")[::2] for job in environ["TASKS"].split(",")]
    pods = [(job, n) for job, count in jobs for n in range(int(count))]
    hosts = [f"{name}-{job}-0-{n}.{name}" if job else f"{name}-{n}.{name}" for job, n in pods]
    return [f"{host}:2222" for host in hosts], pods.index((environ.get("REPLICATED_JOB", ""), index))
