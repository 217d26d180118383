"""Check arguments of users' calls, for packages that stand below `tfmagic.clusters.launch.checks`.

as_path("base", None)  →  TypeError: base is a path, not None (NoneType)
"""

import os
import reprlib
from collections.abc import Iterable
from typing import Any


def described(value: Any) -> str:
    """Return a value and its type, for a message."""
    return f"{reprlib.repr(value)} ({type(value).__name__})"


def as_path(name: str, value: Any, allowed: str = "a path", takes_bytes: bool = False) -> str:
    """Return a path as text; of bytes only if they are taken, as h5py does.

    Raises:
        TypeError: It is no path; the message names the argument.
    """
    if not isinstance(value, str | os.PathLike) and not (takes_bytes and isinstance(value, bytes)):
        raise TypeError(f"{name} is {allowed}, not {described(value)}")
    return os.fsdecode(value)


def as_paths(name: str, value: Any) -> list[Any]:
    """Return one path, or each of several, as they are.

    Raises:
        TypeError: One of them is no path; the message names the argument.
    """
    is_one = isinstance(value, str | bytes | os.PathLike)
    if not is_one and not isinstance(value, Iterable):
        raise TypeError(f"{name} is a path, or several, not {described(value)}")
    found = [value] if is_one else list(value)
    for place, path in enumerate(found):
        as_path(name if is_one else f"{name}[{place}]", path)
    return found


def is_flag(value: Any) -> bool:
    """Check for True and False, and what is equal to them: 1 and 0, also those of numpy, but no array."""
    return isinstance(value, bool | int) or (
        type(value).__name__ in ("bool", "bool_") and value in (True, False)
    )


def as_flag(name: str, value: Any) -> bool:
    """Return True or False.

    Raises:
        TypeError: It is another value; the message names the argument.
    """
    if not is_flag(value) or value not in (True, False):
        raise TypeError(f"{name} is True or False, not {described(value)}")
    return bool(value)
