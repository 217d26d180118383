"""Read and set attributes of exceptions past their class, which can raise anything for each of them."""

import contextlib
from typing import Any


def of_python(error: BaseException, name: str) -> Any:
    """Return an attribute of BaseException, also if the class has redefined the name."""
    return getattr(BaseException, name).__get__(error)


def of_class(value: object, name: str) -> Any:
    """Return an attribute of the class of an object, such as its name, past the metaclass."""
    return type.__dict__[name].__get__(type(value))


def own(error: BaseException) -> dict[str, Any]:
    """Return the `__dict__` of an exception, past its class."""
    found = BaseException.__dict__["__dict__"].__get__(error)
    return found if isinstance(found, dict) else {}


def put(error: BaseException, name: str, value: Any) -> None:
    """Set an attribute of BaseException, also if the class forbids it."""
    BaseException.__setattr__(error, name, value)


def add_note(error: BaseException, note: str) -> None:
    """Add a note, also if the class forbids attributes."""
    with contextlib.suppress(Exception):  # a class that makes even this raise
        put(error, "__notes__", [*notes_of(error), note])


def notes_of(error: BaseException) -> list[Any]:
    """Return the notes of an exception, past its class."""
    notes = own(error).get("__notes__")
    return notes if isinstance(notes, list) else []


def encodable(text: str) -> str:
    """Return the text as ipykernel can send it: half of a surrogate pair is escaped.

    Those that stand for bytes in the name of a file stay.
    """
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text
