"""Hand on what changes no state of the cluster: between its tasks, their files, and the waiting threads."""

from collections.abc import Mapping

from tfmagic.backends.protocol import Backend
from tfmagic.protocol import events
from tfmagic.protocol.commands import HandleComm, WriteFlood
from tfmagic.runs import cell_records, feature_records
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.given_hints import Hint, append_hint
from tfmagic.supervisor.running_cell import RunningCell
from tfmagic.supervisor.state import ClusterState, Phase

ROUTED = {
    *(events.Displayed, events.FeatureRecorded, events.HintGiven, events.InputWanted, events.InputAnswered),
    *(events.CommAnswered, events.SignalAsked, events.FloodAsked),
}
"""The classes of the events that go somewhere; the most frequent ones do not."""


class EventRouter:
    """Takes displays, answers, records, hints, signals and so on to their places, on the supervisor's thread.

    Args:
        cells: The unfinished cells by number; the supervisor changes it.
    """

    def __init__(
        self, backend: Backend, run: RunFolder, cells: Mapping[int, RunningCell], max_log_bytes: int
    ):
        self._backend, self._run, self._cells = backend, run, cells
        self._max_log_bytes = max_log_bytes

    def route(self, event: events.Event, state: ClusterState) -> None:
        """Hand on an event, if it is for this: one of `ROUTED`.

        What a thread of a task displays after the end of its cell is dropped, except for updates.
        """
        match event:
            case events.Displayed() if event.cell in self._cells:
                cell_records.append_display(self._run, event, self._max_log_bytes)
                self._cells[event.cell].displays.append(event)
            case events.Displayed(is_update=True):  # of a widget, for the saved form
                cell_records.append_display(self._run, event, self._max_log_bytes)
            case events.FeatureRecorded():
                feature_records.append_feature_record(self._run, event, self._max_log_bytes)
                if event.cell in self._cells:
                    self._cells[event.cell].has_records = True
            case events.HintGiven(task, cell=cell, name=name, advice=advice):
                append_hint(self._run, cell, Hint(name, advice, (task.name,)))
                if cell in self._cells:
                    self._cells[cell].has_hints = True
            case events.InputWanted() if event.cell in self._cells:
                self._cells[event.cell].inputs.append(event)
            case events.InputAnswered(task, answer):
                self._backend.send(task, answer)
            case events.CommAnswered(task, attempt, message):
                seen = state.tasks[task]
                if seen.attempt == attempt and seen.phase in (Phase.READY, Phase.RUNNING):
                    self._backend.send(task, HandleComm(message))
            case events.SignalAsked(task, number):
                self._backend.signal(task, number)
            case events.FloodAsked(task, size_bytes):
                self._backend.send(task, WriteFlood(size_bytes))
