"""Split a sequence over tasks, and join it again: `Cluster.scatter` and `Cluster.gather`."""

import itertools
import sys
from collections.abc import Mapping
from typing import Any

from tfmagic.failures.ipython_tracebacks import hide_our_frames


def split(values: Any, count: int) -> list[Any]:
    """Return `count` consecutive parts of equal length; the first ones have an item more if need be.

    Raises:
        TypeError: It has no order, or no length.
    """
    rows = getattr(values, "iloc", values)  # of pandas, by position
    try:
        size, more = divmod(len(values), count)
        places = [i * size + min(i, more) for i in range(count + 1)]
        if isinstance(values, str | bytes):
            raise TypeError("a text")
        return [rows[first:end] for first, end in itertools.pairwise(places)]
    except (TypeError, KeyError) as error:  # a set, a dict, a generator, a number
        raise hide_our_frames(
            TypeError(
                "scatter() divides lists, tuples, numpy arrays and pandas objects, not "
                f"{type(values).__name__}; use push() to give every task all of it"
            )
        ) from error


def join(name: str, parts: Mapping[str, Any]) -> Any:
    """Return the parts of a variable, by task name, as one object.

    Raises:
        TypeError: They are of different kinds, or of one that has no items.
    """
    kinds = {task: _kind(part) for task, part in parts.items()}
    values, kind = list(parts.values()), next(iter(kinds.values()))
    if not kind or len(set(kinds.values())) > 1:
        each = ", ".join(f"{type(part).__name__} on {task}" for task, part in parts.items())
        raise hide_our_frames(
            TypeError(
                f"gather() joins lists, tuples, numpy arrays and pandas objects; {name} is {each}. "
                f"pull({name!r}) returns it by task"
            )
        )
    if kind == "pandas":
        return sys.modules["pandas"].concat(values)
    if kind == "numpy":
        return sys.modules["numpy"].concatenate(values)
    items = itertools.chain.from_iterable(values)
    return tuple(items) if kind == "tuple" else list(items)


def _kind(part: Any) -> str:
    if isinstance(part, list | range):
        return "list"
    if type(part) is tuple:
        return "tuple"
    if hasattr(part, "iloc"):
        return "pandas"
    return "numpy" if getattr(part, "ndim", 0) and hasattr(part, "__array__") else ""
