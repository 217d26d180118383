"""Shows a task's failure in IPython: the user's frames, under the names of the notebook's cells.

IPython shows a traceback whose file is in `linecache` well, unless its name ends in ``.py`` and no such
file exists (as with ipykernel's cells): then it shows other lines (measured, IPython 9.18). A debugger takes
a name without angle brackets for a path, and finds no lines there. Such files get another name here. Frames
of IPython and of tfmagic between the user's own are left out in every `%xmode`. An `%xmode` that cannot show
an error (Docs cannot show one with a cause, for example) falls back to Python's own text.
`tfmagic.clusters` calls this module; it works without IPython and never imports it.
"""

import contextlib
import linecache
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import Any

from tfmagic.serialization.exception_attributes import encodable, notes_of, of_python, own, put
from tfmagic.system import own_code

CELL_FILE = r'File "(<?Cell In\[\d+\](?: \(\d+\))?>?|<tfcluster-\d+>)"'
"""Matches a cell in a Python traceback, as `tfmagic.frontends.notebook.cell_source` names it."""

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_GAP_BYTES = 40


def shown_name(filename: str) -> str:
    """Return the name under which a source file of a task is shown in the notebook."""
    is_known = not filename.startswith("<") and filename in linecache.cache
    if not is_known or os.path.exists(filename):
        return filename
    alias = f"<{filename}>"
    linecache.cache[alias] = linecache.cache[filename]
    names = _prompts()
    if filename in names:  # gives the header "Cell In[7]"
        names[alias] = names[filename]
    return alias


def prompt_of(filename: str) -> int:
    """Return the prompt number of the notebook cell with this file name, or 0."""
    return int(_prompts().get(filename, 0)) if filename else 0


def name_cells(text: str) -> str:
    """Replace the file names of cells in a stack by the notebook's names: ``Cell In[7], line 5``."""
    names = _prompts()

    def named(found: re.Match[str]) -> str:
        return f"Cell In[{names[found[1]]}]" if found[1] in names else found[0]

    return re.sub(CELL_FILE, named, text)


def _prompts() -> dict[str, Any]:
    """Return IPython's prompt numbers by file name, from a private attribute of its compiler."""
    names: dict[str, Any] = getattr(getattr(find_shell(), "compile", None), "_filename_map", {})
    return names


@dataclass(frozen=True, slots=True)
class Explanation:
    """The text above and below a traceback."""

    head: str  #: The outcome, with the task and the line; "" where the traceback begins with it.
    tail: Sequence[str] = ()  #: The last lines of the task, and how to see more.


def hide_our_frames(error: BaseException, explain: Callable[[], Explanation] | None = None) -> BaseException:
    """Let IPython show the error without the frames between the notebook and tfmagic. Return the error.

    Args:
        explain: Returns the text around it where a failure is short text.
    """
    own = getattr(type(error), "_render_traceback_", None) if error.__traceback__ is None else None
    if find_shell() is not None and (explain is not None or own is None):
        with contextlib.suppress(Exception):  # the class can define a property of that name
            BaseException.__setattr__(error, "_render_traceback_", TracebackRenderer(error, explain, own))
    return error


class TracebackRenderer:
    """Called by IPython to show an exception. It is left out when the exception is pickled."""

    def __init__(
        self,
        error: BaseException,
        explain: Callable[[], Explanation] | None = None,
        own: Callable[[BaseException], list[str]] | None = None,
    ):
        self._error, self._explain, self._own = error, explain, own  # `own`: its class can show it

    def in_short(self, limit_bytes: int) -> list[str]:
        """Return the outcome, the traceback, and how to see more, in at most so many bytes of text."""
        lines = [line for part in self() for line in part.split("\n")]
        if self._explain is None:
            return shorten(lines, limit_bytes)
        try:
            around = self._explain()
        except Exception:  # a log cannot be read, for example: the traceback is what matters
            return shorten(lines, limit_bytes)
        head = [around.head[: limit_bytes // 8]] if around.head else []
        tail = shorten(around.tail, limit_bytes // 3)
        return [*head, *shorten(lines, limit_bytes - _bytes_of(head) - _bytes_of(tail)), *tail]

    def cut(self) -> list[TracebackType]:
        """Leave the user's frames alone in the error, for debuggers; return the first of all frames."""
        all_frames = of_python(self._error, "__traceback__")
        frames = own_code.users_frames(all_frames)
        if frames is not None:
            put(self._error, "__traceback__", frames)
        return own_code.entries_of(all_frames)[:1]

    def __call__(self) -> list[str]:
        error, shell = self._error, find_shell()
        self.cut()
        frames = own_code.users_frames(of_python(error, "__traceback__"))
        try:
            if self._own is not None:
                return list(self._own(error))
            tb = shell.InteractiveTB
            if isinstance(error, SyntaxError):
                entries = traceback.extract_tb(frames)
                return self._with_notes(shell.SyntaxTB.structured_traceback(type(error), error, entries))
            if not _holds_group(error):  # IPython cannot show a group
                if frames is None:  # with None IPython would show the frames of this process
                    return [str(line).rstrip("\n") for line in tb.get_exception_only(type(error), error)]
                return self._with_notes(tb.structured_traceback(type(error), error, frames, tb_offset=0))
        except Exception:  # IPython's own formatting failed
            pass
        return "".join(traceback.format_exception(type(error), error, frames)).splitlines()

    def _with_notes(self, lines: list[str]) -> list[str]:
        """Return the lines and the notes that they lack: older IPythons show none."""
        text = "\n".join(lines)
        return [
            *lines,
            *(note for note in map(str, notes_of(self._error)) if note not in text),
        ]

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(None), ()


def shorten(lines: Sequence[str], limit_bytes: int) -> list[str]:
    """Leave out lines after the first few, so that no more than `limit_bytes` of text are left."""
    if _bytes_of(lines) <= limit_bytes:
        return list(lines)
    room = limit_bytes - _GAP_BYTES
    lines = [line if _bytes_of([line]) <= room // 4 else _ends_of(line, room // 16) for line in lines]
    first, last = _fitting(lines, room // 4), _fitting(lines[::-1], room - room // 4)
    if first + last >= len(lines):
        return list(lines)
    gap = f"... {len(lines) - first - last} lines left out"
    return [*lines[:first], gap, *lines[len(lines) - last :]]


def _ends_of(line: str, characters: int) -> str:
    """Return the beginning and the end of a long line."""
    text = _plain(line)
    return f"{text[:characters]} ... {text[-characters:]}"


def _fitting(lines: Sequence[str], room: int) -> int:
    """Return how many of the first lines fit."""
    sizes = accumulate(_bytes_of([line]) for line in lines)
    return sum(size <= room for size in sizes)


def _bytes_of(lines: Sequence[str]) -> int:
    return sum(len(_plain(line).encode("utf-8", "replace")) + 1 for line in lines)


def _plain(line: str) -> str:
    return _COLOUR.sub("", line)


def find_shell() -> Any:
    """Return the IPython shell of this process, or None, without importing IPython."""
    module = sys.modules.get("IPython.core.getipython")
    return module.get_ipython() if module is not None else None


def install(shell: Any, limit_bytes: Callable[[], int] = lambda: 0) -> None:
    """Let the shell use `TracebackRenderer` for every error that has one.

    `limit_bytes` returns the size of a failure where it is short text, at most; else 0.

    IPython by itself does not use it for a SyntaxError. It shows nothing in the notebook for an
    ExceptionGroup, nor for an error that was raised while one was handled.
    """
    from IPython.core.error import UsageError

    remove(shell)
    former = shell.showtraceback

    def show(exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        error = sys.exception() if exc_tuple is None else exc_tuple[1]
        shown = None if error is None else own(error).get("_render_traceback_")
        first = shown.cut() if isinstance(shown, TracebackRenderer) else []
        is_usage = issubclass(type(error), UsageError)  # of a magic in the cell: IPython shows one line
        if isinstance(shown, TracebackRenderer) and not shell.call_pdb and not is_usage:
            shell._get_exc_info(exc_tuple)  # for %tb and %debug
            limit = limit_bytes()
            lines = shown.in_short(limit) if limit else shown()
            with _led_by(first if kwargs.get("running_compiled_code") else [], error):
                shell._showtraceback(
                    type(error), error, list(map(encodable, lines))
                )  # file names and sources, too
        else:
            former(exc_tuple, *args, **kwargs)

    show.is_ours = True  # type: ignore[attr-defined]
    shell.showtraceback = show


@contextlib.contextmanager
def _led_by(first: list[TracebackType], error: Any) -> Iterator[None]:
    """Let the frame of IPython that ran the cell lead the user's: rich.traceback drops the first one."""
    frames = of_python(error, "__traceback__")
    if first and frames is not None:
        put(error, "__traceback__", own_code.linked([*first, *own_code.entries_of(frames)]))
    try:
        yield
    finally:
        put(error, "__traceback__", frames)


def remove(shell: Any) -> None:
    """Undo `install`."""
    if hasattr(vars(shell).get("showtraceback"), "is_ours"):
        del shell.showtraceback


def _holds_group(error: BaseException | None) -> bool:
    """Check whether this is an ExceptionGroup, or was raised while one was handled."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if issubclass(type(error), BaseExceptionGroup):
            return True
        seen.add(id(error))
        error = of_python(error, "__cause__") or of_python(error, "__context__")
    return False
