"""How many tasks of a cluster the nodes of an engine have room for. Counting only: no engine is asked here.

The start says with it that a cluster never fits; the doctor shows it before a start.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tfmagic.backends.remote.messages import HostRequest

Resources = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive.

    Attributes:
        total: Its resources.
        free: Those that nothing has reserved; None where the engine does not say.
        leaves: Whether the engine is draining it: it gets no task any more.
    """

    address: str
    total: Resources
    free: Resources | None = None
    leaves: bool = False

    def in_words(self) -> str:
        """Return its resources, and whether it is being drained."""
        return f"{in_words(self.total)}{' (being drained: it gets no task any more)' if self.leaves else ''}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tasks of a cluster that need room: `gpu_tasks` of `tasks` need GPUs as well."""

    request: HostRequest
    tasks: int
    gpu_tasks: int = 0

    def needs(self, has_gpus: bool) -> dict[str, float]:
        """Return the resources that the engine reserves for a task."""
        asked = self.request
        needs = {"CPU": asked.cpus, "GPU": asked.gpus if has_gpus else 0, **asked.resources}
        return {name: float(count) for name, count in needs.items() if count} or {"CPU": 0.001}

    def fitting(self, nodes: Iterable[Resources]) -> int:
        """Return how many such tasks fit on nodes with these resources; it can be more than are wanted."""
        has = list(nodes)
        with_gpus = self._places(has, self.needs(True))
        if self.gpu_tasks == self.tasks:
            return with_gpus
        places = self._places(has, self.needs(False))  # those with GPUs are among them
        return places if with_gpus >= self.gpu_tasks else min(places, self.tasks - self.gpu_tasks + with_gpus)

    def never_fits(self, nodes: Iterable[Node]) -> str:
        """Say why the tasks can have no place on these nodes, even on idle ones; "" if they can."""
        known = list(nodes)
        if (places := self.fitting(node.total for node in known if not node.leaves)) >= self.tasks:
            return ""
        return f"Ray's nodes can hold {places} of {self.tasks} tasks: {self.asked_and_there(known)}"

    def asked_and_there(self, nodes: Iterable[Node]) -> str:
        """Say what each task needs, and what the nodes have."""
        there = "; ".join(f"{node.address}: {node.in_words()}" for node in nodes)
        return f"{self.each()}. Its nodes have {there}"

    def each(self) -> str:
        """Say what each task needs."""
        asked = ", ".join(f"{count:g} {name}" for name, count in self.needs(self.gpu_tasks > 0).items())
        apart = " (a host for each)" if self._is_apart else ""
        return f"each needs {asked}, placement {self.request.placement}{apart}"

    @property
    def _is_apart(self) -> bool:
        return self.request.placement == "strict-spread"

    def _places(self, nodes: Iterable[Resources], needs: Resources) -> int:
        limit = 1 if self._is_apart else 1 << 30
        return sum(min(_places_on(node, needs), limit) for node in nodes)


def _places_on(has: Resources, needs: Resources) -> int:
    """Return how many places with these needs a node can hold."""
    return int(
        min(_in_tens_of_thousands(has.get(n, 0.0)) // _in_tens_of_thousands(c) for n, c in needs.items())
    )


def _in_tens_of_thousands(count: float) -> int:
    """Return a resource as Ray counts it: 0.3 of a float is not three times 0.1."""
    return round(count * 10_000)


def in_words(resources: Resources) -> str:
    """Return what a user has asked for or given: not what the engine adds for itself."""
    told = (f"{count:g} {name}" for name, count in sorted(resources.items()) if _is_told(name))
    return ", ".join(told) or "none"


def _is_told(name: str) -> bool:
    return (
        not name.startswith(("node:", "object_store_memory", "memory", "bundle_")) and "_group_" not in name
    )
