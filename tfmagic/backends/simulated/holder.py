"""The holder: a process that makes the network of simulated hosts, changes it, and ends with its kernel.

It has one thread, and lives in the network of the bridge. A socket of netlink belongs to the network in which
it was opened, so one for each host sets up and limits what the host sends. What a host receives is limited
at its port of the bridge.
"""

import errno
import os
import socket
from typing import Any, NoReturn

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
from tfmagic.protocol.channel import Channel
from tfmagic.protocol.payload import Handle
from tfmagic.system import namespaces

_ROOT = 0xFFFFFFFF  # TC_H_ROOT of Linux: the whole interface
_INSIDE_RATE = 0x10001  # the class inside the limit of the rate
_PREFIX_BITS = 24
# a bucket must hold what passes between two ticks of the clock, and one large segment
_BURST_BYTES, _BURST_S = 32_000, 0.01
_QUEUED = "50ms"  # how long a packet waits for a slow link, before it is dropped
_PACKETS = 100_000  # on their way in a slow link


def hold(fd: int, count: int) -> NoReturn:
    """Make the hosts, and carry out requests until the kernel has ended.

    Args:
        fd: The channel.
        count: The number of hosts.
    """
    channel = Channel(socket.socket(fileno=fd), HolderRequest)
    try:
        before = os.stat("/proc/self/ns/user").st_ino
        namespaces.enter_own_network()
        owner = ["user"] if os.stat("/proc/self/ns/user").st_ino != before else []
        network = Network()
        for host in range(count):
            fds = [*namespaces.open_own(owner), *network.add_host(host)]
            channel.send(HostMade(tuple(map(Handle, fds))))
            for opened in fds:
                os.close(opened)
        channel.send(HostMade())
    except ImportError as error:
        channel.send(Refused(f'simulated hosts need pyroute2 ({error}):  pip install "tfmagic[hosts]"'))
        os._exit(1)
    except OSError as error:
        channel.send(Refused(namespaces.explain_refusal(error) or f"no simulated hosts: {error}"))
        os._exit(1)
    try:
        while True:
            channel.send(_answer(network, channel.receive()))
    except (EOFError, OSError):
        os._exit(0)


def _answer(network: "Network", request: HolderRequest) -> HolderReport:
    try:
        match request:
            case SetLink(hosts):
                for host in hosts:
                    network.set_link(host, request)
            case SetCut(hosts, cut):
                for host in hosts:
                    network.set_cut(host, cut)
            case CountBytes():
                return network.count_bytes()
    except Exception as error:  # pyroute2 has errors of its own
        return Refused(_explain(error))
    return Done()


def _explain(error: Exception) -> str:
    if getattr(error, "code", 0) == errno.ENOENT:  # NetlinkError: there is no such discipline
        return (
            "this machine's Linux has no network emulator (sch_netem), which latency and loss need. Give a "
            "rate alone, as --network 1gbit; or, as root, where it is a module:  modprobe sch_netem"
        )
    return f"the network of the simulated hosts refused it: {type(error).__name__}: {error}"


class Network:
    """The bridge, and a link to each host: ``hN`` is its port at the bridge, ``eth0`` its end on the host."""

    def __init__(self) -> None:
        from pyroute2 import IPRoute

        (self._own,) = namespaces.open_own(["net"])
        self._netlink = IPRoute
        self._bridge: Any = IPRoute()
        self._bridge.link("add", ifname="hosts", kind="bridge")
        (self._bridge_index,) = self._bridge.link_lookup(ifname="hosts")
        self._bridge.link("set", index=self._bridge_index, state="up")
        self._inside: list[tuple[Any, int]] = []  # by host: its netlink, and eth0
        self._ports: list[int] = []

    def add_host(self, host: int) -> list[int]:
        """Make a host; return descriptors of its network and its host name."""
        namespaces.enter_new_host(name_of(host))
        namespaces.start_loopback()
        inside: Any = self._netlink()
        fds = namespaces.open_own(["net", "uts"])
        namespaces.enter([self._own])
        peer = {"ifname": "eth0", "net_ns_fd": fds[0]}
        self._bridge.link("add", ifname=f"h{host}", kind="veth", peer=peer)
        (port,) = self._bridge.link_lookup(ifname=f"h{host}")
        self._bridge.link("set", index=port, master=self._bridge_index, state="up")
        (eth0,) = inside.link_lookup(ifname="eth0")
        inside.addr("add", index=eth0, address=address_of(host), prefixlen=_PREFIX_BITS)
        inside.link("set", index=eth0, state="up")
        self._ports.append(port)
        self._inside.append((inside, eth0))
        return fds

    def set_cut(self, host: int, cut: bool) -> None:
        """Pull the cable of a host, or put it in again."""
        self._bridge.link("set", index=self._ports[host], state="down" if cut else "up")

    def set_link(self, host: int, link: SetLink) -> None:
        """Limit what a host sends and receives. What it sends takes the latency, too."""
        _limit(*self._inside[host], link)
        _limit(self._bridge, self._ports[host], SetLink((), link.bits_per_s, 0.0, 0.0))

    def count_bytes(self) -> BytesCounted:
        """Return the counters of the ports: what a port receives, its host has sent."""
        links = [self._bridge.get_links(port)[0] for port in self._ports]
        return BytesCounted(tuple(int(link.get_attr("IFLA_STATS64")["rx_bytes"]) for link in links))


def _limit(netlink: Any, index: int, link: SetLink) -> None:
    """Replace the queueing disciplines of an interface: the rate (tc-tbf(8)), in it latency (tc-netem(8))."""
    if any(found.get_attr("TCA_KIND") in ("tbf", "netem") for found in netlink.get_qdiscs(index=index)):
        netlink.tc("del", index=index, parent=_ROOT)
    parent = {}
    if link.bits_per_s:
        rate = int(link.bits_per_s / 8)  # pyroute2 takes bytes for a number
        burst = max(_BURST_BYTES, int(rate * _BURST_S))
        netlink.tc("add", "tbf", index, handle="1:", rate=rate, burst=burst, latency=_QUEUED)
        parent = {"parent": _INSIDE_RATE}
    if link.latency_s or link.loss:
        delay_us, lost = int(link.latency_s * 1e6), link.loss * 100
        netlink.tc("add", "netem", index, handle="2:", delay=delay_us, loss=lost, limit=_PACKETS, **parent)
