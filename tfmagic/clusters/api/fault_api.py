"""Faults on purpose, and the network of simulated hosts: methods of `Cluster`."""

import signal

from tfmagic.backends.simulated.hosts import SimulatedHosts, require_hosts
from tfmagic.backends.simulated.links import parse_link
from tfmagic.clusters.api.base import ClusterBase
from tfmagic.clusters.launch.checks import check
from tfmagic.clusters.tools.fault_lab import FaultLab


class Faults(ClusterBase):
    """The methods that injure tasks, and change the links between hosts."""

    _faults: FaultLab | None

    @property
    def faults(self) -> FaultLab:
        """Crashes, hangs, slowness, preemption, floods and chaos, on purpose."""
        self._running_cluster()
        assert self._faults is not None  # made by `start`
        return self._faults

    def kill(self, *tasks: str, signal_number: int = signal.SIGKILL) -> None:
        """Crash task processes with a signal. See `faults` for other faults."""
        self.faults.kill(*tasks, signal_number=signal_number)

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
