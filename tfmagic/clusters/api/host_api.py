"""Simulated hosts and their network: methods of `Cluster`."""

from tfmagic.backends.simulated.hosts import SimulatedHosts, require_hosts
from tfmagic.backends.simulated.links import parse_link
from tfmagic.clusters.api.base import ClusterBase
from tfmagic.clusters.launch.checks import check


class Hosts(ClusterBase):
    """The methods that show simulated hosts, and change the links between them."""

    def network(self, link: str, *hosts: str) -> tuple[str, ...]:
        """Give simulated hosts, all by default, another link, also while a cell runs; return their names.

        Args:
            link: ``RATE[,LATENCY[,LOSS]]``, or ``off`` for no limit.

        Raises:
            ClusterSpecError: There is no such host, or this machine's Linux cannot do it.
            TfmagicError: The cluster has no simulated hosts.
        """
        parsed = parse_link(check("link", link))
        return self.simulated_hosts().set_link(parsed, hosts)

    def bytes_sent(self) -> dict[str, int]:
        """Return how many bytes each simulated host has sent to others; {} without simulated hosts."""
        hosts = self._running_cluster().hosts
        return {} if hosts is None else hosts.bytes_sent()

    def simulated_hosts(self) -> SimulatedHosts:
        """Return the simulated hosts: their names, links and tasks. Raise `TfmagicError` without them."""
        return require_hosts(self._running_cluster().hosts)
