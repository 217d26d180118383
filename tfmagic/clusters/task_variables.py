"""What the tasks of one cluster have of the notebook's names, and the commands that bring the rest."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import MainScript, RunCell
from tfmagic.serialization import capture, main_script
from tfmagic.serialization.capture import Captured, TaskNames, Variable
from tfmagic.serialization.free_names import names_assigned
from tfmagic.supervisor.state import CellState

_cell_numbers = itertools.count(1)


class TaskVariables:
    """Remembers what was sent to each attempt of each task.

    Its methods take the notebook's ``__main__`` as `main`, the present attempt of each task that is
    meant as `attempts`, and the limit of captured variables in bytes.

    Args:
        script: The script that tasks import before their first call: they have its names.
    """

    def __init__(self, script: MainScript | None = None) -> None:
        self._of_script = frozenset[str]() if script is None else main_script.names_of(script)
        self._names: dict[TaskId, tuple[int, TaskNames]] = {}
        self._known: dict[str, Variable] = {}
        self.numbers = _cell_numbers

    def names_of(self, attempts: Mapping[TaskId, int]) -> dict[TaskId, TaskNames]:
        """What each task has; a new process has nothing but the names of its script."""
        for task, attempt in attempts.items():
            if self._names.get(task, (0,))[0] != attempt:
                self._names[task] = (attempt, TaskNames(owned=self._of_script))
        return {task: self._names[task][1] for task in attempts}

    def cell_commands(
        self,
        template: RunCell,
        wanted: Iterable[str],
        pushed: tuple[str, ...],
        namespace: Mapping[str, Any],
        main: dict[str, Any],
        attempts: Mapping[TaskId, int],
        limit_bytes: int,
    ) -> dict[TaskId, RunCell]:
        """`template` for each task, numbered, with the variables that it lacks.

        Raises:
            CaptureError: Something cannot travel.
        """
        __tracebackhide__ = True
        number, tasks = next(_cell_numbers), tuple(attempts)
        if not wanted and not pushed:
            return dict.fromkeys(attempts, msgspec.structs.replace(template, cell=number, tasks=tasks))
        lookup = namespace if namespace is main else {**main, **namespace}
        has = self.names_of(attempts)
        known = self._known if namespace is main else None
        captured = capture.capture(wanted, pushed, lookup, main, has, limit_bytes, known=known)
        return _with_names(template, number, captured)

    def call_commands(
        self, call: Any, main: dict[str, Any], attempts: Mapping[TaskId, int], limit_bytes: int
    ) -> dict[TaskId, RunCell]:
        """Commands that call (function, args, kwargs) on each task.

        Raises:
            CaptureError: Something cannot travel.
        """
        __tracebackhide__ = True
        found = capture.pack_call(call, main)
        has = self.names_of(attempts).values()
        files = {file for file in found.files if any(file not in names.sources for names in has)}
        sources = capture.sources_of(files)
        template = RunCell(0, call=found.packed, want_value=True, sources=sources)
        commands = self.cell_commands(template, found.needs, (), main, main, attempts, limit_bytes)
        for names in has:
            names.sources |= files
        return commands

    def expect(self, commands: Mapping[TaskId, RunCell], attempts: Mapping[TaskId, int]) -> None:
        """The cell goes on by itself: what it assigns is the tasks' own for cells that are sent meanwhile."""
        for task, names in self.names_of(attempts).items():
            if commands[task].source:
                names.coming[commands[task].cell] = names_assigned(commands[task].source)

    def note(self, outcome: CellState) -> None:
        """Remember the names that the tasks' cells have assigned, and forget what did not arrive."""
        for _, names in self._names.values():
            names.coming.pop(outcome.request.cell, None)
        for task in outcome.waiting_for:  # the cell was given up before it was sent
            self._names.pop(task, None)
        for task, result in outcome.outcomes.items():
            if not getattr(result, "bound", True):
                names = self.names_of({task: result.attempt})[task]
                names.sent.clear()
                names.pushed.clear()
            owned = getattr(result, "owned", None)
            if owned is not None:
                self.names_of({task: result.attempt})[task].owned = frozenset(owned)


def _with_names(template: RunCell, number: int, captured: Mapping[TaskId, Captured]) -> dict[TaskId, RunCell]:
    """The command for each task; one object where tasks get the same, so that it is encoded once."""
    tasks = tuple(captured)
    made: dict[tuple[int, tuple[tuple[str, str], ...]], RunCell] = {}
    commands = {}
    for task, found in captured.items():
        key = (id(found.names), found.sources)
        if key not in made:
            sources = (*template.sources, *found.sources)
            made[key] = msgspec.structs.replace(
                template, cell=number, tasks=tasks, names=found.names, sources=sources
            )
        commands[task] = made[key]
    return commands
