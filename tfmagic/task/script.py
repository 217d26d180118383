"""Run a script or module in a task process as `python script.py` or `python -m module` does.

The command line imports this module only to name `run_script`, so it imports nothing heavy at the top.
"""

import builtins
import contextlib
import getpass
import io
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any


def run_script(target: str, argv: Sequence[str], is_module: bool) -> None:
    """Run a script or a module as the ``__main__`` of this process. Raises what it raises, also SystemExit.

    `target` is the path as it was typed, or the module's dotted name; `argv` the arguments after it.
    """
    _leave_the_shell()
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    sys.argv = [target, *argv]
    run_module: Any = runpy._run_module_as_main  # type: ignore[attr-defined]  # Python itself calls it
    if is_module:
        _put_first(os.getcwd())
        run_module(target)
    elif os.path.isdir(target) or pkgutil.get_importer(target) is not None:  # or an archive
        _put_first(target)
        run_module("__main__", alter_argv=False)
    else:
        _put_first(os.path.dirname(os.path.realpath(target)))
        exec(_read_file(os.path.abspath(target), main), main.__dict__)


def _leave_the_shell() -> None:
    """Remove what exists for cells: a script asks IPython whether it is in a notebook."""
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    for name in ("__IPYTHON__", "display", "get_ipython"):
        with contextlib.suppress(AttributeError):
            delattr(builtins, name)
    builtins.input = _end_of_input  # standard input is empty, and the builtin is that of cells
    getpass.getpass = _end_of_input
    for prompt in ("ps1", "ps2", "ps3"):  # by which libraries recognize an interactive session
        with contextlib.suppress(AttributeError):
            delattr(sys, prompt)
    sys.displayhook = sys.__displayhook__
    sys.breakpointhook = sys.__breakpointhook__


def _end_of_input(prompt: object = "", stream: Any = None) -> str:
    print(prompt, end="", flush=True)
    raise EOFError("EOF when reading a line: the tasks of a cluster have no standard input")


def _put_first(folder: str) -> None:
    """Let imports look there first, as Python does for a script (except with -P), also for loaded modules.

    The launcher has loaded modules that can have the name of a file there. In plain Python the script would
    get the file.
    """
    if sys.flags.safe_path:
        return
    sys.path.insert(0, folder)
    with contextlib.suppress(OSError):  # an archive
        for entry in os.listdir(folder):
            name, _, ending = entry.partition(".")
            loaded = sys.modules.get(name)
            if ending != "py" and not os.path.exists(os.path.join(folder, entry, "__init__.py")):
                continue
            file = getattr(loaded, "__file__", None)
            if file and name not in _STAY and not file.startswith(os.path.join(folder, "")):
                del sys.modules[name]


_STAY = frozenset(  # modules that Python loads before it looks into the script's folder, and ours
    {"abc", "codecs", "encodings", "genericpath", "io", "os", "posixpath", "site", "stat", "zipimport"}
    | {"tfmagic"}
)


def _read_file(path: str, main: types.ModuleType) -> CodeType:
    loader = SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader, __package__=None, __spec__=None)
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)  # of a .pyc
    if code is not None:
        return code
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)
