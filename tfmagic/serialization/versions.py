"""Tell whether a function or class, or anything in it, was changed in place since it was sent.

    definition ── pickled in C, to be digested only ──→ Version
                  │ code, modules and what travels by name: by identity
                  │ attributes, defaults, closures, registrations: by content

Nothing is read of a definition that travels under a name of its own: it has a version of its own. A part that
cannot be pickled is compared by identity, so that looking for changes never fails.
"""

from __future__ import annotations

import copyreg
import dataclasses
import hashlib
import pickle
import types
from collections.abc import Mapping
from typing import Any

from tfmagic.serialization import (
    classes,
    definitions,
    pickling,
    process_bound,
    reductions,
    tensorflow_values,
)
from tfmagic.serialization.free_names import global_names
from tfmagic.system import time_limits

_stand_in = len  # takes one argument, and is found by its name


class Version:
    """Equal for the same parts with the same content. It keeps the parts alive: no id is used again."""

    __slots__ = ("_digest", "_parts")

    def __init__(self, digest: bytes, parts: list[Any]):
        self._digest, self._parts = digest, parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and other._digest == self._digest

    __hash__ = None  # type: ignore[assignment]  # it is only compared


def version_of(definition: Any, main: Mapping[str, Any], limit_bytes: int) -> Version:
    """Return the version of a definition: another one once it, or anything in it, has changed.

    Content of more than `limit_bytes` has another version each time: it is refused when it is to be sent.
    """
    if isinstance(definition, types.FunctionType) and _has_only_code(definition, main):  # most functions
        names = definition.__name__, definition.__qualname__, definition.__doc__
        return Version(repr((id(definition.__code__), names)).encode(), [definition.__code__])
    digest = _Digest(limit_bytes)
    contents = _Contents(digest, definition, main)
    try:
        contents.dump(definition)
    except pickling.TooLarge:
        contents.parts.append(unique := object())
        digest.add(b"too large %d" % id(unique))
    except BaseException as error:  # nested too deeply, for example: as far as it was read
        time_limits.raise_if_stopped(error)
        digest.add(b"incomplete")
    return Version(digest.take(), contents.parts)


def _has_only_code(function: types.FunctionType, main: Mapping[str, Any]) -> bool:
    """Check whether nothing but its code and names can tell a function from the one that it was."""
    parts = function.__defaults__, function.__kwdefaults__, function.__closure__, vars(function)
    return function.__globals__ is main and not any(parts)


class _Digest:
    """Takes a pickle and keeps its digest."""

    def __init__(self, limit_bytes: int):
        self._hash, self._left_bytes = hashlib.sha256(), limit_bytes
        self.add, self.take = self._hash.update, self._hash.digest

    def check(self, size_bytes: int) -> None:
        if size_bytes > self._left_bytes:
            raise pickling.TooLarge

    def write(self, data: Any) -> int:
        self.check(len(data))
        self._left_bytes -= len(data)
        self.add(data)
        return len(data)

    def keep(self, buffer: pickle.PickleBuffer) -> bool:
        self.write(buffer.raw())
        return False


class _Contents(pickle.Pickler):
    """Writes the content of a definition.

    Attributes:
        parts: Objects that stand in the pickle with their ids.
    """

    def __init__(self, digest: _Digest, root: Any, main: Mapping[str, Any]):
        super().__init__(digest, protocol=5, buffer_callback=digest.keep)
        self._digest, self._root, self._main = digest, root, main
        self._by_value = definitions.ByValue(main)
        self.parts: list[Any] = []

    def reducer_override(self, obj: Any) -> Any:
        if obj is _stand_in:
            return NotImplemented
        if obj is not self._root and self._is_by_identity(obj):
            return self._identity(obj)
        if isinstance(obj, types.FunctionType) and not vars(obj).keys() >= definitions.SINGLE_DISPATCH:
            return self._identity(obj.__code__, self._state_of(obj))
        if isinstance(obj, type) and classes.is_made_by_statement(obj):
            parts = classes.take_apart(obj)
            return self._identity(
                obj, (parts.args, parts.space, parts.tests, parts.subclasses, parts.members)
            )
        try:
            reduced = self._reduced(obj)
        except pickling.TooLarge:
            raise
        except BaseException as error:  # of the user's classes; or it cannot be pickled
            time_limits.raise_if_stopped(error)
            return self._identity(obj)
        return self._identity(obj) if isinstance(reduced, str) else reduced

    def _is_by_identity(self, obj: Any) -> bool:
        if isinstance(obj, type | types.FunctionType) and definitions.is_importable(obj):
            return True
        if isinstance(obj, types.ModuleType | types.CodeType | dataclasses.Field):
            return True
        if process_bound.stream_name(obj):  # ipykernel's holds the whole kernel
            return True
        return bool(pickling.name_in(obj, self._main)) or process_bound.is_test_case(obj)

    def _identity(self, obj: Any, state: Any = None) -> Any:
        self.parts.append(obj)
        return _stand_in, (id(obj),), state

    def _state_of(self, function: types.FunctionType) -> tuple[Any, ...]:
        names, taken = function.__globals__, None
        if names is not self._main and not definitions.is_of_module(names):
            taken = {name: names[name] for name in sorted(global_names(function.__code__)) if name in names}
        cells = function.__closure__
        contents = None if cells is None else [definitions.contents_of(cell) for cell in cells]
        own = vars(function) or None
        defaults = (function.__defaults__, function.__kwdefaults__)
        return function.__name__, function.__qualname__, function.__doc__, defaults, contents, own, taken

    def _reduced(self, obj: Any) -> Any:
        if tensorflow_values.is_of_tensorflow(obj) or tensorflow_values.is_of_keras(obj):
            return self._identity(obj, tensorflow_values.content_of(obj))
        if isinstance(obj, definitions.LRU_CACHE) and not definitions.is_importable(obj):
            return self._identity(obj, (definitions.clears_of(obj), self._by_value.reduce(obj)))
        if (reduced := self._by_value.reduce(obj)) is not None:
            return reduced
        self._digest.check(getattr(obj, "nbytes", 0) if type(obj).__module__ == "numpy" else 0)
        if (reduced := reductions.reduce(obj)) is not NotImplemented:
            return reduced
        reducer = copyreg.dispatch_table.get(type(obj))
        return obj.__reduce_ex__(5) if reducer is None else reducer(obj)
