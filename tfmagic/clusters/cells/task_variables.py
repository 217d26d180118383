"""Track which of the notebook's variables each task has, and build commands that carry the missing ones."""

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from tfmagic.clusters.cells import features, scatter_gather
from tfmagic.clusters.cells.cell_plan import CellPlan
from tfmagic.clusters.cells.sent_settings import NO_SETTINGS, PackedSettings, SentSettings
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import Carried, CellKind, Rejoin, RunCell
from tfmagic.protocol.payload import Packed
from tfmagic.serialization import calls, capture, main_script, user_modules
from tfmagic.serialization.free_names import names_assigned
from tfmagic.serialization.task_names import NOTHING, Captured, TaskNames, Variable
from tfmagic.serialization.user_modules import Stamp
from tfmagic.supervisor.state import CellState
from tfmagic.system import notices
from tfmagic.system.advice import in_notebook

cell_numbers = itertools.count(1)
_NO_SOURCES: tuple[tuple[str, str], ...] = ()
Stamps = Callable[[frozenset[str]], dict[str, Stamp]]
"""Returns the stamps of some modules, by name."""


class Prepared(msgspec.Struct, frozen=True):
    """The commands of a cell, and what each task has once they were handed over.

    Attributes:
        modules: Those that the cell itself imports.
        left_out: Variables that the cell wants only because it asks for all, and that cannot travel.
        has_settings: Whether the tasks have the notebook's settings then.
    """

    commands: Mapping[TaskId, RunCell]
    carried: Mapping[TaskId, Captured]
    attempts: Mapping[TaskId, int]
    modules: frozenset[str]
    left_out: Mapping[str, Variable] = {}
    has_settings: bool = False


class TaskVariables:
    """Remembers what was sent to each attempt of each task.

    Its methods take the selected tasks and their present attempts as `attempts`. Those that prepare commands
    forget what these carry; `handed_over` records it, so that an exception in between costs a second sending.

    Args:
        main: Returns the notebook's ``__main__``.
        setting: Returns the value of a setting.
        task_settings: Those of the tasks. They have the names of its script, which they import before their
            first call.

    Attributes:
        sent: Returns the stamp of a file of which the tasks have a copy, as on hosts of Ray.
    """

    sent: user_modules.Sent = staticmethod(lambda file: None)

    def __init__(
        self,
        main: Callable[[], dict[str, Any]],
        setting: Callable[[str], Any],
        task_settings: TaskSettings | None = None,
    ):
        self._main, self._setting = main, setting
        script = task_settings.script if task_settings is not None else None
        self._settings = SentSettings(task_settings)
        self._of_script = frozenset[str]() if script is None else main_script.names_of(script)
        self._names: dict[TaskId, tuple[int, TaskNames]] = {}
        self._known: dict[str, Variable] = {}
        self._told: set[str] = set()
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

    def forget(self) -> None:
        """Forget what each task has, except for the names of its script."""
        self._names, self._known = {}, {}
        self._settings.forget()

    def names_of(self, attempts: Mapping[TaskId, int]) -> dict[TaskId, TaskNames]:
        """Return the names that each task has; a new process has only those of its script."""
        for task, attempt in attempts.items():
            if self._names.get(task, (0,))[0] != attempt:
                self._names[task] = (attempt, TaskNames(owned=self._of_script))
        return {task: self._names[task][1] for task in attempts}

    def commands_for(self, plan: CellPlan, attempts: Mapping[TaskId, int]) -> Prepared:
        """Prepare the command of each task, with the variables that the plan needs and the task lacks.

        Raises:
            CaptureError: Something cannot travel.
            TypeError: The value cannot be divided.
        """
        number, reads, call, sources = next(cell_numbers), plan.reads, None, _NO_SOURCES
        if plan.call is None:
            modules = user_modules.names_imported(plan.source)
        else:
            found = calls.pack_call(plan.call, self._main())
            reads, call, sources = found.needs, found.packed, self._sources_lacking(found.files, attempts)
            modules = frozenset({user_modules.module_of(plan.call[0])} - {""})
        captured, left_out = dict.fromkeys(attempts, NOTHING), dict[str, Variable]()
        is_users = plan.kind is not CellKind.ASIDE and (bool(plan.source) or plan.call is not None)
        settings = dict.fromkeys(attempts, NO_SETTINGS)
        if is_users:
            settings |= self._settings.pack(attempts, self._main())
            reads = frozenset(reads).union(*(packed.needs for packed in settings.values()))
        if reads or plan.push:
            captured = self._capture(plan, reads, attempts, left_out)
        if sources:
            captured = {task: replace(c, sources=(*sources, *c.sources)) for task, c in captured.items()}
        tasks, extras = plan.meets or tuple(attempts), features.extras_of(plan, self._setting)
        commands = _make_commands(plan, number, call, tasks, extras, captured, settings)
        return Prepared(commands, captured, attempts, modules, left_out, is_users)

    def _sources_lacking(
        self, files: Collection[str], attempts: Mapping[TaskId, int]
    ) -> tuple[tuple[str, str], ...]:
        """Return the text of the notebook's cells among `files` that a task lacks."""
        has = self.names_of(attempts).values()
        return capture.sources_of({file for file in files if any(file not in names.sources for names in has)})

    def _capture(
        self,
        plan: CellPlan,
        reads: Collection[str],
        attempts: Mapping[TaskId, int],
        left_out: dict[str, Variable],
    ) -> dict[TaskId, Captured]:
        """Pack the variables that each task gets."""
        main, limit_bytes, has = self._main(), self._setting("max_capture_bytes"), self.names_of(attempts)
        if not plan.is_divided or plan.values is None:
            values, known = (main, self._known) if plan.values is None else ({**main, **plan.values}, None)
            return capture.capture(
                reads, plan.push, values, main, has, limit_bytes, known=known, left_out=left_out
            )
        (name,), captured, tasks = plan.push, dict[TaskId, Captured](), sorted(attempts)
        for task, part in zip(tasks, scatter_gather.split(plan.values[name], len(tasks)), strict=True):
            own, values = {task: has[task]}, {**main, name: part}
            captured |= capture.capture((), (name,), values, main, own, limit_bytes)
        return captured

    def tell_left_out(self, prepared: Prepared) -> None:
        """Name the variables that stay in the notebook, each once."""
        new = {name: v for name, v in sorted(prepared.left_out.items()) if name not in self._told}
        self._told |= new.keys()
        if new:
            which = ", ".join(f"{name} ({type(v.value).__qualname__})" for name, v in new.items())
            notices.say(
                f"tfmagic: the cell asks for all names of {in_notebook('the notebook') or '__main__'}; these "
                f"cannot travel to the tasks, or are too large: {which}"
            )

    def handed_over(self, prepared: Prepared) -> None:
        """Record what the tasks get with commands that the supervisor has now."""
        if prepared.has_settings:
            self._settings.handed_over(prepared.attempts)
        stamps: Stamps | None = None  # made where it is needed: a cache costs more than most cells' names
        for task, names in self.names_of(prepared.attempts).items():
            if prepared.carried[task] is not NOTHING or prepared.modules:
                stamps = stamps or self._stamps()
                names.note(prepared.carried[task])
                names.modules = _modules_after(prepared, task, names, stamps)

    def _stamps(self) -> Stamps:
        """Return `user_modules.stamps_of`, for several tasks that lack the same modules."""
        return functools.cache(lambda names: user_modules.stamps_of(names, self.sent))

    def find_old_modules(self, prepared: Prepared) -> tuple[dict[str, list[TaskId]], set[str]]:
        """Return the modules of which tasks have an old version, with these tasks; and all that tasks have.

        Each change is found only once.

        Where tasks import a copy, a module that the cell is the first to import can be old, too.
        """
        found, known = dict[str, list[TaskId]](), set[str]()
        stamps: Stamps | None = None
        look = None
        for task, names in self.names_of(prepared.attempts).items():
            if not (names.modules or prepared.modules or prepared.carried[task].modules):
                continue
            stamps, look = stamps or self._stamps(), look or functools.cache(user_modules.stamp_of)
            changed = user_modules.changed_since(_modules_after(prepared, task, names, stamps), look)
            for name in [name for name, stamp in changed.items() if names.told.get(name) != stamp]:
                found.setdefault(name, []).append(task)
            names.told |= changed
            known |= names.modules.keys()
        return found, known

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
                self._settings.forget((task,))
        for task, result in outcome.outcomes.items():
            if not getattr(result, "bound", True):
                self.names_of({task: result.attempt})[task].forget_all()
                self._settings.forget((task,))
            owned = getattr(result, "owned", None)
            if owned is not None:
                self.names_of({task: result.attempt})[task].owned = frozenset(owned)


def _modules_after(prepared: Prepared, task: TaskId, names: TaskNames, stamps: Stamps) -> dict[str, Stamp]:
    """Return the stamps of the modules that a task has imported when it has run a cell."""
    new = (prepared.modules | prepared.carried[task].modules) - names.modules.keys()
    return stamps(frozenset(new)) | names.modules if new else names.modules


def _make_commands(
    plan: CellPlan,
    number: int,
    call: Packed | None,
    tasks: tuple[TaskId, ...],
    extras: Mapping[str, bytes],
    captured: Mapping[TaskId, Captured],
    settings: Mapping[TaskId, PackedSettings],
) -> dict[TaskId, RunCell]:
    """Return the command of each task. Equal commands are one object, which is encoded only once."""
    built, commands = dict[object, RunCell](), dict[TaskId, RunCell]()
    for task, found in captured.items():
        tf_config, packed = plan.tf_configs.get(task, ""), settings[task]
        kind = Rejoin(tf_config) if tf_config else plan.kind
        key = (id(found.names), found.sources, kind, id(packed))
        if key not in built:
            built[key] = RunCell(
                number,
                plan.source,
                plan.filename,
                Carried(found.names, found.sources, packed.early, packed.late),
                call,
                plan.pull,
                want_value=plan.want_value or call is not None,
                show_value=plan.show_value,
                tasks=tasks,
                group=plan.group,
                prompt=plan.prompt,
                kind=kind,
                extras=extras,
            )
        commands[task] = built[key]
    return commands
