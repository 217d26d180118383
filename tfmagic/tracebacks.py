"""A task's exception on its way to the notebook, and there again as what it was.

    task                                                 notebook
    exception ─ chain of causes ─ each: object (dill) + frames (tblib) with copies of their variables
                                             └──→ PackedError ──→ exception, its own class, its frames,
                                                                  notes, cause and context

An exception object travels if it survives the whole round trip on its task, within a time limit: the
same class, the same message. A class whose constructor does not take what `args` hold is rebuilt from
its parts. An argument or attribute that cannot travel is replaced by its text (`RemoteLocal`), and a note
names it. What does not survive becomes a `RemoteError` that is also the nearest class which the
notebook has; so does one whose class would pull TensorFlow into the notebook's process, and one whose
class makes the attributes raise that Python and IPython read. Frames, text and notes travel in any case.

Attributes of an exception are read and set past its class (`own`, `_of`, `_set`): the class may raise
whatever it likes for each of them.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import io
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType, TracebackType
from typing import Any

import tblib

from tfmagic import bounded, copies, pickling
from tfmagic.copies import FrameCopy
from tfmagic.errors import remote_error
from tfmagic.packed import Packed, PackedError

_OUR_FOLDER = os.path.dirname(__file__) + os.sep
_MAX_CHAIN = 20  # a chain of causes longer than this is a loop or a recursion
_MAX_FRAMES = 200  # of one exception: a recursion's inner and outer ends tell enough
_MAX_MESSAGE, _MAX_TEXT = 20_000, 1_000_000  # characters that are searched and folded; that are kept
_MAX_SHOWN = 100_000  # characters of a message that the notebook shows: half of what a saved cell may have
_MAX_NOTES = 100
_MAX_OBJECT_BYTES = 1 << 24  # a pickled exception: what is larger is data, and stays on its task
_TEXT_S, _OBJECT_S = 0.5, 1.0  # for a str(), and for pickling and unpickling
_STAYS = (io.IOBase, type(threading.Lock()), type(threading.RLock()))  # dill would make new ones
_LEFT_BEHIND = (  # notes travel by themselves; what AutoGraph notes holds graphs and frames
    "__notes__",
    "ag_error_metadata",
    "ag_pass_through",
    "_pre_traceback_",
)
_READ_BY_ALL = ("__traceback__", "__cause__", "__context__", "__suppress_context__", "__notes__")

Rename = Callable[[str], str]
Keep = Callable[[str], str]
Linkable = Callable[[str], bool]


def pack_error(
    error: BaseException,
    main: Mapping[str, Any],
    linkable: Linkable,
    where: str,
    cell_file: str = "",
    keep: Keep | None = None,
) -> PackedError:
    """Pack an exception with its chain. Runs in the task; never raises, and ends within seconds.

    Args:
        error: The exception, with its traceback.
        main: The task's namespace.
        linkable: Whether the notebook has the class bound to this name.
        where: Who raised it, for the note: ``worker-1 (pid 4242, host)``.
        cell_file: The file name of the cell, of which the line is then told.
        keep: Stores the whole text of an exception that is too long to be shown; returns where it is.
    """
    try:
        return _pack(error, main, linkable, where, cell_file, keep)
    except BaseException as broken:  # a class that makes even its dunders raise
        name = type(error).__qualname__
        message = f"<{name}, which could not be packed: {type(broken).__qualname__}>"
        text = "".join(traceback.format_tb(_of(error, "__traceback__"))) + f"{name}: {message}\n"
        return PackedError(name, message, text, None, where, ((name, message),))


def _pack(
    error: BaseException,
    main: Mapping[str, Any],
    linkable: Linkable,
    where: str,
    cell_file: str,
    keep: Keep | None,
) -> PackedError:
    if issubclass(type(error), KeyboardInterrupt):  # the notebook makes its own
        text = _format(error, _without_our_handler(without_our_frames(error.__traceback__)))
        line = _line_in(error, cell_file)
        return PackedError("KeyboardInterrupt", _clip(_message(error)), text, None, where, (), line)
    chain = list(_chain(error))
    messages = [_message(item) for item in chain]
    variables = copies.copy_frames(f for item in chain for f in _frames_of(item))
    parts: dict[int, dict[str, Any]] = {}
    for item, message in zip(reversed(chain), reversed(messages), strict=True):
        parts[id(item)] = _part(item, message, parts, variables, main, linkable)
    if max(map(len, messages)) > _MAX_SHOWN:
        parts[id(error)]["notes"].append(_note_of_length(error, max(map(len, messages)), keep))
    try:
        packed = pickling.pack(pickling.dumps(parts[id(error)], main, linkable, for_notebook=True))
    except Exception:  # the text is there whatever the objects do
        packed = None
    line = _line_in(error, cell_file)
    names = tuple((type(item).__qualname__, _clip(text)) for item, text in zip(chain, messages, strict=True))
    text = parts[id(error)]["text"]
    return PackedError(type(error).__qualname__, _clip(messages[0]), text, packed, where, names, line)


def unpack_error(
    packed: PackedError, main: Mapping[str, Any], rename: Rename = lambda name: name
) -> BaseException:
    """The exception, ready to be raised, with a note that says where it was raised. Never fails.

    Args:
        packed: What `pack_error` made.
        main: The notebook's namespace, where its own classes are found.
        rename: Gives the name under which a source file is shown here.
    """
    try:
        if packed.packed is None:
            raise ValueError("the exception did not travel")
        chain = pickling.loads(packed.packed, main, import_tensorflow=False)
        error = _rebuild(chain, main, rename)
    except Exception:  # a foreign class did something odd: the text is there
        error = remote_error(packed.message, packed.type_name, packed.text)
    add_note(error, f"raised on {packed.where}")
    return error


# ---- on the task --------------------------------------------------------------------------------


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and what led to it, each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting and len(seen) < _MAX_CHAIN:
        item = waiting.pop(0)
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        context = None if _of(item, "__suppress_context__") else _of(item, "__context__")
        waiting += [_of(item, "__cause__"), context]


def _of(error: BaseException, name: str) -> Any:
    """An attribute of Python's own, whatever the class has made of the name."""
    return getattr(BaseException, name).__get__(error)


def own(error: BaseException) -> dict[str, Any]:
    """Return the attributes that an exception has itself, whatever its class does with attributes."""
    found = BaseException.__dict__["__dict__"].__get__(error)
    return found if isinstance(found, dict) else {}


def _note_of_length(error: BaseException, length: int, keep: Keep | None) -> str:
    """Say that the message is shown in part, and where the whole text is."""
    place = ""
    if keep is not None:
        with contextlib.suppress(Exception):  # a full disk, or a class whose text takes too long
            lines = traceback.format_exception(type(error), error, _of(error, "__traceback__"))
            place = f"; the whole text is in {keep(''.join(lines))}"
    return f"the message has {length:,} characters, of which the beginning and the end are shown{place}"


def _clip(text: str, limit: int = _MAX_MESSAGE) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n... {len(text) - limit} characters left out ...\n{text[-limit // 2 :]}"


def _part(
    error: BaseException,
    message: str,
    parts: Mapping[int, dict[str, Any]],
    variables: Mapping[int, FrameCopy],
    main: Mapping[str, Any],
    linkable: Linkable,
) -> dict[str, Any]:
    """One exception as plain data; the exception object is pickled by itself."""
    frames = _shortened(without_our_frames(_of(error, "__traceback__")))
    suppress = _of(error, "__suppress_context__")
    data, stayed = _object_bytes(error, message, main, linkable)
    attributes, lost = _attributes_bytes(error, main, linkable) if data is None else (None, [])
    return {
        "object": data,
        "attributes": attributes,
        "type_name": type(error).__qualname__,
        "message": _clip(message, _MAX_SHOWN),
        "text": _format(error, frames, message),
        "bases": [(base.__module__, base.__qualname__) for base in type(error).__mro__],
        "frames": _plain_frames(frames, variables),
        "notes": _notes(error) + stayed + lost,
        "cause": parts.get(id(_of(error, "__cause__"))),
        "context": None if suppress else parts.get(id(_of(error, "__context__"))),
        "suppress": suppress,
    }


def _plain_frames(
    frames: TracebackType | None, variables: Mapping[int, FrameCopy]
) -> list[tuple[str, str, int, dict[str, Any], Mapping[str, Any]]]:
    """File, function, line, globals and locals of each frame: flat, since a pickle has little depth."""
    if frames is None:
        return []
    entry = tblib.Traceback(frames, get_locals=lambda frame: variables.get(id(frame), FrameCopy()).own)
    plain = []
    original: TracebackType | None = frames
    while entry is not None and original is not None:
        frame = entry.tb_frame
        code = frame.f_code
        of_module = variables.get(id(original.tb_frame), FrameCopy()).of_module
        known = {**of_module, **frame.f_globals}
        plain.append((code.co_filename, code.co_name, entry.tb_lineno, known, frame.f_locals))
        entry, original = entry.tb_next, original.tb_next
    return plain


def _object_bytes(
    error: BaseException, message: str, main: Mapping[str, Any], linkable: Linkable
) -> tuple[bytes | None, list[str]]:
    """The exception object, if it survives the round trip here, and notes on what of it does not."""
    attributes = own(error)
    noted = {name: attributes.pop(name) for name in _LEFT_BEHIND if name in attributes}
    try:
        for make in (_whole, _from_parts, _reduced):
            try:
                value, stayed = make(error, main, linkable)
                if value is not None:
                    trip = functools.partial(_round_trip, value, error, message, main, linkable)
                    return bounded.call(trip, _OBJECT_S), stayed
            except bounded.TookTooLong:
                return None, []
            except Exception:  # the class' own pickling may raise anything; the parts may do
                continue
        return None, []
    finally:
        attributes.update(noted)


def _round_trip(
    value: Any, error: BaseException, message: str, main: Mapping[str, Any], linkable: Linkable
) -> bytes:
    again, stream = _there_and_back(value, main, linkable)
    again = _unwrap(again)
    if type(again).__qualname__ != type(error).__qualname__:
        raise TypeError("it came back as something else")
    text = str(again)
    is_same = text == message if len(message) <= _MAX_SHOWN else len(text) <= 2 * _MAX_SHOWN
    if not is_same:
        raise TypeError("it came back with another message")
    return stream


def _there_and_back(value: Any, main: Mapping[str, Any], linkable: Linkable) -> tuple[Any, bytes]:
    """Pickle and unpickle a value as on its way to the notebook; the copy and the pickle."""
    stream, buffers, _ = pickling.dumps(
        value, main, linkable, for_notebook=True, limit_bytes=_MAX_OBJECT_BYTES, refuse=_STAYS
    )
    if buffers:  # an exception that carries big arrays travels without them
        raise ValueError("it carries large arrays")
    return pickling.loads(Packed(data=stream), main), stream


def _whole(error: BaseException, main: Mapping[str, Any], linkable: Linkable) -> tuple[Any, list[str]]:
    """The exception as its class pickles it."""
    return error, []


def _from_parts(error: BaseException, main: Mapping[str, Any], linkable: Linkable) -> tuple[Any, list[str]]:
    """Class, arguments and attributes, for a class that only has an odd constructor."""
    return _parts_of(error), []


def _parts_of(error: BaseException) -> tuple[type, tuple[Any, ...], dict[str, Any]] | None:
    cls = type(error)
    builtin = _nearest_builtin(cls)
    if cls.__reduce__ is not builtin.__reduce__ or cls.__reduce_ex__ is not object.__reduce_ex__:
        return None  # a class that pickles itself, and does it wrong
    reduced = builtin.__reduce__(error)
    attributes: Any = reduced[2] if len(reduced) > 2 else None
    return (cls, tuple(reduced[1]), dict(attributes or {}))


def _reduced(error: BaseException, main: Mapping[str, Any], linkable: Linkable) -> tuple[Any, list[str]]:
    """The parts of an exception, with the texts of those that cannot travel, and a note that names these."""
    parts = _parts_of(error)
    if parts is None:
        return None, []
    cls, args, attributes = parts
    places = [*range(len(args)), *attributes]
    kept, stayed = _those_that_travel(
        dict(zip(places, [*args, *attributes.values()], strict=True)), main, linkable
    )
    for place, value in stayed.items():
        kept[place] = copies.stand_in(value)
    made = (cls, tuple(kept[i] for i in range(len(args))), {name: kept[name] for name in attributes})
    return made, _note_of_stayed(stayed)


def _attributes_bytes(
    error: BaseException, main: Mapping[str, Any], linkable: Linkable
) -> tuple[bytes | None, list[str]]:
    """The attributes of an exception that does not travel itself, and a note on those that do not either."""
    attributes = {name: value for name, value in own(error).items() if name not in _LEFT_BEHIND}
    kept, stayed = _those_that_travel(attributes, main, linkable)
    try:
        return bounded.call(lambda: _there_and_back(kept, main, linkable)[1], _OBJECT_S), _note_of_stayed(
            stayed
        )
    except BaseException:  # together they are too large, or the user's own pickling did something odd
        return None, []


def _those_that_travel(
    values: Mapping[Any, Any], main: Mapping[str, Any], linkable: Linkable
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Part values into those that survive the round trip, long texts clipped, and the others."""
    trials = [functools.partial(_there_and_back, value, main, linkable) for value in values.values()]
    results = bounded.call_each(trials, _TEXT_S, _OBJECT_S)
    kept: dict[Any, Any] = {}
    stayed: dict[Any, Any] = {}
    for (name, value), result in zip(values.items(), results, strict=True):
        if type(value) is str:
            kept[name] = _clip(value, _MAX_SHOWN)
        elif result.error is None:
            kept[name] = value
        else:
            stayed[name] = value
    return kept, stayed


def _note_of_stayed(stayed: Mapping[Any, Any]) -> list[str]:
    """Name what is not there: attributes by name, arguments by place."""
    names = [
        f"{f'args[{name}]' if isinstance(name, int) else f'.{name}'} ({type(value).__qualname__})"
        for name, value in stayed.items()
    ]
    return [f"stayed on the task, since it cannot travel: {', '.join(names)}"] if names else []


def _unwrap(value: Any) -> Any:
    """The exception itself, or what its parts make."""
    if not isinstance(value, tuple):
        return value
    cls, args, attributes = value
    builtin = _nearest_builtin(cls)
    error = builtin.__new__(cls, *args)
    builtin.__init__(error, *args)
    own(error).update(attributes)
    return error


def _nearest_builtin(cls: type) -> Any:
    return next(c for c in cls.__mro__ if c.__module__ == "builtins")


def without_our_frames(frames: TracebackType | None) -> TracebackType | None:
    """Drop the frames of tfmagic above the user's code."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
        if frames.tb_next is None:
            break
        frames = frames.tb_next
    return frames


def _without_our_handler(frames: TracebackType | None) -> TracebackType | None:
    """Drop our frames below the user's code: the handler of the signal that raised there."""
    entries = []
    while frames is not None:
        entries.append(frames)
        frames = frames.tb_next
    while entries and entries[-1].tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
        entries.pop()
    return _linked(entries)


def _shortened(frames: TracebackType | None) -> TracebackType | None:
    """At most `_MAX_FRAMES` frames: of a deep recursion the first and the last."""
    entries = []
    while frames is not None:
        entries.append(frames)
        frames = frames.tb_next
    if len(entries) > _MAX_FRAMES:
        entries = entries[: _MAX_FRAMES // 2] + entries[-_MAX_FRAMES // 2 :]
    return _linked(entries)


def _linked(entries: list[TracebackType]) -> TracebackType | None:
    made = None
    for entry in reversed(entries):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made


def _frames_of(error: BaseException) -> list[FrameType]:
    """The frames of the user's code, the innermost first."""
    frames, found = _shortened(without_our_frames(_of(error, "__traceback__"))), []
    while frames is not None:
        found.append(frames.tb_frame)
        frames = frames.tb_next
    return found[::-1]


def _line_in(error: BaseException, file: str) -> int:
    """The line of the innermost frame in `file`; 0 where there is none."""
    line, frames = 0, _of(error, "__traceback__")
    while frames is not None:
        if frames.tb_frame.f_code.co_filename == file:
            line = frames.tb_lineno
        frames = frames.tb_next
    return line


def _notes(error: BaseException) -> list[str]:
    """Its notes as text; what is no text in them is shown as Python shows it."""
    try:
        given = own(error)["__notes__"]
        more = [f"... {len(given) - _MAX_NOTES} more notes"] if len(given) > _MAX_NOTES else []
        notes = bounded.call(lambda: [*map(str, given[:_MAX_NOTES]), *more], _TEXT_S)
    except BaseException:  # none, or of a kind that has no text
        return []
    return [_clip(note) for note in notes]


def _message(error: BaseException) -> str:
    try:
        return str(bounded.call(lambda: str(error), _TEXT_S))
    except BaseException as broken:  # the user's own __str__
        late = isinstance(broken, bounded.TookTooLong)
        how = "took too long" if late else f"raised {type(broken).__name__}"
        return f"<{type(error).__qualname__} whose str() {how}>"


def _format(error: BaseException, frames: TracebackType | None, message: str = "") -> str:
    try:
        made = bounded.call(lambda: traceback.format_exception(type(error), error, frames), 2 * _TEXT_S)
        return _clip("".join(made), _MAX_TEXT)
    except BaseException:  # the user's own __str__, or what the class makes of its attributes
        lines = "".join(traceback.format_tb(frames))
        return f"{lines}{type(error).__qualname__}: {_clip(message, _MAX_SHOWN)}\n"


# ---- in the notebook ----------------------------------------------------------------------------


def _rebuild(part: dict[str, Any], main: Mapping[str, Any], rename: Rename) -> BaseException:
    try:
        if part["object"] is None:
            raise ValueError("the exception did not survive pickling")
        error = _unwrap(pickling.loads(Packed(data=part["object"]), main, import_tensorflow=False))
        if not _can_be_shown(error):
            raise TypeError("not an exception any more, or one whose attributes raise")
    except Exception:  # a foreign class did something odd: the text is there
        error = _stand_in(part, main)
    if part["frames"]:
        _set(error, "__traceback__", _as_traceback(part["frames"], rename))
    if part["notes"]:
        _set(error, "__notes__", list(part["notes"]))
    if part["cause"]:
        _set(error, "__cause__", _rebuild(part["cause"], main, rename))
    if part["context"]:
        _set(error, "__context__", _rebuild(part["context"], main, rename))
    _set(error, "__suppress_context__", part["suppress"])
    return error


def _can_be_shown(error: Any) -> bool:
    """Whether Python and IPython can read what they need of it; IPython would show nothing at all."""
    if not issubclass(type(error), BaseException):
        return False
    try:
        _set(error, "__notes__", notes_of(error))  # it will have some
        isinstance(error, BaseExceptionGroup)  # reads `__class__`
        for name in _READ_BY_ALL:
            getattr(error, name)
    except Exception:  # of its `__getattribute__`, or of a property
        return False
    return True


def _stand_in(part: dict[str, Any], main: Mapping[str, Any]) -> BaseException:
    """A `RemoteError` that is also the nearest base class which can be had here."""
    for module, name in part["bases"]:
        base = _find_class(module, name, main)
        if base is None:
            continue
        error = remote_error(part["message"], part["type_name"], part["text"], base)
        if _can_be_shown(error):
            return _with_attributes(error, part["attributes"], main)
    error = remote_error(part["message"], part["type_name"], part["text"])
    return _with_attributes(error, part["attributes"], main)


def _with_attributes(error: BaseException, data: bytes | None, main: Mapping[str, Any]) -> BaseException:
    """Give a stand-in the attributes that have travelled, but for those that it has."""
    if data is not None:
        with contextlib.suppress(Exception):  # a foreign class did something odd, or needs TensorFlow
            for name, value in pickling.loads(Packed(data=data), main, import_tensorflow=False).items():
                own(error).setdefault(name, value)
    return error


def _find_class(module: str, name: str, main: Mapping[str, Any]) -> type[BaseException] | None:
    heavy = module.partition(".")[0] in pickling.HEAVY_ROOTS
    if heavy and module not in sys.modules:
        return None
    try:
        found = main.get(name) if module == "__main__" else getattr(importlib.import_module(module), name)
    except Exception:  # an import may raise anything
        return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _make_stub() -> CodeType:
    """Code that raises, with a line and no columns: those of a stub would mark the wrong characters."""
    tree = ast.parse("raise __a_name_that_nobody_has")
    for node in ast.walk(tree):
        if hasattr(node, "col_offset"):
            node.col_offset = node.end_col_offset = -1  # type: ignore[attr-defined]  # checked above
    return compile(tree, "<stub>", "exec")


_STUB = _make_stub()


def _as_traceback(
    frames: list[tuple[str, str, int, dict[str, Any], dict[str, Any]]], rename: Rename
) -> TracebackType | None:
    """A traceback that Python can raise and show, from what tblib made of the task's.

    As `tblib.Traceback.as_traceback`, but for the columns: each frame is made by running a stub that
    has the name, file and line of the real one, and its variables.
    """
    made = None
    for file, name, line, variables_of_module, variables in reversed(frames):
        code = _STUB.replace(co_firstlineno=line, co_filename=rename(file), co_name=name, co_qualname=name)
        try:
            exec(code, dict(variables_of_module), dict(variables))
        except NameError as error:
            assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
            raised = error.__traceback__.tb_next
            made = TracebackType(made, raised.tb_frame, raised.tb_lasti, raised.tb_lineno)
    return made


def _set(error: BaseException, name: str, value: Any) -> None:
    """Set an attribute of Python's own, also where the class forbids it."""
    BaseException.__setattr__(error, name, value)


def add_note(error: BaseException, note: str) -> None:
    """Add a note, also where the class forbids attributes."""
    with contextlib.suppress(Exception):  # a class that makes even this raise
        notes = notes_of(error)
        _set(error, "__notes__", [*notes, note])


def notes_of(error: BaseException) -> list[Any]:
    """Return the notes of an exception, whatever its class does with attributes."""
    notes = own(error).get("__notes__")
    return notes if isinstance(notes, list) else []
