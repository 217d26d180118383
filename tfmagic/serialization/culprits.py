"""Find the part of a value that cannot be pickled, for an error that names it: ``.guard (lock): ...``.

Each part is pickled again, so this is for values that have failed. An object that decides itself
how it is pickled is not looked into.
"""

import functools
import itertools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from tfmagic.serialization import pickling, process_bound
from tfmagic.system import time_limits
from tfmagic.system.advice import in_notebook

_DEPTH = 8
_PARTS = 200  # of one value


def explain(value: object, problem: str, main: Mapping[str, Any]) -> str:
    """Return why a value cannot be pickled, after the place and the type of the part which is the reason.

    Args:
        value: It cannot be pickled.
        problem: Why.
        main: The names of the notebook, by which parts can travel.
    """
    place, seen = "", {id(value)}
    for _ in range(_DEPTH):
        if _is_strategy(value):
            inside = in_notebook("cell") or "function"
            problem = f"a strategy of TensorFlow belongs to the process that made it; make it in the {inside}"
            break
        for label, part in itertools.islice(_parts(value), _PARTS):
            if id(part) not in seen and problem_of(part, main) == problem:  # another one is not the reason
                place, value = f"{place}{label}", part
                seen.add(id(part))
                break
        else:
            break
    return f"{place} ({type(value).__qualname__}): {problem}" if place else problem


def problem_of(value: object, main: Mapping[str, Any]) -> str:
    """Return why a value cannot be pickled, or ""."""
    try:
        pickling.dumps(value, main, lambda name: True)
    except BaseException as error:  # the user's own __reduce__ can raise anything
        time_limits.raise_if_stopped(error)
        return describe(error)
    return ""


def describe(error: BaseException) -> str:
    """Return why a value cannot be pickled, from what was raised."""
    reason = " ".join(str(error).split())[:300]
    if isinstance(error, process_bound.StaysHere):
        return reason
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def _is_strategy(value: object) -> bool:
    return any(cls.__name__ == "StrategyBase" for cls in type(value).__mro__)


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """Yield the parts of a value, each with what leads to it in source code."""
    match value:
        case dict():
            yield from ((f"[{key!r}]", part) for key, part in value.items())
        case list() | tuple():
            yield from ((f"[{number}]", part) for number, part in enumerate(value))
        case types.MethodType():
            yield "self", value.__self__
        case types.FunctionType():
            yield from _closure(value)
        case functools.partial():
            yield ".func", value.func
            yield from ((f".args{label}", part) for label, part in _parts(value.args))
            yield from ((f".keywords{label}", part) for label, part in _parts(value.keywords))
        case _ if _is_pickled_by_attributes(type(value)):
            yield from ((f".{name}", part) for name, part in vars(value).items())


def _closure(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is empty
            continue


def _is_pickled_by_attributes(cls: type) -> bool:
    own = ("__reduce__", "__reduce_ex__", "__getstate__")
    is_default = all(getattr(cls, name, None) is getattr(object, name, None) for name in own)
    return is_default and hasattr(cls, "__dict__") and cls.__dictoffset__ != 0
