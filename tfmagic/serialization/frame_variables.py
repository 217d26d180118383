"""Copy the variables of a failed frame, bounded in size and time, for a debugger in the notebook.

Plain data and small arrays are copied as they are. Everything else becomes a `RemoteLocal`, which has the
text that the value had on its task. So the notebook runs no code of a value. Of a value whose `repr` raises
or takes long, only the text is lost.
"""

import functools
import linecache
import re
import reprlib
import sys
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

from tfmagic.serialization.exception_attributes import encodable, of_class
from tfmagic.system import features, time_limits

_SCALARS = (int, float, complex, bool, str, bytes, type(None))
_CONTAINERS = (list, tuple, set, frozenset, dict)
_MAX_SCALAR_BYTES = 10_000
_MAX_ITEMS = 100  # of a container that is copied as it is
_MAX_DEPTH = 3
_MAX_ARRAY_BYTES = 1 << 16
_MAX_NAMES = 300  # of all frames of a traceback together
_EACH_S, _TOTAL_S = 0.2, 0.6  # for one repr, for all
_MAX_TEXT = 2_000


class RemoteLocal:
    """Stands for a variable that stayed on its task, and has the text that it had there.

    Attributes:
        type_name: Name of its class.
        text: Its `repr` on the task.
        shape: Of an array or a tensor, as text; else "".
        dtype: Of an array or a tensor, as text; else "".
    """

    def __init__(self, type_name: str, text: str, shape: str = "", dtype: str = ""):
        self.type_name, self.text, self.shape, self.dtype = type_name, text, shape, dtype

    def __repr__(self) -> str:
        return self.text

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"this {self.type_name} stayed on its task, here is only its text"
            f"{features.propose('look inside', '; {} opens a debugger there', 'TASK')}"
        )


def copy_frames(frames: Iterable[FrameType]) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
    """Return copies of the variables of each frame, by the frame's id: its own, and those of its module.

    Of a module, those are copied that the user's frames name, and those that a cell names in any of its
    statements. The user's frames come first. Never raises, and takes at most a second for any values.
    """
    ordered = sorted(frames, key=_is_library)
    copies: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
    modules: dict[int, dict[str, Any]] = {}
    found: list[tuple[dict[str, Any], str, Any]] = []
    named = {name for frame in ordered if not _is_library(frame) for name in _names_in(frame)}
    for frame in ordered:
        own: dict[str, Any] = {}
        of_module: dict[str, Any] = {}
        names = frame.f_globals
        is_module = frame.f_locals is names
        if not is_module:
            found += _shown(own, frame.f_locals)
        if not _is_library(frame):
            if id(names) not in modules:
                modules[id(names)] = {}
                found += _shown(modules[id(names)], {n: names[n] for n in sorted(named) if n in names})
            of_module = modules[id(names)]
        copies[id(frame)] = (of_module, {}) if is_module else (own, of_module)
    found = found[:_MAX_NAMES]
    results = _copy_each([value for _, _, value in found], _TOTAL_S)
    for (into, name, _), result in zip(found, results, strict=True):
        into[name] = result
    return copies


def _names_in(frame: FrameType) -> Iterable[str]:
    """Return the names in the code of a frame; of a cell, those of all its statements."""
    code, is_module = frame.f_code, frame.f_locals is frame.f_globals
    source = linecache.getlines(encodable(code.co_filename)) if is_module else ()
    return {*code.co_names, *re.findall(r"[^\W\d]\w*", "".join(source))}


def copy_value(value: Any) -> Any:
    """Return a copy of any value, or what stands for it, in bounded time and length."""
    return _copy_each([value], _EACH_S)[0]


def _copy_each(values: list[Any], total_s: float) -> list[Any]:
    results = time_limits.call_each([functools.partial(_copy, value) for value in values], _EACH_S, total_s)
    return [
        result.value if result.error is None else _without_text(value, result.error)
        for value, result in zip(values, results, strict=True)
    ]


def _is_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return "site-packages" in name or name.startswith((sys.prefix, sys.base_prefix))


def _shown(into: dict[str, Any], variables: Mapping[str, Any]) -> list[tuple[dict[str, Any], str, Any]]:
    """Return the variables without dunders and modules, each with the place for its copy."""
    items = list(variables.items())
    return [(into, name, v) for name, v in items if not name.startswith("__") and type(v) is not type(sys)]


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Check whether the value is small plain data at every level, without running the user's code."""
    kind = type(value)
    if kind in _SCALARS:
        return kind not in (str, bytes, int) or sys.getsizeof(value) <= _MAX_SCALAR_BYTES
    if kind not in _CONTAINERS or len(value) > _MAX_ITEMS or depth >= _MAX_DEPTH:
        return False
    items = [*value.keys(), *value.values()] if kind is dict else list(value)
    return all(_is_plain(item, depth + 1) for item in items)


def _copy(value: Any) -> Any:
    """Return small plain data as it is, a copy of a small array, or the text of anything else."""
    if _is_plain(value):
        return value
    is_array = type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"
    if is_array and value.nbytes <= _MAX_ARRAY_BYTES and not value.dtype.hasobject:
        return value.copy()
    text = _Text().repr(value)
    shape, dtype = (str(getattr(value, name, "")) for name in ("shape", "dtype"))
    return RemoteLocal(type(value).__qualname__, text, shape, dtype)


class _Text(reprlib.Repr):
    """A repr that reads only the first items of a large container."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = _MAX_TEXT
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 20
        self.maxlevel = 4

    def repr_instance(self, x: Any, level: int) -> str:
        text = repr(x)  # the caller handles what it raises
        return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def _without_text(value: Any, error: BaseException) -> RemoteLocal:
    is_late = isinstance(error, time_limits.TookTooLong)
    name, raised = (of_class(each, "__qualname__") for each in (value, error))
    why = str(error) if is_late else f"raised {raised}"
    return RemoteLocal(name, f"<{name}: repr() {why}>")
