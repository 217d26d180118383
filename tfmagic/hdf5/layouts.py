"""What parts hold: names, shapes, types. Reads only attributes and scalars.

    part files ── Contents.read ──→ by path, the item of each part ── Stack ──→ the rows of one dataset

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
from tfmagic.protocol.cluster_spec import TaskId

ATTRIBUTES = "tfmagic_attributes"
"""The group of attributes that differ between parts: <group>/<task>/<object> has those of one part."""
GROUP, DATASET, LINK = "a group", "a dataset", "a link"


@dataclass(frozen=True, slots=True)
class Item:
    """An object of one part."""

    part: Part
    kind: str  # GROUP, DATASET or LINK
    attributes: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None  # None: HDF5's empty dataset
    dtype: Any = None
    encoded: bytes = b""  # the type as HDF5 writes it: numpy's lacks charsets and the like
    value: Any = None  # of a scalar; of a link, its file ("" for this one) and its path


class Contents:
    """The objects of all parts that were read."""

    def __init__(self) -> None:
        self.items: dict[str, list[Item]] = defaultdict(list)  # by path, in the order of the parts
        self.clusters: dict[TaskId, dict[str, int]] = {}  # tasks of each type that a writer knew
        self.left_out: list[str] = []  # it cannot be carried over

    def read(self, file: Any, part: Part) -> None:
        """Read an open part. Raise PartError where it is damaged, or holds what cannot be carried over."""
        self.clusters[part.task] = {}
        try:
            with contextlib.suppress(ValueError, TypeError, AttributeError):  # of a foreign file
                counts = json.loads(file.attrs.get(CLUSTER, "{}")).items()
                self.clusters[part.task] = {kind: int(count) for kind, count in counts}
            self._add(part, "/", file, frozenset())
        except PartError:
            raise
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise PartError(f"{part}, is damaged: {reason_of(error)}") from error

    def _add(self, part: Part, path: str, found: Any, above: frozenset[int]) -> None:
        """Add an object, and all that is below it; `above` are the addresses of the groups that hold it."""
        if isinstance(found, h5py.Dataset):
            if _has_references(found.dtype):
                what = f"{part.path}: dataset {path} holds references"
                raise PartError(f"{what}, which mean nothing in another file")
            encoded = found.id.get_type().copy().encode()
            scalar = found[()] if found.shape == () else None
            facts = self._attributes_of(found, path, part), found.shape, found.dtype, encoded, scalar
            self.items[path].append(Item(part, DATASET, *facts))
            return
        if (address := h5py.h5o.get_info(found.id).addr) in above:
            raise PartError(f"{part.path}: group {path} contains itself by a hard link")
        self.items[path].append(Item(part, GROUP, self._attributes_of(found, path, part)))
        for name in found:
            below, link = posixpath.join(path, name), found.get(name, getlink=True)
            if isinstance(link, h5py.SoftLink | h5py.ExternalLink):
                place = getattr(link, "filename", ""), link.path
                self.items[below].append(Item(part, LINK, value=place))
            elif below == f"/{ATTRIBUTES}":
                raise PartError(f"{part.path} has a group {ATTRIBUTES}, a name that consolidate needs")
            elif isinstance(item := found[name], h5py.Dataset | h5py.Group):
                self._add(part, below, item, above | {address})
            else:
                self.left_out.append(f"{part.task.name}: {below} (a named type)")

    def _attributes_of(self, found: Any, path: str, part: Part) -> dict[str, Any]:
        attributes = {}
        for name in found.attrs:
            if _has_references(found.attrs.get_id(name).dtype):
                self.left_out.append(f"{part.task.name}: {path}@{name} (references)")
            elif path != "/" or name not in (TASK, CLUSTER):
                attributes[name] = found.attrs[name]
        return attributes

    def check_alike(self) -> None:
        """Raise MismatchError where objects of one path cannot become one."""
        for path, items in self.items.items():
            for other in items[1:]:
                _check_alike(path, items[0], other)


def _has_references(dtype: Any) -> bool:
    if dtype.names:
        return any(_has_references(dtype[name]) for name in dtype.names)
    inner = h5py.check_vlen_dtype(dtype)
    if inner is not None and isinstance(inner, np.dtype):
        return _has_references(inner)
    return h5py.check_ref_dtype(dtype.base) is not None


def _check_alike(path: str, one: Item, two: Item) -> None:
    what, advice = "", ""
    if one.kind != two.kind:
        what, here, there = "is", one.kind, two.kind
    elif one.kind == LINK and one.value != two.value:
        what, here, there = "is a link", f"to {one.value[1]}", f"to {two.value[1]}"
    elif one.encoded != two.encoded:
        what, here, there, advice = "holds", str(one.dtype), str(two.dtype), "; write both as one type"
    elif _row_shape(one.shape) != _row_shape(two.shape):
        what, here, there = "has the shape", str(one.shape), str(two.shape)
        advice = "; all but the first number must be the same"
    if what:
        of = "dataset " if advice else ""
        places = f"{here} in {one.part.path}, but {there} in {two.part.path}"
        raise MismatchError(f"{of}{path} {what} {places}{advice}")


def _row_shape(shape: tuple[int, ...] | None) -> object:
    return "empty" if shape is None else shape[1:] if shape else "scalar"


class Stack:
    """A dataset of the consolidated file: those of all parts, one after the other.

    Attributes:
        rows: How many each part has; a scalar is one.
        shape: That of all rows; None for HDF5's empty dataset.
        scalars: The values of scalars.
    """

    def __init__(self, path: str, items: list[Item]):
        self.path, self.items, first = path, items, items[0]
        self.dtype, is_scalar = first.dtype, first.shape == ()
        self.rows = [0 if item.shape is None else item.shape[0] if item.shape else 1 for item in items]
        self.shape = None if first.shape is None else (sum(self.rows), *first.shape[1:])
        self.scalars = [item.value for item in items] if is_scalar else []

    def spans(self) -> Iterator[tuple[Part, int, int]]:
        """Yield each part with its first row, and the row after its last."""
        start = 0
        for item, rows in zip(self.items, self.rows, strict=True):
            yield item.part, start, start + rows
            start += rows


def same_value(one: Any, other: Any) -> bool:
    """Check whether two attributes are equal in value and type."""
    if isinstance(one, h5py.Empty) or isinstance(other, h5py.Empty):
        return type(one) is type(other) and one.dtype == other.dtype
    left, right = np.asarray(one), np.asarray(other)
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.dtype == object:
        return all(np.array_equal(a, b) for a, b in zip(left.flat, right.flat, strict=True))
    return left.tobytes() == right.tobytes()  # a NaN equals itself
