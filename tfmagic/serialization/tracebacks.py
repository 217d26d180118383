"""Pack an exception on a task and make it again in the notebook, with its class, causes, frames and notes.

    task                                                 notebook
    exception ─ chain of causes ─ each: object (dill) + frames with copies of their variables
                                             └──→ PackedError ──→ exception, its own class, its frames,
                                                                  notes, cause and context

An exception that cannot travel becomes a `RemoteError` that is also the nearest class which the notebook has.
So does one whose class would import TensorFlow into the notebook, and one whose class raises for attributes
that Python and IPython read. `tfmagic.serialization.exceptions` packs the object itself. Frames, text and
notes always travel.
"""

import contextlib
import functools
import importlib
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from tfmagic.errors import remote_error
from tfmagic.protocol.payload import PackedError
from tfmagic.serialization import (
    exceptions,
    frame_variables,
    packing,
    pickling,
    rebuilt_frames,
    tensorflow_values,
)
from tfmagic.serialization.exceptions import MAX_SHOWN, Trip, clip, encodable, of_class, of_python, put
from tfmagic.system import own_code, time_limits

_MAX_CHAIN = 20  # a longer chain of causes is a loop or a recursion
_MAX_FRAMES = 200  # of one exception: the two ends of a recursion are enough
_MAX_MESSAGE, _MAX_TEXT = 20_000, 1_000_000  # characters that are searched and folded; that are kept
_MAX_NOTES = 100
_TEXT_S = 0.5  # for a str()

Rename = Callable[[str], str]
Keep = Callable[[str], str]


def pack_error(
    error: BaseException,
    main: Mapping[str, Any],
    linkable: pickling.Linkable,
    where: str,
    cell_file: str = "",
    keep: Keep | None = None,
) -> PackedError:
    """Pack an exception with its chain. Runs in the task; never raises, and ends within seconds.

    Args:
        error: The exception, with its traceback.
        main: The task's namespace.
        linkable: Whether the notebook has the class bound to this name.
        where: The task that raised it, for the note: ``worker-1 (pid 4242, host)``.
        cell_file: The file name of the cell, to report the line in it.
        keep: Stores the text of an exception that is too long to be shown; returns the path.
    """
    try:
        return _pack(error, main, linkable, where, cell_file, keep)
    except BaseException as broken:  # a class that makes even its dunders raise
        name = _name(error)
        message = f"<{name}, which could not be packed: {_name(broken)}>"
        frames = own_code.without_leading(of_python(error, "__traceback__"))
        text = f"{_format_frames(frames)}{name}: {message}\n"
        return PackedError(name, message, text, None, where, ((name, message),))


def _pack(
    error: BaseException,
    main: Mapping[str, Any],
    linkable: pickling.Linkable,
    where: str,
    cell_file: str,
    keep: Keep | None,
) -> PackedError:
    line = _line_in(error, cell_file)
    if issubclass(type(error), KeyboardInterrupt):  # the notebook makes its own
        text = _format(error, own_code.without_handler(own_code.without_leading(error.__traceback__)))
        message = clip(encodable(_message(error)), _MAX_MESSAGE)
        return PackedError("KeyboardInterrupt", message, text, None, where, (), line)
    every = list(_chain(error))
    chain = every[:_MAX_CHAIN]
    messages = [_message(item) for item in chain]
    variables = frame_variables.copy_frames(
        e.tb_frame for item in chain for e in reversed(_users_entries(item))
    )
    trip = functools.partial(exceptions.round_trip, main=main, linkable=linkable)
    parts: dict[int, dict[str, Any]] = {}
    for item, message in zip(reversed(chain), reversed(messages), strict=True):
        parts[id(item)] = _part(item, message, parts, variables, trip)
    if left_out := len(every) - len(chain):
        parts[id(error)]["notes"].append(
            f"its causes and contexts are {len(every) - 1:,} exceptions; {left_out:,} of them are left out"
        )
    longest = max(map(len, messages))
    if longest > MAX_SHOWN:
        parts[id(error)]["notes"].append(_note_of_length(error, longest, keep))
    try:
        packed = packing.pack(pickling.dumps(parts[id(error)], main, linkable, for_notebook=True))
    except Exception:  # an object in it cannot be pickled: the text is there
        packed = None
    names = [(_name(e), clip(encodable(m), _MAX_MESSAGE)) for e, m in zip(chain, messages, strict=True)]
    return PackedError(*names[0], parts[id(error)]["text"], packed, where, tuple(names), line)


def unpack_error(
    packed: PackedError, main: Mapping[str, Any], rename: Rename = lambda name: name
) -> BaseException:
    """Return the exception, ready to be raised, with a note that names its task. Never fails.

    Args:
        packed: The return value of `pack_error`.
        main: The notebook's namespace, where its own classes are found.
        rename: Returns the name under which a source file is shown here.
    """
    try:
        if packed.packed is None:
            raise ValueError("the exception did not travel")
        chain = pickling.loads(packed.packed, main, import_tensorflow=False)
        error = _rebuild(chain, main, lambda name: encodable(rename(name)))
    except Exception:  # a class cannot be unpickled here: the text is there
        error = remote_error(packed.message, packed.type_name, packed.text)
    exceptions.add_note(error, f"raised on {packed.where}")
    return error


# ---- on the task --------------------------------------------------------------------------------


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception, its causes and contexts, and the members of groups, each once."""
    seen: set[int] = set()
    waiting: deque[BaseException | None] = deque([error])
    while waiting:
        item = waiting.popleft()
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        context = None if of_python(item, "__suppress_context__") else of_python(item, "__context__")
        waiting += [of_python(item, "__cause__"), context, *_members_of(item)]


def _members_of(error: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions of an exception group, past its class."""
    is_group = issubclass(type(error), BaseExceptionGroup)
    return tuple(BaseExceptionGroup.exceptions.__get__(error)) if is_group else ()


def _note_of_length(error: BaseException, length: int, keep: Keep | None) -> str:
    """Return a note that the message is shown in part, with the path of the whole text."""
    place = ""
    if keep is not None:
        with contextlib.suppress(Exception):  # the disk is full, or making the text takes too long
            lines = traceback.format_exception(type(error), error, of_python(error, "__traceback__"))
            place = f"; the whole text is in {keep(''.join(lines))}"
    return f"the message has {length:,} characters, of which the beginning and the end are shown{place}"


def _part(
    error: BaseException,
    message: str,
    parts: Mapping[int, dict[str, Any]],
    variables: rebuilt_frames.Copies,
    trip: Trip,
) -> dict[str, Any]:
    """Return one exception as plain data, with the pickled object in it."""
    entries = _users_entries(error)
    whole = own_code.linked(entries)
    # not `in`: a metaclass can compare
    is_pythons_group = type(error) is ExceptionGroup or type(error) is BaseExceptionGroup
    suppress = of_python(error, "__suppress_context__")
    data, stayed = exceptions.pack_object(error, message, trip)
    attributes, lost = exceptions.pack_attributes(error, trip) if data is None else (None, [])
    return {
        "object": data,
        "attributes": attributes,
        "type_name": _name(error),
        "message": clip(encodable(message), MAX_SHOWN),
        "text": _format(error, own_code.without_handler(whole) or whole, message),
        "bases": _bases_of(error),
        "frames": rebuilt_frames.describe(entries, variables),
        "notes": _notes(error) + stayed + lost,
        "cause": parts.get(id(of_python(error, "__cause__"))),
        "context": None if suppress else parts.get(id(of_python(error, "__context__"))),
        "suppress": suppress,
        "members": [parts.get(id(member)) for member in _members_of(error)],
        "group": encodable(str(getattr(error, "message", ""))) if is_pythons_group else None,
    }


def comes_from_user(error: BaseException) -> bool:
    """Check whether the frame that raised is none of tfmagic's, although it was called from there."""
    innermost = own_code.entries_of(of_python(error, "__traceback__"))[-1]
    return not own_code.is_ours(innermost.tb_frame.f_code.co_filename)


def _users_entries(error: BaseException) -> list[TracebackType]:
    """Return the entries of the user's code in the traceback; of a deep recursion the first and the last."""
    frames = own_code.without_leading(of_python(error, "__traceback__"))
    entries = own_code.without_patches(own_code.entries_of(frames))
    half = _MAX_FRAMES // 2
    return entries if len(entries) <= _MAX_FRAMES else entries[:half] + entries[-half:]


def _line_in(error: BaseException, file: str) -> int:
    """Return the line of the innermost frame in `file`; 0 if there is none."""
    found = traceback.walk_tb(of_python(error, "__traceback__"))
    lines = [line for frame, line in found if frame.f_code.co_filename == file]
    return (lines[-1] or 0) if lines else 0  # code can be without lines


def _notes(error: BaseException) -> list[str]:
    """Return the notes as text; a note that is no str becomes its str()."""
    try:
        given = exceptions.own(error)["__notes__"]
        more = [f"... {len(given) - _MAX_NOTES} more notes"] if len(given) > _MAX_NOTES else []
        notes = time_limits.call(lambda: [*map(str, given[:_MAX_NOTES]), *more], _TEXT_S)
    except BaseException:  # it has none, or they are not a list of notes
        return []
    return [clip(encodable(note), _MAX_MESSAGE) for note in notes]


def _name(error: BaseException) -> str:
    return encodable(of_class(error, "__qualname__"))


def _bases_of(error: BaseException) -> list[tuple[Any, str]]:
    """Return the module and the name of each class of an exception, past their metaclasses."""
    module, name = (type.__dict__[each].__get__ for each in ("__module__", "__qualname__"))
    return [(module(base), name(base)) for base in of_class(error, "__mro__")]


def _message(error: BaseException) -> str:
    try:
        return str(time_limits.call(lambda: str(error), _TEXT_S))
    except BaseException as broken:  # the user's own __str__
        late = isinstance(broken, time_limits.TookTooLong)
        how = "took too long" if late else f"raised {of_class(broken, '__name__')}"
        return f"<{_name(error)} whose str() {how}>"


def _format(error: BaseException, frames: TracebackType | None, message: str = "") -> str:
    try:
        made = time_limits.call(lambda: traceback.format_exception(type(error), error, frames), 2 * _TEXT_S)
        return clip(encodable("".join(made)), _MAX_TEXT)
    except BaseException:  # of the user's own __str__, or of an attribute
        return encodable(f"{_format_frames(frames)}{_name(error)}: {clip(message, MAX_SHOWN)}\n")


def _format_frames(frames: TracebackType | None) -> str:
    """Return frames as text, without source lines: a file name that no file can have makes Python raise."""
    try:
        return "".join(traceback.format_tb(frames))
    except Exception:
        found = [(entry.tb_frame.f_code, entry.tb_lineno) for entry in own_code.entries_of(frames)]
        return "".join(
            f'  File "{code.co_filename}", line {line}, in {code.co_name}\n' for code, line in found
        )


# ---- in the notebook ----------------------------------------------------------------------------


def _rebuild(part: dict[str, Any], main: Mapping[str, Any], rename: Rename) -> BaseException:
    try:
        if part["object"] is None:
            raise ValueError("the exception did not survive pickling")
        error = exceptions.unpack_object(part["object"], main)
    except Exception:  # a class cannot be unpickled here, or not in time: the text is there
        error = _group_of(part, main, rename) or _stand_in(part, main)
    _complete(error, part, main, rename)
    return error


def _complete(error: BaseException, part: dict[str, Any], main: Mapping[str, Any], rename: Rename) -> None:
    """Set what does not travel in the object, on an exception and on the members of a group."""
    if part["frames"]:
        put(error, "__traceback__", rebuilt_frames.rebuild(part["frames"], rename))
    if part["notes"]:
        put(error, "__notes__", list(part["notes"]))
    if part["cause"]:
        put(error, "__cause__", _rebuild(part["cause"], main, rename))
    if part["context"]:
        put(error, "__context__", _rebuild(part["context"], main, rename))
    put(error, "__suppress_context__", part["suppress"])
    for member, its_part in zip(_members_of(error), part["members"], strict=False):
        if its_part:
            _complete(member, its_part, main, rename)


def _group_of(part: dict[str, Any], main: Mapping[str, Any], rename: Rename) -> BaseException | None:
    """Return a group of Python's own class, made of its members; None if that is not possible."""
    if part["group"] is None or None in part["members"]:
        return None
    return BaseExceptionGroup(part["group"], [_rebuild(member, main, rename) for member in part["members"]])


def _stand_in(part: dict[str, Any], main: Mapping[str, Any]) -> BaseException:
    """Return a `RemoteError` that is also the nearest base class which exists here."""
    for module, name in part["bases"]:
        base = _find_class(module, name, main)
        if base is None:
            continue
        error = remote_error(part["message"], part["type_name"], part["text"], base)
        if exceptions.can_be_shown(error):
            return exceptions.give_attributes(error, part["attributes"], main)
    error = remote_error(part["message"], part["type_name"], part["text"])
    return exceptions.give_attributes(error, part["attributes"], main)


def _find_class(module: str, name: str, main: Mapping[str, Any]) -> type[BaseException] | None:
    try:
        with tensorflow_values.WithoutTensorFlow():
            found = main.get(name) if module == "__main__" else getattr(importlib.import_module(module), name)
    except Exception:  # an import can raise anything
        return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
