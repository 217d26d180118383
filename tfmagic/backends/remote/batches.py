"""What goes to an agent, and what comes from it: orders in parcels, reports in batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfmagic.backends.remote.task_files import Piece
from tfmagic.protocol.payload import Handle

Parcel = tuple[str, int, bytes, Sequence[int]]
"""See `HostAgent.perform`."""
Frame = tuple[bytes, list[Any]]
"""A report, and the contents of its handles, or their places for a driver on this machine."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is new on a host.

    Attributes:
        number: From 1 on; a poll asks for it.
        performed: The number of the last order that was performed.
        clock: The monotonic clock of the host, in seconds.
        files: What the tasks have written to their files in the run folder.
        handles: Of the frames; they stay open as long as the batch is kept.
    """

    number: int
    performed: int
    clock: float
    files: list[Piece]
    frames: list[Frame]
    handles: list[Handle]
