"""What an agent remembers of a task, for a kernel that attaches later.

The supervisor of that kernel has seen nothing. It is given the present process and the cells (`KeptTask`),
and the events that still matter are reported to it once more: questions and barriers that are open, displays,
and how cells have ended. The oldest results are dropped when all of a host exceed a limit.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from tfmagic.backends.remote.messages import KeptCell, KeptTask
from tfmagic.protocol import commands, events
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import Event
from tfmagic.protocol.payload import Packed
from tfmagic.system.advice import Step
from tfmagic.system.memory import format_bytes

_CELLS, _EVENTS = 100, 5000  # of each task


@dataclass(slots=True)
class _Cell:
    """A cell that was sent to the task."""

    command: commands.RunCell
    attempt: int
    begun: float
    log_start: int
    has_ended: bool = False
    end: events.TaskExited | events.TaskLost | None = None  # of the process, before that of the cell


@dataclass(slots=True)
class Journal:
    """The history of one task, as far as a kernel that attaches needs it.

    Attributes:
        told: The events to report again, each with the length of the log when it happened.
    """

    task: TaskId
    attempt: int = 0
    pid: int = 0
    host: str = ""
    fresh: bool = False
    obstacle: str = ""
    owned: tuple[str, ...] = ()
    joined: tuple[TaskId, ...] = ()
    end: events.TaskExited | events.TaskLost | None = None
    told: list[tuple[int, Event]] = field(default_factory=list)
    _cells: dict[int, _Cell] = field(default_factory=dict)

    def note_launch(self, attempt: int) -> None:
        """Note that a new process is started."""
        self.attempt, self.pid, self.host, self.fresh, self.obstacle = attempt, 0, "", False, ""
        self.owned, self.joined, self.end = (), (), None

    def note_command(self, command: commands.Command, log_bytes: int) -> None:
        """Note what was sent to the task."""
        match command:
            case commands.RunCell(cell=number):
                kept = msgspec.structs.replace(command, names=(), sources=(), call=command.call and Packed())
                self._cells[number] = _Cell(kept, self.attempt, time.monotonic(), log_bytes)
                for old in list(self._cells)[:-_CELLS]:
                    self._forget(old)
            case commands.ReleaseBarrier(barrier) | commands.BreakBarrier(barrier):
                self._drop(lambda e: isinstance(e, events.BarrierReached) and e.barrier == barrier)
            case commands.AnswerInput(number):
                self._drop(lambda e: isinstance(e, events.InputWanted) and e.number == number)

    def note_event(self, event: Event, log_bytes: int) -> None:
        """Note what has happened to the task."""
        match event:
            case events.TaskStarted(pid=pid, fresh=fresh, obstacle=obstacle):
                self.pid, self.fresh, self.obstacle = pid, fresh, obstacle
                return
            case events.TaskReady(host=host):
                self.host = host
                return
            case events.CommsSent() | events.SocketSent():
                return
            case events.BarrierReached(barrier=barrier, members=members):
                if barrier.startswith(events.FIRST_STRATEGY):
                    self.joined = members
            case events.LineReached():
                self._drop(lambda e: isinstance(e, events.LineReached))
            case events.CellReturned(cell=number) | events.CellRaised(cell=number):
                self._drop(_is_open)
                self._note_end(number)
                self.owned = self.owned if event.owned is None else event.owned
                if number in self._cells and self._cells[number].command.tf_config:
                    self.joined = ()
            case events.TaskExited() | events.TaskLost():
                self._drop(_is_open)
                self.pid, self.end = 0, event
                for cell in self._cells.values():
                    if not cell.has_ended:
                        cell.has_ended, cell.end = True, event
        self.told.append((log_bytes, event))

    def resume(self, opened: Collection[int]) -> KeptTask:
        """Return the present process and the cells, for a kernel to which these cells are open."""
        self.told = [(s, e) for s, e in self.told if getattr(e, "cell", None) in (None, *opened)]
        now = time.monotonic()
        cells = [
            KeptCell(cell.command, cell.attempt, now - cell.begun, cell.log_start, cell.end)
            for cell in self._cells.values()
        ]
        return KeptTask(
            self.task,
            self.attempt,
            self.pid,
            self.host,
            self.fresh,
            any(not cell.has_ended for cell in self._cells.values()),
            self.owned,
            self.joined,
            self.end,
            tuple(cells),
            self.obstacle,
        )

    # -- what is dropped --

    @property
    def size_bytes(self) -> int:
        return sum(_size_of(event) for _, event in self.told)

    def drop_oldest(self) -> bool:
        """Drop the oldest display, or what the oldest cell has returned; return False if there is none."""
        for place, (size, event) in enumerate(self.told):
            if isinstance(event, events.Displayed):
                del self.told[place]
                return True
            if (smaller := _without_values(event)) is not event:
                self.told[place] = (size, smaller)
                return True
        return False

    def _note_end(self, number: int) -> None:
        if number in self._cells:
            self._cells[number].has_ended = True

    def _forget(self, number: int) -> None:
        del self._cells[number]
        self._drop(lambda e: getattr(e, "cell", 0) == number)

    def _drop(self, is_over: Callable[[Event], bool]) -> None:
        self.told = [(size, event) for size, event in self.told if not is_over(event)]


def limit(journals: Iterable[Journal], limit_bytes: int) -> None:
    """Drop the oldest of what the tasks of a host have displayed and returned, until the rest fits."""
    found = list(journals)
    while sum(journal.size_bytes for journal in found) > limit_bytes:
        largest = max(found, key=lambda journal: journal.size_bytes)
        if not largest.drop_oldest():
            break
    for journal in found:
        while len(journal.told) > _EVENTS and journal.drop_oldest():
            pass


def _is_open(event: Event) -> bool:
    """Check whether an event lasts only as long as the cell runs."""
    return isinstance(event, events.BarrierReached | events.InputWanted | events.LineReached)


def _packs(event: Event) -> Mapping[str, Packed]:
    if isinstance(event, events.CellReturned):
        return {**event.pulled, **({"": event.value} if event.value is not None else {})}
    return {}


def _size_of(event: Event) -> int:
    if isinstance(event, events.Displayed):
        return len(event.bundle)
    return sum(packed.size_bytes for packed in _packs(event).values())


def _without_values(event: Event) -> Event:
    """Return an event that tells, instead of its values, that they were not kept; or the event itself."""
    size = _size_of(event)
    if not isinstance(event, events.CellReturned) or not size:
        return event
    reason = (
        f"{format_bytes(size)} were returned while no notebook was attached, more than its host keeps then; "
        f"fetch variables with  {Step('pull', 'NAME')}"
    )
    return msgspec.structs.replace(
        event,
        value=None,
        value_error=reason if event.value is not None else event.value_error,
        pulled={},
        failed_pulls={**event.failed_pulls, **{n: events.FailedPull(reason) for n in event.pulled}},
    )
