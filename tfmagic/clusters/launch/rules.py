"""What arguments can be: rules, and the functions that take a value or refuse it.

A rule also converts: numbers of numpy become Python's. `checks` applies rules to Python arguments, and
`cluster_options` to lines as well. Imports nothing heavy, so that `tfmagic --help` is quick.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import numbers
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """What an argument can be.

    Attributes:
        allowed: It in words, as "a text" or "2 or 3".
        take: Returns the argument as Python's own type, or raises TypeError or ValueError.
        line: How a line spells it, as keywords of `argparse.ArgumentParser.add_argument`.
    """

    allowed: str
    take: Callable[[Any], Any]
    line: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def or_none(self) -> Rule:
        """Return the rule that also allows None."""

        def take(value: Any) -> Any:
            return None if value is None else self.take(value)

        return dataclasses.replace(self, allowed=f"{self.allowed}, or None", take=take)

    def reads(self, convert: Callable[[str], Any]) -> Callable[[str], Any]:
        """Return a function that parses a text for argparse: converts it, and takes the result."""

        def parse(text: str) -> Any:
            try:
                return self.take(convert(text))
            except (TypeError, ValueError):
                raise argparse.ArgumentTypeError(f"{text!r} is not {self.allowed}") from None

        return parse

    def spelled(self, **line: Any) -> Rule:
        """Return the rule with another spelling on a line."""
        return dataclasses.replace(self, line=line)


def take_later(value: Any) -> Any:
    """Return the value as it is: the code that uses it checks it together with others."""
    return value


def of_type(*types: type) -> Callable[[Any], Any]:
    """Return a function that takes instances of these classes."""

    def take(value: Any) -> Any:
        if not isinstance(value, types):
            raise TypeError
        return value

    return take


def require(value: Any, holds: Callable[[Any], bool]) -> Any:
    """Return the value. Raise ValueError if the condition does not hold."""
    if not holds(value):
        raise ValueError
    return value


def take_integer(value: Any) -> int:
    """Take a whole number."""
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def take_count(value: Any) -> int:
    """Take a whole number of 0 or more."""
    return require(take_integer(value), lambda count: count >= 0)


def take_number(value: Any) -> float:
    """Take a finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError
    return require(float(value), math.isfinite)


def take_flag(value: Any) -> bool:
    """Take True and False, and what is equal to them: 1 and 0, also those of numpy."""
    if value is True or value is False:
        return value
    if not isinstance(value, numbers.Integral) and type(value).__name__ not in ("bool", "bool_"):
        raise TypeError
    return bool(require(value, lambda flag: flag in (True, False)))


def mapping(of_keys: Callable[[Any], Any], of_values: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that takes mappings of such keys and values."""

    def take(value: Any) -> dict[Any, Any]:
        return {of_keys(key): of_values(item) for key, item in of_type(Mapping)(value).items()}

    return take


def take_texts(value: Any) -> tuple[str, ...]:
    """Take a sequence of texts, but no single text."""
    if isinstance(value, str):
        raise TypeError
    return tuple(map(of_type(str), of_type(Sequence)(value)))


COUNT = Rule("a whole number of 0 or more", take_count)
FLAG = Rule("True or False", take_flag)
TEXT = Rule("a text", of_type(str))
