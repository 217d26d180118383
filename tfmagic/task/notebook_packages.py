"""Let packages do in a task what they do in a notebook, which they know by signs that a task does not have.

- joblib and numba keep results on disk under the file of a function. A notebook names the file of a cell by
  its text, so that they are found after the cell has run again; a task by its number, which tracebacks show.
- rich has the width and the colours of a notebook. It stays text, which is in the log under the task's name.
- loguru shows the frames above the user's code: here they would be ours.

A package that has changed is left as it is.
"""

import functools
import hashlib
import inspect
import itertools
import linecache
from types import ModuleType
from typing import Any

from tfmagic.system import own_code
from tfmagic.system.after_import import change_module

_OF_KERNELS = "JPY_PARENT_PID"  # set by jupyter_client
_CELLS = ("Cell In[", "<Cell In[", "<tfcluster-")


def adapt() -> None:
    """Adapt the packages, those that are imported later too. Called once in a task of a notebook."""
    change_module("joblib.func_inspect", _name_cells)
    change_module("numba.core.caching", _name_cells)
    change_module("rich.console", _widen)
    change_module("loguru._better_exceptions", _hide_our_frames)


def _name_cells(module: ModuleType) -> None:
    if getattr(module, "inspect", None) is inspect:
        module.inspect = _Inspect()  # type: ignore[attr-defined]


class _Inspect:
    """The module `inspect`, to which the file of a cell has a name as in a notebook."""

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    def getfile(self, thing: Any) -> str:
        return _file_in_notebook(inspect.getfile(thing))

    def getsourcefile(self, thing: Any) -> str | None:
        found = inspect.getsourcefile(thing)
        return None if found is None else _file_in_notebook(found)


def _file_in_notebook(file: str) -> str:
    """Return a name of the form that ipykernel gives to cells; both packages leave out its process."""
    if not file.startswith(_CELLS):
        return file
    text = "".join(linecache.getlines(file)).strip("\n")
    return f"/tmp/ipykernel_0/{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"


def _widen(module: ModuleType) -> None:
    original, width = module.Console.__init__, getattr(module, "JUPYTER_DEFAULT_COLUMNS", None)
    if width is None:
        return

    @functools.wraps(original)
    def initialize(self: Any, **options: Any) -> None:
        environ = options.get("_environ") or self._environ
        if _OF_KERNELS in environ and options.get("force_jupyter") is None:
            if options.get("width") is None:
                columns = environ.get("JUPYTER_COLUMNS", "")
                options["width"] = int(columns) if columns.isdigit() else width
            options["_environ"] = {"COLORTERM": "truecolor", **environ}
        original(self, **options)

    module.Console.__init__ = initialize


def _hide_our_frames(module: ModuleType) -> None:
    kind: Any = getattr(module, "ExceptionFormatter", None)
    original = getattr(kind, "_extract_frames", None)
    if original is None:
        return

    @functools.wraps(original)
    def extract(self: Any, *args: Any, **options: Any) -> Any:
        frames, source = original(self, *args, **options)
        return [*itertools.dropwhile(_leads, frames)] or frames, source

    kind._extract_frames = extract


def _leads(frame: tuple[str, int, str, str]) -> bool:
    file, _, function, _ = frame
    return file == "<string>" or own_code.leads_to_user(file, function)
