"""What the loop of a cluster saw and decided lately, without the user's data; the rules can decide it again.

loop ── note ─→ Story ── told ─→ Told: a state, and the entries after it ─┬→ story_words: status --story
                                                                         ├→ story_files: run folder, trace
                                                                         └→ differences: the rules, once more
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tfmagic.protocol import commands, events
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.payload import PackedError, Record
from tfmagic.supervisor import lifecycle
from tfmagic.supervisor.state import (
    Action,
    CellState,
    ClusterState,
    Decision,
    FinishCell,
    Policy,
    Send,
    replace,
)

_SEGMENTS, _SEGMENT = 4, 250  # the oldest segment goes as a whole
_SAMPLES = 5000  # of processes in a segment: with many tasks, it has fewer entries
_TROUBLE = {events.TaskExited, events.TaskLost, events.CellRaised, events.InterruptPressed, events.HostSilent}


class Entry(Record, frozen=True):
    """One turn of the loop: at a time of `time.monotonic`, what had come, and what was done then.

    Attributes:
        wake_at: When the next decision was due even without an event.
    """

    at: float
    arrived: tuple[events.Event, ...]
    policy: Policy
    actions: tuple[Action, ...]
    wake_at: float | None


class Told(Record, frozen=True):
    """Successive entries.

    Attributes:
        state, wake_at: Those before the first entry.
        clock: What makes a time of an entry one since the epoch, in seconds.
    """

    state: ClusterState
    wake_at: float | None
    clock: float
    entries: tuple[Entry, ...]


class Story:
    """Keeps the last turns of one loop; `note` is a watcher of the `Supervisor`.

    Args:
        state: The state before its first turn.
        trace: Called with the beginning, which has no entries, then with each entry; None for nobody.

    Attributes:
        has_trouble: Whether a task has failed or ended, or Ctrl-C was pressed, since this was set back.
    """

    def __init__(self, state: ClusterState, trace: Callable[[Told | Entry], object] | None = None):
        self._clock = time.time() - time.monotonic()
        first = Told(_bare_state(state), None, self._clock, ())
        self._segments: deque[tuple[Told, list[Entry]]] = deque([(first, [])], _SEGMENTS)
        self._length = max(min(_SEGMENT, _SAMPLES // max(len(state.tasks), 1)), 10)
        self._state, self._trace = state, trace
        self.has_trouble = False
        if trace is not None:
            trace(first)

    def note(self, arrived: Sequence[events.Event], decision: Decision, policy: Policy, now: float) -> None:
        """Add a turn, if something has come or was done in it."""
        if not arrived and not decision.actions and decision.state is self._state:
            return
        self._state = decision.state
        bare = tuple([_bare(event) for event in arrived])
        entry = Entry(now, bare, policy, tuple(map(_bare_action, decision.actions)), decision.wake_at)
        if self._trace is not None:
            self._trace(entry)
        _, entries = self._segments[-1]
        if entries and _is_idle_look(entry, decision.state) and _is_idle_look(entries[-1], decision.state):
            entries[-1] = entry
            return
        entries.append(entry)
        self.has_trouble |= not _TROUBLE.isdisjoint(map(type, arrived))
        if len(entries) >= self._length:
            begin = Told(_bare_state(decision.state), decision.wake_at, self._clock, ())
            self._segments.append((begin, []))

    def told(self) -> Told:
        """Return what is kept. Called by any thread."""
        segments = tuple(self._segments)
        entries = tuple(entry for _, part in segments for entry in tuple(part))
        return replace(segments[0][0], entries=entries)


def decode(content: bytes) -> Told:
    """Return the story of a file or of a report.

    Raises:
        msgspec.DecodeError: It is none, or one of another version.
    """
    return msgspec.msgpack.decode(content, type=Told)


# -- the same decisions once more -----------------------------------------------------------------


def replay(told: Told) -> Iterator[tuple[Entry, Decision]]:
    """Let the rules decide again, and return each entry with what they decide now."""
    state, wake_at = told.state, told.wake_at
    for entry in told.entries:
        for run in lifecycle.runs_of(entry.arrived):
            state = lifecycle.fold(state, run, entry.at)
        decision = lifecycle.conclude(state, entry.arrived, entry.policy, wake_at, entry.at)
        state, wake_at = decision.state, decision.wake_at
        yield entry, decision


def differences(told: Told) -> list[str]:
    """Return where the rules decide otherwise now than then, a line each; texts are not compared."""
    found = []
    for number, (entry, decision) in enumerate(replay(told)):
        then, now = (mapped(actions, lambda text: "") for actions in (entry.actions, decision.actions))
        now = tuple(map(_bare_action, now))
        if then != now:
            found.append(f"entry {number}: {then} then, {now} now")
    return found


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a record with other texts, in everything that it holds; tasks keep their names."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, msgspec.Struct):
        kind = type(value)
        return kind(*(mapped(getattr(value, name), change) for name in kind.__struct_fields__))
    if isinstance(value, Mapping):
        return {mapped(key, change): mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, tuple) and not isinstance(value, TaskId):
        return tuple(mapped(inner, change) for inner in value)
    return value


# -- without the user's data ----------------------------------------------------------------------


def _bare_command(command: commands.RunCell) -> commands.RunCell:
    return commands.RunCell(
        command.cell,
        tasks=command.tasks,
        group=command.group,
        prompt=command.prompt,
        kind=commands.Rejoin("…") if isinstance(command.kind, commands.Rejoin) else command.kind,
    )


def _bare_request(event: events.CellRequested) -> events.CellRequested:
    return replace(event, commands={task: _bare_command(one) for task, one in event.commands.items()})


def _bare_return(event: events.CellReturned) -> events.CellReturned:
    has_data = event.value or event.value_error or event.pulled or event.failed_pulls or event.extras
    if not has_data and event.owned is None:
        return event
    return replace(event, value=None, value_error="", pulled={}, failed_pulls={}, extras={}, owned=None)


def _bare_raise(event: events.CellRaised) -> events.CellRaised:
    error = PackedError(event.error.type_name, "", "", None, event.error.where, line=event.error.line)
    return replace(event, error=error, extras={}, owned=None)


_BARE: dict[type, Callable[[Any], Any]] = {
    events.CellRequested: _bare_request,
    events.CellReturned: _bare_return,
    events.CellRaised: _bare_raise,
    events.Displayed: lambda event: replace(event, bundle=b""),
    events.FeatureRecorded: lambda event: replace(event, record=b""),
    events.HintGiven: lambda event: replace(event, advice=""),
    events.CommsSent: lambda event: replace(event, messages=()),
    events.InputWanted: lambda event: replace(event, prompt=""),
    events.SocketSent: lambda event: replace(event, request="", handle=None),
    events.InputAnswered: lambda event: replace(event, answer=commands.AnswerInput(event.answer.number)),
    events.CommAnswered: lambda event: replace(event, message=_bare_message(event.message)),
    commands.RunCell: lambda command: commands.RunCell(command.cell),
    commands.AnswerInput: lambda command: commands.AnswerInput(command.number),
    commands.HandleComm: lambda command: commands.HandleComm(_bare_message(command.message)),
}


def _bare(event: Any) -> Any:
    make = _BARE.get(type(event))
    return event if make is None else make(event)


def _bare_message(message: Any) -> Any:
    return replace(message, data=b"", metadata=b"", buffers=(), sets=())


def _bare_action(action: Action) -> Action:
    if type(action) is Send:
        return Send(action.task, _bare(action.command)) if type(action.command) in _BARE else action
    if type(action) is FinishCell:
        number = events.CellRequested(action.cell.number, {})
        return FinishCell(replace(action.cell, request=number, outcomes={}, waits="", progress={}))
    return action


def _bare_cell(cell: CellState) -> CellState:
    outcomes = {task: _bare(outcome) for task, outcome in cell.outcomes.items()}
    return replace(cell, request=_bare_request(cell.request), outcomes=outcomes)


def _bare_state(state: ClusterState) -> ClusterState:
    return replace(state, cells={number: _bare_cell(cell) for number, cell in state.cells.items()})


def _is_idle_look(entry: Entry, state: ClusterState) -> bool:
    """Check whether the loop has only looked at processes that run no cell."""
    is_look = len(entry.arrived) == 1 and type(entry.arrived[0]) is events.TasksObserved
    return is_look and not entry.actions and not state.cells
