"""Pickle an exception that is a value, with its causes and contexts, which Python's pickle leaves behind.

An exception that a task has raised travels in another way, with its frames: see `tracebacks`.
"""

import copyreg
from collections.abc import Callable
from typing import Any

from tfmagic.errors import remote_error


def is_chained(error: BaseException) -> bool:
    """Check whether pickle would leave a part of the exception behind."""
    cause, context, is_suppressed = _links_of(error)
    return cause is not None or context is not None or is_suppressed


def reduce(
    error: BaseException, reduced: Any, chained: set[int], problem_of: Callable[[object], str]
) -> tuple[Any, ...] | None:
    """Return how `pickle` makes an exception with its whole chain, which can be long; None if it cannot.

    Args:
        error: The exception.
        reduced: How it is made without its chain; None if its class decides.
        chained: The ids of exceptions whose chains are in the pickle; updated.
        problem_of: Returns why a value cannot be pickled, or "". A cause that cannot is replaced by its text.
    """
    reducer = copyreg.dispatch_table.get(type(error))
    if reducer is not None and not reducer.__module__.startswith("tblib"):
        reduced = reducer(error)
    reduced = reduced or error.__reduce_ex__(5)
    if type(reduced) is not tuple or not 2 <= len(reduced) <= 3:
        return None
    links = []
    rest = [error]
    while rest:
        item = rest.pop()
        if id(item) in chained:
            continue
        chained.add(id(item))
        *others, is_suppressed = _links_of(item)
        kept = [_text_of(e) if e is not None and problem_of(e) else e for e in others]
        links.append((item, *kept, is_suppressed))
        rest += [e for e in kept if e is not None]
    state = reduced[2] if len(reduced) > 2 else None
    return *reduced[:2], (state, links), None, None, _fill


def _links_of(error: BaseException) -> tuple[Any, Any, bool]:
    names = ("__cause__", "__context__", "__suppress_context__")  # past the class, which can redefine them
    cause, context, is_suppressed = (BaseException.__dict__[name].__get__(error) for name in names)
    return cause, context, is_suppressed


def _text_of(error: BaseException) -> BaseException:
    try:
        message = str(error)
    except Exception:  # of the user's own __str__
        message = ""
    name = type(error).__qualname__
    return remote_error(message, name, f"{name}: {message}")


def _fill(error: BaseException, state: tuple[Any, list[Any]]) -> None:
    own, links = state
    if own is not None:
        error.__setstate__(own)
    for item, cause, context, is_suppressed in links:
        BaseException.__setattr__(item, "__cause__", cause)
        BaseException.__setattr__(item, "__context__", context)
        BaseException.__setattr__(item, "__suppress_context__", is_suppressed)


def takes_frames_along(cls: type) -> bool:
    """Check whether tblib is registered for the class: it would pickle frames and causes too."""
    reducer = copyreg.dispatch_table.get(cls)
    return getattr(reducer, "__module__", "") == "tblib.pickling_support"
