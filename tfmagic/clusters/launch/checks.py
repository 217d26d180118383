"""Check the arguments of the Python interface where they enter: one rule for each name.

    check("timeout", "5")  →  TypeError: timeout is a number of seconds above 0, or None, not '5' (str)

A rule also converts: numbers of numpy become Python's. The shape of a cluster and selectors of tasks are
checked in `tfmagic.protocol.cluster_spec`, and lines of the notebook in `tfmagic.clusters.launch.arguments`.
"""

from __future__ import annotations

import keyword
import math
import numbers
import operator
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traitlets import TraitError

from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.failures.ipython_tracebacks import dress
from tfmagic.runs import line_search


@dataclass(frozen=True, slots=True)
class _Rule:
    """What an argument can be, in words. `take` returns it, or raises TypeError or ValueError."""

    allowed: str
    take: Callable[[Any], Any]

    def or_none(self) -> _Rule:
        return _Rule(f"{self.allowed}, or None", lambda value: None if value is None else self.take(value))


def _of(*types: type) -> Callable[[Any], Any]:
    """Return a function that takes instances of these classes."""

    def take(value: Any) -> Any:
        if not isinstance(value, types):
            raise TypeError
        return value

    return take


def _index(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _count(value: Any) -> int:
    return _require(_index(value), lambda count: count >= 0)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError
    return _require(float(value), math.isfinite)


def _flag(value: Any) -> bool:
    """Take True and False, and what is equal to them: 1 and 0, also those of numpy."""
    if value is True or value is False:
        return value
    if not isinstance(value, numbers.Integral) and type(value).__name__ not in ("bool", "bool_"):
        raise TypeError
    return bool(_require(value, lambda flag: flag in (True, False)))


def _require(value: Any, holds: Callable[[Any], bool]) -> Any:
    if not holds(value):
        raise ValueError
    return value


def _variable(value: Any) -> str:
    name: str = _of(str)(value)
    is_name = name.isidentifier() and not keyword.iskeyword(name)
    if not is_name or (
        name.startswith("__") and name.endswith("__")
    ):  # Python's own, in each process another
        raise ValueError
    return name


def _mapping(of_keys: Callable[[Any], Any], of_values: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def take(value: Any) -> dict[Any, Any]:
        return {of_keys(key): of_values(item) for key, item in _of(Mapping)(value).items()}

    return take


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise TypeError
    return tuple(map(_of(str), _of(Sequence)(value)))


def _seconds(value: Any) -> float:
    return _require(_number(value), lambda seconds: seconds > 0)


def _pattern(value: Any) -> str:
    line_search.check(text := _of(str)(value))
    return str(text)


def _iterable(value: Any) -> Any:
    iter(value)
    return value


def _callable(value: Any) -> Any:
    if not callable(value):
        raise TypeError
    return value


_COUNT, _FLAG, _TEXT = (
    _Rule("a whole number of 0 or more", _count),
    _Rule("True or False", _flag),
    _Rule("a text", _of(str)),
)
_RULES = {
    "address": _TEXT.or_none(),
    "auto_restart": _COUNT,
    "backend": _TEXT.or_none(),
    "cell": _COUNT.or_none(),
    "cluster_spec": _Rule(
        "{task type: [address, ...]}, such as {'worker': ['localhost:2222']}", _mapping(_of(str), _texts)
    ).or_none(),
    "cpus_per_task": _Rule(
        "a number of 0 or more", lambda n: _require(_number(n), lambda n: n >= 0)
    ).or_none(),
    "env": _Rule(
        "{name: text}, such as {'TF_CPP_MIN_LOG_LEVEL': '2'}",
        lambda env: dict(_of(Mapping)({} if env is None else env)),
    ),
    "fn": _Rule("a function", _callable),
    "folder": _Rule("a path", os.fspath),
    "gpus_per_task": _COUNT.or_none(),
    "grep": _Rule("a regular expression", _pattern),
    "host": _TEXT,
    "hosts": _Rule("a number of machines, from 1", _index).or_none(),
    "isolate": _FLAG,
    "iterable": _Rule("something to iterate over", _iterable),
    "copy": _FLAG,
    "keep_going": _FLAG,
    "keras": _Rule("2 or 3", _index),
    "kinds": _Rule(
        "names of faults", lambda kinds: (kinds,) if isinstance(kinds, str) else _texts(tuple(kinds))
    ),
    "keras_fix": _FLAG,
    "link": _TEXT,
    "logdir": _Rule("a path", os.fspath).or_none(),
    "name": _TEXT,
    "names": _Rule("names of variables: pull('a', 'b') or pull(['a', 'b'])", _texts),
    "namespace": _Rule("a dict, such as globals()", _of(dict)).or_none(),
    "network": _TEXT.or_none(),
    "port": _COUNT.or_none(),
    "profile": _Rule(
        "True, False or a number of seconds above 0", lambda n: n if n is False or n is True else _seconds(n)
    ),
    "resources": _Rule("{name: number}", _mapping(_of(str), _number)).or_none(),
    "rows": _FLAG,
    "run": _Rule("the name of a run", _of(str)),
    "tail": _COUNT.or_none(),
    "task": _TEXT,
    "timeout": _Rule("a number of seconds above 0", _seconds).or_none(),
    "values": _Rule("{name: value}", _of(Mapping)).or_none(),
    "variable": _Rule("the name of a variable, and none of Python's own", _variable),
    "view": _Rule(
        "'text' or 'quiet'", lambda view: _require(_of(str)(view), lambda v: v in ("text", "quiet"))
    ),
    "whole": _FLAG,
}


def check(argument: str, value: Any, shown: str = "") -> Any:
    """Return an argument as Python's own type.

    Args:
        argument: Its name in `_RULES`.
        shown: Its name in the message, if that is another one.

    Raises:
        TypeError, ValueError: It has another type or value than is allowed; the message names all three.
    """
    rule = _RULES[argument]
    try:
        return rule.take(value)
    except (TypeError, ValueError, AttributeError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        reason = f": {error}" if kind is ValueError and str(error) else ""
    given = f"{reprlib.repr(value)} ({type(value).__name__}){reason}"
    raise dress(kind(f"{shown or argument} is {rule.allowed}, not {given}"))


def check_all(**values: Any) -> dict[str, Any]:
    """Return arguments, by name, as `check` returns each."""
    return {name: check(name, value) for name, value in values.items()}


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of `TFCluster`, given by name.

    Raises:
        TypeError: There is no such setting, or it has another type.
    """
    unknown = sorted(set(settings) - set(TFCluster.class_trait_names(config=True)))
    if unknown:
        raise dress(TypeError(f"Cluster() has no argument or setting {', '.join(unknown)}"))
    try:
        checked = TFCluster(**settings)
    except TraitError as error:
        raise dress(TypeError(str(error))) from None
    return {name: getattr(checked, name) for name in settings}
