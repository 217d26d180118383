"""Count the calls of each tf.function in a cell: the one that is called most often makes the steps.

A variable can be watched: a digest of it is taken at each call, before it begins.
"""

import re
from collections import Counter
from types import FrameType

from tfmagic.protocol.commands import RunCell
from tfmagic.serialization import digests
from tfmagic.task.cell_parts import CellPart

_MOST_STEPS = 100_000
_TRACE = re.compile(r"_\d+$")  # each trace of a function has a number


class FunctionCalls(CellPart):
    """The calls of the cell that runs, by the name of the function."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._watch = ""  # the variable that is watched
        self._seen: dict[str, list[bytes]] = {}  # digests by function

    def begin(self, cell: RunCell) -> None:
        """Forget the calls of the last cell."""
        self._calls.clear()
        self._seen.clear()
        self._watch = cell.watch

    def note(self, frame: FrameType) -> None:
        """Count a call. Its frame is that of `Context.call_function`, which is given the function's name."""
        name = frame.f_locals.get("name", "")
        self._calls[name] += 1
        if self._watch and self._calls[name] <= _MOST_STEPS:
            self._seen.setdefault(_function_of(name), []).append(digests.digest_of(self._watch))

    def most(self) -> int:
        """Return how often the function was called that was called most often."""
        return max(self._by_function().values()) if self._calls else 0

    def watched(self) -> bytes:
        """Return the digests of the variable at the beginning of each step, and now."""
        if not self._watch or not (found := self._by_function()):
            return b""
        steps = self._seen.get(max(found, key=lambda name: found[name]), [])
        return b"".join([*steps, digests.digest_of(self._watch)])

    def _by_function(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for name, count in tuple(self._calls.items()):
            counts[_function_of(name)] += count
        return counts


CALLS = FunctionCalls()


def _function_of(name: str | bytes) -> str:
    return _TRACE.sub("", name if isinstance(name, str) else name.decode())
