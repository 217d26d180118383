"""Safe, bounded copies of the variables of a failed frame, for a debugger in another process.

Plain data is copied as it is; small arrays too. Everything else becomes a `RemoteLocal`, which shows
what the value showed on its task. No code of the notebook's ever runs on the value, and a value whose
`repr` raises or takes long costs nothing but its own text.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tfmagic.system import time_limits

_SCALARS = (int, float, complex, bool, str, bytes, type(None))
_CONTAINERS = (list, tuple, set, frozenset, dict)
_MAX_SCALAR_BYTES = 10_000
_MAX_ITEMS = 100  # of a container that is copied as it is
_MAX_DEPTH = 3
_MAX_ARRAY_BYTES = 1 << 16
_MAX_NAMES = 300  # of all frames of a traceback together
_EACH_S, _TOTAL_S = 0.2, 0.6  # a repr that takes longer is not one that somebody waits for
_MAX_TEXT = 2_000


class RemoteLocal:
    """Stands for a variable that stayed on its task; shows the text that it had there.

    Attributes:
        type_name: Name of its class.
        shape, dtype: Of an array or a tensor, as text; else "".
    """

    def __init__(self, type_name: str, text: str, shape: str = "", dtype: str = ""):
        self.type_name, self.text, self.shape, self.dtype = type_name, text, shape, dtype

    def __repr__(self) -> str:
        return self.text

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"this {self.type_name} stayed on its task, here is only its text; "
            "%tfcluster debug TASK opens a debugger there"
        )


@dataclass(frozen=True, slots=True)
class FrameCopy:
    """The variables of a frame: its own, and those of its module that the failed code names."""

    own: dict[str, Any] = field(default_factory=dict)
    of_module: dict[str, Any] = field(default_factory=dict)


def copy_frames(frames: Iterable[FrameType]) -> dict[int, FrameCopy]:
    """The variables of each frame by the frame's id, the most telling frames first.

    Never raises, and takes at most a second whatever the values do.
    """
    ordered = sorted(frames, key=_is_library)
    copies = {id(frame): FrameCopy() for frame in ordered}
    modules: dict[int, dict[str, Any]] = {}
    found: list[tuple[dict[str, Any], str, Any]] = []
    named = {name for frame in ordered if not _is_library(frame) for name in frame.f_code.co_names}
    for frame in ordered:
        copy = copies[id(frame)]
        if frame.f_locals is not frame.f_globals:
            found += _shown(copy.own, frame.f_locals)
        if _is_library(frame):
            continue
        shared = modules.get(id(frame.f_globals))
        if shared is None:
            shared = modules[id(frame.f_globals)] = {}
            found += _shown(shared, {n: frame.f_globals[n] for n in sorted(named) if n in frame.f_globals})
        is_module = frame.f_locals is frame.f_globals
        copies[id(frame)] = FrameCopy(shared, {}) if is_module else FrameCopy(copy.own, shared)
    found = found[:_MAX_NAMES]
    results = time_limits.call_each([_copier(value) for _, _, value in found], _EACH_S, _TOTAL_S)
    for (into, name, value), result in zip(found, results, strict=True):
        into[name] = result.value if result.error is None else _without_text(value, result.error)
    return copies


def text_of(value: Any) -> str:
    """The repr of any value, in bounded time and length."""
    (result,) = time_limits.call_each([_copier(value)], _EACH_S, _EACH_S)
    return repr(result.value if result.error is None else _without_text(value, result.error))


def stand_in(value: Any) -> RemoteLocal:
    """What stands for a value that stays on its task."""
    kind = type(value).__qualname__
    (result,) = time_limits.call_each([lambda: _Text().repr(value)], _EACH_S, _EACH_S)
    return RemoteLocal(kind, result.value) if result.error is None else _without_text(value, result.error)


def _is_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return "site-packages" in name or name.startswith((sys.prefix, sys.base_prefix))


def _shown(into: dict[str, Any], variables: Mapping[str, Any]) -> list[tuple[dict[str, Any], str, Any]]:
    """Those that somebody may want to see, with the place for their copies."""
    items = list(variables.items())
    return [(into, name, v) for name, v in items if not name.startswith("__") and type(v) is not type(sys)]


def _copier(value: Any) -> Callable[[], Any]:
    return lambda: value if _is_plain(value) else _copy(value)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether the value is small plain data all the way down; asks no code of the user's."""
    kind = type(value)
    if kind in _SCALARS:
        return kind not in (str, bytes, int) or sys.getsizeof(value) <= _MAX_SCALAR_BYTES
    if kind not in _CONTAINERS or len(value) > _MAX_ITEMS or depth >= _MAX_DEPTH:
        return False
    items = [*value.keys(), *value.values()] if kind is dict else list(value)
    return all(_is_plain(item, depth + 1) for item in items)


def _copy(value: Any) -> Any:
    """A small array, or the text of anything else."""
    is_array = type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"
    if is_array and value.nbytes <= _MAX_ARRAY_BYTES and not value.dtype.hasobject:
        return value.copy()
    text = _Text().repr(value)
    shape, dtype = (str(getattr(value, name, "")) for name in ("shape", "dtype"))
    return RemoteLocal(type(value).__qualname__, text, shape, dtype)


class _Text(reprlib.Repr):
    """A repr that does not walk through a million items."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = _MAX_TEXT
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 20
        self.maxlevel = 4

    def repr_instance(self, x: Any, level: int) -> str:
        text = repr(x)  # one that raises is the caller's to describe
        return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def _without_text(value: Any, error: BaseException) -> RemoteLocal:
    if isinstance(error, time_limits.TookTooLong):
        why = f"repr() {error}"
    else:
        why = f"repr() raised {type(error).__qualname__}"
    return RemoteLocal(type(value).__qualname__, f"<{type(value).__qualname__}: {why}>")
