"""What the features of a task do before and after the user's code of each cell.

    begin: in the order of the tuple ──→ the user's code ──→ end: in reverse ──→ the report
                                         without code: run; meanwhile: tick

A feature that has to know of each cell is one object in `TaskProgram.parts`. Some of them stand in their
modules, since code that TensorFlow calls needs them: there is one TensorFlow in a process.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from tfmagic.protocol.commands import RunCell


@dataclass(slots=True)
class Attempt:
    """How the user's code of a cell ended."""

    value: Any = None
    error: BaseException | None = None
    raised_at: float = 0.0  # in seconds of the monotonic clock
    bound: bool = False  # whether all names that travel with the cell have arrived
    extras: dict[str, bytes] = field(default_factory=dict)  # what features report, by their names


class CellPart(Protocol):
    """One feature. A part that does not override a method has nothing to do then."""

    def begin(self, cell: RunCell) -> None:
        """Prepare for this cell. On the main thread, where no interrupt arrives."""
        return None

    def run(self, cell: RunCell) -> None:
        """Do what a cell without code asks of this feature, as its code; interrupts arrive."""
        return None

    def tick(self) -> None:
        """Do what is due. Called on the side thread, some times a second while the cell is busy."""
        return None

    def end(self, cell: RunCell, attempt: Attempt) -> None:
        """End what `begin` began, or would have begun. The attempt can be changed."""
        return None


class CellParts:
    """The parts of a task. Those that have nothing to do are left out once, not in each cell."""

    def __init__(self, *parts: CellPart):
        self._begins = [part.begin for part in parts if type(part).begin is not CellPart.begin]
        self._runs = [part.run for part in parts if type(part).run is not CellPart.run]
        self._ticks = [part.tick for part in parts if type(part).tick is not CellPart.tick]
        self._ends = [part.end for part in reversed(parts) if type(part).end is not CellPart.end]

    def begin(self, cell: RunCell) -> None:
        """Begin all parts."""
        for begin in self._begins:
            begin(cell)

    def run(self, cell: RunCell) -> None:
        """Let all parts do what a cell without code asks of them."""
        for run in self._runs:
            run(cell)

    def tick(self) -> None:
        """Let all parts do what is due."""
        for tick in self._ticks:
            tick()

    def end(self, cell: RunCell, attempt: Attempt) -> None:
        """End all parts, the last one first; then raise what the first of them that failed has raised."""
        failure: BaseException | None = None
        for end in self._ends:
            try:
                end(cell, attempt)
            except BaseException as error:  # code of the user's classes, a full disk
                failure = failure or error
        if failure is not None:
            raise failure
