"""Count the calls of each tf.function in a cell: the one that is called most often makes the steps.

A variable can be watched: a digest of it is taken at each call, before it begins.
"""

import re
from collections import Counter
from types import FrameType

from tfmagic.serialization import digests

_calls: Counter[str] = Counter()
_watch: str = ""
_seen: dict[str, list[bytes]] = {}  # digests by function
_MOST_STEPS = 100_000
_TRACE = re.compile(r"_\d+$")  # each trace of a function has a number


def begin_cell(watch: str = "") -> None:
    """Forget the calls of the last cell.

    Args:
        watch: The variable to watch.
    """
    global _watch
    _calls.clear()
    _seen.clear()
    _watch = watch


def note(frame: FrameType) -> None:
    """Count a call. Its frame is that of `Context.call_function`, which is given the function's name."""
    name = frame.f_locals.get("name", "")
    _calls[name] += 1
    if _watch and _calls[name] <= _MOST_STEPS:
        _seen.setdefault(_function_of(name), []).append(digests.digest_of(_watch))


def most() -> int:
    """Return how often the function was called that was called most often."""
    return max(_by_function().values(), default=0)


def watched() -> bytes:
    """Return the digests of the variable at the beginning of each step, and now."""
    found = _by_function()
    if not _watch or not found:
        return b""
    steps = _seen.get(max(found, key=lambda name: found[name]), [])
    return b"".join([*steps, digests.digest_of(_watch)])


def _by_function() -> Counter[str]:
    counts: Counter[str] = Counter()
    for name, count in tuple(_calls.items()):
        counts[_function_of(name)] += count
    return counts


def _function_of(name: str | bytes) -> str:
    return _TRACE.sub("", name if isinstance(name, str) else name.decode())
