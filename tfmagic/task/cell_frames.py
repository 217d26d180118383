"""Frames of another thread, looked at without harm to it.

Python 3.11 makes the frame objects that it shows when somebody asks for them. To make one may set off the
garbage collector, and what that deletes may let other threads run (TensorFlow's deleters do): the frame that
is to be shown may have ended by then, and Python writes to where it was. Tasks crashed of that, or hung.
Python 3.12 and later collect at other moments.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def looking() -> Iterator[None]:
    """No garbage is collected meanwhile: around all that asks for frames of other threads."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def main_frame() -> FrameType | None:
    """The innermost frame of the main thread; only while `looking`."""
    return sys._current_frames().get(threading.main_thread().ident or 0)
