"""The layouts of parts, and how they become one: names, shapes, types. Reads only attributes and scalars.

    part files ── read_layout ──→ Layout (one a part) ── merge ──→ Merged: groups, rows, links, attributes

The rules stand in `consolidate`. Parts that contradict each other are a MismatchError that names both.
"""

import contextlib
import json
import posixpath
from collections import defaultdict
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
    scalar: Any = None  # the value, where the shape is ()


Object = DatasetLayout | tuple[str, str] | None
"""A dataset; a link: its file ("" for this one) and its path; None for a group."""


@dataclass(slots=True)
class Layout:
    """The objects of one part, by path."""

    part: Part
    cluster: dict[str, int] = field(default_factory=dict)  # how many tasks of each type its writer knew
    objects: dict[str, Object] = field(default_factory=dict)
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def read_layout(file: Any, part: Part) -> Layout:
    """Read an open part. Raise PartError where it is damaged, or has objects that cannot be carried over."""
    layout = Layout(part)
    try:
        with contextlib.suppress(ValueError, TypeError, AttributeError):  # of a foreign file
            counts = json.loads(file.attrs.get(CLUSTER, "{}")).items()
            layout.cluster = {kind: int(count) for kind, count in counts}
        _read_attributes(file, "/", layout)
        _walk(file, "/", layout, {h5py.h5o.get_info(file.id).addr})
    except PartError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise PartError(f"{part}, is damaged: {reason_of(error)}") from error
    return layout


def _walk(group: Any, prefix: str, layout: Layout, above: set[int]) -> None:
    for name in group:
        path = posixpath.join(prefix, name)
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.SoftLink | h5py.ExternalLink):
            layout.objects[path] = (getattr(link, "filename", ""), link.path)
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
            scalar = item[()] if item.shape == () else None
            layout.objects[path] = DatasetLayout(item.shape, item.dtype, encoded, scalar)
        elif isinstance(item, h5py.Group):
            address = h5py.h5o.get_info(item.id).addr
            if address in above:
                raise PartError(f"{layout.part.path}: group {path} contains itself by a hard link")
            layout.objects[path] = None
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
    scalars: tuple[Any, ...] = ()  # of the members, which become an array

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
    attributes: Mapping[str, Mapping[str, Any]]
    conflicts: Mapping[str, set[str]]  # names of attributes that differ between parts, by object
    groups: list[str] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    links: dict[str, tuple[str, str]] = field(default_factory=dict)


def merge(layouts: list[Layout]) -> Merged:
    """Put parts together, in their order. Raise MismatchError where they contradict each other."""
    found: dict[str, list[Layout]] = defaultdict(list)
    attributes: dict[str, dict[str, Any]] = defaultdict(dict)
    conflicts: dict[str, set[str]] = defaultdict(set)
    for layout in layouts:
        for path in layout.objects:
            found[path].append(layout)
            _check_alike(path, found[path][0], layout)
        for path, values in layout.attributes.items():
            for name, value in values.items():
                if not _same(attributes[path].setdefault(name, value), value):
                    conflicts[path].add(name)
    merged = Merged(tuple(layouts), attributes, conflicts)
    for path, members in found.items():
        match members[0].objects[path]:
            case None:
                merged.groups.append(path)
            case DatasetLayout():
                merged.stacks.append(_stack(path, tuple(members)))
            case link:
                merged.links[path] = link
    return merged


def _check_alike(path: str, first: Layout, other: Layout) -> None:
    """Raise MismatchError where an object of two parts cannot become one."""
    one, two, here, there = first.objects[path], other.objects[path], first.part.path, other.part.path
    if _kind(one) != _kind(two):
        raise MismatchError(f"{path} is {_kind(one)} in {here}, but {_kind(two)} in {there}")
    match one, two:
        case (_, to), (_, other_to) if one != two:
            raise MismatchError(f"{path} is a link to {to} in {here}, but to {other_to} in {there}")
        case DatasetLayout(), DatasetLayout() if one.encoded != two.encoded:
            raise MismatchError(
                f"dataset {path} holds {one.dtype} in {here}, but {two.dtype} in {there}; write both as one "
                "type"
            )
        case DatasetLayout(), DatasetLayout() if _row_shape(one.shape) != _row_shape(two.shape):
            raise MismatchError(
                f"dataset {path} has the shape {one.shape} in {here}, but {two.shape} in {there}; all but "
                "the first number must be the same"
            )


def _kind(item: Object) -> str:
    return "a group" if item is None else "a dataset" if isinstance(item, DatasetLayout) else "a link"


def _stack(path: str, members: tuple[Layout, ...]) -> Stack:
    found: list[Any] = [layout.objects[path] for layout in members]
    shape, dtype = found[0].shape, found[0].dtype
    if shape is None:
        return Stack(path, members, (0,) * len(members), None, dtype)
    rows = tuple(item.shape[0] if shape else 1 for item in found)
    scalars = () if shape else tuple(item.scalar for item in found)
    return Stack(path, members, rows, (sum(rows), *shape[1:]), dtype, scalars)


def _row_shape(shape: tuple[int, ...] | None) -> object:
    return "empty" if shape is None else shape[1:] if shape else "scalar"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, h5py.Empty) or isinstance(other, h5py.Empty):
        return type(one) is type(other) and one.dtype == other.dtype
    left, right = np.asarray(one), np.asarray(other)
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.dtype == object:
        return all(np.array_equal(a, b) for a, b in zip(left.flat, right.flat, strict=True))
    return left.tobytes() == right.tobytes()  # a NaN equals itself
