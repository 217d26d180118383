"""The names of parts: which file belongs to which task, and their order.

    results.h5                         the base: what `consolidate` makes
    results.worker-1.h5                the part of worker-1, whole
    results.worker-1.h5.unfinished     its part while it is written, or as a killed task left it

Parts stand in the order of their tasks: chief, worker, ps, evaluator, and worker-10 after worker-9. The order
of the file names as text is another one, so call `find_parts`.
"""

import contextlib
import os
from dataclasses import dataclass

from tfmagic.errors import ClusterSpecError
from tfmagic.hdf5.errors import PartError
from tfmagic.protocol import task_context
from tfmagic.protocol.cluster_spec import TaskId, parse_task
from tfmagic.system.arguments import as_path

UNFINISHED = ".unfinished"
TASK, CLUSTER = "tfmagic_task", "tfmagic_cluster"
"""Attributes of a part's root: the name of its task, and how many tasks of each type there are (JSON)."""


@dataclass(frozen=True, slots=True)
class Part:
    """The file of one task; `finished` where its writer has closed it."""

    task: TaskId
    path: str
    finished: bool

    def __str__(self) -> str:
        return f"{self.path}, the part of {self.task.name}"


def part_path(base: str | os.PathLike[str], task: TaskId) -> str:
    """Return the file of a task: its name comes before the base's last suffix."""
    stem, suffix = os.path.splitext(as_path("base", base, takes_bytes=True))  # bytes too, as h5py takes them
    return f"{stem}.{task.name}{suffix}"


def find_parts(base: str | os.PathLike[str]) -> list[Part]:
    """Return the parts of a base, in the order of their tasks; an unfinished one after the finished one.

    Raises:
        PartError: The folder cannot be read.
    """
    folder, name = os.path.split(os.path.abspath(as_path("base", base, takes_bytes=True)))
    stem, suffix = os.path.splitext(name)
    try:
        entries = os.listdir(folder)
    except OSError as error:
        raise PartError(f"{folder}, where the parts of {name} would be, cannot be read: {error}") from error
    found = []
    for entry in entries:
        whole = entry.removesuffix(UNFINISHED)
        with contextlib.suppress(ClusterSpecError):
            task = parse_task(whole[len(stem) + 1 : len(whole) - len(suffix)])
            if part_path(name, task) == whole:  # worker-01 is no task
                found.append(Part(task, os.path.join(folder, entry), whole == entry))
    return sorted(found, key=lambda part: (part.task.sort_key, not part.finished))


def resolve_task(task: str | TaskId | task_context.TaskContext | None) -> tuple[TaskId, dict[str, int]]:
    """Return a task, and how many tasks of each type its cluster has; {} where that is not known.

    None is the task that runs this code: of a cluster of ours, else of TF_CONFIG, else worker-0 of one.
    A text that names no task is a ClusterSpecError.
    """
    if isinstance(task, str | TaskId):
        return (parse_task(task) if isinstance(task, str) else task), {}
    if task is None:
        task = task_context.current_task() if task_context.is_task() else task_context.task_of_environment()
    if task is not None and not isinstance(task, task_context.TaskContext):
        raise TypeError(f"task is the name of a task, such as 'worker-3', not {task!r}")
    here = task or task_context.TaskContext("worker", 0, {"worker": [""]}, is_chief=True)
    counts = {kind: len(addresses) for kind, addresses in here.cluster_spec.items()}
    return TaskId(here.type, here.index), counts
