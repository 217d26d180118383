"""The places of a cluster's tasks in a Ray cluster: all of them, or an error that says what is missing."""

import contextlib
import re
from collections import Counter
from collections.abc import Collection

import ray
from ray import exceptions
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tfmagic.backends.remote import patches, room
from tfmagic.backends.remote.messages import OpenHosts
from tfmagic.backends.remote.room import Node, Wanted
from tfmagic.protocol.cluster_spec import TaskId

_ELSEWHERE_S = 3.0  # Ray finds a place that is free at once
_DRAINED = (3, 4)  # the reasons of Ray's NodeDeathInfo for a node that was preempted, or idle
_PLACES = {"pack": "PACK", "spread": "SPREAD", "strict-spread": "STRICT_SPREAD"}


class Places:
    """A place for each task of a cluster, and the GPUs that Ray has reserved in each."""

    def __init__(self, opening: OpenHosts, left_out: Collection[str] = ()):
        self.opening, self.tasks = opening, opening.tasks
        self._left_out = set(left_out)
        self.wanted = Wanted(opening.request, len(opening.tasks), len(opening.gpu_tasks))
        bundles = [self.wanted.needs(task in opening.gpu_tasks) for task in opening.tasks]
        name, strategy = opening.setup.known_as, _PLACES[opening.request.placement]
        lifetime = "detached" if opening.setup.kept_as else None
        self.group = (
            get_placement_group(name)
            if opening.resumes
            else placement_group(
                bundles,
                strategy,
                name,
                lifetime,
                bundle_label_selector=_others(left_out) * len(bundles) or None,
            )
        )
        self.gpus: dict[str, list[str]] = {}
        self._moved = self._found_again() if opening.resumes else {}

    def _found_again(self) -> dict[TaskId, PlacementGroup]:
        names = {self._name_of(task): task for task in self.tasks}
        known = {entry["name"] for entry in placement_group_table().values() if entry["state"] == "CREATED"}
        return {task: get_placement_group(name) for name, task in names.items() if name in known}

    def _name_of(self, task: TaskId) -> str:
        return f"{self.opening.setup.known_as}/{task.name}"

    def leave_out(self, task: TaskId, node: str) -> bool:
        """Give a task a place on a node that no task was refused on; return False if none has room now."""
        self._left_out.add(node)
        others = self.nodes()
        others.pop(task)
        apart = others.values() if self.opening.request.placement == "strict-spread" else ()
        needs = [self.wanted.needs(task in self.opening.gpu_tasks)]
        selector = _others({*self._left_out, *apart})
        if (former := self._moved.pop(task, None)) is not None:
            remove_placement_group(former)
        name, lifetime = self._name_of(task), "detached" if self.opening.setup.kept_as else None
        group = placement_group(needs, name=name, lifetime=lifetime, bundle_label_selector=selector)
        if not group.wait(_ELSEWHERE_S):
            remove_placement_group(group)
            return False
        self._moved[task] = group
        if task in self.opening.gpu_tasks:
            self.find_gpus()
        return True

    def remove(self) -> None:
        """Give all places back."""
        for group in (self.group, *self._moved.values()):
            remove_placement_group(group)

    def nodes(self) -> dict[TaskId, str]:
        """Return the node of each task's place, "" where Ray has none at this moment."""
        found = placement_group_table(self.group)["bundles_to_node_id"]
        moved = {task: placement_group_table(group) for task, group in self._moved.items()}
        elsewhere = {task: table["bundles_to_node_id"].get(0, "") for task, table in moved.items()}
        return {task: found.get(place, "") for place, task in enumerate(self.tasks)} | elsewhere

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
            moved = self._moved.get(task)
            place = (self.group, self.tasks.index(task)) if moved is None else (moved, 0)
            strategy = PlacementGroupSchedulingStrategy(*place)
            refs[task.name] = find.options(scheduling_strategy=strategy).remote()
        self.gpus = {name: ray.get(ref, timeout=self.opening.timeout_s) for name, ref in refs.items()}

    def never_fits(self) -> str:
        """Say why the tasks can have no place on the present nodes, even on idle ones; "" if they can."""
        return self.wanted.never_fits(living_nodes(but=self._left_out))

    def shortage(self, waited_s: float) -> str:
        """Say what was asked and what is there."""
        left = room.in_words(ray.available_resources())
        there = self.wanted.asked_and_there(living_nodes(but=self._left_out))
        return (
            f"Ray did not have room for all {self.wanted.tasks} tasks within {waited_s:g} s: {there}; "
            f"free are {left}. Ask for less, add nodes, or end what uses them"
        )


def _others(left_out: Collection[str]) -> list[dict[str, str]]:
    """Return the label selector of a place on any node but these."""
    return [{"ray.io/node-id": f"!in({','.join(sorted(filter(None, left_out)))})"}] if left_out else []


def lives(node: str) -> bool:
    """Check whether Ray's head knows a node as one that is alive."""
    with contextlib.suppress(exceptions.RayError):
        return any(known["NodeID"] == node and known["Alive"] for known in ray.nodes())
    return False


def with_fate(reason: str, node: str) -> str:
    """Return why an actor died, with what Ray knows of its node in place of the node's id.

    A lost machine can have cut the connection before Ray counts its node as dead.
    """
    named = re.search(r"\.? Node Id: (\w+)", reason)
    text = reason.replace(named[0], "") if named else reason
    node = named[1] if named else node
    with contextlib.suppress(exceptions.RayError):
        known = next((each for each in ray.nodes() if each["NodeID"] == node), None)
        if known is None:
            return reason
        if known["Alive"]:
            return f"{text} (Ray is draining its node)" if known["NodeID"] in _draining() else text
        drained = "Ray had drained it: " if known["DeathReason"] in _DRAINED else ""
        return f"{text} ({drained}{known['DeathReasonMessage'] or 'no reason is known'})"
    return reason


def _draining() -> Collection[str]:
    """Return the nodes that Ray is draining, if it says so."""
    fits = patches.TABLE.fits(patches.DRAINED)
    return ray._private.state.state.get_draining_nodes() if fits else ()


def names_of_nodes() -> dict[str, str]:
    """Return a name for each node that is alive: its address, with its id where others have the same one."""
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    shared = Counter(addresses.values())
    return {node: where if shared[where] == 1 else f"{where}#{node}" for node, where in addresses.items()}


def living_nodes(but: Collection[str] = ()) -> list[Node]:
    """Return the nodes that are alive, by address, and what is free on each if Ray says so."""
    living = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in but]
    living.sort(key=lambda node: [part.zfill(3) for part in node["NodeManagerAddress"].split(".")])
    free = ray._private.state.available_resources_per_node() if patches.TABLE.fits(patches.FREE) else None
    leaving = _draining()
    return [
        Node(
            node["NodeManagerAddress"],
            node["Resources"],
            None if free is None else free.get(node["NodeID"], {}),
            node["NodeID"] in leaving,
        )
        for node in living
    ]
