"""Private parts of pydevd, the debugger inside debugpy: the only place that uses them.

A row that does not fit is left out, and the user is told what is different then. They are probed when debugpy
was imported, which brings pydevd along.
"""

import os
import threading
from typing import Any

from tfmagic.system.patches import Patch, PatchTable, find

_API = "_pydevd_bundle.pydevd_api:PyDevdAPI"
_PRESENT = "_pydevd_bundle.pydevd_constants:get_global_debugger"
_FILES = "pydevd_file_utils:NORM_PATHS_AND_BASE_CONTAINER"
_TRACE = "pydevd_tracing:set_trace_to_threads"

SOURCES = "the files of cells"
FOLDERS = "the folders of tfmagic and debugpy"
INTERRUPTS = "an interrupt at a breakpoint"
LATE = "an editor that attaches while a cell runs"
STANDING = "who stands in the debugger"

_DEBUGPY = "debugpy>=1.8"

TABLE = PatchTable(
    Patch(
        SOURCES,
        (_FILES,),
        "the code of a cell has a file, in which the editor sets breakpoints",
        "breakpoints in cells are not reached",
        versions_tried=_DEBUGPY,
    ),
    Patch(
        FOLDERS,
        (f"{_API}.set_dont_trace_start_end_patterns(py_db, start_patterns, end_patterns)", f"{_PRESENT}()"),
        "the editor neither stops in code of tfmagic nor shows its frames",
        "frames of tfmagic stand among the user's",
        versions_tried=_DEBUGPY,
    ),
    Patch(
        INTERRUPTS,
        (f"{_API}.request_resume_thread(thread_id)", f"{_PRESENT}()", "pydevd:PyDB.do_wait_suspend()"),
        "an interrupt leaves a breakpoint, and the thread goes on",
        "the thread stops again at the next line that it runs",
        versions_tried=_DEBUGPY,
    ),
    Patch(
        LATE,
        (
            f"{_TRACE}(tracing_func, thread_idents)",
            f"{_PRESENT}()",
            "pydevd:PyDB.set_tracing_for_untraced_contexts()",
        ),
        "breakpoints hold in a cell that ran before an editor has attached (Python 3.11)",
        "they hold from the next cell on",
        versions_tried=_DEBUGPY,
    ),
    Patch(
        STANDING,
        ("pydevd:PyDB._do_wait_suspend()", "pydevd:_wait_for_attach()"),
        "a task at a breakpoint, or one that waits for an editor, is not stalled; see `task.cell_position`",
        "a task at a breakpoint counts as one that gives no sign of progress",
        versions_tried=_DEBUGPY,
    ),
)


def hide_folders(*folders: str) -> None:
    """Neither stop in code of these folders nor show its frames."""
    if TABLE.fits(FOLDERS):
        find(_API)().set_dont_trace_start_end_patterns(find(_PRESENT)(), folders, ("debugpy_launcher.py",))


def set_file(name: str, path: str) -> None:
    """Take this file for the source of the code that Python knows under that name."""
    if TABLE.fits(SOURCES):
        find(_FILES)[name] = (path, path, os.path.basename(path))


def leave_by_interrupts() -> None:
    """Let a thread go on after an exception that was raised while it stands at a breakpoint.

    Without this it would still count as one to be stopped, and would stop at the next line that it runs.
    """
    if not TABLE.fits(INTERRUPTS):
        return
    present = find(_PRESENT)()
    wait = present.do_wait_suspend

    def do_wait_suspend(*args: Any, **kwargs: Any) -> Any:
        try:
            return wait(*args, **kwargs)
        except BaseException:
            find(_API)().request_resume_thread("*")
            raise

    # its frame counts as one of pydevd's: below one of tfmagic's, no place of the cell would be looked for
    code = do_wait_suspend.__code__.replace(co_filename=wait.__code__.co_filename)
    do_wait_suspend.__code__ = code
    present.do_wait_suspend = do_wait_suspend


def trace_main_thread() -> None:
    """Set the trace function of the main thread, from another one."""
    if TABLE.fits(LATE):
        present = find(_PRESENT)()
        find(_TRACE)(present.trace_dispatch, [threading.main_thread().ident], False)
        present.set_tracing_for_untraced_contexts()  # the frames that run, which have lost it meanwhile
