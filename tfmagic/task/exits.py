"""How a process ends that user code runs in: the exit code that it makes, and what is done before."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
import threading
import traceback
from typing import Any, NoReturn

from tfmagic.protocol.payload import PackedError
from tfmagic.serialization import frame_variables
from tfmagic.task import streams

_FILES = (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
_INTERRUPTED = 130  # as a shell says it: 128 and SIGINT


def exit_code(error: BaseException | None) -> int:
    """The code with which Python ends a program that ended so."""
    if error is None:
        return 0
    kind = type(error)  # isinstance() would ask the user's classes
    if issubclass(kind, SystemExit):
        code = code_of(error)
        return code & 0xFF if isinstance(code, int) else int(code is not None)
    return _INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1


def code_of(error: BaseException) -> Any:
    """Return what `sys.exit()` was given."""
    return SystemExit.__dict__["code"].__get__(error)


def end_program(error: BaseException | None) -> NoReturn:
    """End this process as Python ends a program: threads, what is registered for the end, then its names.

    So files that nobody has closed are whole: Python's, HDF5's, and those of TensorFlow, whose objects close
    them as they go. What follows is left out: TensorFlow's static destructors and its shutdown barrier may
    hang.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ends the wait for threads, as in any program
    try:
        if error is not None and issubclass(type(error), SystemExit):
            code = code_of(error)
            if not isinstance(code, int | None):
                streams.write_line(str(code))
        _flush_files()  # first: what follows may take longer than this process is given
        threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter calls at its end
        atexit._run_exitfuncs()
        threading.excepthook = lambda failure: None  # of daemons, which miss these names from here on
        vars(sys.modules["__main__"]).clear()
        gc.collect()
        _flush_files()
    except BaseException:
        traceback.print_exc()
    finally:
        streams.flush_all()
        os._exit(exit_code(error))


def _flush_files() -> None:
    for item in gc.get_objects():
        if issubclass(type(item), _FILES):  # isinstance() would wake up proxies and lazy modules
            with contextlib.suppress(OSError, ValueError):  # one that is closed, or can be written no more
                item.flush()
    if (hdf5 := sys.modules.get("h5py.h5f")) is not None:  # else its files would be damaged, not only short
        for file in hdf5.get_obj_ids(hdf5.OBJ_ALL, hdf5.OBJ_FILE):
            with contextlib.suppress(Exception):  # whatever h5py makes of a full disk; the others are flushed
                hdf5.flush(file)


def end_child(error: BaseException | None) -> NoReturn:
    """A fork that the cell made, and that came to the cell's end: it is not the task."""
    if error is not None and not issubclass(type(error), SystemExit):
        traceback.print_exception(error)
    streams.flush_all()
    os._exit(exit_code(error))


def exit_error(error: BaseException, where: str) -> PackedError:
    """`sys.exit()` ends the cell, not the task: said in words, since SystemExit would end a script."""
    code = code_of(error)
    message = (
        f"the cell called sys.exit({'' if code is None else frame_variables.text_of(code)}); the task "
        "and its variables are kept. Use return or raise to leave a cell, and %tfcluster stop to end the "
        "tasks."
    )
    return PackedError("SystemExit", message, message, None, where)
