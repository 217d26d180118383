"""The driver process of a cluster on Ray: a program that asks Ray for hosts, and relays frames.

    control channel ←→ main thread: connect, placement group, an agent (an actor) on each host, ports
    report channel  ←→ `tfmagic.backends.remote.relay` ←→ the agents

Ray does what it is for: it finds the hosts, lets us in, places all tasks or none, tells that a host is lost,
and moves the place of a task to another host then. This process ends with the kernel, and the agents with it.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import ray
from ray import exceptions
from ray.util.placement_group import remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tfmagic.backends.remote import memory_files, ray_head
from tfmagic.backends.remote.messages import (
    AddressesReserved,
    CloseHosts,
    Connected,
    Deliver,
    DriverRequest,
    HostFacts,
    HostsClosed,
    HostsOpened,
    OpenHosts,
    RequestFailed,
    ReserveAddresses,
)
from tfmagic.backends.remote.own_source import source_of_tfmagic
from tfmagic.backends.remote.ray_actor import actor_class, as_object
from tfmagic.backends.remote.ray_head import Head
from tfmagic.backends.remote.ray_places import Places, shortage
from tfmagic.backends.remote.relay import Host, HostGone, HostUnreachable, Relay
from tfmagic.errors import BackendError
from tfmagic.protocol.channel import Channel
from tfmagic.protocol.cluster_spec import TaskId

_LOOK_S = 0.5
_SOONER = 0.95  # of the kernel's own time limit, so that it hears the reason
_CLOSE_S = 2.0


def main(control: int, reports: int) -> NoReturn:
    """Serve the kernel until it closes the channels. Never returns."""
    driver = RayDriver(
        Channel(socket.socket(fileno=control), DriverRequest),
        Channel(socket.socket(fileno=reports), Deliver),
    )
    try:
        driver.serve()
    finally:
        driver.close()
        sys.stdout.flush()
        os._exit(0)


class RayEngine:
    """Calls the actors; see `tfmagic.backends.remote.relay.Engine`."""

    def __init__(self) -> None:
        self.actors: dict[str, Any] = {}  # by node

    def actor_at(self, node: str) -> Any:
        """Return the actor of a node, a new one if there is none."""
        if node not in self.actors:
            place = NodeAffinitySchedulingStrategy(node, soft=False)
            self.actors[node] = actor_class().options(scheduling_strategy=place).remote(source_of_tfmagic())
        return self.actors[node]

    def forget(self, agent: Any) -> None:
        for node in [node for node, actor in self.actors.items() if actor is agent]:
            del self.actors[node]

    def perform(self, agent: Any, number: int, frames: list[Any], contents: list[Any]) -> None:
        agent.perform.remote(number, frames, *contents)

    def poll(self, agent: Any, number: int, timeout_s: float) -> Any:
        return agent.poll.remote(number, timeout_s)

    def answer(self, poll: Any) -> Any:
        try:
            return ray.get(poll)
        except exceptions.ActorUnavailableError:
            raise HostUnreachable from None
        except Exception as error:
            raise _gone(error) from None

    def put(self, content: memoryview) -> Any:
        return as_object(content)

    def get(self, content: Any) -> Any:
        return memoryview(ray.get(content)) if isinstance(content, ray.ObjectRef) else content


class RayDriver:
    """One cluster at a time: its places and its relay; the actors stay for the next one."""

    def __init__(self, control: Channel, reports: Channel):
        self.control, self.reports = control, reports
        self.engine = RayEngine()
        self.trial = memory_files.Trial()
        self.head = Head("")
        self.places: Places | None = None
        self.relay: Relay | None = None

    def serve(self) -> None:
        """Answer the requests of the kernel until it ends."""
        self.control.send(Connected())  # Ray is imported
        while True:
            try:
                request = self.control.receive()
            except (EOFError, OSError):
                return
            try:
                reply = self._answer(request)
            except Exception as error:  # of Ray's: told to the user
                reply = RequestFailed(_words_of(error))
            self.control.send(reply)

    def _answer(self, request: DriverRequest) -> Any:
        match request:
            case OpenHosts():
                return HostsOpened(self._open(request))
            case ReserveAddresses(tasks):
                return AddressesReserved(self._reserve(tasks))
            case CloseHosts():
                self._close_cluster()
                return HostsClosed()

    def close(self) -> None:
        """End the agents, and with them the tasks."""
        with contextlib.suppress(Exception):
            self._close_cluster()
            for actor in self.engine.actors.values():
                ray.kill(actor)

    def _close_cluster(self) -> None:
        relay, self.relay = self.relay, None
        if relay is not None:
            relay.close()
            hosts = [host for host in relay.all_hosts() if host.agent is not None and not host.is_lost]
            closing = [host.agent.close.remote() for host in hosts]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
                relay.wait_closed(_CLOSE_S)
        places, self.places = self.places, None
        if places is not None:
            remove_placement_group(places.group)

    # -- hosts --

    def _open(self, opening: OpenHosts) -> tuple[HostFacts, ...]:
        if not ray.is_initialized():
            self._connect(opening.request.address)
        _refuse_open_clusters(self.head)
        deadline = time.monotonic() + opening.timeout_s
        self.places = places = Places(opening)
        if not places.group.wait(opening.timeout_s):
            text = shortage(places.bundles, opening.request.placement, opening.timeout_s)
            self._close_cluster()
            raise BackendError(text)
        if opening.request.gpus:
            places.find_gpus()
        relay = Relay(self.engine, self.reports, opening.run_folder, opening.suspect_s, self._replace)
        self.relay = relay
        for task, node in places.nodes().items():
            if (host := self._host_at(node)) is not None:
                host.tasks.append(task)
            relay.hosts[task] = host or Host([task], self.engine.actor_at(node), node)
        hosts = relay.all_hosts()
        opened = [self._open_agent(host.agent, host.node) for host in hosts]
        _, late = ray.wait(opened, num_returns=len(opened), timeout=max(deadline - time.monotonic(), 1.0))
        if late:
            where = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
            names = sorted(where[host.node] for host, ref in zip(hosts, opened, strict=True) if ref in late)
            raise BackendError(
                f"no agent has started on {', '.join(names)} within {opening.timeout_s:g} s, though Ray has "
                "places there. Look there at worker-*.err in Ray's logs (/tmp/ray/session_latest/logs)"
            )
        found = ray.get(opened)
        for host, (address, _, shares_memory) in zip(hosts, found, strict=True):
            host.address, host.shares_memory = address, shares_memory
            relay.begin(host)
        return tuple(
            HostFacts(address, tuple(host.tasks), versions)
            for host, (address, versions, _) in zip(hosts, found, strict=True)
        )

    def _open_agent(self, actor: Any, node: str) -> Any:
        assert self.places is not None
        trial = self.trial.question if node == ray.get_runtime_context().get_node_id() else None
        return actor.open.remote(self.places.opening.setup, self.places.gpus, trial)

    def _connect(self, address: str) -> None:
        self.head = ray_head.look(address)
        if self.head.reason:
            raise BackendError(self.head.reason)
        self.control.send(Connected())
        here = [node for node in self.head.nodes if ray_head.is_here(node)]
        ray.init(
            address=address,
            log_to_driver=False,
            configure_logging=False,
            namespace="tfmagic",
            # else Ray takes the first node whose process it sees: of another network namespace, too
            _node_ip_address=here[0] if len(here) == 1 else None,
        )
        self.control.send(Connected())
        threading.Thread(target=self._relay_orders, name="tfmagic-orders", daemon=True).start()

    def _relay_orders(self) -> None:
        try:
            while True:
                orders = self.reports.receive_some()
                if (relay := self.relay) is not None:
                    relay.pass_on(orders)
        except (EOFError, OSError):
            pass  # the kernel is gone, which the main thread sees, too

    def _host_at(self, node: str) -> Host | None:
        assert self.relay is not None
        return next((h for h in self.relay.all_hosts() if h.node == node and not h.is_lost), None)

    def _reserve(self, tasks: Sequence[TaskId]) -> tuple[str, ...]:
        """Hold a port for each task; a task whose host is lost gets a new one first."""
        relay, places = self.relay, self.places
        assert relay is not None and places is not None
        deadline = time.monotonic() + places.opening.timeout_s
        with relay.lock:
            for task in tasks:
                if relay.hosts[task].is_lost:
                    self._replace(task)
        while missing := [task.name for task in tasks if relay.hosts[task].agent is None]:
            if time.monotonic() > deadline or relay.ended.wait(_LOOK_S):
                raise BackendError(f"Ray has no place for {', '.join(missing)} since its host was lost")
        hosts = relay.all_hosts()
        refs = [host.agent.reserve.remote([t.name for t in host.tasks if t in tasks]) for host in hosts]
        found: dict[str, str] = {}
        for addresses in ray.get(refs, timeout=max(deadline - time.monotonic(), 1.0)):
            found |= addresses
        return tuple(found[task.name] for task in tasks)

    def _replace(self, task: TaskId) -> Host:
        """Begin to find a host for a task whose host is lost: Ray moves its place. Call with the lock."""
        relay, places = self.relay, self.places
        assert relay is not None and places is not None
        relay.hosts[task] = host = Host([task])
        threading.Thread(target=self._find_place, args=(relay, places, host), daemon=True).start()
        return host

    def _find_place(self, relay: Relay, places: Places, host: Host) -> None:
        (task,) = host.tasks
        limit_s = places.opening.timeout_s * _SOONER
        deadline = time.monotonic() + limit_s
        while not (node := places.living_node(task)):
            if time.monotonic() > deadline:
                relay.give_up(host, shortage(places.bundles, places.opening.request.placement, limit_s))
            if relay.ended.wait(_LOOK_S) or host.is_lost:
                return
        with relay.lock:
            if (other := self._host_at(node)) is not None:  # which serves this cluster already, or will
                relay.move(task, host, other)
                return
            host.node = node
        actor = self.engine.actor_at(node)
        try:
            host.address, _, host.shares_memory = ray.get(self._open_agent(actor, node))
        except exceptions.RayError as error:
            self.engine.forget(actor)
            relay.lose(host, _gone(error))
            return
        with relay.lock:
            host.agent = actor
            relay.begin(host)


def _refuse_open_clusters(head: Head) -> None:
    """Raise an error where everybody who reaches Ray's ports could run code in the user's name."""
    nodes = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
    elsewhere = sorted({node for node in nodes if not ray_head.is_here(node)})
    if not elsewhere or head.asks_token:
        return
    raise BackendError(
        f"it has nodes on other machines ({', '.join(elsewhere[:3])}) and asks for no token: everybody who "
        "reaches its ports can run code in your name. Nothing was started. Make a token (ray get-auth-token "
        "--generate), and start Ray anew on every node, and this kernel, with  export RAY_AUTH_MODE=token "
        "RAY_AUTH_TOKEN=...   (docs/security.md)"
    )


def _gone(error: BaseException) -> HostGone:
    """Return what is lost and why. Ray's text has a table of the actor, the reason, and a list of guesses."""
    if not isinstance(error, exceptions.ActorDiedError):
        return HostGone(_words_of(error))
    lines = [line for line in str(error).splitlines()[1:] if not line.startswith("\t")]
    reason = " ".join(lines).partition(" Some common causes")[0].rstrip(". ") or _words_of(error)
    return HostGone(f"Ray says: {reason}", with_host="node" in reason)


def _words_of(error: BaseException) -> str:
    """Return the text of an error and of what led to it: Ray's reason is often only there."""
    text = str(error).strip()
    if isinstance(error, BackendError):
        return text
    cause = f" ({_words_of(error.__cause__)})" if error.__cause__ is not None else ""
    return f"{type(error).__name__}: {text}{cause}"
