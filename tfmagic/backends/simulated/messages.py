"""The messages between a kernel and the holder of its simulated hosts, and the hosts' addresses."""

from tfmagic.protocol.payload import Handle, Message


class SetLink(Message, frozen=True):
    """Give these hosts such a link, in both directions; see `tfmagic.backends.simulated.links.Link`."""

    hosts: tuple[int, ...]
    bits_per_s: float
    latency_s: float
    loss: float


class SetCut(Message, frozen=True):
    """Cut these hosts off: their packets are dropped, as of a pulled cable. Or join them again."""

    hosts: tuple[int, ...]
    cut: bool


class CountBytes(Message, frozen=True):
    """Tell how many bytes each host has sent to others."""


class HostMade(Message, frozen=True):
    """A host is there. Without `namespaces`, all of them are."""

    namespaces: tuple[Handle, ...] = ()


class Done(Message, frozen=True):
    """The request is carried out."""


class BytesCounted(Message, frozen=True):
    """The bytes since the start, by host."""

    sent: tuple[int, ...]


class Refused(Message, frozen=True):
    """The system has refused it, and why."""

    reason: str


HolderRequest = SetLink | SetCut | CountBytes
HolderReport = HostMade | Done | BytesCounted | Refused


def name_of(host: int) -> str:
    """Return the name of a host."""
    return f"host-{host}"


def address_of(host: int) -> str:
    """Return the address of a host, in the network that only they have."""
    return f"10.77.0.{host + 1}"
