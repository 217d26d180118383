"""The names of parts: which file is which task's, and in which order they stand.

    results.h5                         the base: what `consolidate` makes
    results.worker-1.h5                the part of worker-1, whole
    results.worker-1.h5.unfinished     its part while it is written, or as a task left it that was killed

Parts stand in the order of their tasks: chief, worker, ps, evaluator, and worker-10 after worker-9. As text
they would not, so ask `find_parts`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tfmagic.errors import ClusterSpecError
from tfmagic.hdf5.errors import PartError
from tfmagic.protocol import task_context
from tfmagic.protocol.cluster_spec import TaskId, parse_task

UNFINISHED = ".unfinished"
TASK, CLUSTER = "tfmagic_task", "tfmagic_cluster"
"""Attributes of a part's root: the name of its task, and how many tasks of each type there are (JSON)."""


@dataclass(frozen=True, slots=True)
class Part:
    """The file of one task; `finished` where its writer has closed it."""

    task: TaskId
    path: str
    finished: bool


def part_path(base: str | os.PathLike[str], task: TaskId) -> str:
    """The file of a task: its name stands before the base's last suffix."""
    stem, suffix = os.path.splitext(os.fsdecode(base))  # bytes too, as h5py takes them
    return f"{stem}.{task.name}{suffix}"


def find_parts(base: str | os.PathLike[str]) -> list[Part]:
    """The parts of a base, in the order of their tasks; one that is unfinished behind the finished one.

    Raises:
        PartError: The folder cannot be read.
    """
    folder, name = os.path.split(os.path.abspath(os.fsdecode(base)))
    stem, suffix = os.path.splitext(name)
    try:
        entries = os.listdir(folder)
    except OSError as error:
        raise PartError(f"{folder}, where the parts of {name} would be, cannot be read: {error}") from error
    found = []
    for entry in entries:
        whole = entry.removesuffix(UNFINISHED)
        if not whole.startswith(f"{stem}.") or not whole.endswith(suffix):
            continue
        try:
            task = parse_task(whole[len(stem) + 1 : len(whole) - len(suffix)])
        except ClusterSpecError:
            continue
        if part_path(name, task) == whole:  # worker-01 is nobody
            found.append(Part(task, os.path.join(folder, entry), whole == entry))
    return sorted(found, key=lambda part: (part.task.sort_key, not part.finished))


def resolve_task(task: str | TaskId | task_context.TaskContext | None) -> tuple[TaskId, dict[str, int]]:
    """A task, and how many tasks of each type its cluster has; {} where that is not known.

    None is the task that runs this code: of a cluster of ours, else of TF_CONFIG, else worker-0 of one.

    Raises:
        ClusterSpecError: There is no task of such a name.
    """
    if isinstance(task, str):
        return parse_task(task), {}
    if isinstance(task, TaskId):
        return task, {}
    if task is None:
        task = task_context.current_task() if task_context.is_task() else task_context.task_of_environment()
    here = task or task_context.TaskContext("worker", 0, {"worker": [""]}, is_chief=True)
    counts = {kind: len(addresses) for kind, addresses in here.cluster_spec.items()}
    return TaskId(here.type, here.index), counts


def missing_tasks(
    present: Iterable[TaskId], counts: dict[str, int], expected: int | Iterable[str] | None
) -> list[str]:
    """What should be there and is not, in words.

    A type that has written at all is expected as a whole: its indices have no gap and, where the parts know
    their cluster, reach its count.
    """
    tasks = list(present)
    by_type = Counter(task.type for task in tasks)
    wanted = set()
    for kind in by_type:
        highest = max(task.index for task in tasks if task.type == kind)
        wanted |= {TaskId(kind, index) for index in range(max(highest + 1, counts.get(kind, 0)))}
    if isinstance(expected, int):
        lacking = [task.name for task in sorted(wanted - set(tasks))]
        more = expected - len(tasks) - len(lacking)
        return lacking + ([f"{more} more of {expected}"] if more > 0 else [])
    if expected is not None:
        wanted = {parse_task(name) for name in expected}
    return [task.name for task in sorted(wanted - set(tasks))]


def surplus_tasks(
    present: Iterable[TaskId], clusters: dict[TaskId, dict[str, int]], expected: int | Iterable[str] | None
) -> list[str]:
    """Whose parts are there and should not be, in words.

    After a run with three workers and one with two, that of worker-2 is left, and says that there were three.

    Args:
        present: Whose parts there are.
        clusters: How many tasks of each type the writer of a part knew of.
        expected: See `consolidate`.
    """
    tasks = sorted(present)
    if isinstance(expected, int):
        return [task.name for task in tasks[expected:]]
    if expected is not None:
        wanted = {parse_task(name) for name in expected}
        return [task.name for task in tasks if task not in wanted]
    found = []
    for task in tasks:
        known = [said[task.type] for said in clusters.values() if task.type in said]
        if clusters.get(task) and task.index >= min(known, default=task.index + 1):
            found.append(task.name)
    return found
