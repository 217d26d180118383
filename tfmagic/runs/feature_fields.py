"""The fields that features add to reports for programs, from the half ``recorded`` of each.

A half has FIELD and TYPE: the name and the type of the field of a task. Its function `last` returns the
value, of a cell or of the last one that has some, and `describe` a clause of the sentence on a cell, from the
values of its tasks.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.folder import RunFolder
from tfmagic.system import features


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all."""


if TYPE_CHECKING:

    class OfTask(Report, frozen=True, kw_only=True):
        """Has the fields of all features about one task."""

        def __getattr__(self, name: str) -> Any: ...

    class OfRun(Report, frozen=True, kw_only=True):
        """Has the same for several tasks, by name."""

        def __getattr__(self, name: str) -> Any: ...

else:
    _how = {"bases": (Report,), "frozen": True, "kw_only": True, "module": __name__}
    _halves = features.halves("recorded")
    OfTask = msgspec.defstruct("OfTask", [(half.FIELD, half.TYPE, {}) for half in _halves], **_how)
    OfRun = msgspec.defstruct("OfRun", [(half.FIELD, dict[str, half.TYPE], {}) for half in _halves], **_how)


def of_task(run: RunFolder, task: TaskId, cell: int | None = None) -> dict[str, Any]:
    """Return the fields of one task."""
    return {half.FIELD: half.last(run, task, cell) for half in features.halves("recorded")}


def of_run(run: RunFolder, tasks: Iterable[TaskId]) -> dict[str, Any]:
    """Return the fields of a run: of each task that has some."""
    return {
        half.FIELD: {task.name: value for task in tasks if (value := half.last(run, task))}
        for half in features.halves("recorded")
    }


def describe(by_task: Mapping[str, Mapping[str, Any] | OfTask]) -> list[str]:
    """Return the clauses of features on a cell, from the fields or the reports of its tasks."""
    clauses = []
    for half in features.halves("recorded"):
        found = {
            task: fields[half.FIELD] if isinstance(fields, Mapping) else getattr(fields, half.FIELD)
            for task, fields in by_task.items()
        }
        clauses.append(half.describe(found))
    return [clause for clause in clauses if clause]
