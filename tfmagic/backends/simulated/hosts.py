"""The simulated hosts of one cluster, as its kernel uses them: which task is where, links, partitions."""

import os
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tfmagic.backends.simulated.links import Link, parse_link
from tfmagic.backends.simulated.messages import (
    BytesCounted,
    CountBytes,
    Done,
    HolderReport,
    HolderRequest,
    HostMade,
    Refused,
    SetCut,
    SetLink,
    address_of,
    name_of,
)
from tfmagic.errors import ClusterSpecError, LaunchError, TfmagicError
from tfmagic.protocol.channel import channel_pair
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.launcher_messages import HostPlace
from tfmagic.protocol.module_origins import import_path
from tfmagic.protocol.payload import Handle, OwnedHandle
from tfmagic.system import files
from tfmagic.system.advice import Step, did_you_mean
from tfmagic.system.helper_process import kill_session, start_killed_with_us


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """What is asked of simulated hosts: how many, and the link of each."""

    hosts: int
    link: Link


MOST_HOSTS = 250  # addresses of the network
_FIRST_PORT, _LAST_PORT = 20_000, 32_000  # below those that Linux gives out by itself
_HOLDER = """\
from tfmagic.backends.simulated.holder import hold
hold(int(sys.argv[1]), int(sys.argv[2]))
"""
Report = TypeVar("Report", bound=HolderReport)


def read_request(hosts: int | None, network: str | None, tasks: Sequence[TaskId]) -> NetworkRequest | None:
    """Return the request of `Cluster(hosts=, network=)`; None for tasks without simulated hosts.

    A network alone means a host for each task.

    Raises:
        ClusterSpecError: An argument makes no sense for these tasks.
    """
    if hosts is None and network is None:
        return None
    link = Link() if network is None else parse_link(network)
    count = len(tasks) if hosts is None else hosts
    _check_hosts(count, tasks)
    return NetworkRequest(count, link)


def _check_hosts(count: object, tasks: Sequence[TaskId]) -> None:
    """Raise `ClusterSpecError` if these tasks cannot be on that number of hosts."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ClusterSpecError(f"hosts is a number of machines, from 1, not {count!r}")
    if count > len(tasks):
        raise ClusterSpecError(
            f"there are more hosts ({count}) than tasks ({len(tasks)}), and each host needs a task: ask for "
            "fewer hosts, or for more tasks"
        )
    if count > MOST_HOSTS:
        raise ClusterSpecError(f"hosts cannot be {count}; a simulated network has at most {MOST_HOSTS}")


def require_hosts(hosts: "SimulatedHosts | None") -> "SimulatedHosts":
    """Return the hosts. Raise `TfmagicError` if a cluster has none."""
    if hosts is None:
        step = Step("reshape", hosts=2)
        raise TfmagicError(f"this cluster has no simulated hosts; start it with them, as  {step}")
    return hosts


def try_hosts(tasks: Sequence[TaskId], request: NetworkRequest) -> None:
    """Make such hosts, and end them. Raise what `SimulatedHosts` and `wait_until_made` raise."""
    with tempfile.TemporaryDirectory(prefix="tfmagic-hosts-") as folder:
        hosts = SimulatedHosts(tasks, request, Path(folder) / "hosts")
        try:
            hosts.wait_until_made()
        finally:
            hosts.close()


class SimulatedHosts:
    """Hosts with the tasks of one cluster, until `close`. Any thread can call its methods.

    Args:
        tasks: All tasks, in their order: neighbours are on one host, as other launchers place them.
        request: How many hosts, and their links.
        hosts_file: Where the /etc/hosts of the hosts is written.

    Attributes:
        names: The hosts' names.
        links: The link of each host.
        cut_off: The hosts that are cut off from the others.
        pidfd: Of the holder, whose end takes all links away.

    Raises:
        LaunchError: This machine allows no namespaces; the message has the line that allows them.
    """

    def __init__(self, tasks: Sequence[TaskId], request: NetworkRequest, hosts_file: Path):
        count = request.hosts
        self.names = tuple(map(name_of, range(count)))
        self.links: Mapping[str, Link] = dict.fromkeys(self.names, Link())
        self.cut_off: frozenset[str] = frozenset()
        self._host_of = {task: place * count // len(tasks) for place, task in enumerate(tasks)}
        self._next_port = _FIRST_PORT
        self._first_link = request.link
        self._hosts_file = hosts_file
        self._lock = threading.Lock()
        self._places: list[tuple[Handle, ...]] = []
        _write_hosts_file(hosts_file, self.names)
        self._channel, theirs = channel_pair(HolderReport)
        self._holder = start_killed_with_us(
            "tfmagic-hosts",
            _HOLDER,
            str(theirs.fileno()),
            str(count),
            path=import_path(),
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self.pidfd = os.pidfd_open(self._holder.pid)

    @property
    def has_changed(self) -> bool:
        """True if a host is cut off, or has another link than the first one that all were given."""
        return bool(self.cut_off) or any(link != self._first_link for link in self.links.values())

    def wait_until_made(self) -> None:
        """Wait for the holder, which has worked since this object was made, and set the links.

        Raises:
            LaunchError: This machine allows no namespaces.
            ClusterSpecError: This machine's Linux cannot have such links.
        """
        if self._receive_places() and self._first_link != Link():
            self.set_link(self._first_link)

    def _receive_places(self) -> bool:
        """Wait until all hosts are there; return whether that is new."""
        with self._lock:
            if len(self._places) > len(self.names):
                return False
            while len(self._places) <= len(self.names):
                try:
                    report = self._channel.receive()
                except (EOFError, OSError):
                    report = Refused("the process that makes the simulated hosts has ended")
                if isinstance(report, Refused):
                    raise LaunchError(f"{report.reason}. Nothing was started.")
                assert isinstance(report, HostMade)
                self._places.append(report.namespaces)
            return True

    def allocate(self, tasks: Iterable[TaskId]) -> dict[TaskId, str]:
        """Return an address on the task's host for each task, with a port that had no other use here."""
        found = {}
        for task in tasks:
            if task in self._host_of:
                found[task] = f"{address_of(self._host_of[task])}:{self._next_port}"
                self._next_port = self._next_port + 1 if self._next_port < _LAST_PORT else _FIRST_PORT
        return found

    def place_of(self, task: TaskId) -> HostPlace:
        """Return the namespaces that a process of the task enters."""
        self._receive_places()
        return HostPlace(self._places[self._host_of[task]], str(self._hosts_file))

    def host_of(self, task: TaskId) -> str:
        """Return the name of the task's host."""
        return self.names[self._host_of[task]]

    def tasks_on(self, hosts: Iterable[str]) -> tuple[TaskId, ...]:
        """Return the tasks of these hosts."""
        chosen = set(hosts)
        return tuple(task for task in self._host_of if self.host_of(task) in chosen)

    def select(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the hosts of these names, all of them without names.

        Raises:
            ClusterSpecError: There is no such host.
        """
        unknown = [name for name in names if name not in self.names]
        if unknown:
            question, known = did_you_mean(unknown[0], self.names), ", ".join(self.names)
            raise ClusterSpecError(f"there is no host {unknown[0]!r}{question}; there are {known}")
        return tuple(name for name in self.names if name in names) if names else self.names

    def set_link(self, link: Link, hosts: Sequence[str] = ()) -> tuple[str, ...]:
        """Give hosts, all by default, such a link; return them.

        Raises:
            ClusterSpecError: There is no such host, or this machine's Linux cannot do it.
        """
        chosen = self.select(hosts)
        numbers = tuple(map(self.names.index, chosen))
        try:
            self._ask(SetLink(numbers, link.bits_per_s, link.latency_s, link.loss), Done)
        except TfmagicError as error:
            raise ClusterSpecError(str(error)) from None
        self.links = {**self.links, **dict.fromkeys(chosen, link)}
        return chosen

    def set_cut(self, hosts: Sequence[str], cut: bool) -> tuple[str, ...]:
        """Cut hosts off, or join them (all by default) to the others again; return those that it changed."""
        chosen = self.select(hosts)
        changed = tuple(name for name in chosen if (name in self.cut_off) is not cut)
        self._ask(SetCut(tuple(map(self.names.index, changed)), cut), Done)
        self.cut_off = self.cut_off | set(changed) if cut else self.cut_off - set(changed)
        return changed

    def bytes_sent(self) -> dict[str, int]:
        """Return the bytes that each host has sent to other hosts since its start."""
        return dict(zip(self.names, self._ask(CountBytes(), BytesCounted).sent, strict=True))

    def lose(self) -> tuple[TaskId, ...]:
        """Note that the holder has ended, and with it every link; return the tasks."""
        self.cut_off = frozenset(self.names)
        return tuple(self._host_of)

    def pids(self) -> dict[str, int]:
        """Return the process that holds the hosts."""
        return {"hosts": self._holder.pid}

    def close(self) -> None:
        """End the holder. What is left of the hosts ends with their last process."""
        self._channel.close()
        kill_session(self._holder)
        os.close(self.pidfd)
        for handle in (handle for place in self._places for handle in place):
            if isinstance(handle, OwnedHandle):
                handle.close()

    def _ask(self, request: HolderRequest, answer: type[Report]) -> Report:
        self._receive_places()
        with self._lock:
            try:
                self._channel.send(request)
                report: Any = self._channel.receive()
            except (EOFError, OSError):
                report = Refused("the process that holds the simulated hosts has ended; restart the cluster")
        if not isinstance(report, answer):
            raise TfmagicError(report.reason)
        return report


def _write_hosts_file(path: Path, names: Sequence[str]) -> None:
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{address_of(number)} {name}" for number, name in enumerate(names)]
    files.replace_text(path, "".join(f"{line}\n" for line in lines), 0o600)
