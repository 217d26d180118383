"""The places of a cluster's tasks in a Ray cluster: all of them, or an error that says what is missing."""

import contextlib
from collections.abc import Mapping
from typing import Any

import ray
from ray import exceptions
from ray.util.placement_group import get_placement_group, placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tfmagic.backends.remote.messages import OpenHosts
from tfmagic.protocol.cluster_spec import TaskId

_PLACES = {"pack": "PACK", "spread": "SPREAD", "strict-spread": "STRICT_SPREAD"}


class Places:
    """A place for each task of a cluster, and the GPUs that Ray has reserved in each."""

    def __init__(self, opening: OpenHosts):
        self.opening, self.tasks = opening, opening.tasks
        self.bundles = [_needs(opening, task) for task in opening.tasks]
        name, strategy = opening.kept_as, _PLACES[opening.request.placement]
        lifetime = "detached" if name else None
        self.group = (
            get_placement_group(name)
            if opening.resumes
            else placement_group(self.bundles, strategy=strategy, name=name, lifetime=lifetime)
        )
        self.gpus: dict[str, list[str]] = {}

    def nodes(self) -> dict[TaskId, str]:
        """Return the node of each task's place, "" where Ray has none at this moment."""
        found = placement_group_table(self.group)["bundles_to_node_id"]
        return {task: found.get(place, "") for place, task in enumerate(self.tasks)}

    def living_node(self, task: TaskId) -> str:
        """Return the node of a task's place; "" as long as that is a lost one."""
        with contextlib.suppress(exceptions.RayError):
            node = self.nodes()[task]
            return node if lives(node) else ""
        return ""

    def find_gpus(self) -> None:
        """Ask Ray which GPUs it has reserved in the place of each task."""
        count = self.opening.request.gpus

        @ray.remote(num_cpus=0, num_gpus=count)
        def find() -> list[str]:
            return [str(gpu) for gpu in ray.get_gpu_ids()]

        refs = {}
        for task in self.opening.gpu_tasks:
            place = PlacementGroupSchedulingStrategy(self.group, self.tasks.index(task))
            refs[task.name] = find.options(scheduling_strategy=place).remote()
        self.gpus = {name: ray.get(ref, timeout=self.opening.timeout_s) for name, ref in refs.items()}

    def never_fits(self) -> str:
        """Say why the tasks can have no place on the present nodes, even on idle ones; "" if they can."""
        each = self.opening.request.placement == "strict-spread"
        has = [node["Resources"] for node in _living()]
        least = min(self.bundles, key=lambda bundle: sum(bundle.values()))
        places = sum(min(_places_on(node, least), 1 if each else len(self.bundles)) for node in has)
        lone = [bundle for bundle in self.bundles if not any(_places_on(node, bundle) for node in has)]
        if places >= len(self.bundles) and not lone:
            return ""
        places = min(places, len(self.bundles) - len(lone))
        return f"Ray's nodes can hold {places} of {len(self.bundles)} tasks: {self._asked_and_there()}"

    def shortage(self, waited_s: float) -> str:
        """Say what was asked and what is there."""
        left = _in_words(ray.available_resources())
        return (
            f"Ray did not have room for all {len(self.bundles)} tasks within {waited_s:g} s: "
            f"{self._asked_and_there()}; free are {left or 'none'}. Ask for less, add nodes, or end what "
            "uses them"
        )

    def _asked_and_there(self) -> str:
        asked = ", ".join(f"{count:g} {name}" for name, count in self.bundles[0].items())
        there = "; ".join(
            f"{node['NodeManagerAddress']}: {_in_words(node['Resources'])}" for node in _living()
        )
        placement = self.opening.request.placement
        each = " (a host for each)" if placement == "strict-spread" else ""
        return f"each needs {asked}, placement {placement}{each}. Its nodes have {there}"


def lives(node: str) -> bool:
    """Check whether Ray's head knows a node as one that is alive."""
    with contextlib.suppress(exceptions.RayError):
        return any(known["NodeID"] == node and known["Alive"] for known in ray.nodes())
    return False


def _living() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _places_on(has: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """Return how many places with these needs an idle node can hold."""
    return int(min(has.get(name, 0.0) / count for name, count in needs.items()))


def _in_words(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{count:g} {name}" for name, count in sorted(resources.items()) if _is_told(name))


def _needs(opening: OpenHosts, task: TaskId) -> dict[str, float]:
    """Return the resources that Ray reserves for a task."""
    asked = opening.request
    needs = {"CPU": asked.cpus, "GPU": asked.gpus if task in opening.gpu_tasks else 0, **asked.resources}
    return {name: float(count) for name, count in needs.items() if count} or {"CPU": 0.001}


def _is_told(name: str) -> bool:
    return (
        not name.startswith(("node:", "object_store_memory", "memory", "bundle_")) and "_group_" not in name
    )
