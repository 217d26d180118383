"""`Cluster.diff`: ask the tasks for the parts of a variable, and compare them."""

from collections.abc import Callable, Mapping
from typing import Any

from tfmagic.features.diff import differences, digests
from tfmagic.features.diff.differences import Difference, PartDifference

_FETCHED = 64  # parts whose arrays are compared number by number
_MOST_BYTES = 256 << 20

Run = Callable[..., Mapping[str, Any]]
"""Calls a function on the tasks, and returns what each returned, by task name."""


def diff(run: Run, name: str, rows: bool, of: Any) -> Difference:
    """Compare a variable; see `Cluster.diff`."""
    found = run(digests.parts_of, name)
    names = differences.first_names(found)
    found = _renamed(found, names)
    groups = differences.compare_parts(found)
    sizes = 0
    fetched: list[str] = []
    for path in groups:
        parts = [parts.get(path) for parts in found.values()]
        sizes += max(_bytes_of(part.kind) if part is not None else 0 for part in parts)
        fits = len(fetched) < _FETCHED and sizes <= _MOST_BYTES
        if fits and all(part is not None and part.is_array for part in parts):
            fetched.append(path)
    own_names = {own for first in names.values() for own, path in first.items() if path in fetched}
    wanted = (*fetched, *own_names)
    arrays = _renamed(run(digests.arrays_of, name, wanted), names) if fetched else {}
    statistics = run(digests.own_statistics, name) if groups else {}
    by_design = {names.get(task, {}).get(path, path) for task, paths in statistics.items() for path in paths}
    differing = tuple(
        PartDifference(path, group, differences.describe_parts(path, group, found, arrays), path in by_design)
        for path, group in groups.items()
    )
    sentences: tuple[str, ...] = ()
    if rows or of is not None:
        universe = None if of is None else digests.rows_of_value(of)
        sentences = differences.describe_rows(run(digests.row_digests, name), universe)
    count = len({path for parts in found.values() for path in parts})
    hidden = {path for parts in found.values() for path, part in parts.items() if part.is_hidden}
    return Difference(name, tuple(found), count, differing, sentences, tuple(sorted(hidden - set(groups))))


def _renamed(
    found: Mapping[str, Mapping[str, Any]], names: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, Any]]:
    return {
        task: {names.get(task, {}).get(path, path): part for path, part in parts.items()}
        for task, parts in found.items()
    }


def _bytes_of(kind: str) -> int:
    """Return about how many bytes an array of this kind takes: ``float32 [784, 10]``."""
    _, bracket, shape = kind.partition(" [")
    size = 8
    for word in shape.rstrip("]").split(", ") if bracket else ():
        size *= int(word or 1)
    return size
