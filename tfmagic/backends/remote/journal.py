"""What an agent remembers of a task, for a kernel that attaches later.

The supervisor of that kernel has seen nothing. It is given the present process and the cells (`KeptTask`),
and the events that still matter are reported to it once more: questions and barriers that are open, displays,
and how cells have ended. The oldest results are dropped when all of a host exceed a limit.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tfmagic.backends.remote.messages import KeptCell, KeptTask
from tfmagic.protocol import commands, events
from tfmagic.protocol.events import Event
from tfmagic.protocol.payload import Packed
from tfmagic.system.advice import Step
from tfmagic.system.memory import format_bytes

_CELLS, _EVENTS = 100, 5000  # of each task


@dataclass(slots=True)
class Journal:
    """The history of one task, as far as a kernel that attaches needs it.

    Attributes:
        task: Without its cells.
        told: The events to report again, each with the length of the log when it happened.
    """

    task: KeptTask
    told: list[tuple[int, Event]] = field(default_factory=list)
    _cells: dict[int, KeptCell] = field(default_factory=dict)  # with the time at which they began as age
    _open: set[int] = field(default_factory=set)  # those that have not ended

    def note_launch(self, attempt: int) -> None:
        """Note that a new process is started."""
        self.task = KeptTask(self.task.task, attempt)

    def note_command(self, command: commands.Command, log_bytes: int) -> None:
        """Note what was sent to the task."""
        match command:
            case commands.RunCell(cell=number):
                call = command.call and Packed()
                kept = msgspec.structs.replace(command, carried=commands.Carried(), call=call)
                self._cells[number] = KeptCell(kept, self.task.attempt, time.monotonic(), log_bytes)
                self._open.add(number)
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
                self._know(pid=pid, fresh=fresh, obstacle=obstacle)
                return
            case events.TaskReady(host=host):
                self._know(host=host)
                return
            case events.CommsSent() | events.SocketSent():
                return
            case events.BarrierReached(barrier=barrier, members=members):
                if barrier.startswith(events.FIRST_STRATEGY):
                    self._know(joined=members)
            case events.LineReached():
                self._drop(lambda e: isinstance(e, events.LineReached))
            case events.CellReturned(cell=number) | events.CellRaised(cell=number):
                self._drop(_is_open)
                self._open.discard(number)
                if event.owned is not None:
                    self._know(owned=event.owned)
                if number in self._cells and isinstance(self._cells[number].command.kind, commands.Rejoin):
                    self._know(joined=())
            case events.TaskExited() | events.TaskLost():
                self._drop(_is_open)
                self._know(pid=0, end=event)
                for number in self._open:
                    self._cells[number] = msgspec.structs.replace(self._cells[number], end=event)
                self._open.clear()
        self.told.append((log_bytes, event))

    def resume(self, opened: Collection[int]) -> KeptTask:
        """Return the present process and the cells, for a kernel to which these cells are open."""
        self.told = [(s, e) for s, e in self.told if getattr(e, "cell", None) in (None, *opened)]
        change, now = msgspec.structs.replace, time.monotonic()
        cells = tuple(change(cell, age_s=now - cell.age_s) for cell in self._cells.values())
        return change(self.task, is_busy=bool(self._open), cells=cells)

    def _know(self, **what: Any) -> None:
        self.task = msgspec.structs.replace(self.task, **what)

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

    def _forget(self, number: int) -> None:
        del self._cells[number]
        self._open.discard(number)
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
