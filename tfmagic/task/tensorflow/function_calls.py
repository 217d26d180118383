"""Count the calls of each tf.function in a cell: the one that is called most often makes the steps."""

import re
from collections import Counter
from types import FrameType

_calls: Counter[str] = Counter()
_TRACE = re.compile(r"_\d+$")  # each trace of a function has a number


def begin_cell() -> None:
    """Forget the calls of the last cell."""
    _calls.clear()


def note(frame: FrameType) -> None:
    """Count a call. Its frame is that of `Context.call_function`, which is given the function's name."""
    _calls[frame.f_locals.get("name", "")] += 1


def most() -> int:
    """Return how often the function was called that was called most often."""
    by_function: Counter[str] = Counter()
    for name, count in tuple(_calls.items()):
        by_function[_TRACE.sub("", name if isinstance(name, str) else name.decode())] += count
    return max(by_function.values(), default=0)
