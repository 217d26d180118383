"""Relays orders and reports between a kernel and the agents on the hosts, whatever the engine is.

    report channel ─→ thread "tfmagic-orders" ──→ agent.perform()
                   ←─ a thread for each host ←── agent.poll(), always two under way

While the driver reads one batch, the agent can already answer with the next: with one poll under way, what
happens just after an answer would wait for the way there and back.

An error of the engine, wherever it is raised, loses a host or an order, and the kernel hears of it: a thread
that ended silently would leave the tasks waiting.

Orders keep their numbers until the agent has confirmed them, so what an engine could not deliver is sent
again. What the tasks have written is in the run folder before the kernel hears of what they did next.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfmagic.backends.remote import memory_files
from tfmagic.backends.remote.engine import Engine, HostGone, HostUnreachable, words_of
from tfmagic.backends.remote.messages import (
    EPOCH,
    LEASE_OVER,
    TAKEN_OVER,
    Deliver,
    DriverReport,
    FrameArrived,
    HostFacts,
    HostLost,
    OrderFailed,
    TakenOver,
)
from tfmagic.backends.remote.task_files import Piece, write_piece
from tfmagic.protocol.channel import Channel
from tfmagic.protocol.cluster_spec import TaskId, parse_task
from tfmagic.protocol.events import HostSilent
from tfmagic.protocol.payload import LOST, Handle, HandleLost
from tfmagic.system.advice import Step

_POLLS = 2
_POLL_S = 5.0  # a poll without news is answered after this time at most: the sign that the host lives
_LOOK_S = 0.5
_SOONER = 0.7  # of the time after which a host counts as silent, it is asked for a sign
_AGAIN_S = 0.2  # until an agent that could not be reached is asked again

Instruction = tuple[list[str], int, bytes]
"""The first parts of an instruction of `HostAgent.perform`."""
Order = tuple[int, Instruction, list[Any]]
"""The number of an order, its instruction, and its handles, or their contents as the engine holds them."""


@dataclass(slots=True)
class Host:
    """An agent that serves the cluster, and what is on the way to it.

    Attributes:
        agent: None until the engine has found a host.
        unperformed: Orders that the agent has not confirmed.
        ahead_s: How far this machine's clock is ahead of the host's.
        shares_memory: Whether the agent and this process can open each other's memory files.
        is_served: Whether its agent is asked for reports, which renews the agent's lease.
        heartbeat: A call that waits for a sign of the agent, whose last report takes long.
    """

    tasks: list[TaskId]
    agent: Any = None
    node: str = ""
    address: str = ""
    sent: int = 0
    unperformed: deque[Order] = field(default_factory=deque)
    batch: int = 0
    heard: float = field(default_factory=time.monotonic)
    is_silent: bool = False
    is_lost: bool = False
    was_unreachable: bool = False
    ahead_s: float = float("inf")
    shares_memory: bool = False
    is_served: bool = False
    heartbeat: Any = None


class Relay:
    """The hosts of one cluster.

    Args:
        replace: Begins to find a host for a task whose host is lost, and returns it. Called with the lock.
        suspect_s: After so many seconds without an answer a host is reported as silent.
        lease_s: See `AgentSetup`.

    Attributes:
        hosts: The host of each task.
        ended: Set when the cluster has ended; nothing is reported any more.
    """

    def __init__(
        self,
        engine: Engine,
        reports: Channel,
        run_folder: str,
        suspect_s: float,
        lease_s: float,
        replace: Callable[[TaskId], Host],
    ):
        self._engine, self._reports, self._replace = engine, reports, replace
        self._lease_s = lease_s
        self._run_folder, self._suspect_s = run_folder, suspect_s
        self._poll_s = min(_POLL_S, suspect_s / 2)  # a host without news is not silent
        self.hosts: dict[TaskId, Host] = {}
        self._lost: dict[str, int] = {}  # bytes that could not be written, by task
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self._sending = threading.Lock()
        self._listening: list[threading.Thread] = []
        threading.Thread(target=self._watch_silence, name="tfmagic-silence", daemon=True).start()

    def all_hosts(self) -> list[Host]:
        """Return each host once."""
        return list({id(host): host for host in list(self.hosts.values())}.values())

    def close(self) -> None:
        """Report nothing any more."""
        self.ended.set()
        with self._sending:  # what is being sent has gone
            pass

    def wait_closed(self, timeout_s: float) -> None:
        """Wait until all polls are answered. A closed agent answers at once."""
        deadline = time.monotonic() + timeout_s
        for thread in self._listening:
            thread.join(max(deadline - time.monotonic(), 0))

    def begin(self, host: Host) -> None:
        """Serve a host that has an agent: send what waits for it, and listen to it."""
        host.heard, host.is_served = time.monotonic(), True
        if host.unperformed:
            self._perform(host, list(host.unperformed))
        thread = threading.Thread(target=self._listen, args=(host,), name="tfmagic-reports", daemon=True)
        self._listening.append(thread)
        thread.start()

    def resume(
        self, tasks: Sequence[TaskId], agents: Mapping[str, Any], epoch: int, found: Sequence[Any]
    ) -> tuple[HostFacts, ...]:
        """Serve hosts whose agents another driver served before.

        Args:
            tasks: All tasks of the cluster. A task that no agent reports is lost.
            agents: By node.
            found: What `HostAgent.resume` has returned, by agent.
        """
        self.hosts = {task: Host([task], is_lost=True) for task in tasks}
        facts = []
        for (node, agent), (address, versions, _, kept, shares) in zip(agents.items(), found, strict=True):
            host = Host([parse_task(name) for name, _ in kept], agent, node, address)
            host.sent = host.batch = epoch * EPOCH
            host.shares_memory = shares
            self.hosts.update(dict.fromkeys(host.tasks, host))
            self.begin(host)
            frames = tuple(frame for _, frame in kept)
            facts.append(HostFacts(address, tuple(host.tasks), versions, frames))
        return tuple(facts)

    def move(self, task: TaskId, old: Host, new: Host) -> None:
        """Give a task and the orders of a host that was not found to another one. Call with the lock."""
        new.tasks.append(task)
        self.hosts[task] = new
        orders = [self._add(new, instruction, contents) for _, instruction, contents in old.unperformed]
        if orders and new.agent is not None:
            self._perform(new, orders)

    def forward(self, orders: Sequence[Deliver]) -> None:
        """Send orders to their hosts: those of one host in one call, and each content once.

        An order that fails is answered for its task, and a host that cannot be called is lost.
        """
        objects: dict[tuple[int, bool], Any] = {}
        failed: list[OrderFailed] = []
        broken = []
        with self.lock:
            found = self._by_host(orders, failed)
            found.sort(key=lambda found: not found[0].shares_memory)  # while the others' values are copied
            for host, parts in found:
                new = []
                for order, tasks in parts:
                    try:
                        contents = [self._content_of(handle, host, objects) for handle in order.handles]
                        names = [task.name for task in tasks] if order.to_task else []
                        new.append(self._add(host, (names, order.cell, order.frame), contents))
                    except Exception as error:  # of the engine or system, such as a full object store
                        failed.append(OrderFailed(tuple(tasks), order.cell, words_of(error)))
                if new and host.agent is not None:
                    try:
                        self._perform(host, new)
                    except Exception as error:  # of the engine
                        broken.append((host, words_of(error)))
        for report in failed:
            self._send(report)
        for host, reason in broken:
            self.lose(host, reason)

    def lose(self, host: Host, reason: str) -> None:
        """Report that a host is lost, or its agent, with which the tasks end."""
        what = "its host"
        try:
            self._engine.forget(host.agent)
            what = "its agent on" if self._engine.lives(host.node) else what
        except Exception as error:  # of an engine that has lost more than this host
            reason = f"{reason} ({words_of(error)})"
        where = f"{what} {host.address}".rstrip()  # it has no address before its agent is open
        self.give_up(host, f"{where} is lost: {reason}")

    def give_up(self, host: Host, reason: str) -> None:
        """Report the tasks of a host as lost: nobody serves them."""
        with self.lock:
            host.is_lost = True
            host.unperformed.clear()
        self._send(HostLost(tuple(host.tasks), reason))

    # -- orders --

    def _by_host(
        self, orders: Sequence[Deliver], failed: list[OrderFailed]
    ) -> list[tuple[Host, list[tuple[Deliver, list[TaskId]]]]]:
        """Return the hosts of the tasks of orders, with the orders of each, and its tasks that get them."""
        found: dict[int, tuple[Host, list[tuple[Deliver, list[TaskId]]]]] = {}
        for order in orders:
            for task in order.tasks:
                host = self.hosts[task]
                if host.is_lost and order.launches:
                    try:
                        host = self._replace(task)
                    except Exception as error:  # no thread can be started, for example
                        failed.append(OrderFailed((task,), order.cell, words_of(error)))
                if host.is_lost:
                    continue
                _, parts = found.setdefault(id(host), (host, []))
                if not parts or parts[-1][0] is not order:
                    parts.append((order, []))
                parts[-1][1].append(task)
        return list(found.values())

    def _add(self, host: Host, instruction: Instruction, contents: list[Any]) -> Order:
        host.sent += 1
        host.unperformed.append((host.sent, instruction, contents))
        return host.unperformed[-1]

    def _content_of(self, handle: Handle, host: Host, objects: dict[tuple[int, bool], Any]) -> Any:
        """Return the memory file for a host of this machine, elsewhere the handle of its content."""
        if handle.fd == LOST:
            raise HandleLost
        key = os.fstat(handle.fd).st_ino, host.shares_memory
        if key not in objects:
            objects[key] = handle if host.shares_memory else self._engine.put(memory_files.read(handle))
        return objects[key]

    def _perform(self, host: Host, orders: Sequence[Order]) -> None:
        contents = list({id(content): content for _, _, needed in orders for content in needed}.values())
        places = {id(content): place for place, content in enumerate(contents)}
        instructions = [
            (*instruction, [places[id(content)] for content in needed]) for _, instruction, needed in orders
        ]
        sent = [memory_files.place_of(c) if isinstance(c, Handle) else c for c in contents]
        self._engine.call(host.agent, "perform", orders[0][0], instructions, sent)

    # -- reports --

    def _listen(self, host: Host) -> None:
        try:
            self._serve(host)
        except HostGone as error:
            self.lose(host, str(error))
        except Exception as error:  # of the engine, or a defect here: no task must be left waiting
            self.lose(host, f"what it sent could not be read: {words_of(error)}")

    def _serve(self, host: Host) -> None:
        polls: deque[Any] = deque()
        while not (self.ended.is_set() or host.is_lost):
            try:
                while len(polls) < _POLLS:
                    number = host.batch + len(polls) + 1
                    polls.append(self._engine.call(host.agent, "poll", number, self._poll_s))
                number, performed, clock, pieces, *report = self._engine.answer(polls.popleft())
                if number == TAKEN_OVER:
                    self._send(TakenOver())
                    return
                if number == LEASE_OVER:
                    self._engine.forget(host.agent)
                    self.give_up(host, _ended_by_lease(host.address, self._lease_s))
                    return
                self._report(host, clock, pieces, *report)
                self._confirm(host, number, performed)
            except HostUnreachable:
                host.was_unreachable = True
                self._await(polls)
                self.ended.wait(_AGAIN_S)
        self._await(polls)

    def _await(self, polls: deque[Any]) -> None:
        """Wait for answers that are not used: the agent keeps them."""
        while polls:
            with contextlib.suppress(HostUnreachable, HostGone):
                self._engine.answer(polls.popleft())

    def _confirm(self, host: Host, number: int, performed: int) -> None:
        with self.lock:
            host.heard, host.batch = time.monotonic(), number
            while host.unperformed and host.unperformed[0][0] <= performed:
                host.unperformed.popleft()
            if host.was_unreachable and host.unperformed:
                self._perform(host, list(host.unperformed))
            host.was_unreachable = False

    def _report(
        self, host: Host, clock: float, pieces: Sequence[Piece], frame: bytes, contents: Sequence[Any]
    ) -> None:
        """Write what the tasks have written, then report what has happened."""
        for name, offset, content in pieces:
            try:
                write_piece(self._run_folder, name, offset, content)
            except OSError:  # a full disk, or another file is in its place
                task = name.partition(".")[0]
                self._lost[task] = self._lost.get(task, 0) + len(content)
        host.ahead_s = min(host.ahead_s, time.monotonic() - clock)
        if frame:
            handles: list[Handle] = []
            missing: dict[int, str] = {}
            for place, content in enumerate(contents):
                try:
                    handles.append(memory_files.receive(self._engine.get(content)))
                except Exception as error:  # no memory, descriptor or disk: who reads the value is told
                    missing[place] = getattr(error, "strerror", None) or words_of(error)
            lost, self._lost = self._lost, {}
            self._send(FrameArrived(frame, tuple(handles), host.ahead_s, lost, missing))

    def _send(self, report: DriverReport) -> None:
        with self._sending, contextlib.suppress(OSError):  # the kernel is gone, which the main thread sees
            if not self.ended.is_set():
                self._reports.send(report)

    def _watch_silence(self) -> None:
        while not self.ended.wait(_LOOK_S):
            for host in self.all_hosts():
                if host.is_served and not host.is_lost:
                    self._look_at(host)

    def _look_at(self, host: Host) -> None:
        """Ask a host for a sign before it counts as silent: its report can hold a large value on its way."""
        with contextlib.suppress(Exception):  # the engine has ended, which the poll tells
            if host.heartbeat is not None and self._engine.has_answer(host.heartbeat):
                call, host.heartbeat = host.heartbeat, None
                self._engine.answer(call)
                host.heard = time.monotonic()
            if host.heartbeat is None and time.monotonic() - host.heard > _SOONER * self._suspect_s:
                host.heartbeat = self._engine.call(host.agent, "heartbeat")
        unheard_s = time.monotonic() - host.heard
        if (is_silent := unheard_s > self._suspect_s) != host.is_silent:
            host.is_silent = is_silent
            self._send(HostSilent(tuple(host.tasks), host.address, is_silent))


def _ended_by_lease(address: str, lease_s: float) -> str:
    more = Step("configure", lease_s=f"{2 * lease_s:g}")
    return (
        f"its agent on {address} has ended it, since it had heard nothing of this notebook for {lease_s:g} s "
        f"(lease_s): the network was cut, or a process was stopped. To wait longer:  {more}  before a start"
    )
