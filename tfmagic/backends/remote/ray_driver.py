"""Ray as an engine (`tfmagic.backends.remote.engine`): places in a group, and an actor on each node."""

import contextlib
import getpass
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

import msgspec
import ray
from ray import exceptions
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tfmagic.backends.remote import driver, memory_files, patches, ray_head, ray_places
from tfmagic.backends.remote.engine import HostGone, HostUnreachable, Opened, words_of
from tfmagic.backends.remote.messages import AgentSetup, OpenHosts
from tfmagic.backends.remote.own_source import source_of_tfmagic
from tfmagic.backends.remote.ray_actor import actor_class, as_object, fetch
from tfmagic.backends.remote.ray_head import Head
from tfmagic.backends.remote.ray_places import Places
from tfmagic.errors import BackendError
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.payload import HandleLost
from tfmagic.system import advice


def main(control: int, reports: int, front_end: int) -> NoReturn:
    """Serve the kernel as the driver process. Never returns."""
    advice.set_front_end(advice.FrontEnd(front_end))
    driver.run(RayEngine(), control, reports)


def look(front_end: int) -> None:
    """Print what the head at ``sys.argv[1]`` answers, then the room on its nodes, each as a line of JSON.

    Without the second line the nodes are not known: Ray can end a process that connects to it.
    """
    advice.set_front_end(advice.FrontEnd(front_end))
    head = ray_head.look(sys.argv[1])
    print(json.dumps(asdict(head)), flush=True)
    if not head.reason and head.version == ray.__version__:
        RayEngine().connect(sys.argv[1], "tfmagic doctor", lambda: None)
        print(json.dumps([asdict(node) for node in ray_places.living_nodes()]), flush=True)


_SOON_S = 1.0  # Ray places what has room


class RayEngine:
    """See `tfmagic.backends.remote.engine.Engine`. The agents are actors, which stay when a cluster ends."""

    def __init__(self) -> None:
        self.actors: dict[tuple[str, str], Any] = {}  # by the name of a kept cluster, or "", and the node
        self.setup = AgentSetup("", "")
        self.head = Head("")
        self.places: Places | None = None

    def connect(self, address: str, name: str, step: Callable[[], object]) -> None:
        if not ray.is_initialized():
            self.head = ray_head.look(address)
            if self.head.reason:
                raise BackendError(self.head.reason)
            step()
            here = [node for node in self.head.nodes if ray_head.is_here(node)]
            knows_own_node = len(here) == 1 and patches.TABLE.fits(patches.OWN_NODE)
            ray.init(
                address=address,
                log_to_driver=False,
                configure_logging=False,
                namespace="tfmagic",
                job_config=JobConfig(metadata={"name": name, "user": _user()}),
                # else Ray takes the first node whose process it sees: of another network namespace, too
                **({"_node_ip_address": here[0]} if knows_own_node else {}),
            )
            step()

    def place(
        self, opening: OpenHosts, left_out: Collection[str], say: Callable[[str], object]
    ) -> Mapping[TaskId, str]:
        if not (self.head.asks_token or opening.request.trusts_network or ray_head.uses_tls(os.environ)):
            _refuse_open_clusters()
        self.setup, self.places = opening.setup, (places := Places(opening, left_out))
        if not places.group.wait(_SOON_S) and (why := places.never_fits()):
            say(f"{why}. The start waits {opening.timeout_s:g} s for nodes that join")
        if not places.group.wait(opening.timeout_s):
            text = places.shortage(opening.timeout_s)
            self.close([], 0)
            raise BackendError(text)
        if opening.request.gpus:
            places.find_gpus()
        return places.nodes()

    def take_over(self, opening: OpenHosts) -> Mapping[str, Any]:
        self.setup = opening.setup
        nodes = {name: node for node, name in ray_places.names_of_nodes().items()}
        found = {}
        for name in sorted(ray.util.list_named_actors()):
            cluster, _, place = name.partition("@")
            if cluster == self.setup.known_as and (node := nodes.get(place.partition("~")[0])):
                found[node] = self.actors[self.setup.kept_as, node] = ray.get_actor(name)
        return found

    def resume(self, opening: OpenHosts) -> None:
        self.places = Places(opening)
        if opening.request.gpus:
            self.places.find_gpus()

    @property
    def own_node(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def node_of(self, task: TaskId) -> str:
        return self._places.living_node(task)

    def leave_out(self, task: TaskId, node: str) -> bool:
        return self._places.leave_out(task, node)

    def shortage(self, waited_s: float) -> str:
        return self._places.shortage(waited_s)

    @property
    def _places(self) -> Places:
        assert self.places is not None
        return self.places

    def agent_at(self, node: str) -> Any:
        key = self.setup.kept_as, node
        if key not in self.actors:
            name = f"{self.setup.known_as}@{ray_places.names_of_nodes().get(node, node)}"
            names = itertools.chain([name], (f"{name}~{number}" for number in itertools.count(2)))
            taken = set(ray.util.list_named_actors())  # by one with other versions, for example
            made = actor_class().options(
                name=next(name for name in names if name not in taken),
                lifetime="detached" if self.setup.kept_as else None,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            self.actors[key] = made.remote(source_of_tfmagic())
        return self.actors[key]

    def forget(self, agent: Any) -> None:
        for key in [key for key, actor in self.actors.items() if actor is agent]:
            del self.actors[key]
            with contextlib.suppress(exceptions.RayError):
                ray.kill(agent)  # one that has other versions lives, and a kept cluster would find it again

    def call(self, agent: Any, method: str, *args: Any) -> Any:
        return getattr(agent, method).remote(*args)

    def answer(self, call: Any) -> Any:
        try:
            return ray.get(call)
        except exceptions.ActorUnavailableError:
            raise HostUnreachable from None
        except Exception as error:
            raise HostGone(self.reason_of(error)) from None

    def has_answer(self, call: Any) -> bool:
        return bool(ray.wait([call], timeout=0)[0])

    def put(self, content: memoryview) -> Any:
        if isinstance(put := as_object(content), str):
            raise HandleLost(put)
        return put

    def get(self, content: Any) -> Any:
        return fetch(content)

    def open(
        self, nodes: Sequence[str], trial: memory_files.Question, timeout_s: float
    ) -> Iterator[tuple[str, Opened]]:
        own, opening = self.own_node, self._places.opening
        setup = msgspec.msgpack.encode(opening.setup)
        opened = {
            self.agent_at(node).open.remote(setup, self._places.gpus, trial if node == own else None): node
            for node in nodes
        }
        late, deadline = list(opened), time.monotonic() + timeout_s
        while late and (left_s := deadline - time.monotonic()) > 0:
            ready, late = ray.wait(late, timeout=left_s)
            for ref in ready:
                try:
                    yield opened[ref], ray.get(ref)
                except exceptions.RayActorError as error:
                    raise HostGone(self.reason_of(error), opened[ref]) from None
        if late:
            where = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
            names = sorted(where[opened[ref]] for ref in late)
            raise BackendError(
                f"no agent has started on {', '.join(names)} within {opening.timeout_s:g} s, though Ray has "
                "places there. Look there at worker-*.err in Ray's logs (/tmp/ray/session_latest/logs)"
            )

    def ask(self, method: str, args: Mapping[Any, Sequence[Any]], timeout_s: float) -> list[Any]:
        asked = [agent.ask.remote(method, *given) for agent, given in args.items()]
        return ray.get(asked, timeout=timeout_s)

    def close(self, agents: Sequence[Any], timeout_s: float) -> None:
        if closing := [agent.close.remote() for agent in agents]:
            ray.wait(closing, num_returns=len(closing), timeout=timeout_s)
        places, self.places = self.places, None
        if places is not None:
            places.remove()
        for key in [key for key in self.actors if key[0] and key[0] == self.setup.kept_as]:
            ray.kill(self.actors.pop(key))  # they serve no other cluster

    def end(self) -> None:
        for (kept_as, _), actor in self.actors.items():
            if not kept_as:
                ray.kill(actor)

    def lives(self, node: str) -> bool:
        return ray_places.lives(node)

    def reason_of(self, error: BaseException) -> str:
        # Ray's text has a table of the actor, the reason, and a list of guesses
        if isinstance(error, HostGone):
            return str(error)
        if isinstance(error, exceptions.OutOfMemoryError):
            return _out_of_memory(str(error))
        if not isinstance(error, exceptions.ActorDiedError):
            return words_of(error)
        first, *lines = str(error).splitlines()
        told = " ".join(line for line in lines if not line.startswith("\t"))
        reason = told.partition(" Some common causes")[0].rstrip(". ") or first.rstrip(". ")
        nodes = {actor._actor_id.hex(): node for (_, node), actor in self.actors.items()}
        return f"Ray says: {ray_places.with_fate(reason, nodes.get(error.actor_id, ''))}"


def _out_of_memory(text: str) -> str:
    """Return one sentence for Ray's 49 lines: how much was in use, and by whom most."""
    used = re.search(r"was (\S+ used / \S+) limit", text)
    most = re.search(r"memory users:.*\n(\d+)\s+(\S+)\s+(.+)", text)
    figures = f" ({used[1].replace(' used /', ' of')} in use)" if used else ""
    whose = f"; the most, {most[2]} GB, has process {most[1]} there: {most[3]}" if most else ""
    return f"Ray ended it, since the memory of the host is used up{figures}{whose}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # of a container that knows no name for it
        return str(os.getuid())


def _refuse_open_clusters() -> None:
    """Raise an error where everybody who reaches Ray's ports could run code in the user's name."""
    nodes = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
    elsewhere = sorted({node for node in nodes if not ray_head.is_here(node)})
    if not elsewhere:
        return
    raise BackendError(
        f"it has nodes on other machines ({', '.join(elsewhere[:3])}) and asks for no token: everybody who "
        "reaches its ports can run code in your name. Nothing was started. Make a token (ray get-auth-token "
        "--generate), and start Ray again on every node, and this kernel, with  export RAY_AUTH_MODE=token "
        "RAY_AUTH_TOKEN=...   Where certificates or the network keep others out:  RAY_USE_TLS=1, or  "
        f"{advice.Step('configure', trust_network=True)}   (docs/security.md)"
    )
