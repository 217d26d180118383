"""Compare a variable over the tasks: are they doing the same thing?

parts on each task ──→ equal digests: equal; else the tasks in groups
arrays that differ ──→ norm of the difference from the first group, and the first place
rows of all tasks ──→ which were read twice, and which by nobody
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfmagic.features.diff.digests import PartDigest
from tfmagic.views import tables

_MOST_SHOWN = 40
_PLACES = 4
_BY_DESIGN = (
    "by design: BatchNormalization keeps moving statistics of each task's own rows; with synchronized=True "
    "they are of all rows, and equal"
)


@dataclass(frozen=True, slots=True)
class PartDifference:
    """A part that is not the same on all tasks.

    Attributes:
        path: Of the part within the variable; "" for the whole.
        groups: The tasks with the same value; those of the first task come first.
        what: How the groups differ.
        by_design: Whether each task keeps this part of its own rows: moving statistics.
    """

    path: str
    groups: tuple[tuple[str, ...], ...]
    what: str
    by_design: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """How a variable differs over tasks.

    Attributes:
        name: The variable.
        tasks: The tasks that were compared.
        parts: The number of its parts.
        differing: The parts that differ.
        rows: What was found of its rows, as sentences; () if they were not compared.
        hidden: The parts of which no more than the type could be compared: functions, generators.
    """

    name: str
    tasks: tuple[str, ...]
    parts: int
    differing: tuple[PartDifference, ...]
    rows: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return not self.differing

    def __str__(self) -> str:
        tasks = f"{len(self.tasks)} tasks" if len(self.tasks) > 2 else " and ".join(self.tasks)
        parts = "" if self.parts == 1 else f", in all {self.parts} parts"
        if self.equal and self.hidden and self.parts == 1:
            return f"{self.name} is of the same type on {tasks}; its content cannot be compared"
        if self.equal:
            return f"{self.name} is the same on {tasks}{parts}"
        own = sum(part.by_design for part in self.differing)
        if own == len(self.differing):
            return f"{self.name} is the same on {tasks} but for {own} statistics that differ by design"
        by_design = f", and {own} statistics that differ by design" if own else ""
        count = f": {len(self.differing) - own} of {self.parts} parts{by_design}" if self.parts > 1 else ""
        return f"{self.name} differs between {tasks}{count}"

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        shown = sorted(self.differing, key=lambda part: part.by_design)[:_MOST_SHOWN]
        rows = [
            (
                part.path or self.name,
                "  |  ".join(", ".join(group) for group in part.groups),
                f"{'by design: ' * part.by_design}{part.what}",
            )
            for part in shown
        ]
        more = len(self.differing) - len(shown)
        by_design = [_BY_DESIGN] if any(part.by_design for part in self.differing) else []
        names = ", ".join(self.hidden[:_PLACES]) + ", …" * (len(self.hidden) > _PLACES)
        hidden = [f"compared by their type alone: {names}"] if self.hidden and self.parts > 1 else []
        notes = [*([f"and {more} more parts"] if more else []), *hidden, *by_design, *self.rows]
        return tables.bundle(("part", "equal on", "difference"), rows, notes, title=str(self))


def first_names(found: Mapping[str, Mapping[str, PartDigest]]) -> dict[str, dict[str, str]]:
    """Return for each task the names that the first task has for its parts, where they are other names.

    The numbers in the names of weights are those of one process: a task that was started again, and has made
    one model, has the kernel of the eighth model of the others.
    """
    first, *others = found
    unlike = {}
    for task in others:
        keys = [[part.unnumbered or path for path, part in found[one].items()] for one in (first, task)]
        if found[task].keys() != found[first].keys() and keys[0] == keys[1]:
            unlike[task] = dict(zip(found[task], found[first], strict=True))
    return unlike


def compare_parts(found: Mapping[str, Mapping[str, PartDigest]]) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Return the paths that differ, with the tasks in groups of equal values."""
    differing = {}
    for path in dict.fromkeys(path for parts in found.values() for path in parts):
        groups: dict[tuple[str, str], list[str]] = {}
        for task, parts in found.items():
            part = parts.get(path)
            key = ("missing", "") if part is None else (part.kind, part.digest)
            groups.setdefault(key, []).append(task)
        if len(groups) > 1:
            differing[path] = tuple(map(tuple, groups.values()))
    return differing


def describe_parts(
    path: str,
    groups: Sequence[Sequence[str]],
    found: Mapping[str, Mapping[str, PartDigest]],
    arrays: Mapping[str, Mapping[str, Any]],
) -> str:
    """Return how the groups differ: by numbers if the arrays are there, else by kind or text."""
    firsts = [group[0] for group in groups]
    parts = [found[task].get(path) for task in firsts]
    if any(part is None for part in parts):
        without = [task for task, part in zip(firsts, parts, strict=True) if part is None]
        return f"{', '.join(without)} has no such part"
    kinds = list(dict.fromkeys(part.kind for part in parts if part is not None))
    if len(kinds) > 1:
        return " | ".join(kinds)
    values = [arrays.get(task, {}).get(path) for task in firsts]
    if all(value is not None and getattr(value, "ndim", 0) for value in values):
        return "; ".join(_difference(values[0], value) for value in values[1:])
    return " | ".join(part.text or part.kind for part in parts if part is not None)


def _difference(first: Any, other: Any) -> str:
    """Return norm and place of the difference between two arrays of one shape."""
    import numpy

    differs = first != other
    if first.dtype.kind in "fc":
        differs &= ~(numpy.isnan(first) & numpy.isnan(other))
    places = numpy.argwhere(differs)
    if not len(places):
        return "only the sign of zeros or the bits of NaNs"
    at = tuple(map(int, places[0]))
    delta = numpy.asarray(other, "complex128" if first.dtype.kind == "c" else "float64") - first
    norm = float(numpy.linalg.norm(delta[differs].ravel()))
    most = float(numpy.abs(delta[differs]).max())
    return (
        f"norm {norm:.3g}, at most {most:.3g}, in {len(places):,} of {first.size:,} places, first at "
        f"{list(at)}: {_short(first[at])} | {_short(other[at])}"
    )


def _short(value: Any) -> str:
    return f"{value:.6g}" if getattr(getattr(value, "dtype", None), "kind", "") == "f" else str(value)


def describe_rows(found: Mapping[str, Sequence[bytes]], universe: Sequence[bytes] | None) -> tuple[str, ...]:
    """Return which rows were read by several tasks, more than once by one, and by nobody.

    Rows are given by digests: of each task, and of all that there are, or None if these are not known.
    """
    lines = ["rows: " + ", ".join(f"{task} {len(rows):,}" for task, rows in found.items())]
    tasks_of = Counter(row for rows in found.values() for row in set(rows))
    shared = sum(count > 1 for count in tasks_of.values())
    which = f"{shared:,} of {len(tasks_of):,} different rows were" if shared else "no row was"
    lines.append(f"{which} read by more than one task")
    for task, rows in found.items():
        if again := len(rows) - len(set(rows)):
            lines.append(f"{task} has read {again:,} rows again")
    if universe is not None:
        missing = [place for place, row in enumerate(universe) if row not in tasks_of]
        if missing:
            places = ", ".join(map(str, missing[:_PLACES])) + (", ..." if len(missing) > _PLACES else "")
            lines.append(f"{len(missing):,} of {len(universe):,} rows were read by nobody: {places}")
        else:
            lines.append(f"each of the {len(universe):,} rows was read")
        if strange := len(tasks_of.keys() - set(universe)):
            lines.append(f"{strange:,} rows are not among those given")
    return tuple(lines)
