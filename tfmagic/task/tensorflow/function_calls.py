"""Count the calls of each tf.function in a cell: the one that is called most often makes the steps."""

import re
from collections import Counter
from types import FrameType

from tfmagic.protocol.commands import RunCell
from tfmagic.task.cell_parts import CellPart

_TRACE = re.compile(r"_\d+$")  # each trace of a function has a number


class FunctionCalls(CellPart):
    """The calls of the cell that runs, by the name of the function."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    def begin(self, cell: RunCell) -> None:
        """Forget the calls of the last cell."""
        self._calls.clear()

    def note(self, frame: FrameType) -> None:
        """Count a call. Its frame is that of `Context.call_function`, which is given the function's name."""
        self._calls[frame.f_locals.get("name", "")] += 1

    def most(self) -> int:
        """Return how often the function was called that was called most often."""
        counts: Counter[str] = Counter()
        for name, count in tuple(self._calls.items()):
            counts[_function_of(name)] += count
        return max(counts.values(), default=0)


CALLS = FunctionCalls()


def _function_of(name: str | bytes) -> str:
    return _TRACE.sub("", name if isinstance(name, str) else name.decode())
