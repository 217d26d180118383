"""How a task's failure reads in IPython: the user's frames, under the cells' own names, and no others.

IPython shows a traceback whose file is in `linecache` well, unless its name ends in ``.py`` and no such
file exists (as those of ipykernel's cells): then it shows other lines (measured, IPython 9.18). Here
such files get another name. Frames of IPython and of ours between the user's own are left out in every
`%xmode`, and an `%xmode` that cannot show an error (Docs, for one with a cause) falls back to its text.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
import traceback
from types import TracebackType
from typing import Any

from tfmagic.serialization import exceptions
from tfmagic.system.own_code import OUR_FOLDER

_IPYTHON = f"{os.sep}IPython{os.sep}core{os.sep}"
CELL_FILE = r'File "(Cell In\[\d+\](?: \(\d+\))?|<tfcluster-\d+>)"'
"""A cell in a traceback of Python's, by the name that `tfmagic.frontends.notebook.cell_source` gave it."""
_CELL_FILE = re.compile(CELL_FILE)
_MAGIC_CALLS = (
    "%%tfcluster",
    "get_ipython().run_cell_magic('tfcluster'",
    "await get_ipython().run_cell_magic('_tfcluster_async'",
)


def shown_name(filename: str) -> str:
    """The name under which a source file of a task is shown here."""
    if not filename.endswith(".py") or filename not in linecache.cache or os.path.exists(filename):
        return filename
    alias = f"<{filename}>"
    linecache.cache[alias] = linecache.cache[filename]
    shell = find_shell()
    names = getattr(getattr(shell, "compile", None), "_filename_map", None)
    if names is not None and filename in names:  # private to IPython: gives the header "Cell In[7]"
        names[alias] = names[filename]
    return alias


def prompt_of(filename: str) -> int:
    """The number that the notebook shows of the cell with this file name; 0 where it has none."""
    names = getattr(getattr(find_shell(), "compile", None), "_filename_map", {})
    return int(names.get(filename, 0))


def name_cells(text: str) -> str:
    """Stacks as text with the cells under the notebook's names: ``Cell In[7], line 5``."""
    names = getattr(getattr(find_shell(), "compile", None), "_filename_map", {})

    def named(found: re.Match[str]) -> str:
        return f"Cell In[{names[found[1]]}]" if found[1] in names else found[0]

    return _CELL_FILE.sub(named, text)


def dress(error: BaseException) -> BaseException:
    """Let IPython, where there is one, show the error without the frames that brought it here."""
    shows_itself = error.__traceback__ is None and hasattr(type(error), "_render_traceback_")
    if find_shell() is not None and not shows_itself:
        with contextlib.suppress(Exception):  # a property, perhaps
            BaseException.__setattr__(error, "_render_traceback_", TracebackRenderer(error))
    return error


class TracebackRenderer:
    """What IPython calls to show an exception; it stays behind when the exception is pickled."""

    def __init__(self, error: BaseException):
        self._error = error

    def __call__(self) -> list[str]:
        error, shell = self._error, find_shell()
        frames = without_bridge(error.__traceback__)
        try:
            tb = shell.InteractiveTB
            if isinstance(error, SyntaxError):
                entries = traceback.extract_tb(frames)
                told: list[str] = shell.SyntaxTB.structured_traceback(type(error), error, entries)
                text = "\n".join(told)  # newer IPythons show the notes
                return [*told, *(n for n in map(str, exceptions.notes_of(error)) if n not in text)]
            if _holds_group(error):  # which IPython does not know how to show
                return "".join(traceback.format_exception(type(error), error, frames)).splitlines()
            if frames is None:  # with none IPython would show those of this process
                return [str(line).rstrip("\n") for line in tb.get_exception_only(type(error), error)]
            shown: list[str] = tb.structured_traceback(type(error), error, frames, tb_offset=0)
            return shown
        except Exception:  # IPython's own formatting failed
            return "".join(traceback.format_exception(type(error), error, frames)).splitlines()

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _nothing, ()


def without_bridge(frames: TracebackType | None) -> TracebackType | None:
    """The frames without ours and IPython's, and without the call of the cell magic itself."""
    kept: list[TracebackType] = []
    while frames is not None:
        name = frames.tb_frame.f_code.co_filename
        if name.startswith(OUR_FOLDER):
            while kept and _is_bridge(kept[-1]):
                kept.pop()
        else:
            kept.append(frames)
        frames = frames.tb_next
    # IPython leaves the frames of its magics out, too
    kept = [entry for entry in kept if _IPYTHON not in entry.tb_frame.f_code.co_filename] or kept
    made = None
    for entry in reversed(kept):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made


def _is_bridge(entry: TracebackType) -> bool:
    """Whether this frame only leads from the notebook to us."""
    code = entry.tb_frame.f_code
    line = linecache.getline(code.co_filename, entry.tb_lineno)
    is_call = code.co_name == "<module>" and line.startswith(_MAGIC_CALLS)
    return is_call or _IPYTHON in code.co_filename


def find_shell() -> Any:
    """The IPython shell of this process, asked without importing IPython."""
    module = sys.modules.get("IPython.core.getipython")
    return module.get_ipython() if module is not None else None


def install(shell: Any) -> None:
    """Let the shell ask our renderer for every error that has one.

    By itself IPython asks no SyntaxError, and prints every frame that it came by; and it shows nothing in the
    notebook of an ExceptionGroup, nor of an error that was raised while one was handled.
    """
    from IPython.core.error import UsageError

    remove(shell)
    own = shell.showtraceback

    def show(exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        error = sys.exception() if exc_tuple is None else exc_tuple[1]
        shown = None if error is None else exceptions.own(error).get("_render_traceback_")
        is_usage = issubclass(type(error), UsageError)  # of a magic in the cell: IPython shows one line
        if isinstance(shown, TracebackRenderer) and not shell.call_pdb and not is_usage:
            shell._get_exc_info(exc_tuple)  # for %tb and %debug
            shell._showtraceback(type(error), error, shown())
        else:
            own(exc_tuple, *args, **kwargs)

    show.is_ours = True  # type: ignore[attr-defined]
    shell.showtraceback = show


def remove(shell: Any) -> None:
    """Take it back."""
    if hasattr(vars(shell).get("showtraceback"), "is_ours"):
        del shell.showtraceback


def _holds_group(error: BaseException | None) -> bool:
    """Whether this is an ExceptionGroup, or was raised while one was handled."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if issubclass(type(error), BaseExceptionGroup):
            return True
        seen.add(id(error))
        error = exceptions.of_python(error, "__cause__") or exceptions.of_python(error, "__context__")
    return False


def _nothing() -> None:
    return None
