"""What a feature records of a run while it happens."""

from collections.abc import Sequence
from typing import Protocol

from tfmagic.protocol.events import Event
from tfmagic.supervisor.state import Decision, Policy


class Recorder(Protocol):
    """Writes into the run folder. `flush` is for any thread, the others for the supervisor's."""

    def note(self, happened: Sequence[Event], decision: Decision, policy: Policy, now: float) -> None:
        """Note what has changed. Called after each decision of the supervisor."""

    def flush(self) -> None:
        """Write what was noted."""

    def end(self) -> None:
        """Note that the cluster has ended."""
