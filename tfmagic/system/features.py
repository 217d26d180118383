"""Find the halves of the features; nothing else imports one."""

import functools
import importlib
import importlib.util
from types import ModuleType


@functools.cache
def halves(half: str) -> tuple[ModuleType, ...]:
    """Import one half, ``kernel``, ``task`` or ``lines``, of each feature that has it, in their order."""
    places = [f"tfmagic.features.{name}.{half}" for name in importlib.import_module("tfmagic.features").NAMES]
    return tuple(importlib.import_module(place) for place in places if importlib.util.find_spec(place))
