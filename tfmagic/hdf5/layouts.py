"""The layouts of parts, and how they become one: names, shapes, types. Reads attributes and no other data.

    part files ── read_layout ──→ Layout (one a part) ── merge ──→ Merged: groups, rows, links, attributes

The rules stand in `consolidate`. Parts that contradict each other are a MismatchError that names both.
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
"""The group of attributes that differ between parts: <group>/<task>/<object> has those of one part."""


@dataclass(frozen=True, slots=True)
class DatasetLayout:
    """A dataset of one part."""

    shape: tuple[int, ...] | None  # None: HDF5's empty dataset
    dtype: Any
    encoded: bytes  # the type as HDF5 writes it: numpy's lacks charsets and the like


@dataclass(slots=True)
class Layout:
    """The objects of one part, by path."""

    part: Part
    kinds: dict[str, str] = field(default_factory=dict)  # "a dataset", "a group" or "a link"
    datasets: dict[str, DatasetLayout] = field(default_factory=dict)
    links: dict[str, tuple[str, str]] = field(default_factory=dict)  # file ("" for this one), path
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def read_layout(file: Any, part: Part) -> Layout:
    """Read an open part. Raise PartError where it is damaged, or has objects that cannot be carried over."""
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
            layout.kinds[path] = "a link"
            layout.links[path] = (getattr(link, "filename", ""), link.path)
            continue
        item = group[name]
        if path == f"/{ATTRIBUTES}":
            raise PartError(f"{layout.part.path} has a group {ATTRIBUTES}, a name that consolidate needs")
        if isinstance(item, h5py.Dataset):
            if _has_references(item.dtype):
                raise PartError(
                    f"{layout.part.path}: dataset {path} holds references, which mean nothing in another file"
                )
            encoded = item.id.get_type().copy().encode()
            layout.kinds[path] = "a dataset"
            layout.datasets[path] = DatasetLayout(item.shape, item.dtype, encoded)
        elif isinstance(item, h5py.Group):
            address = h5py.h5o.get_info(item.id).addr
            if address in above:
                raise PartError(f"{layout.part.path}: group {path} contains itself by a hard link")
            layout.kinds[path] = "a group"
            _walk(item, path, layout, above | {address})
        else:
            layout.left_out.append(f"{path} (a named type)")
            continue
        _read_attributes(item, path, layout)


def _has_references(dtype: Any) -> bool:
    if dtype.names:
        return any(_has_references(dtype[name]) for name in dtype.names)
    inner = h5py.check_vlen_dtype(dtype)
    if inner is not None and isinstance(inner, np.dtype):
        return _has_references(inner)
    return h5py.check_ref_dtype(dtype.base) is not None


def _read_attributes(item: Any, path: str, layout: Layout) -> None:
    found = layout.attributes[path] = {}
    for name in item.attrs:
        if path == "/" and name in (TASK, CLUSTER):
            continue
        if _has_references(item.attrs.get_id(name).dtype):
            layout.left_out.append(f"{path}@{name} (references)")
        else:
            found[name] = item.attrs[name]


@dataclass(frozen=True, slots=True)
class Stack:
    """A dataset of the consolidated file."""

    path: str
    members: tuple[Layout, ...]  # the parts that have it, in order
    rows: tuple[int, ...]  # of each member
    shape: tuple[int, ...] | None
    dtype: Any
    scalar: bool  # an array of the members' scalars

    def spans(self) -> Iterator[tuple[Layout, int, int]]:
        """Yield each member with its first row, and the row behind its last."""
        start = 0
        for member, rows in zip(self.members, self.rows, strict=True):
            yield member, start, start + rows
            start += rows


@dataclass(frozen=True, slots=True)
class Merged:
    """The layout of the consolidated file."""

    layouts: tuple[Layout, ...]
    groups: tuple[str, ...]
    stacks: tuple[Stack, ...]
    links: Mapping[str, tuple[str, str]]
    attributes: Mapping[str, Mapping[str, Any]]
    conflicts: Mapping[str, set[str]]  # names of attributes that differ between parts, by object


def merge(layouts: list[Layout]) -> Merged:
    """Put parts together, in their order. Raise MismatchError where they contradict each other."""
    kinds: dict[str, tuple[str, Layout]] = {}
    for layout in layouts:
        for path, kind in layout.kinds.items():
            before, first = kinds.setdefault(path, (kind, layout))
            if before != kind:
                raise MismatchError(
                    f"{path} is {before} in {first.part.path}, but {kind} in {layout.part.path}"
                )
    paths: dict[str, list[str]] = {"a group": [], "a dataset": [], "a link": []}
    for path, (kind, _) in kinds.items():
        paths[kind].append(path)
    attributes: dict[str, dict[str, Any]] = {}
    conflicts: dict[str, set[str]] = {}
    for layout in layouts:
        for path, values in layout.attributes.items():
            kept = attributes.setdefault(path, {})
            for name, value in values.items():
                if not _same(kept.setdefault(name, value), value):
                    conflicts.setdefault(path, set()).add(name)
    return Merged(
        tuple(layouts),
        groups=tuple(paths["a group"]),
        stacks=tuple(_stack(path, layouts) for path in paths["a dataset"]),
        links={path: _same_link(path, layouts) for path in paths["a link"]},
        attributes=attributes,
        conflicts=conflicts,
    )


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
    shapes = [member.datasets[path].shape for member in members]
    rows = tuple(1 if not shape else shape[0] for shape in shapes)
    return Stack(path, members, rows, (sum(rows), *found.shape[1:]), found.dtype, found.shape == ())


def _row_shape(shape: tuple[int, ...] | None) -> object:
    return "empty" if shape is None else shape[1:] if shape else "scalar"


def _same_link(path: str, layouts: list[Layout]) -> tuple[str, str]:
    first, *others = [layout for layout in layouts if path in layout.links]
    for layout in others:
        if layout.links[path] != first.links[path]:
            raise MismatchError(
                f"{path} is a link to {first.links[path][1]} in {first.part.path}, but to "
                f"{layout.links[path][1]} in {layout.part.path}"
            )
    return first.links[path]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, h5py.Empty) or isinstance(other, h5py.Empty):
        return type(one) is type(other) and one.dtype == other.dtype
    left, right = np.asarray(one), np.asarray(other)
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.dtype == object:
        return all(np.array_equal(a, b) for a, b in zip(left.flat, right.flat, strict=True))
    return left.tobytes() == right.tobytes()  # a NaN equals itself
