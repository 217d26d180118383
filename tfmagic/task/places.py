"""Where in the user's source a running cell is."""

from __future__ import annotations

import os
from types import FrameType

_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


def find_line(frame: FrameType | None, cell_file: str) -> tuple[str, int] | None:
    """The file and line of the innermost frame of the cell; of a call, of its outermost frame.

    Args:
        frame: The innermost frame of the thread that runs it.
        cell_file: The cell's file name; "" for a call.
    """
    outermost = None
    while frame is not None:
        name = frame.f_code.co_filename
        if cell_file and name == cell_file:
            return name, frame.f_lineno
        if name.startswith((_OURS, "<frozen")):
            if outermost is not None:
                break  # below it is how it was called
        else:
            outermost = (name, frame.f_lineno)
        frame = frame.f_back
    return None if cell_file else outermost
