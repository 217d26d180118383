"""What parts hold, and how that becomes one file: names, shapes, types. Reads no data but attributes and
scalars.

    part files ── read_layout ──→ Layout (one a part) ── merge ──→ Merged: groups, rows, links, attributes

The rules are told in `consolidate`. What contradicts another part is a MismatchError that names both.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np

from tfmagic.hdf5.errors import MismatchError, PartError, reason_of
from tfmagic.hdf5.partnames import CLUSTER, TASK, Part

ATTRIBUTES = "tfmagic_attributes"
"""The group that keeps what parts say differently: <group>/<task>/<object> has its attributes."""
_OURS = {TASK, CLUSTER}
_LARGE_BYTES = 60_000  # of an attribute: with name and type, HDF5's oldest format holds less than 64 KiB


@dataclass(frozen=True, slots=True)
class DatasetLayout:
    """A dataset of one part; shape None where it is HDF5's empty one."""

    shape: tuple[int, ...] | None
    dtype: Any
    encoded: bytes  # its type as HDF5 writes it: numpy's forgets charsets and the like


@dataclass(slots=True)
class Layout:
    """What one part holds, by path."""

    part: Part
    datasets: dict[str, DatasetLayout] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    links: dict[str, tuple[str, str]] = field(default_factory=dict)  # file ("" for this one), path
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def kind(self, path: str) -> str:
        """What there is under a path, in words; "" for nothing."""
        kinds = {"a dataset": self.datasets, "a group": self.groups, "a link": self.links}
        return next((kind for kind, paths in kinds.items() if path in paths), "")


def read_layout(file: Any, part: Part) -> Layout:
    """Walk through a part that is open.

    Raises:
        PartError: It is damaged, or has what cannot be carried over.
    """
    layout = Layout(part)
    try:
        _read_attributes(file, "/", layout)
        _walk(file, "/", layout, {h5py.h5o.get_info(file.id).addr})
    except PartError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise PartError(
            f"{part.path}, the part of {part.task.name}, is damaged: {reason_of(error)}"
        ) from error
    return layout


def _walk(group: Any, prefix: str, layout: Layout, above: set[int]) -> None:
    for name in group:
        path = posixpath.join(prefix, name)
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.SoftLink | h5py.ExternalLink):
            layout.links[path] = (getattr(link, "filename", ""), link.path)
            continue
        item = group[name]
        if path == f"/{ATTRIBUTES}":
            raise PartError(f"{layout.part.path} has a group {ATTRIBUTES}, a name that consolidate needs")
        if isinstance(item, h5py.Dataset):
            layout.datasets[path] = _describe(item, path, layout)
        elif isinstance(item, h5py.Group):
            address = h5py.h5o.get_info(item.id).addr
            if address in above:
                raise PartError(f"{layout.part.path}: group {path} contains itself by a hard link")
            layout.groups.append(path)
            _walk(item, path, layout, above | {address})
        else:
            layout.left_out.append(f"{path} (a named type)")
            continue
        _read_attributes(item, path, layout)


def _describe(dataset: Any, path: str, layout: Layout) -> DatasetLayout:
    if _has_references(dataset.dtype):
        raise PartError(
            f"{layout.part.path}: dataset {path} holds references, which mean nothing in another file"
        )
    return DatasetLayout(dataset.shape, dataset.dtype, dataset.id.get_type().copy().encode())


def _has_references(dtype: Any) -> bool:
    if dtype.names:
        return any(_has_references(dtype[name]) for name in dtype.names)
    inner = h5py.check_vlen_dtype(dtype)
    if inner is not None and isinstance(inner, np.dtype):
        return _has_references(inner)
    return h5py.check_ref_dtype(dtype.base) is not None


def _read_attributes(item: Any, path: str, layout: Layout) -> None:
    found = {}
    for name in item.attrs:
        if path == "/" and name in _OURS:
            continue
        if _has_references(item.attrs.get_id(name).dtype):
            layout.left_out.append(f"{path}@{name} (references)")
        else:
            found[name] = item.attrs[name]
    layout.attributes[path] = found


@dataclass(frozen=True, slots=True)
class Stack:
    """A dataset of the whole: the parts that have it, in order, and the rows of each."""

    path: str
    members: tuple[Layout, ...]
    rows: tuple[int, ...]
    shape: tuple[int, ...] | None
    dtype: Any
    scalar: bool

    def spans(self) -> Iterator[tuple[Layout, int, int]]:
        """Each part with the first of its rows and the one behind its last."""
        start = 0
        for member, rows in zip(self.members, self.rows, strict=True):
            yield member, start, start + rows
            start += rows


@dataclass(frozen=True, slots=True)
class Merged:
    """What the whole will hold."""

    layouts: tuple[Layout, ...]
    groups: tuple[str, ...]
    stacks: tuple[Stack, ...]
    links: Mapping[str, tuple[str, str]]
    attributes: Mapping[str, Mapping[str, Any]]
    conflicts: Mapping[str, frozenset[str]]  # names of attributes, by object, that the parts say differently

    @property
    def has_large_attributes(self) -> bool:
        """Whether one takes so much that the default format of HDF5 may not hold it."""
        held = [values for layout in self.layouts for values in layout.attributes.values()]
        sizes = [_size_of(value) for values in held for value in values.values()]
        return max([*sizes, *(_size_of(stack.rows) for stack in self.stacks)], default=0) > _LARGE_BYTES


def merge(layouts: list[Layout]) -> Merged:
    """Put parts together, in their order.

    Raises:
        MismatchError: They contradict each other.
    """
    kinds: dict[str, tuple[str, Layout]] = {}
    for layout in layouts:
        for path in (*layout.groups, *layout.datasets, *layout.links):
            kind = layout.kind(path)
            before, first = kinds.setdefault(path, (kind, layout))
            if before != kind:
                raise MismatchError(
                    f"{path} is {before} in {first.part.path}, but {kind} in {layout.part.path}"
                )
    stacks = tuple(_stack(path, layouts) for path, (kind, _) in kinds.items() if kind == "a dataset")
    links = {path: _same_link(path, layouts) for path, (kind, _) in kinds.items() if kind == "a link"}
    attributes: dict[str, dict[str, Any]] = {}
    conflicts: dict[str, set[str]] = {}
    for layout in layouts:
        for path, values in layout.attributes.items():
            kept = attributes.setdefault(path, {})
            for name, value in values.items():
                if not _same(kept.setdefault(name, value), value):
                    conflicts.setdefault(path, set()).add(name)
    groups = tuple(path for path, (kind, _) in kinds.items() if kind == "a group")
    frozen = {path: frozenset(names) for path, names in conflicts.items()}
    return Merged(tuple(layouts), groups, stacks, links, attributes, frozen)


def _stack(path: str, layouts: list[Layout]) -> Stack:
    members = tuple(layout for layout in layouts if path in layout.datasets)
    first, found = members[0], members[0].datasets[path]
    for member in members[1:]:
        other = member.datasets[path]
        if other.encoded != found.encoded:
            raise MismatchError(
                f"dataset {path} holds {found.dtype} in {first.part.path}, but {other.dtype} in "
                f"{member.part.path}; write both as one type"
            )
        if _row_shape(other.shape) != _row_shape(found.shape):
            raise MismatchError(
                f"dataset {path} has the shape {found.shape} in {first.part.path}, but {other.shape} in "
                f"{member.part.path}; all but the first number must be the same"
            )
    if found.shape is None:
        return Stack(path, members, (0,) * len(members), None, found.dtype, False)
    scalar = found.shape == ()
    shapes = [member.datasets[path].shape for member in members]
    rows = tuple(1 if not shape else shape[0] for shape in shapes)
    return Stack(path, members, rows, (sum(rows), *found.shape[1:]), found.dtype, scalar)


def _row_shape(shape: tuple[int, ...] | None) -> object:
    return "empty" if shape is None else shape[1:] if shape else "scalar"


def _same_link(path: str, layouts: list[Layout]) -> tuple[str, str]:
    having = [layout for layout in layouts if path in layout.links]
    for layout in having[1:]:
        if layout.links[path] != having[0].links[path]:
            raise MismatchError(
                f"{path} is a link to {having[0].links[path][1]} in {having[0].part.path}, but to "
                f"{layout.links[path][1]} in {layout.part.path}"
            )
    return having[0].links[path]


def _size_of(value: Any) -> int:
    """About how many bytes an attribute takes."""
    if isinstance(value, h5py.Empty):
        return 0
    array = np.asarray(value)
    return int(
        array.size * max(array.dtype.itemsize, 16)
    )  # text of any length is 16 there, and lies elsewhere


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, h5py.Empty) or isinstance(other, h5py.Empty):
        return type(one) is type(other) and one.dtype == other.dtype
    left, right = np.asarray(one), np.asarray(other)
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.dtype == object:
        return all(np.array_equal(a, b) for a, b in zip(left.flat, right.flat, strict=True))
    return left.tobytes() == right.tobytes()  # a NaN is what it is
