"""The debugger of a task: `breakpoint()` in a cell, and the frames of its last failure.

It is Python's own pdb, which shows the lines around each place as IPython's debugger does. Its prompt is the
task's `input()`, and so the notebook's input box.
"""

import linecache
import os
import pdb
import sys
from types import FrameType, TracebackType
from typing import Any

from tfmagic.system import own_code

_CONTEXT = 5  # lines around each place


class TaskDebugger(pdb.Pdb):
    """pdb that shows only the user's frames and ends with an interrupt."""

    def __init__(self) -> None:
        # no SIGINT handler of pdb's: the supervisor's interrupts must reach a program that continues
        super().__init__(nosigint=True, readrc=False, skip=["tfmagic.*"])
        self.prompt = "(Pdb) "

    def get_stack(
        self, frame: FrameType | None, traceback: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        stack, index = super().get_stack(frame, traceback)
        ours = [i for i, (f, _) in enumerate(stack) if own_code.is_ours(f.f_code.co_filename)]
        first = ours[-1] + 1 if ours and ours[-1] + 1 < len(stack) else 0
        return stack[first:], max(index - first, 0)

    def canonic(self, filename: str) -> str:
        """Return the path of a file. A cell has none: its name stays as it is."""
        is_cell = filename in linecache.cache and not os.path.exists(filename)
        return filename if is_cell else super().canonic(filename)

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        """Return the place, with the lines around it."""
        frame, line = frame_lineno
        place = super().format_stack_entry(frame_lineno, "\n").partition("\n")[0]
        lines = linecache.getlines(self.canonic(frame.f_code.co_filename), frame.f_globals)
        start = max(min(line - 1 - _CONTEXT // 2, len(lines) - _CONTEXT), 0)
        numbered = enumerate(lines[start : start + _CONTEXT], start + 1)
        shown = [
            f"{f'{number}'.rjust(7) if number != line else f'> {number}'.rjust(7, '-')} {text}".rstrip()
            for number, text in numbered
        ]
        return "\n".join([place, *shown])

    def _cmdloop(self) -> None:
        self.cmdloop()  # pdb's own starts again after KeyboardInterrupt


def break_here(*args: Any, **kwargs: Any) -> None:
    """Open the debugger at the caller: the hook of `breakpoint()`."""
    TaskDebugger().set_trace(sys._getframe(1))


def look_at(error: BaseException) -> None:
    """Debug the frames of an exception, starting at the innermost."""
    debugger = TaskDebugger()
    debugger.reset()
    debugger.interaction(None, own_code.without_leading(error.__traceback__))
