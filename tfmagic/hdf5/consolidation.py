"""`consolidate`: the parts of all tasks become one HDF5 file.

    results.worker-0.h5 ─┐ layouts     virtual: a file of kilobytes that points to the parts
    results.worker-1.h5 ─┼─────────→   copy:    their rows, block by block
    ...                 ─┘                │
                                          └──→ results.h5.unfinished ──→ results.h5

Rows go through one buffer of a fixed size. The file gets the base's name when it is whole.
"""

import contextlib
import math
import operator
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import h5py

from tfmagic.hdf5 import guarding, recovery
from tfmagic.hdf5.closing import SpaceReserve, written_beside
from tfmagic.hdf5.copying import copy_rows, make_dataset, map_rows, set_attribute
from tfmagic.hdf5.errors import FileInUseError, PartError
from tfmagic.hdf5.layouts import ATTRIBUTES, DATASET, GROUP, LINK, Contents, Stack, same_value
from tfmagic.hdf5.partnames import TASK, Part, find_parts
from tfmagic.protocol.cluster_spec import TaskId, parse_task
from tfmagic.system.arguments import as_path

PARTS, HOW, ROWS, TASKS = "tfmagic_parts", "tfmagic_how", "tfmagic_rows", "tfmagic_tasks"
"""Attributes of the file: the tasks of its parts, and `how`; of a dataset: rows and task of each part."""


@dataclass(frozen=True, slots=True)
class Consolidation:
    """The report of `consolidate`.

    Attributes:
        path: The file.
        how: "virtual" or "copy".
        tasks: The tasks of its parts, in their order.
        datasets: Shape of each dataset, by path; None for HDF5's empty ones.
        conflicts: ``object@attribute`` for attributes that differ between parts; see `consolidate`.
        left_out: Objects of parts that the file does not have: named types, attributes that hold references.
        recovered: Tasks that were killed, and whose parts were recovered.
        missing: Tasks whose parts are missing, with `allow_missing`.
        seconds: How long it took.
    """

    path: str
    how: str
    tasks: tuple[str, ...]
    datasets: Mapping[str, tuple[int, ...] | None]
    conflicts: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    recovered: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        rows = ", ".join(f"{path} {shape or ''}".strip() for path, shape in list(self.datasets.items())[:6])
        more = f" and {len(self.datasets) - 6} more" if len(self.datasets) > 6 else ""
        parts = "1 part" if len(self.tasks) == 1 else f"{len(self.tasks)} parts"
        lines = [f"{self.path}: {parts}, {self.how}, {self.seconds:.2f} s; {rows}{more}"]
        notes = {"different in parts": self.conflicts, "left out": self.left_out}
        notes |= {"recovered": self.recovered, "missing": self.missing}
        lines += [f"  {word}: {', '.join(items)}" for word, items in notes.items() if items]
        return "\n".join(lines)


def consolidate(
    base: str | os.PathLike[str],
    how: Literal["virtual", "copy"] = "virtual",
    *,
    expected: int | Iterable[str] | None = None,
    allow_missing: bool = False,
    recover: bool = False,
    overwrite: bool = False,
) -> Consolidation:
    """Make one file of the parts that tasks wrote with `TaskFile(base)`.

    Call it on one task, when all tasks have closed their parts. Datasets of one name are put after each
    other along axis 0, in the order chief, worker, ps, evaluator and by index; they must have one dtype and
    one shape of a row. A scalar becomes an element for each part. Each dataset's attributes ``tfmagic_tasks``
    and ``tfmagic_rows`` give the task of its rows. An attribute that differs between parts has the first
    part's value; all values are in the group ``tfmagic_attributes/TASK/OBJECT``.

    Args:
        base: The file to make; its parts are beside it.
        how: "virtual" for a small file that points to the parts, which must stay beside it (the folder can
            be moved); "copy" for one that does not need them any more.
        expected: How many parts there must be, or of which tasks; by default the indices of a type that has
            parts have no gap and reach the count of the cluster, and no part is of a larger cluster.
        allow_missing: Go on without missing parts, and report them.
        recover: Recover the parts of killed tasks first; see `recover`.
        overwrite: Replace a base that is no earlier consolidation.

    Raises:
        PartError: There are no parts; one is missing, left of an earlier run, unfinished, damaged or foreign;
            the disk is full.
        MismatchError: Parts do not fit together.
        FileInUseError: A part is still being written, or another process consolidates.
        ValueError: `how` is neither "virtual" nor "copy".
    """
    if not isinstance(how, str) or how not in ("virtual", "copy"):
        raise ValueError(f"how is 'virtual' or 'copy', not {how!r}")
    started = time.perf_counter()
    if expected is not None:
        expected = list(expected) if isinstance(expected, Iterable) else operator.index(expected)
    path = os.path.abspath(as_path("base", base, takes_bytes=True))
    _check_target(path, overwrite)
    recovered = tuple(recovery.recover(path)) if recover else ()
    parts, contents = _finished_parts(path), Contents()
    for part in parts:
        with open_part(part) as file:
            if (owner := str(file.attrs.get(TASK, part.task.name))) != part.task.name:
                of = f"{part.path} is by its name the part of {part.task.name}"
                raise PartError(f"{of}, but {owner} wrote it")
            contents.read(file, part)
    missing = _check_complete(path, contents.clusters, expected, allow_missing)
    contents.check_alike()
    stacks = [Stack(name, items) for name, items in contents.items.items() if items[0].kind == DATASET]
    with written_beside(path) as file:
        conflicts = _write(file, contents, parts, stacks, how)
    return Consolidation(
        path,
        how,
        tasks=tuple(part.task.name for part in parts),
        datasets={stack.path: stack.shape for stack in stacks},
        conflicts=tuple(conflicts),
        left_out=tuple(contents.left_out),
        recovered=recovered,
        missing=tuple(missing),
        seconds=time.perf_counter() - started,
    )


def _check_complete(
    path: str,
    clusters: Mapping[TaskId, Mapping[str, int]],
    expected: int | Iterable[str] | None,
    allow_missing: bool,
) -> list[str]:
    """Return the tasks whose parts are missing. Raise PartError where none may be, or one is too many.

    After a run with three workers and one with two, the part of worker-2 is left, and knows of three.
    """
    tasks = list(clusters)
    if isinstance(expected, int | None):
        counts = [(task.type, task.index + 1) for task in tasks]
        counts += [known for cluster in clusters.values() for known in cluster.items()]
        kinds = {task.type for task in tasks}
        wanted = {TaskId(kind, index) for kind, count in counts if kind in kinds for index in range(count)}
    else:
        wanted = {parse_task(name) for name in expected}
    missing = [task.name for task in sorted(wanted - set(tasks))]
    if expected is None:
        knowing = [task for task in tasks if clusters[task]]
        surplus = [t for t in knowing if any(t.index >= c.get(t.type, math.inf) for c in clusters.values())]
    elif isinstance(expected, int):
        surplus = tasks[expected:]
        more = expected - len(tasks) - len(missing)
        missing += [f"{more} more of {expected}"] if more > 0 else []
    else:
        surplus = [task for task in tasks if task not in wanted]
    if surplus:
        left = _some([task.name for task in surplus])
        raise PartError(
            f"{os.path.basename(path)} would also hold the part of {left}, which an earlier run "
            "with more tasks seems to have left: delete it, or name the right parts with expected="
        )
    if missing and not allow_missing:
        raise PartError(
            f"{os.path.basename(path)} would lack the part of {_some(missing)}; there is that of "
            f"{_some([task.name for task in tasks])}. Let the missing ones write, or pass "
            "allow_missing=True"
        )
    return missing


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _check_target(path: str, overwrite: bool) -> None:
    """Raise PartError where the file would replace something else than an earlier consolidation."""
    if overwrite or not os.path.exists(path):
        return
    with (
        contextlib.suppress(PartError),
        guarding.naming_errors(path, path, "w"),
        h5py.File(path, "r") as file,
    ):
        if PARTS in file.attrs:
            return
    raise PartError(
        f"{path} is there already, and is no consolidation of parts: move it away, or pass overwrite=True"
    )


def _finished_parts(path: str) -> list[Part]:
    """Return the parts; raise an error where one is not finished, or there is none."""
    parts = find_parts(path)
    for part in parts:
        if part.finished:
            continue
        name, task = os.path.basename(part.path), part.task.name
        if not guarding.is_free(part.path, alone=False):
            who = ", ".join(map(str, guarding.find_holders(part.path))) or task
            raise FileInUseError(
                f"{name} is still being written by {who}: close it there, then tfmagic.barrier() on all "
                "tasks before one of them consolidates"
            )
        advice = "recover=True takes what it had flushed; or let the task write again, or delete the file"
        if any(other.finished and other.task == part.task for other in parts):
            older = f"An older part of {task} is there, too"
            advice = f"{older}: delete one of them to choose, or let the task write again"
        left = f"{name} was left unfinished: {task} was killed, or raised, or did not close it."
        raise PartError(f"{left} {advice}")
    if not parts:
        stem, suffix = os.path.splitext(os.path.basename(path))
        raise PartError(
            f"there is no part of {path}: no file {stem}.worker-0{suffix} or the like in that folder. Tasks "
            f"write theirs with tfmagic.hdf5.TaskFile({os.path.basename(path)!r})"
        )
    return parts


def open_part(part: Part) -> Any:
    """Open a part for reading. Raise FileInUseError if a process writes it, PartError if it is damaged."""
    with guarding.naming_errors(f"{part}, cannot be read as HDF5", part.path, "r"):
        if not os.path.getsize(part.path):
            raise PartError(f"{part}, is empty")
        return h5py.File(part.path, "r")


def _write(file: Any, contents: Contents, parts: list[Part], stacks: list[Stack], how: str) -> list[str]:
    """Write all objects. Return ``object@attribute`` for the attributes that differ between parts."""
    for path, (first, *_) in contents.items.items():
        if first.kind == GROUP:
            file.require_group(path)
        elif first.kind == LINK:
            other, target = first.value
            file[path] = h5py.ExternalLink(other, target) if other else h5py.SoftLink(target)
    _write_rows(file, parts, stacks, how)
    for stack in stacks:
        file[stack.path].attrs[TASKS] = [item.part.task.name for item in stack.items]
        file[stack.path].attrs[ROWS] = stack.rows
    conflicts = []
    for path, items in contents.items.items():
        values: dict[str, Any] = {}
        differing = {
            name
            for item in items
            for name, value in item.attributes.items()
            if not same_value(values.setdefault(name, value), value)
        }
        for name, value in values.items():
            set_attribute(file[path], name, value)
        for item in items:
            for name in differing & item.attributes.keys():
                group = file.require_group(f"{ATTRIBUTES}/{item.part.task.name}{path.rstrip('/')}")
                set_attribute(group, name, item.attributes[name])
        conflicts += [f"{path}@{name}" for name in sorted(differing)]
    file.attrs[PARTS], file.attrs[HOW] = [part.task.name for part in parts], how
    return conflicts


def _write_rows(file: Any, parts: list[Part], stacks: list[Stack], how: str) -> None:
    """Make the datasets, and fill them part after part; each part is opened once."""
    plain = []
    for stack in stacks:
        if stack.shape is None:
            file[stack.path] = h5py.Empty(stack.dtype)
        elif stack.scalars:  # always copied: HDF5 cannot map them
            dataset = file.create_dataset(stack.path, stack.shape, stack.dtype)
            for number, value in enumerate(stack.scalars):
                dataset[number] = value
        elif how == "virtual":
            map_rows(file, stack)
        else:
            plain.append(stack)
    space = SpaceReserve(file)
    for part in parts if plain else ():
        with open_part(part) as source:
            for stack in plain:
                for owner, start, stop in stack.spans():
                    if owner is part:
                        if stack.path not in file:
                            make_dataset(file, stack, source[stack.path])
                        copy_rows(source[stack.path], file[stack.path], start, stop, part, space)
