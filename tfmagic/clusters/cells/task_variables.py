"""Track which of the notebook's variables each task has, and build commands that carry the missing ones."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import MainScript, RunCell
from tfmagic.serialization import capture, main_script, user_modules
from tfmagic.serialization.capture import Captured, TaskNames, Variable
from tfmagic.serialization.free_names import names_assigned
from tfmagic.supervisor.state import CellState

cell_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The commands of a cell, and what each task has once they were handed over.

    Attributes:
        modules: Those that the cell itself imports.
    """

    commands: Mapping[TaskId, RunCell]
    carried: Mapping[TaskId, Captured] = field(default_factory=dict)
    attempts: Mapping[TaskId, int] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()

    def changed(self, **fields: Any) -> "Prepared":
        """Return the commands with other values of these fields."""
        commands = {task: msgspec.structs.replace(c, **fields) for task, c in self.commands.items()}
        return replace(self, commands=commands)


class TaskVariables:
    """Remembers what was sent to each attempt of each task.

    Its methods take the selected tasks and their present attempts as `attempts`. Those that prepare commands
    forget what these carry; `handed_over` records it, so that an exception in between costs a second sending.

    Args:
        main: Returns the notebook's ``__main__``.
        setting: Returns the value of a setting.
        script: The script that tasks import before their first call; they have its names.
    """

    def __init__(
        self,
        main: Callable[[], dict[str, Any]],
        setting: Callable[[str], Any],
        script: MainScript | None = None,
    ):
        self._main, self._setting = main, setting
        self._of_script = frozenset[str]() if script is None else main_script.names_of(script)
        self._names: dict[TaskId, tuple[int, TaskNames]] = {}
        self._known: dict[str, Variable] = {}
        self.numbers = cell_numbers

    def resume(self, owned: Mapping[TaskId, tuple[int, Iterable[str]]], last: int) -> None:
        """Go on with processes that a former kernel has started.

        Args:
            owned: The attempt of each task, and the names that its cells have assigned.
            last: The highest number of their cells.
        """
        self._names = {
            task: (attempt, TaskNames(frozenset(names))) for task, (attempt, names) in owned.items()
        }
        while next(self.numbers) < last:
            pass

    def names_of(self, attempts: Mapping[TaskId, int]) -> dict[TaskId, TaskNames]:
        """Return the names that each task has; a new process has only those of its script."""
        for task, attempt in attempts.items():
            if self._names.get(task, (0,))[0] != attempt:
                self._names[task] = (attempt, TaskNames(owned=self._of_script))
        return {task: self._names[task][1] for task in attempts}

    def cell_commands(
        self,
        template: RunCell,
        reads: Iterable[str],
        pushed: tuple[str, ...],
        values: Mapping[str, Any] | None,
        attempts: Mapping[TaskId, int],
    ) -> Prepared:
        """Prepare `template` for each task, numbered, with the missing ones of `reads`, and with `pushed`.

        Args:
            values: Replaces the notebook's variables.

        Raises:
            CaptureError: Something cannot travel.
        """
        number, tasks = next(cell_numbers), tuple(attempts)
        imported = user_modules.names_imported(template.source)
        if not reads and not pushed:
            command = msgspec.structs.replace(template, cell=number, tasks=tasks)
            return Prepared(dict.fromkeys(attempts, command), {}, attempts, imported)
        main, limit_bytes = self._main(), self._setting("max_capture_bytes")
        lookup, known = (main, self._known) if values is None else ({**main, **values}, None)
        has = self.names_of(attempts)
        captured = capture.capture(reads, pushed, lookup, main, has, limit_bytes, known=known)
        return Prepared(_with_names(template, number, captured), captured, attempts, imported)

    def part_commands(
        self, name: str, parts: Mapping[TaskId, Any], attempts: Mapping[TaskId, int]
    ) -> Prepared:
        """Prepare one cell that binds `name` on each task to its own part.

        Raises:
            CaptureError: A part cannot travel.
        """
        number, commands, carried = next(cell_numbers), dict[TaskId, RunCell](), dict[TaskId, Captured]()
        for task, part in parts.items():
            one = self.cell_commands(RunCell(0), (), (name,), {name: part}, {task: attempts[task]})
            commands[task] = msgspec.structs.replace(one.commands[task], cell=number, tasks=tuple(parts))
            carried |= one.carried
        return Prepared(commands, carried, attempts)

    def call_commands(self, call: Any, attempts: Mapping[TaskId, int]) -> Prepared:
        """Prepare commands that call (function, args, kwargs) on each task.

        Raises:
            CaptureError: Something cannot travel.
        """
        found = capture.pack_call(call, self._main())
        has = self.names_of(attempts).values()
        files = {file for file in found.files if any(file not in names.sources for names in has)}
        sources = capture.sources_of(files)
        template = RunCell(0, call=found.packed, want_value=True, sources=sources)
        prepared = self.cell_commands(template, found.needs, (), None, attempts)
        carried = {task: prepared.carried.get(task, Captured()) for task in attempts}
        carried = {task: replace(c, sources=(*c.sources, *sources)) for task, c in carried.items()}
        return Prepared(prepared.commands, carried, attempts, frozenset({user_modules.module_of(call[0])}))

    def handed_over(self, prepared: Prepared) -> None:
        """Record what the tasks get with commands that the supervisor has now."""
        for task, names in self.names_of(prepared.attempts).items():
            captured = prepared.carried.get(task, Captured())
            names.note(captured)
            new = (prepared.modules | captured.modules) - names.modules.keys()
            names.modules = user_modules.stamps_of(new) | names.modules

    def find_old_modules(self, attempts: Mapping[TaskId, int]) -> dict[str, list[TaskId]]:
        """Return the modules of which tasks have an old version, with these tasks; each change only once."""
        found: dict[str, list[TaskId]] = {}
        for task, names in self.names_of(attempts).items():
            changed = user_modules.changed_since(names.modules)
            for name in [name for name, stamp in changed.items() if names.told.get(name) != stamp]:
                found.setdefault(name, []).append(task)
            names.told |= changed
        return found

    def note_reloaded(self, attempts: Mapping[TaskId, int], modules: Iterable[str]) -> None:
        """Record that the tasks have the present version of these modules."""
        stamps = user_modules.stamps_of(modules)
        for names in self.names_of(attempts).values():
            names.modules |= {name: stamp for name, stamp in stamps.items() if name in names.modules}

    def expect(self, commands: Mapping[TaskId, RunCell], attempts: Mapping[TaskId, int]) -> None:
        """Count the names that a detached cell will assign as the tasks' own, for cells sent meanwhile."""
        for task, names in self.names_of(attempts).items():
            if commands[task].source:
                names.coming[commands[task].cell] = names_assigned(commands[task].source)

    def note(self, outcome: CellState) -> None:
        """Record the names that a cell has assigned, and forget the variables that did not arrive."""
        for _, names in self._names.values():
            names.coming.pop(outcome.request.cell, None)
        for task in outcome.waiting_for:  # the cell was given up before it was sent
            if task in self._names:
                self._names[task][1].forget_all()
        for task, result in outcome.outcomes.items():
            if not getattr(result, "bound", True):
                self.names_of({task: result.attempt})[task].forget_all()
            owned = getattr(result, "owned", None)
            if owned is not None:
                self.names_of({task: result.attempt})[task].owned = frozenset(owned)


def _with_names(template: RunCell, number: int, captured: Mapping[TaskId, Captured]) -> dict[TaskId, RunCell]:
    """Return the command for each task. Equal commands are one object, which is encoded only once."""
    tasks = tuple(captured)
    built: dict[tuple[int, tuple[tuple[str, str], ...]], RunCell] = {}
    commands = {}
    for task, found in captured.items():
        key = (id(found.names), found.sources)
        if key not in built:
            sources = (*template.sources, *found.sources)
            built[key] = msgspec.structs.replace(
                template, cell=number, tasks=tasks, names=found.names, sources=sources
            )
        commands[task] = built[key]
    return commands
