"""What goes to an agent, and what comes from it: orders, each with its instruction; reports, in batches."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tfmagic.backends.remote import memory_files
from tfmagic.backends.remote.messages import HostReport, HostReports
from tfmagic.backends.remote.task_files import Piece
from tfmagic.protocol.channel import encode
from tfmagic.protocol.payload import Handle

Instruction = tuple[Sequence[str], int, bytes, Sequence[int]]
"""See `HostAgent.perform`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is new on a host.

    Attributes:
        number: From 1 on; a poll asks for it.
        performed: The number of the last order that was performed.
        clock: The monotonic clock of the host, in seconds.
        files: What the tasks have written to their files in the run folder.
        frame: An encoded `HostReports`, or b"".
        contents: Those of its handles, or their places for a driver on this machine.
        handles: They stay open as long as the batch is kept.
    """

    number: int
    performed: int
    clock: float
    files: list[Piece]
    frame: bytes = b""
    contents: Sequence[Any] = ()
    handles: Sequence[Handle] = ()


class Batches:
    """Those that might not have arrived. Two polls can be under way, so all but the last one before have."""

    def __init__(self) -> None:
        self._kept: deque[Batch] = deque()
        self._last = 0

    def begin(self, last: int) -> None:
        """Forget all, and count from this number on."""
        self._kept.clear()
        self._last = last

    def again(self, number: int) -> Batch | None:
        """Return a batch whose answer was lost."""
        return next((batch for batch in self._kept if batch.number == number), None)

    def arrived(self, asked: int) -> Iterator[Batch]:
        """Yield each batch that has arrived if this one is asked for, once."""
        while self._kept and self._kept[0].number < asked - 1:
            yield self._kept.popleft()

    def add(
        self,
        performed: int,
        now: float,
        files: list[Piece],
        reports: Sequence[HostReport],
        shares_memory: bool,
    ) -> Batch:
        """Keep and return a new batch."""
        self._last += 1
        frame, handles = encode(HostReports(tuple(reports))) if reports else (b"", [])
        contents = [memory_files.content_of(handle, shares_memory) for handle in handles]
        self._kept.append(Batch(self._last, performed, now, files, frame, contents, handles))
        return self._kept[-1]
