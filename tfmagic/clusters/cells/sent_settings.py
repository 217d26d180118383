"""Remember which settings of the notebook each task has, and pack those that have changed since.

    notebook's process ── read ──→ same as sent ──→ nothing travels
                                   else ──→ changes ──→ Packed: `early` before variables, `late` after them

Used by `TaskVariables`, on the thread that begins a cell.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.errors import CaptureError
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.payload import Packed
from tfmagic.serialization import calls, culprits, notebook_settings
from tfmagic.system import notices
from tfmagic.system.advice import in_notebook

State = dict[str, notebook_settings.Found]
_OF_PROXIES = (b"grpc_proxy", b"https_proxy", b"http_proxy", b"no_proxy", b"no_grpc_proxy")
_PLACES = frozenset({"environment", "sys.path", "folder"})  # of this machine


class PackedSettings(msgspec.Struct, frozen=True):
    """Changes for a task: two packed calls, and the names of the notebook that they need."""

    early: Packed | None = None
    late: Packed | None = None
    needs: frozenset[str] = frozenset()


NO_SETTINGS = PackedSettings()


class SentSettings:
    """The settings that each attempt of each task has from the notebook.

    Args:
        of: The settings of the tasks: what they set themselves stays.
    """

    def __init__(self, of: TaskSettings | None = None):
        own = [] if of is None else [of.env, *of.task_env.values()]
        self._of = of
        self._own = frozenset(os.fsencode(name) for env in own for name in env)
        self._is_off = of is None or of.purpose != "cells"
        self._left_out = _PLACES if of is not None and of.hosts is not None else frozenset[str]()
        self._start: State = {} if self._is_off else self._read({}, notebook_settings.EARLY)
        self._sent: dict[TaskId, tuple[int, State]] = {}
        self._now: State = {}
        self._told: set[str] = set()

    def _read(self, before: State, rows: Iterable[str] = ()) -> State:
        found = notebook_settings.read(before)
        return {n: s for n, s in found.items() if n not in self._left_out and (not rows or n in rows)}

    def forget(self, tasks: Iterable[TaskId] | None = None) -> None:
        """Forget what tasks have; by default, all of them have their first environment, path and folder."""
        if tasks is None:
            for task, (attempt, state) in self._sent.items():
                self._sent[task] = attempt, {**state, **self._start}
        else:
            for task in tasks:
                self._sent.pop(task, None)

    def pack(self, attempts: Mapping[TaskId, int], main: Mapping[str, Any]) -> dict[TaskId, PackedSettings]:
        """Return the changes for each task that lacks some."""
        if self._is_off:
            return {}
        now = self._read(self._now)
        try:
            is_same = now == self._now
        except Exception:  # a value that cannot be compared
            is_same = False
        if not is_same:
            self._now = now  # otherwise tasks that have the former one need no look at each row
        made, found = dict[int, PackedSettings](), dict[TaskId, PackedSettings]()
        for task, attempt in attempts.items():
            sent = self._sent.get(task)
            state = sent[1] if sent is not None and sent[0] == attempt else self._start
            if state is self._now:
                continue
            if id(state) not in made:
                made[id(state)] = self._pack(notebook_settings.changes(state, self._now), main)
            if made[id(state)] is not NO_SETTINGS:
                found[task] = made[id(state)]
        return found

    def _pack(self, found: dict[str, notebook_settings.Changes], main: Mapping[str, Any]) -> PackedSettings:
        if environ := found.get("environment"):
            if self._of is not None and not environ.keys().isdisjoint(_OF_PROXIES):
                direct = self._of.without_proxy(os.environ)
                environ |= {os.fsencode(n): (None, os.fsencode(value)) for n, value in direct.items()}
            for name in self._own & environ.keys():
                del environ[name]
        if not any(found.values()):
            return NO_SETTINGS
        found = notebook_settings.travelling(found, lambda value: culprits.problem_of(value, main))
        early = {row: changes for row, changes in found.items() if row in notebook_settings.EARLY}
        late = {row: changes for row, changes in found.items() if row not in early}
        first, then = self._call(early, main), self._call(late, main)
        return PackedSettings(
            first.packed if first is not None else None,
            then.packed if then is not None else None,
            then.needs if then is not None else frozenset(),
        )

    def _call(
        self, found: dict[str, notebook_settings.Changes], main: Mapping[str, Any]
    ) -> calls.PackedCall | None:
        """Pack the call that makes these changes, without those that cannot travel, which are named once."""
        if not found:
            return None
        try:
            return calls.pack_call((notebook_settings.make, (found,), {}), main)
        except CaptureError:
            problems = {
                (row, name): problem
                for row, changes in found.items()
                for name, change in changes.items()
                if (problem := culprits.problem_of(change, main))
            }
        for (row, name), problem in problems.items():
            del found[row][name]
            if f"{row} {name}" not in self._told:
                self._told.add(f"{row} {name}")
                where = in_notebook("the notebook") or "this process"
                notices.tell(f"tfmagic: a setting of {where} stays here, {row} {name}: {problem}")
        return (
            self._call({row: changes for row, changes in found.items() if changes}, main)
            if problems
            else None
        )

    def handed_over(self, attempts: Mapping[TaskId, int]) -> None:
        """Record what the tasks get with commands that the supervisor has now."""
        if not self._is_off:
            for task, attempt in attempts.items():
                self._sent[task] = attempt, self._now
