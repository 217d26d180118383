"""A task's exception on its way to the notebook, and there again as what it was.

    task                                             notebook
    exception ─ chain of causes ─ each: dill + tblib frames → PackedError → exception, its own class,
                its frames, notes, cause and context

The class is the notebook's own where it has one of that name, else travels by value. An exception
that does not survive the round trip, or whose class would pull TensorFlow into the notebook's
process, becomes a `RemoteError` with the whole text.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import tblib

from tfmagic import pickling
from tfmagic.errors import remote_error
from tfmagic.events import Packed, PackedError

_OUR_FOLDER = os.path.dirname(__file__) + os.sep
_MAX_CHAIN = 20  # a chain of causes longer than this is a loop or a recursion


def pack_error(
    error: BaseException, main: Mapping[str, Any], linkable: Callable[[str], bool], where: str
) -> PackedError:
    """Pack an exception with its chain. Runs in the task; never raises.

    Args:
        error: The exception, with its traceback.
        main: The task's namespace.
        linkable: Whether the notebook has the class bound to this name.
        where: Who raised it, for the note: ``worker-1 (pid 4242, host)``.
    """
    frames = _without_our_frames(error.__traceback__)
    text = _format(error, frames)
    message = _message(error)
    try:
        stream, buffers = pickling.dumps(_chain(error, main, linkable), main, linkable, for_notebook=True)
        packed = pickling.pack(stream, buffers)
    except Exception:  # the text is there whatever the objects do
        packed = None
    return PackedError(type(error).__qualname__, message, text, packed, where)


def unpack_error(packed: PackedError, main: Mapping[str, Any]) -> BaseException:
    """The exception, ready to be raised, with a note that says where it was raised. Never fails."""
    try:
        if packed.packed is None:
            raise ValueError("the exception did not travel")
        chain = pickling.loads(packed.packed, main, import_tensorflow=False)
        error = _rebuild(chain, main)
    except Exception:  # a foreign class did something odd: the text is there
        error = remote_error(packed.message, packed.type_name, packed.text)
    error.add_note(f"raised on {packed.where}")
    return error


def _chain(
    error: BaseException | None, main: Mapping[str, Any], linkable: Callable[[str], bool], depth: int = 0
) -> dict[str, Any] | None:
    """The exception and what led to it as plain data; each exception object is pickled by itself."""
    if error is None or depth > _MAX_CHAIN:
        return None
    frames = _without_our_frames(error.__traceback__)
    context = None if error.__suppress_context__ else error.__context__
    return {
        "object": _object_bytes(error, main, linkable),
        "type_name": type(error).__qualname__,
        "message": _message(error),
        "text": _format(error, frames),
        "base": _nearest_builtin(type(error)),
        "frames": tblib.Traceback(frames).to_dict() if frames else None,
        "notes": [str(note) for note in getattr(error, "__notes__", ())],
        "cause": _chain(error.__cause__, main, linkable, depth + 1),
        "context": _chain(context, main, linkable, depth + 1),
        "suppress": error.__suppress_context__,
    }


def _object_bytes(
    error: BaseException, main: Mapping[str, Any], linkable: Callable[[str], bool]
) -> bytes | None:
    """The exception object, if it survives the round trip here."""
    frames, cause, context = error.__traceback__, error.__cause__, error.__context__
    suppress = error.__suppress_context__
    try:
        stream, buffers = pickling.dumps(error, main, linkable, for_notebook=True)
        if buffers:  # an exception that carries big arrays travels as text
            return None
        again = pickling.loads(Packed(data=stream), main)
        return stream if type(again).__qualname__ == type(error).__qualname__ else None
    except Exception:  # the class' own pickling may raise anything
        return None
    finally:
        error.__traceback__, error.__cause__, error.__context__ = frames, cause, context
        error.__suppress_context__ = suppress


def _rebuild(chain: dict[str, Any], main: Mapping[str, Any]) -> BaseException:
    try:
        if chain["object"] is None:
            raise ValueError("the exception did not survive pickling")
        error = pickling.loads(Packed(data=chain["object"]), main, import_tensorflow=False)
        if not isinstance(error, BaseException):
            raise TypeError("not an exception any more")
    except Exception:  # a foreign class did something odd: the text is there
        error = remote_error(chain["message"], chain["type_name"], chain["text"], chain["base"])
    if chain["frames"]:
        error.__traceback__ = tblib.Traceback.from_dict(chain["frames"]).as_traceback()
    have = list(getattr(error, "__notes__", ()))
    for note in chain["notes"]:
        if note not in have:
            error.add_note(note)
    if chain["cause"]:
        error.__cause__ = _rebuild(chain["cause"], main)
    if chain["context"]:
        error.__context__ = _rebuild(chain["context"], main)
    error.__suppress_context__ = chain["suppress"]
    return error


def _nearest_builtin(cls: type) -> type:
    return next(c for c in cls.__mro__ if c.__module__ == "builtins")


def _without_our_frames(frames: TracebackType | None) -> TracebackType | None:
    """Drop the frames of tfmagic above the user's code."""
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
        if frames.tb_next is None:
            break
        frames = frames.tb_next
    return frames


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # the user's own __str__
        return f"<{type(error).__qualname__} whose str() raised {type(broken).__name__}>"


def _format(error: BaseException, frames: TracebackType | None) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except Exception as broken:  # the user's own __str__
        return f"{type(error).__qualname__} (its text could not be made: {type(broken).__name__})"
