"""Private parts of pydevd, the debugger inside debugpy: the only place that uses them.

They are those of debugpy 1.8. Without one of them a function here does nothing, and `find_missing` names it.
"""

import importlib
import os
import threading
from typing import Any

_API = "_pydevd_bundle.pydevd_api", "PyDevdAPI"
_PRESENT = "_pydevd_bundle.pydevd_constants", "get_global_debugger"
_FILES = "pydevd_file_utils", "NORM_PATHS_AND_BASE_CONTAINER"
_TRACE = "pydevd_tracing", "set_trace_to_threads"
_ALL = (_API, _PRESENT, _FILES, _TRACE)


def _find(place: tuple[str, str]) -> Any:
    """Return an attribute of a module of pydevd, or None."""
    try:
        return getattr(importlib.import_module(place[0]), place[1], None)
    except ImportError:
        return None


def find_missing() -> tuple[str, ...]:
    """Return the names of the parts that this debugpy does not have, once it was imported."""
    return tuple(place[1] for place in _ALL if _find(place) is None)


def hide_folders(*folders: str) -> None:
    """Neither stop in code of these folders nor show its frames."""
    api, present = _find(_API), _find(_PRESENT)
    if api is not None and present is not None:
        api().set_dont_trace_start_end_patterns(present(), folders, ("debugpy_launcher.py",))


def set_file(name: str, path: str) -> None:
    """Take this file for the source of the code that Python knows under that name."""
    if (files := _find(_FILES)) is not None:
        files[name] = (path, path, os.path.basename(path))


def leave_by_interrupts() -> None:
    """Let a thread go on after an exception that was raised while it stands at a breakpoint.

    Without this it would still count as one to be stopped, and would stop at the next line that it runs.
    """
    api, present = _find(_API), _find(_PRESENT)
    if api is None or present is None:
        return
    wait = present().do_wait_suspend

    def do_wait_suspend(*args: Any, **kwargs: Any) -> Any:
        try:
            return wait(*args, **kwargs)
        except BaseException:
            api().request_resume_thread("*")
            raise

    # its frame counts as one of pydevd's: below one of tfmagic's, no place of the cell would be looked for
    code = do_wait_suspend.__code__.replace(co_filename=wait.__code__.co_filename)
    do_wait_suspend.__code__ = code
    present().do_wait_suspend = do_wait_suspend


def trace_main_thread() -> None:
    """Set the trace function of the main thread, from another one."""
    trace, present = _find(_TRACE), _find(_PRESENT)
    if trace is not None and present is not None:
        trace(present().trace_dispatch, [threading.main_thread().ident], False)
