"""Check the arguments of the Python interface where they enter: one rule for each name.

    check("timeout", "5")  →  TypeError: timeout is a number of seconds above 0, or None, not '5' (str)

A rule also converts: numbers of numpy become Python's. The shape of a cluster and selectors of tasks are
checked in `tfmagic.protocol.cluster_spec`. `cluster_options` has the rules of a cluster's options.
"""

from __future__ import annotations

import keyword
import os
import reprlib
from collections.abc import Mapping
from typing import Any

from traitlets import TraitError

from tfmagic.clusters.launch.cluster_options import OPTIONS, options_in
from tfmagic.clusters.launch.rules import (
    COUNT,
    FLAG,
    TEXT,
    Rule,
    mapping,
    of_type,
    require,
    take_number,
    take_texts,
)
from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.failures.ipython_tracebacks import hide_our_frames
from tfmagic.runs import line_search


def _variable(value: Any) -> str:
    name: str = of_type(str)(value)
    is_name = name.isidentifier() and not keyword.iskeyword(name)
    if not is_name or (
        name.startswith("__") and name.endswith("__")
    ):  # Python's own, in each process another
        raise ValueError
    return name


def _seconds(value: Any) -> float:
    return require(take_number(value), lambda seconds: seconds > 0)


def _pattern(value: Any) -> str:
    line_search.check(text := of_type(str)(value))
    return str(text)


def _iterable(value: Any) -> Any:
    iter(value)
    return value


def _callable(value: Any) -> Any:
    if not callable(value):
        raise TypeError
    return value


_RULES = {
    "cell": COUNT.or_none(),
    "cluster_spec": Rule(
        "{task type: [address, ...]}, such as {'worker': ['localhost:2222']}",
        mapping(of_type(str), take_texts),
    ).or_none(),
    "fn": Rule("a function", _callable),
    "folder": Rule("a path", os.fspath),
    "grep": Rule("a regular expression", _pattern),
    "host": TEXT,
    "iterable": Rule("something to iterate over", _iterable),
    "copy": FLAG,
    "keep_going": FLAG,
    "kinds": Rule(
        "names of faults", lambda kinds: (kinds,) if isinstance(kinds, str) else take_texts(tuple(kinds))
    ),
    "link": TEXT,
    "logdir": Rule("a path", os.fspath).or_none(),
    "name": TEXT,
    "names": Rule("names of variables: pull('a', 'b') or pull(['a', 'b'])", take_texts),
    "namespace": Rule("a dict, such as globals()", of_type(dict)).or_none(),
    "port": COUNT.or_none(),
    "rows": FLAG,
    "run": Rule("the name of a run", of_type(str)),
    "tail": COUNT.or_none(),
    "task": TEXT,
    "timeout": Rule("a number of seconds above 0", _seconds).or_none(),
    "values": Rule("{name: value}", of_type(Mapping)).or_none(),
    "variable": Rule("the name of a variable, and none of Python's own", _variable),
    "view": Rule(
        "'text' or 'quiet'", lambda view: require(of_type(str)(view), lambda v: v in ("text", "quiet"))
    ),
    "whole": FLAG,
}


def check(argument: str, value: Any, shown: str = "") -> Any:
    """Return an argument as Python's own type.

    Args:
        argument: Its name in `_RULES`, or that of an option of a cluster.
        shown: Its name in the message, if that is another one.

    Raises:
        TypeError, ValueError: It has another type or value than is allowed; the message names all three.
    """
    rule = OPTIONS[argument].rule if argument in OPTIONS else _RULES[argument]
    return check_by(rule, shown or argument, value)


def check_by(rule: Rule, shown: str, value: Any) -> Any:
    """Return what a rule takes; raise as `check`. `shown` is the argument's name in the message."""
    try:
        return rule.take(value)
    except (TypeError, ValueError, AttributeError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        reason = f": {error}" if kind is ValueError and str(error) else ""
    given = f"{reprlib.repr(value)} ({type(value).__name__}){reason}"
    raise hide_our_frames(kind(f"{shown} is {rule.allowed}, not {given}"))


def check_options(group: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Cluster` that are options of this group, as `check` returns each."""
    return {option.name: check(option.name, given[option.name]) for option in options_in(group)}


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of `TFCluster`, given by name.

    Raises:
        TypeError: There is no such setting, or it has another type.
    """
    unknown = sorted(set(settings) - set(TFCluster.class_trait_names(config=True)))
    if unknown:
        raise hide_our_frames(TypeError(f"Cluster() has no argument or setting {', '.join(unknown)}"))
    try:
        checked = TFCluster(**settings)
    except TraitError as error:
        raise hide_our_frames(TypeError(str(error))) from None
    return {name: getattr(checked, name) for name in settings}
