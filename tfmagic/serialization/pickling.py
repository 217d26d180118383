"""Turn the user's values into bytes and back, in the notebook and in the tasks.

    value ── dill ──→ pickle stream + raw buffers (protocol 5) ── packing ──→ Packed
             │ names that the other side has are linked, not copied
             │ TensorFlow tensors become numpy arrays on their way to the notebook

Plain data, arrays and functions go through Python's own pickler (a list of 100,000 numbers in 1.3 ms instead
of 400). dill's, written in Python, takes over when a value holds anything else.

A notebook's functions find their globals by name in the ``__main__`` of the process that unpickles them. A
class that both sides have is linked by its name, so that ``isinstance`` and ``except`` know it.
"""

import contextlib
import functools
import importlib
import inspect
import io
import logging
import os
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tfmagic.errors import CaptureError
from tfmagic.protocol.payload import Packed
from tfmagic.serialization import (
    causes,
    classes,
    definitions,
    loggers,
    main_script,
    packing,
    process_bound,
    reductions,
    tensorflow_values,
)
from tfmagic.serialization.own_dill import dill
from tfmagic.system import advice, own_code, time_limits

IMMUTABLES = (int, float, complex, str, bytes, bool, type(None))
CONSTANTS = (types.ModuleType, *IMMUTABLES)
Linkable = Callable[[str], bool]


class TooLarge(Exception):
    """The pickle grew over its limit."""


class Pickled:
    """A pickle, with what `Pickler` and `_QuickPickler` both need to write it.

    Args:
        main: The ``__main__`` namespace that is linked instead of copied.
        linkable: Whether the other side has the class or function bound to this name in `main`.
        limit_bytes: Of stream and buffers together; above it `TooLarge` is raised, before anything is copied.

    Attributes:
        buffers: The bytes of large arrays, out of band: views, not copies.
        size_bytes: Of stream and buffers.
        by_value: How the definitions in it are made.
        held: The names by which `main` has objects that are in the pickle of a definition, other than
            constants and definitions.
    """

    def __init__(self, main: Mapping[str, Any], linkable: Linkable, limit_bytes: int | None):
        self.main, self.linkable, self.limit_bytes = main, linkable, limit_bytes
        self.buffers: list[memoryview] = []
        self.size_bytes = 0
        self._chunks: list[bytes] = []
        self.by_value = definitions.ByValue(main)
        self.held = frozenset[str]()

    @property
    def stream(self) -> bytes:
        return b"".join(self._chunks)

    def check(self, size_bytes: int) -> None:
        """Raise `TooLarge` if this many bytes more are over the limit."""
        if self.limit_bytes is not None and self.size_bytes + size_bytes > self.limit_bytes:
            raise TooLarge

    def write(self, data: Any) -> int:
        """Take a part of the stream from the pickler."""
        self.check(len(data))
        self.size_bytes += len(data)
        # Python's own pickler gives views of a `BytesIO`, which must not be collected before they are
        self._chunks.append(bytes(data))
        return len(data)

    def keep(self, buffer: pickle.PickleBuffer) -> bool:
        """Return whether this array's bytes go into the stream; keep large ones beside it."""
        raw = buffer.raw()
        if raw.nbytes < packing.IN_BAND_BYTES:
            return True
        self.check(raw.nbytes)
        self.size_bytes += raw.nbytes
        self.buffers.append(raw)
        return False

    def reduce(self, obj: Any) -> tuple[Any, ...] | None:
        """Return a link to `obj`, or how both picklers make it from its parts; None if they do it alone."""
        if obj is self.main or obj is definitions.MAIN:
            return _linked, ("namespace",)
        if isinstance(obj, _Beginning):
            return _linked, ("begin", obj.name, obj.type_name)
        if (name := name_in(obj, self.main)) and self.linkable(name):
            return _linked, ("main", name)
        if isinstance(obj, type | types.FunctionType) and definitions.is_importable(obj):
            return None
        return self.by_value.reduce(obj) or tensorflow_values.reduce(obj)


class Pickler(dill.Pickler):  # dill is untyped
    """dill, with the notebook's namespace linked by name.

    Args:
        pickled: What it writes.
        for_notebook: Turn tensors and variables into numpy arrays.
        refuse: Classes whose instances must not travel.
        tried: Ids of objects whose attributes are being tried one by one; they are left out.
    """

    def __init__(
        self,
        pickled: Pickled,
        for_notebook: bool,
        refuse: tuple[type, ...],
        tried: frozenset[int] = frozenset(),
    ):
        self._pickled, self._for_notebook, self._refuse, self._tried = pickled, for_notebook, refuse, tried
        self._chained: set[int] = set()  # ids of exceptions whose causes are in the pickle
        super().__init__(pickled, protocol=5, byref=False, recurse=False, buffer_callback=pickled.keep)

    def memoize(self, obj: Any) -> None:
        """Remember `obj` once: empty arrays share one bytes object, which Python's own `memoize` refuses."""
        if not isinstance(obj, bytes) or id(obj) not in self.memo:
            super().memoize(obj)

    def reducer_override(self, obj: Any) -> Any:
        if self._tried and id(obj) in self._tried:
            return _linked, ("tried",)
        if self._refuse and isinstance(obj, self._refuse):
            raise TypeError(f"cannot pickle {type(obj).__qualname__!r} object")
        if issubclass(type(obj), BaseException) and (reduced := self._reduce_exception(obj)) is not None:
            return reduced
        if isinstance(obj, types.ModuleType) and sys.modules.get(obj.__name__) is obj:
            return (importlib.import_module, (obj.__name__,))
        if type(obj).__module__ == "numpy" and type(obj).__name__ == "ndarray":  # dill would copy it
            self._pickled.check(obj.nbytes)  # before a strided one is copied
            return obj.__reduce_ex__(5)
        if self._for_notebook and tensorflow_values.is_tensor(obj):
            return (definitions.same, (obj.numpy(),))
        if main_script.is_flags(obj):
            return main_script.reduce_flags(obj)
        if (reduced := self._pickled.reduce(obj)) is not None:
            return reduced
        if isinstance(obj, logging.Logger) and not self._for_notebook:
            return loggers.reduce(obj, functools.partial(self._problem_of_part, obj)) or NotImplemented
        if stream := process_bound.stream_name(obj):
            return getattr, (sys, stream)
        process_bound.refuse_what_stays(obj, self._for_notebook)
        if process_bound.is_test_case(obj):
            return process_bound.reduce_test_case(obj, functools.partial(self._problem_of_part, obj))
        return NotImplemented if type(obj) in self.dispatch else reductions.reduce(obj)

    def _reduce_exception(self, error: BaseException) -> Any:
        """Return how an exception is made; None if pickle knows. That of a task has its causes beside it."""
        has_chain = not (self._refuse or self._tried or id(error) in self._chained)
        if has_chain and causes.is_chained(error):
            alone, problem_of = self._pickled.reduce(error), functools.partial(self._problem_of_part, error)
            return causes.reduce(error, alone, self._chained, problem_of)
        return error.__reduce_ex__(5) if causes.takes_frames_along(type(error)) else None

    def _problem_of_part(self, whole: object, part: object) -> str:
        """Return why an attribute of `whole` cannot be pickled; "" if it can."""
        trial = Pickled(self._pickled.main, self._pickled.linkable, self._pickled.limit_bytes)
        try:
            Pickler(trial, self._for_notebook, self._refuse, self._tried | {id(whole)}).dump(part)
        except BaseException as error:  # the user's own __reduce__ can raise anything
            time_limits.raise_if_stopped(error)
            if not isinstance(error, TooLarge):  # for its size the whole value is refused
                return f"{type(error).__name__}: {error}"
        return ""


class _NeedsDill(Exception):
    """A value holds something that needs dill."""


class _QuickPickler(pickle.Pickler):
    """Writes what `Pickler` would, in C. Plain data never calls a method of this class."""

    def __init__(self, pickled: Pickled):
        self._pickled = pickled
        super().__init__(pickled, protocol=5, buffer_callback=pickled.keep)

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), BaseException) and causes.is_chained(obj):
            raise _NeedsDill
        if (reduced := self._pickled.reduce(obj)) is not None:
            return reduced
        if isinstance(obj, type | types.FunctionType | types.BuiltinFunctionType):
            is_plain = definitions.is_importable(obj)
        elif (numpy := sys.modules.get("numpy")) and process_bound.home_of(type(obj)).startswith("numpy"):
            is_plain = type(obj) is numpy.ndarray or isinstance(obj, numpy.generic | numpy.dtype)
            self._pickled.check(getattr(obj, "nbytes", 0))  # before a strided array is copied
        else:
            is_plain = type(obj) is functools.partial
        if not is_plain:
            raise _NeedsDill
        return NotImplemented


def is_definition(value: object) -> bool:
    """Check whether a ``def``, a ``class`` or a decorator has made it, so that it is not changed in place."""
    return (
        isinstance(value, type | types.FunctionType | definitions.LRU_CACHE)
        or type(value) in classes.TYPE_VARIABLES
        or tensorflow_values.is_traceable(value)
    )


def name_in(obj: Any, main: Mapping[str, Any]) -> str:
    """Return the name by which `main` has this definition; "" if it has not, or for other objects."""
    if not is_definition(obj) or obj.__module__ != "__main__":
        return ""
    name: str = getattr(obj, "__qualname__", obj.__name__)
    return name if main.get(name) is obj else ""


def _linked(*link: str) -> Any:
    """Stand for a link in a pickle; `Unpickler` follows it."""
    raise pickle.UnpicklingError(f"a link to {link} outside of tfmagic")


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Stands in front of a variable in a pickle, so that an error of its reader can name the variable."""

    name: str
    type_name: str


class Deleted:
    """Stands for a variable that the notebook has deleted."""


class Unpickler(dill.Unpickler):  # dill is untyped
    """The other side of `Pickler`.

    Args:
        main: The ``__main__`` namespace to which links lead.
        updates_classes: Update a class that has come before, instead of leaving it alone.
    """

    def __init__(self, *args: Any, main: Mapping[str, Any], updates_classes: bool = False, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._namespace, self._updates_classes = main, updates_classes
        self.at: tuple[str, str] | None = None  # name and type of the variable that is being read

    def _follow(self: Any, kind: str, name: str = "", type_name: str = "") -> Any:
        if kind == "namespace":
            return self._namespace
        if kind == "begin":
            self.at = (name, type_name)
            return None
        if name not in self._namespace:
            why = "the process is another one than when this was packed, or has deleted it; run it again"
            raise NameError(f"there is no {name!r} here: {why}")
        return self._namespace[name]

    def find_class(self, module: str, name: str) -> Any:
        if name == "_linked" and module == __name__:
            # a circle with the memo would keep all values for long
            return functools.partial(Unpickler._follow, weakref.proxy(self))
        if module == classes.__name__ and not self._updates_classes and name in classes.FILL_NEW:
            return classes.FILL_NEW[name]
        return super().find_class(module, name)


def dumps(
    value: Any,
    main: Mapping[str, Any],
    linkable: Linkable = lambda name: False,
    for_notebook: bool = False,
    limit_bytes: int | None = None,
    refuse: tuple[type, ...] = (),
) -> Pickled:
    """Pickle `value`. Raises what that raises, or `TooLarge` when all parts are over `limit_bytes`."""
    if not refuse:
        pickled = Pickled(main, linkable, limit_bytes)
        with contextlib.suppress(_NeedsDill):
            return _dump(_QuickPickler(pickled), pickled, value)
    pickled = Pickled(main, linkable, limit_bytes)
    return _dump(Pickler(pickled, for_notebook, refuse), pickled, value)


def _dump(pickler: Any, pickled: Pickled, value: Any) -> Pickled:
    pickler.dump(value)
    if is_definition(value):
        written = pickler.memo.copy()
        found = [written[i][1] for i in written.keys() & set(map(id, pickled.main.values()))]
        held = {id(obj) for obj in found if not (isinstance(obj, CONSTANTS) or is_definition(obj))}
        if held:
            pickled.held = frozenset(name for name, obj in pickled.main.items() if id(obj) in held)
    return pickled


def dump_names(values: Mapping[str, Any], main: Mapping[str, Any], linkable: Linkable) -> Pickled:
    """Pickle variables by name, for `load_names`. Raises as `dumps`.

    Three pickles follow each other and share their objects: modules, constants and definitions, then the data
    that the definitions hold, then the other variables. So code of the user's that runs when an object is
    unpickled finds the classes, functions and constants that it uses.
    """
    pickled = Pickled(main, linkable, None)
    with contextlib.suppress(_NeedsDill):
        _dump_names(_QuickPickler(pickled), pickled, values)
        return pickled
    pickled = Pickled(main, linkable, None)
    _dump_names(Pickler(pickled, False, ()), pickled, values)
    return pickled


def _dump_names(pickler: Any, pickled: Pickled, values: Mapping[str, Any]) -> None:
    def mark(name: str, value: Any) -> _Beginning:
        return _Beginning(name, type(value).__qualname__)

    traced = {name: value for name, value in values.items() if tensorflow_values.is_traceable(value)}
    first = {
        n: v for n, v in values.items() if isinstance(v, CONSTANTS) or (is_definition(v) and n not in traced)
    }
    pickled.by_value.begin()
    pickler.dump([(mark(name, value), name, value) for name, value in first.items()])
    steps = pickled.by_value.take_later()
    pickler.dump([(mark(step.definition.__qualname__, step.definition), step) for step in steps])
    rest = {**traced, **values}  # made of functions with their defaults
    pickler.dump([(mark(name, value), name, value) for name, value in rest.items() if name not in first])


def loads(
    packed: Packed, main: Mapping[str, Any], import_tensorflow: bool = True, writable: bool = True
) -> Any:
    """Return the value of `packed`. Big arrays are private views of the memory file.

    A second call is not possible, since the first takes over the file descriptor.

    Args:
        packed: The return value of `packing.pack`.
        main: The ``__main__`` namespace of this process.
        import_tensorflow: Whether unpickling may import TensorFlow, if this process has not.
        writable: Whether these views can be written.

    Raises:
        NeedsTensorFlow: It would have imported TensorFlow.
        HandleLost: The value did not arrive.
        Exception: What unpickling the value raises.
    """
    stream, buffers = packing.parts(packed, writable)
    unpickler = Unpickler(io.BytesIO(stream), buffers=buffers, main=main)
    if import_tensorflow:
        return unpickler.load()
    with tensorflow_values.WithoutTensorFlow():
        return unpickler.load()


def load_names(packed: Packed, main: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the variables of a pickle that `dump_names` made, in parts.

    The caller puts each part into `main` before it takes the next, whose objects can need it.

    Raises:
        CaptureError: Names a variable that cannot be read.
    """
    stream, buffers = packing.parts(packed)
    unpickler = Unpickler(io.BytesIO(stream), buffers=buffers, main=main, updates_classes=True)
    try:
        yield {name: value for _, name, value in unpickler.load()}
        unpickler.load()  # the data of the definitions
        yield {name: value for _, name, value in unpickler.load()}
    except BaseException as error:  # the user's own __setstate__ can raise anything, SystemExit too
        if isinstance(error, KeyboardInterrupt):
            raise
        error.__traceback__ = frames_below(error.__traceback__)
        name, type_name = unpickler.at or ("", "")
        raise CaptureError(
            f"these {advice.in_notebook('notebook ')}variables cannot travel to the tasks; nothing was run:\n"
            f"  {name} ({type_name}): it cannot be unpickled there: {type(error).__name__}: {error}\n"
            f"Create it in the {advice.in_notebook('cell') or 'function'}, so that each task makes its own."
        ) from error


def frames_below(frames: types.TracebackType | None) -> types.TracebackType | None:
    """Return the frames of the user's classes that pickling has called, without the hundreds of its own."""
    return own_code.below(frames, (os.path.dirname(__file__), pickle.__file__, inspect.getfile(dill.Pickler)))
