"""Pickle an exception object for the notebook: as a whole, by its parts, or the parts that can travel.

A form travels if it survives the round trip on its task, within a time limit, with the same class and the
same message. A class whose constructor does not take its `args` is rebuilt from its parts. An argument or
attribute that cannot travel is replaced by its text (`RemoteLocal`), and a note names it.

Attributes of an exception are read and set past its class: see `exception_attributes`. Used by
`tfmagic.serialization.tracebacks`, on the task and in the notebook.
"""

import contextlib
import functools
import io
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfmagic.protocol.payload import Packed
from tfmagic.serialization import frame_variables, pickling
from tfmagic.serialization.exception_attributes import add_note as add_note
from tfmagic.serialization.exception_attributes import encodable as encodable
from tfmagic.serialization.exception_attributes import notes_of as notes_of
from tfmagic.serialization.exception_attributes import of_class as of_class
from tfmagic.serialization.exception_attributes import of_python as of_python
from tfmagic.serialization.exception_attributes import own as own
from tfmagic.serialization.exception_attributes import put as put
from tfmagic.system import time_limits

MAX_SHOWN = 100_000  # characters of a message that the notebook shows: half of the limit of a saved cell
_MAX_OBJECT_BYTES = 1 << 24  # a pickled exception: what is larger is data, and stays on its task
_TEXT_S, _OBJECT_S = 0.5, 1.0  # to pickle and unpickle a value, a whole exception
_ARRIVAL_S = 10.0  # to unpickle one in the notebook, which can import its module first
_STAYS = (io.IOBase, type(threading.Lock()), type(threading.RLock()))  # dill would make new ones
_LEFT_BEHIND = (  # notes travel separately; the attributes of AutoGraph hold graphs and frames
    "__notes__",
    "ag_error_metadata",
    "ag_pass_through",
    "_pre_traceback_",
)
_READ_BY_ALL = ("__traceback__", "__cause__", "__context__", "__suppress_context__", "__notes__")

Trip = Callable[[Any], tuple[Any, bytes]]
"""Pickles a value as for the notebook and unpickles it; returns the copy and the pickle."""


def describe(error: BaseException) -> str:
    """Return the class and the message of an exception, whose `str()` can raise."""
    name: str = of_class(error, "__name__")
    try:
        text = str(error)
        return f"{name}: {text}" if text else name
    except BaseException:  # of its class
        return name


def can_be_shown(error: Any) -> bool:
    """Check whether Python and IPython can read the attributes that they need; else IPython shows nothing.

    The place of a SyntaxError, which can be anything, is made readable.
    """
    if not issubclass(type(error), BaseException):
        return False
    try:
        put(error, "__notes__", notes_of(error))  # it gets some later
        isinstance(error, BaseExceptionGroup)  # reads `__class__`
        for name in _READ_BY_ALL:
            getattr(error, name)
    except Exception:  # of its `__getattribute__`, or of a property
        return False
    if isinstance(error, SyntaxError):  # Python and IPython take these for granted
        for name, kind in (("filename", str), ("text", str), ("lineno", int), ("offset", int)):
            if not isinstance(value := getattr(error, name), kind | None):
                put(error, name, str(value) if kind is str else None)
    return True


# ---- on the task --------------------------------------------------------------------------------


def clip(text: str, limit: int) -> str:
    """Return a text, of a long one the beginning and the end."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n... {len(text) - limit} characters left out ...\n{text[-limit // 2 :]}"


def pack_object(error: BaseException, message: str, trip: Trip) -> tuple[bytes | None, list[str]]:
    """Return the pickled exception, or None if it cannot travel; and notes on its parts that stay."""
    said = of_class(error, "__qualname__") + message
    if encodable(said) != said:  # the kernel could not send its reply
        return None, []
    attributes = own(error)
    noted = {name: attributes.pop(name) for name in _LEFT_BEHIND if name in attributes}
    try:
        for form, notes in _forms(error, trip):
            survive = functools.partial(_survive, form, error, message, trip)
            try:
                return time_limits.call(survive, _OBJECT_S), notes
            except time_limits.TookTooLong:
                break
            except BaseException:  # the class' own pickling can raise anything; the next form might travel
                continue
    except BaseException:  # of a class that makes its attributes raise
        pass
    finally:
        attributes.update(noted)
    return None, []


def _forms(error: BaseException, trip: Trip) -> Iterator[tuple[Any, list[str]]]:
    """Yield the forms in which an exception can travel, with notes on what is missing.

    First itself, as its class pickles it. Then its parts, for a class with an odd constructor. Then its
    parts with the texts of those that cannot travel.
    """
    yield error, []
    parts = _parts_of(error)
    if parts is None:
        return
    yield parts, []
    cls, args, attributes = parts
    values: dict[Any, Any] = {**dict(enumerate(args)), **attributes}
    kept, stayed = _those_that_travel(values, trip)
    kept |= {place: frame_variables.copy_value(value) for place, value in stayed.items()}
    made = (cls, tuple(kept[i] for i in range(len(args))), {name: kept[name] for name in attributes})
    yield made, _note_of_stayed(stayed)


def _survive(form: Any, error: BaseException, message: str, trip: Trip) -> bytes:
    """Return the pickle of a form. Raise if another class or message comes back."""
    again, stream = trip(form)
    again = unwrap(again)
    if of_class(again, "__qualname__") != of_class(error, "__qualname__"):
        raise TypeError("it came back as something else")
    text = str(again)
    if not (text == message if len(message) <= MAX_SHOWN else len(text) <= 2 * MAX_SHOWN):
        raise TypeError("it came back with another message")
    return stream


def round_trip(value: Any, main: Mapping[str, Any], linkable: pickling.Linkable) -> tuple[Any, bytes]:
    """Pickle and unpickle a value: a `Trip`, with the task's names and those that the notebook has."""
    pickled = pickling.dumps(
        value, main, linkable, for_notebook=True, limit_bytes=_MAX_OBJECT_BYTES, refuse=_STAYS
    )
    if pickled.buffers:  # an exception that carries big arrays travels without them
        raise ValueError("it carries large arrays")
    stream = pickled.stream
    return pickling.loads(Packed(data=stream), main), stream


def _parts_of(error: BaseException) -> tuple[type, tuple[Any, ...], dict[str, Any]] | None:
    cls = type(error)
    builtin = _nearest_builtin(cls)
    if cls.__reduce__ is not builtin.__reduce__ or cls.__reduce_ex__ is not object.__reduce_ex__:
        return None  # the class pickles itself, wrongly
    reduced = builtin.__reduce__(error)
    attributes: Any = reduced[2] if len(reduced) > 2 else None
    return (cls, tuple(reduced[1]), dict(attributes or {}))


def pack_attributes(error: BaseException, trip: Trip) -> tuple[bytes | None, list[str]]:
    """Return the pickled attributes of an exception that stays itself, and a note on those that stay too."""
    attributes = {name: value for name, value in own(error).items() if name not in _LEFT_BEHIND}
    kept, stayed = _those_that_travel(attributes, trip)
    try:
        return time_limits.call(lambda: trip(kept)[1], _OBJECT_S), _note_of_stayed(stayed)
    except BaseException:  # together they are too large, or the user's own pickling has raised
        return None, []


def _those_that_travel(values: Mapping[Any, Any], trip: Trip) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Split values into those that survive the round trip, long texts clipped, and the others."""
    trials = [functools.partial(trip, value) for value in values.values()]
    results = time_limits.call_each(trials, _TEXT_S, _OBJECT_S)
    kept: dict[Any, Any] = {}
    stayed: dict[Any, Any] = {}
    for (name, value), result in zip(values.items(), results, strict=True):
        if type(value) is str:
            kept[name] = clip(value, MAX_SHOWN)
        elif result.error is None:
            kept[name] = value
        else:
            stayed[name] = value
    return kept, stayed


def _note_of_stayed(stayed: Mapping[Any, Any]) -> list[str]:
    """Return a note that names what stays: attributes by name, arguments by place."""
    names = [
        f"{f'args[{name}]' if isinstance(name, int) else f'.{name}'} ({type(value).__qualname__})"
        for name, value in stayed.items()
    ]
    return [f"stayed on the task, since it cannot travel: {', '.join(names)}"] if names else []


def _nearest_builtin(cls: type) -> Any:
    bases = type.__dict__["__mro__"].__get__(cls)
    return next(c for c in bases if type(c) is type and c.__module__ == "builtins")


# ---- in the notebook ----------------------------------------------------------------------------


def unwrap(value: Any) -> Any:
    """Return the exception that has travelled, made of its parts if these have."""
    if not isinstance(value, tuple):
        return value
    cls, args, attributes = value
    builtin = _nearest_builtin(cls)
    error = builtin.__new__(cls, *args)
    builtin.__init__(error, *args)
    own(error).update(attributes)
    return error


def unpack_object(data: bytes, main: Mapping[str, Any]) -> Any:
    """Return an exception that has travelled. Raise if it cannot be unpickled in time, or not be shown."""

    def unpack() -> Any:  # runs the user's code
        error = unwrap(pickling.loads(Packed(data=data), main, import_tensorflow=False))
        if not can_be_shown(error):
            raise TypeError("not an exception any more, or one whose attributes raise")
        return error

    return time_limits.call(unpack, _ARRIVAL_S)


def give_attributes(error: BaseException, data: bytes | None, main: Mapping[str, Any]) -> BaseException:
    """Give a stand-in the attributes that have travelled and that it does not have."""
    if data is not None:
        unpack = functools.partial(pickling.loads, Packed(data=data), main, import_tensorflow=False)
        with contextlib.suppress(Exception):  # a class cannot be unpickled here, or needs TensorFlow
            for name, value in time_limits.call(unpack, _ARRIVAL_S).items():
                own(error).setdefault(name, value)
    return error
