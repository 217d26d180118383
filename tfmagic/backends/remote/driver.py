"""The driver process of a cluster: connects to an engine, asks it for hosts, and relays frames.

    control channel ←→ main thread: connect, places for the tasks, an agent on each host, ports
    report channel  ←→ `tfmagic.backends.remote.relay` ←→ the agents

It knows no engine: that finds the hosts, lets us in, places all tasks or none, tells that a host is lost, and
moves the place of a task to another host then. This process ends with the kernel, and the agents with it, but
for those of a kept cluster, which wait for the driver of another kernel.
"""

import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from msgspec import structs

from tfmagic.backends.remote import memory_files
from tfmagic.backends.remote.engine import Engine, HostGone, words_of
from tfmagic.backends.remote.messages import (
    AddressesReserved,
    CloseHosts,
    Connected,
    DriverRequest,
    HostFacts,
    HostsClosed,
    HostsOpened,
    OpenHosts,
    Orders,
    PlaceWanted,
    RequestFailed,
    ReserveAddresses,
    read_setup,
)
from tfmagic.backends.remote.relay import Host, Relay
from tfmagic.backends.remote.versions import describe_differences, own_versions
from tfmagic.errors import BackendError
from tfmagic.protocol.channel import Channel
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.folder import file_sizes

_LOOK_S = 0.5
_SOONER = 0.95  # of the kernel's own time limit, so that it hears the reason
_CLOSE_S = 2.0


def run(engine: Engine, control: int, reports: int) -> NoReturn:
    """Serve the kernel until it closes the channels. Never returns."""
    driver = Driver(
        engine,
        Channel(socket.socket(fileno=control), DriverRequest),
        Channel(socket.socket(fileno=reports), Orders),
    )
    try:
        driver.serve()
    finally:
        driver.close()
        sys.stdout.flush()
        os._exit(0)


class Driver:
    """One cluster at a time: its relay; the engine's agents stay for the next one."""

    def __init__(self, engine: Engine, control: Channel, reports: Channel):
        self._engine, self._control, self._reports = engine, control, reports
        self._trial = memory_files.Trial()
        self._listens = False
        self._timeout_s = 0.0
        self._keep_s: float | None = None  # while it waits for the next cluster
        self._relay: Relay | None = None
        self._kept_as = ""
        self._leaves_cluster = False  # it outlives this process

    def serve(self) -> None:
        """Answer the requests of the kernel until it ends, or wants no cluster for some time."""
        self._control.send(Connected())  # the engine is imported
        ready = select.poll()
        ready.register(self._control.fileno(), select.POLLIN)
        while self._keep_s is None or ready.poll(1000 * self._keep_s):
            try:
                request = self._control.receive()
            except (EOFError, OSError):
                return
            self._keep_s = None
            try:
                reply = self._answer(request)
            except Exception as error:  # of the engine: told to the user
                reply = RequestFailed(words_of(error))
            self._control.send(reply)

    def _answer(self, request: DriverRequest) -> Any:
        match request:
            case OpenHosts():
                return self._resume(request) if request.resumes else self._open(request)
            case ReserveAddresses(tasks):
                return AddressesReserved(self._reserve(tasks))
            case CloseHosts(keep_s):
                self._close_cluster()
                self._keep_s = keep_s
                return HostsClosed()

    def close(self) -> None:
        """End the agents, and with them the tasks."""
        with contextlib.suppress(Exception):
            if not self._leaves_cluster:
                self._close_cluster()
            self._engine.end()

    def _close_cluster(self) -> None:
        relay, self._relay = self._relay, None
        agents = []
        if relay is not None:
            relay.close()
            agents = [host.agent for host in relay.all_hosts() if host.agent is not None and not host.is_lost]
        self._engine.close(agents, _CLOSE_S)
        if relay is not None:
            relay.wait_closed(_CLOSE_S)

    # -- hosts --

    def _connect(self, opening: OpenHosts) -> None:
        name, step = opening.setup.known_as, lambda: self._control.send(Connected())
        self._engine.connect(opening.request.address, name, step)
        if not self._listens:
            self._listens = True
            threading.Thread(target=self._relay_orders, name="tfmagic-orders", daemon=True).start()
        self._timeout_s, self._kept_as = opening.timeout_s, opening.setup.kept_as

    def _resume(self, opening: OpenHosts) -> HostsOpened:
        """Take over the agents of a cluster that has outlived its kernel."""
        self._leaves_cluster = True
        self._connect(opening)
        agents = self._engine.take_over(opening)
        if not agents:
            what = f"nothing of {opening.setup.kept_as} lives there any more"
            raise BackendError(f"{what}; --cell N shows a cell of it from disk")
        claims = self._engine.ask("claim", dict.fromkeys(agents.values(), ()), self._timeout_s)
        epoch, sizes = max(claims), file_sizes(opening.run_folder)
        own, trial = self._engine.own_node, self._trial.question
        args = {
            agent: (epoch, sizes, opening.opened, trial if node == own else None)
            for node, agent in agents.items()
        }
        found = self._engine.ask("resume", args, self._timeout_s)
        opening = structs.replace(opening, setup=read_setup(found[0][2]))
        self._engine.resume(opening)
        self._relay = relay = self._new_relay(opening)
        return HostsOpened(relay.resume(opening.tasks, agents, epoch, found), opening.setup)

    def _open(self, opening: OpenHosts) -> HostsOpened:
        self._leaves_cluster = False
        self._connect(opening)
        deadline = time.monotonic() + opening.timeout_s
        left_out: set[str] = set()
        while True:
            try:
                return self._open_on_others(opening, left_out, deadline)
            except HostGone as gone:
                if time.monotonic() > deadline:
                    raise BackendError(str(gone)) from None
                left_out.add(gone.node)
                self._close_cluster()
                self._say(f"an agent ended while it started: {gone}. Its tasks get places elsewhere")

    def _say(self, text: str) -> None:
        self._control.send(PlaceWanted(text))

    def _open_on_others(self, opening: OpenHosts, left_out: Collection[str], deadline: float) -> HostsOpened:
        places = self._engine.place(opening, left_out, self._say)
        self._relay = relay = self._new_relay(opening)
        for task, node in places.items():
            if (host := self._host_at(node)) is not None:
                host.tasks.append(task)
            relay.hosts[task] = host or Host([task], self._engine.agent_at(node), node)
        hosts = {host.node: host for host in relay.all_hosts()}
        limit_s = max(deadline - time.monotonic(), 1.0)
        facts = {}
        for node, opened in self._engine.open(list(hosts), self._trial.question, limit_s):
            host = hosts[node]
            host.address, versions, host.shares_memory = opened
            facts[node] = HostFacts(host.address, tuple(host.tasks), versions)
            relay.begin(host)  # at once: others may need longer than the lease of this agent
        return HostsOpened(tuple(facts[node] for node in hosts), opening.setup)

    def _new_relay(self, opening: OpenHosts) -> Relay:
        where, patience = (self._reports, opening.run_folder), (opening.suspect_s, opening.setup.lease_s)
        return Relay(self._engine, *where, *patience, self._replace)

    def _relay_orders(self) -> None:
        while True:
            try:
                orders = [order for sent in self._reports.receive_some() for order in sent.orders]
            except (EOFError, OSError):
                return  # the kernel is gone, which the main thread sees, too
            except Exception:  # no further order can be read: the kernel sees the end, and ends us
                self._reports.sock.shutdown(socket.SHUT_RDWR)
                return
            if (relay := self._relay) is not None:
                self._leaves_cluster = bool(self._kept_as)  # the kernel has noted where it is
                try:
                    relay.forward(orders)
                except Exception as error:  # a defect: the tasks would wait for these orders
                    for host in relay.all_hosts():
                        relay.give_up(host, f"an order could not be passed on: {words_of(error)}")

    def _host_at(self, node: str) -> Host | None:
        assert self._relay is not None
        return next((h for h in self._relay.all_hosts() if h.node == node and not h.is_lost), None)

    def _reserve(self, tasks: Sequence[TaskId]) -> tuple[str, ...]:
        """Hold a port for each task; a task whose host is lost gets a new one first."""
        relay = self._relay
        assert relay is not None
        deadline = time.monotonic() + self._timeout_s
        with relay.lock:
            for task in tasks:
                if relay.hosts[task].is_lost:
                    self._replace(task)
        while missing := [task.name for task in tasks if relay.hosts[task].agent is None]:
            if time.monotonic() > deadline or relay.ended.wait(_LOOK_S):
                raise BackendError(f"Ray has no place for {', '.join(missing)} since its host was lost")
        asked = {host.agent: [[t.name for t in host.tasks if t in tasks]] for host in relay.all_hosts()}
        found: dict[str, str] = {}
        for addresses in self._engine.ask("reserve", asked, max(deadline - time.monotonic(), 1.0)):
            found |= addresses
        return tuple(found[task.name] for task in tasks)

    def _replace(self, task: TaskId) -> Host:
        """Begin to find a host for a task whose host is lost, and return it. Call with the lock."""
        relay = self._relay
        assert relay is not None
        host = Host([task])
        threading.Thread(None, self._find_place, "tfmagic-places", (relay, host), daemon=True).start()
        relay.hosts[task] = host  # the lock keeps the thread from looking for it before
        return host

    def _find_place(self, relay: Relay, host: Host) -> None:
        try:
            self._wait_for_place(relay, host)
        except Exception as error:  # of the engine: the task's orders wait in this host
            relay.lose(host, words_of(error))

    def _wait_for_place(self, relay: Relay, host: Host) -> None:
        (task,) = host.tasks
        limit_s = self._timeout_s * _SOONER
        deadline = time.monotonic() + limit_s
        while True:
            while not (node := self._engine.node_of(task)):
                if time.monotonic() > deadline:
                    relay.give_up(host, self._engine.shortage(limit_s))
                if relay.ended.wait(_LOOK_S) or host.is_lost:
                    return
            with relay.lock:
                if (other := self._host_at(node)) is not None:  # which serves this cluster already, or will
                    relay.move(task, host, other)
                    return
                host.node = node
            if not (differences := self._open_at(relay, host)):
                return
            if not self._engine.leave_out(task, node):
                why = "it has no place on a host with other versions, and no other has room for it"
                relay.give_up(host, f"{why}: {differences}")
                return

    def _open_at(self, relay: Relay, host: Host) -> str:
        """Let the agent at the node of a task serve it, or lose the host; return how its versions differ."""
        agent = self._engine.agent_at(host.node)
        try:
            for _, opened in self._engine.open([host.node], self._trial.question, self._timeout_s):
                host.address, versions, host.shares_memory = opened
                if found := describe_differences([(host.address, versions)], own_versions()):
                    self._engine.forget(agent)
                    return found
        except Exception as error:
            self._engine.forget(agent)
            relay.lose(host, self._engine.reason_of(error))
            return ""
        with relay.lock:
            host.agent = agent
            relay.begin(host)
        return ""
