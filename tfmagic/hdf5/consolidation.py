"""`consolidate`: the parts of all tasks become one HDF5 file.

    results.worker-0.h5 ─┐ read_layout    merge      virtual: a file of kilobytes that points to the parts
    results.worker-1.h5 ─┼────────────→ Merged ────→ copy:    their rows, block by block
    ...                 ─┘                              │
                                                        └──→ results.h5.unfinished ──→ results.h5

Data goes through one buffer of a fixed size, whatever the parts hold. Nothing gets the base's name before it
is whole.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import h5py

from tfmagic.hdf5 import claims, guarding, recovery
from tfmagic.hdf5.closing import Room, written_beside
from tfmagic.hdf5.copying import copy_rows, gather_scalars, make_dataset, map_rows, set_attribute
from tfmagic.hdf5.errors import FileInUseError, PartError, reason_of
from tfmagic.hdf5.layouts import ATTRIBUTES, Layout, Merged, merge, read_layout
from tfmagic.hdf5.partnames import CLUSTER, TASK, Part, find_parts, missing_tasks, surplus_tasks
from tfmagic.protocol.cluster_spec import TaskId

PARTS, HOW, ROWS, TASKS = "tfmagic_parts", "tfmagic_how", "tfmagic_rows", "tfmagic_tasks"
"""Attributes of the whole: its parts' tasks, how it was made; of a dataset: rows of each part, and whose they
are."""


@dataclass(frozen=True, slots=True)
class Consolidation:
    """What `consolidate` did.

    Attributes:
        path: The file.
        how: "virtual" or "copy".
        tasks: Whose parts it holds, in their order.
        datasets: Shape of each dataset, by path; None of HDF5's empty ones.
        conflicts: ``object@attribute`` for what the parts say differently; see `consolidate`.
        left_out: What is in parts and not in the whole: named types, attributes that hold references.
        recovered: Parts that a killed task had left, and that were taken.
        missing: What is not there and was allowed to be missing.
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
        lines = [f"{self.path}: {len(self.tasks)} parts, {self.how}, {self.seconds:.2f} s; {rows}{more}"]
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
    """Make one file of the parts that tasks wrote with `TaskFile(base)`. Call it on one task, when all have
    closed.

    Datasets of one name are put behind each other along axis 0, in the order chief, worker, ps, evaluator and
    by index; they must have one dtype and one shape of a row. A scalar becomes an element for each part.
    Which rows are whose is in each dataset's attributes ``tfmagic_tasks`` and ``tfmagic_rows``. An attribute
    that is the same in all parts is kept; of one that is not, the first part's value, and every part's in the
    group ``tfmagic_attributes/TASK/OBJECT``.

    Args:
        base: The file to make; its parts are beside it.
        how: "virtual" for a small file that points to the parts, which must stay beside it (folder and all
            can be moved); "copy" for one that needs them no more.
        expected: How many parts there must be, or of which tasks; by default the indices of a type that has
            written have no gap, and reach what the cluster had of it, and no part is of a larger cluster.
        allow_missing: Go on without those that are missing, and report them.
        recover: Take what killed tasks have left (see `recover`) as far as it can be read.
        overwrite: Replace a base that is something else than an earlier consolidation.

    Returns:
        What was done.

    Raises:
        PartError: There are no parts; one is missing, left of an earlier run, unfinished, damaged or foreign;
            the disk is full.
        MismatchError: Parts that do not fit together.
        FileInUseError: A part is still being written, or another process consolidates.
        ValueError: `how` is neither.
    """
    if how not in ("virtual", "copy"):
        raise ValueError(f"how is 'virtual' or 'copy', not {how!r}")
    started = time.perf_counter()
    wanted = None if expected is None else _count_or_names(expected)
    path = os.path.abspath(os.fsdecode(base))
    _check_target(path, overwrite)
    recovered = tuple(recovery.recover(path)) if recover else ()
    parts = _finished_parts(path)
    layouts, clusters = _read_all(parts)
    missing = _check_complete(path, parts, clusters, wanted, allow_missing=allow_missing)
    merged = merge(layouts)
    # HDF5's oldest format, the default, takes no attribute of 64 KiB; everybody can read that of 1.8 too
    with written_beside(path, "v108" if merged.has_large_attributes else None) as file:
        _write(file, merged, how)
    return Consolidation(
        path,
        how,
        tuple(part.task.name for part in parts),
        {stack.path: stack.shape for stack in merged.stacks},
        tuple(f"{item}@{name}" for item, names in merged.conflicts.items() for name in sorted(names)),
        tuple(f"{layout.part.task.name}: {what}" for layout in layouts for what in layout.left_out),
        recovered,
        tuple(missing),
        time.perf_counter() - started,
    )


def _count_or_names(expected: int | Iterable[str]) -> int | list[str]:
    return list(expected) if isinstance(expected, Iterable) else operator.index(expected)


def _check_complete(
    path: str,
    parts: list[Part],
    clusters: dict[TaskId, dict[str, int]],
    expected: int | list[str] | None,
    *,
    allow_missing: bool,
) -> list[str]:
    """The tasks whose parts are missing.

    Raises:
        PartError: There are some, and that is not allowed; or some that do not belong to the others.
    """
    tasks = [part.task for part in parts]
    if surplus := surplus_tasks(tasks, clusters, expected):
        raise PartError(
            f"{os.path.basename(path)} would also hold the part of {_some(surplus)}, which an earlier run "
            "with more tasks has left, as it seems: delete it, or say with expected= which parts there are"
        )
    counts = {kind: max(c.get(kind, 0) for c in clusters.values()) for c in clusters.values() for kind in c}
    missing = missing_tasks(tasks, counts, expected)
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
    """Replace an earlier whole, and nothing else unasked."""
    if overwrite or not os.path.exists(path):
        return
    try:
        with h5py.File(path, "r") as file:
            if PARTS in file.attrs:
                return
    except FileInUseError:
        raise
    except BlockingIOError:
        raise FileInUseError(guarding.describe_use(path, "w")) from None
    except OSError:
        pass
    raise PartError(
        f"{path} is there already, and is no consolidation of parts: move it away, or pass overwrite=True"
    )


def _finished_parts(path: str) -> list[Part]:
    """The parts, all of them finished."""
    parts = find_parts(path)
    for part in parts:
        if part.finished:
            continue
        name, task = os.path.basename(part.path), part.task.name
        if claims.is_claimed(part.path):
            who = ", ".join(map(str, claims.find_holders(part.path))) or task
            raise FileInUseError(
                f"{name} is still being written by {who}: close it there, then tfmagic.barrier() on all "
                "tasks before one of them consolidates"
            )
        left = f"{name} was left unfinished: {task} was killed, or raised, or did not close it."
        if any(other.finished and other.task == part.task for other in parts):
            raise PartError(
                f"{left} An older part of {task} is there, too: delete one of them to choose, or let the "
                "task write again"
            )
        raise PartError(
            f"{left} recover=True takes what it had flushed; or let the task write again, or delete the file"
        )
    if not parts:
        stem, suffix = os.path.splitext(os.path.basename(path))
        raise PartError(
            f"there is no part of {path}: no file {stem}.worker-0{suffix} or the like in that folder. Tasks "
            f"write theirs with tfmagic.hdf5.TaskFile({os.path.basename(path)!r})"
        )
    return parts


def _read_all(parts: list[Part]) -> tuple[list[Layout], dict[TaskId, dict[str, int]]]:
    """What the parts hold, and how many tasks of each type the cluster of each had, as far as it says."""
    layouts = []
    clusters: dict[TaskId, dict[str, int]] = {}
    for part in parts:
        with open_part(part) as file:
            if (owner := str(file.attrs.get(TASK, part.task.name))) != part.task.name:
                raise PartError(
                    f"{part.path} is by its name the part of {part.task.name}, but {owner} wrote it"
                )
            with contextlib.suppress(ValueError, TypeError, AttributeError):  # of a foreign file
                said = json.loads(file.attrs.get(CLUSTER, "{}")).items()
                clusters[part.task] = {kind: int(count) for kind, count in said}
            layouts.append(read_layout(file, part))
    return layouts, clusters


@contextlib.contextmanager
def open_part(part: Part) -> Iterator[Any]:
    """A part, open for reading.

    Raises:
        FileInUseError: Somebody writes it.
        PartError: It is none, or damaged.
    """
    try:
        file = h5py.File(part.path, "r")
    except BlockingIOError:
        raise FileInUseError(guarding.describe_use(part.path, "r")) from None
    except OSError as error:
        what = "is empty" if _is_empty(part.path) else f"cannot be read as HDF5: {reason_of(error)}"
        raise PartError(f"{part.path}, the part of {part.task.name}, {what}") from error
    with file:
        yield file


def _is_empty(path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.getsize(path) == 0
    return False


def _write(file: Any, merged: Merged, how: str) -> None:
    for path in merged.groups:
        file.require_group(path)
    for path, (other, target) in merged.links.items():
        file[path] = h5py.ExternalLink(other, target) if other else h5py.SoftLink(target)
    _write_rows(file, merged, how)
    for stack in merged.stacks:
        file[stack.path].attrs[TASKS] = [member.part.task.name for member in stack.members]
        file[stack.path].attrs[ROWS] = stack.rows
    for path, values in merged.attributes.items():
        for name, value in values.items():
            set_attribute(file[path], name, value)
    for layout in merged.layouts:
        for path, names in merged.conflicts.items():
            values = layout.attributes.get(path, {})
            for name in names & values.keys():
                group = file.require_group(f"{ATTRIBUTES}/{layout.part.task.name}{path.rstrip('/')}")
                set_attribute(group, name, values[name])
    file.attrs[PARTS] = [layout.part.task.name for layout in merged.layouts]
    file.attrs[HOW] = how


def _write_rows(file: Any, merged: Merged, how: str) -> None:
    """Datasets first, then part after part, each opened once."""
    plain = [stack for stack in merged.stacks if stack.shape is not None and not stack.scalar]
    for stack in merged.stacks:
        if stack.shape is None:
            file[stack.path] = h5py.Empty(stack.dtype)
    gather_scalars(file, [stack for stack in merged.stacks if stack.scalar], open_part)
    if how == "virtual":
        for stack in plain:
            map_rows(file, stack)
        return
    room = Room(file)
    for layout in merged.layouts:
        with open_part(layout.part) as source:
            for stack in plain:
                for member, start, stop in stack.spans():
                    if member is layout:
                        if stack.path not in file:
                            make_dataset(file, stack, source[stack.path])
                        copy_rows(source[stack.path], file[stack.path], start, stop, layout.part, room)
