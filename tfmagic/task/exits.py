"""End a process that has run user code: its exit code, and what is flushed and closed before."""

import atexit
import contextlib
import errno
import gc
import io
import os
import signal
import sys
import threading
import traceback
from typing import Any, NoReturn

from tfmagic.protocol.commands import TaskBoot
from tfmagic.protocol.payload import PackedError
from tfmagic.runs.folder import GAVE_UP, write_end_reason
from tfmagic.serialization import frame_variables
from tfmagic.serialization.exception_attributes import of_python
from tfmagic.system import files, own_code
from tfmagic.system.advice import Step
from tfmagic.task import own_builtins, streams

_FILES = (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
_NOT_FROM_CELLS = (MemoryError, PermissionError)  # an option that this host forbids, for example
_INTERRUPTED = 130  # 128 + SIGINT, as in a shell
_BROKEN_FROM_INSIDE = "most likely the cell has closed or replaced something that is not its own"
_SHORTAGES = files.SHORTAGES | {errno.ENOSPC, errno.EAGAIN}


def give_up(boot: TaskBoot | None, error: BaseException) -> NoReturn:
    """End this process after an error of tfmagic's own code, and note the error."""
    replaced = own_builtins.put_back()
    if boot is not None:
        what = f"its own part in the task failed with {type(error).__qualname__}: {error}"
        short = (isinstance(error, OSError) and error.errno in _SHORTAGES) or isinstance(
            error, _NOT_FROM_CELLS
        )
        short = short or (isinstance(error, RuntimeError) and "start new thread" in str(error))
        reason = replaced or _BROKEN_FROM_INSIDE
        write_end_reason(boot.stacks_path, what if short else f"{what}; {reason}")
    try:
        traceback.print_exc()
        streams.flush_all()
    finally:
        os._exit(GAVE_UP)


def exit_code(error: BaseException | None) -> int:
    """Return the exit code of a Python program that ends with this exception, or with none."""
    if error is None:
        return 0
    kind = type(error)  # isinstance() would run code of the user's classes
    if issubclass(kind, SystemExit):
        code = code_of(error)
        return code & 0xFF if isinstance(code, int) else int(code is not None)
    return _INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1


def code_of(error: BaseException) -> Any:
    """Return the argument of `sys.exit()`."""
    return SystemExit.__dict__["code"].__get__(error)


def end_program(error: BaseException | None) -> NoReturn:
    """End this process as Python ends a program: threads, functions of `atexit`, then the program's names.

    So files that the program has not closed are complete: Python's, HDF5's, and TensorFlow's, which close
    with their objects. The rest is left out: TensorFlow's static destructors and shutdown barrier can hang.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ends the wait for threads, as in any program
    try:
        if error is not None and issubclass(type(error), SystemExit):
            code = code_of(error)
            if not isinstance(code, int | None):
                streams.write_line(str(code))
        _flush_files()  # first: the rest can take longer than this process is given
        threading._shutdown()  # type: ignore[attr-defined]  # the interpreter calls this at its end
        atexit._run_exitfuncs()
        threading.excepthook = lambda failure: None  # of daemon threads, whose names are gone from here on
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
        if issubclass(type(item), _FILES):  # isinstance() would load lazy modules
            with contextlib.suppress(OSError, ValueError):  # it is closed, or cannot be written
                item.flush()
    if (hdf5 := sys.modules.get("h5py.h5f")) is not None:  # else its files would be damaged, not only short
        for file in hdf5.get_obj_ids(hdf5.OBJ_ALL, hdf5.OBJ_FILE):
            with contextlib.suppress(Exception):  # a full disk, for example; the other files are flushed
                hdf5.flush(file)


def end_child(error: BaseException | None) -> NoReturn:
    """End a fork that the cell made and that has reached the end of the cell: it is not the task."""
    if error is not None and not issubclass(type(error), SystemExit):
        frames = own_code.without_leading(of_python(error, "__traceback__"))
        traceback.print_exception(type(error), error, frames)
    streams.flush_all()
    os._exit(exit_code(error))


def exit_error(error: BaseException, where: str) -> PackedError:
    """Pack a `sys.exit()`, which ends the cell, not the task, as text: SystemExit would end a script."""
    code = code_of(error)
    given = "" if code is None else repr(frame_variables.copy_value(code))
    message = (
        f"the cell called sys.exit({given}); the task "
        f"and its variables are kept. Use return or raise to leave a cell, and {Step('stop')} to end the "
        "tasks."
    )
    return PackedError("SystemExit", message, message, None, where)
