"""Standard output and standard error of a command: the reader can leave, and the disk can be full."""

import contextlib
import io
import os
import sys
from typing import TextIO

from tfmagic.system import notices

BROKEN_PIPE = 128 + 13  # of a program that SIGPIPE ends (Windows has none): its reader has read enough


def prepare() -> None:
    """Replace closed streams, and let the streams take any text, since logs hold any bytes."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def show(text: str, stream: TextIO | io.TextIOBase) -> OSError | None:
    """Write text at once. Return why the stream does not take it; what is written there later is dropped."""
    try:
        if text:  # writing nothing to a full disk fails, too
            stream.write(text)
        stream.flush()
    except OSError as error:
        with contextlib.suppress(OSError):  # a stream in memory has no descriptor
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())  # also for what is left in the buffer
            os.close(null)
        return error
    return None


def finish() -> int:
    """Write what is left in the buffers. Return an exit code: not 0 if the output cannot be written."""
    error = show("", sys.stdout)
    if error is not None and not isinstance(error, BrokenPipeError):
        notices.tell(f"tfmagic: the output cannot be written ({error})")
    show("", sys.stderr)
    return 0 if error is None else BROKEN_PIPE if isinstance(error, BrokenPipeError) else 1
