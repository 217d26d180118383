"""The methods `Cluster.faults` and `Cluster.kill`."""

import signal

from tfmagic.clusters.api.base import ClusterBase
from tfmagic.features.faults.lab import FaultLab

_NAME = "faults"


class Faults(ClusterBase):
    """The methods that injure tasks."""

    @property
    def faults(self) -> FaultLab:
        """Crashes, hangs, slowness, preemption, floods and chaos, on purpose."""
        running = self._running_cluster()
        lab = self._beside.get(_NAME)
        if isinstance(lab, FaultLab) and lab.is_of(running.supervisor):
            return lab
        if lab is not None:
            lab.close()
        self._beside[_NAME] = lab = FaultLab(running.supervisor, self.name, running.hosts)
        return lab

    def kill(self, *tasks: str, signal_number: int = signal.SIGKILL) -> None:
        """Crash task processes with a signal. See `faults` for other faults."""
        self.faults.kill(*tasks, signal_number=signal_number)
