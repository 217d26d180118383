"""Find the halves of the features; nothing else imports one."""

import functools
import importlib
import importlib.util
from collections.abc import Iterator
from types import ModuleType

from tfmagic.system.advice import Step


@functools.cache
def halves(half: str) -> tuple[ModuleType, ...]:
    """Import one half of each feature that has it, in their order; docs/inside.md lists the halves."""
    places = [f"tfmagic.features.{name}.{half}" for name in importlib.import_module("tfmagic.features").NAMES]
    return tuple(importlib.import_module(place) for place in places if importlib.util.find_spec(place))


def has_door(name: str) -> bool:
    """Check whether ``tfmagic.NAME`` is a feature's own module for users."""
    is_feature = name in importlib.import_module("tfmagic.features").NAMES
    return is_feature and importlib.util.find_spec(f"tfmagic.{name}") is not None


def steps(purpose: str, *names: object) -> Iterator[Step]:
    """Yield the steps of features that serve a purpose, so that a message proposes none that is not there."""
    for half in halves("steps"):
        if purpose in half.STEPS:
            yield Step(half.STEPS[purpose], *names)


def propose(purpose: str, text: str, *names: object) -> str:
    """Return the part of a message that proposes such a step, ``{}`` in it; "" if there is none."""
    return "".join(text.format(step) for step in steps(purpose, *names))
