"""Check that the script or module of ``tfmagic run`` exists and compiles, before any task starts."""

from __future__ import annotations

import io
import os
import pkgutil
import sys
import traceback
import warnings
from importlib.machinery import PathFinder

import tfmagic
from tfmagic.clusters.environment import existing_folder
from tfmagic.frontends.cli.parsers import BAD_USAGE


def find_problem(target: str, is_module: bool) -> tuple[int, str] | None:
    """Return an exit code and a message, or None if the target can be run.

    No code of the user's is imported, so only the first part of a dotted name is looked for.
    """
    if is_module:
        name = target.partition(".")[0]
        found = PathFinder.find_spec(name, [existing_folder(), *sys.path])
        return None if found or name in sys.stdlib_module_names else (BAD_USAGE, f"No module named {name}")
    if os.path.isdir(target):
        is_program = os.path.exists(os.path.join(target, "__main__.py"))
        return None if is_program else (BAD_USAGE, f"can't find '__main__' module in {target!r}")
    try:
        with io.open_code(os.path.abspath(target)) as file:
            if pkgutil.get_importer(target) is not None or pkgutil.read_code(file) is not None:  # type: ignore[attr-defined]
                return None  # an archive, or a .pyc
            file.seek(0)
            source = file.read()
    except OSError as error:
        return BAD_USAGE, f"can't open file {target!r}: {error.strerror or error}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each task will show them
            compile(source, os.path.abspath(target), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return 1, "".join(traceback.format_exception_only(error)).rstrip()
    return None


def leave_own_folder() -> None:
    """Remove this program's own folder from `sys.path`; the tasks put the script's folder there.

    With ``python -m`` it is the working directory, with the installed script the script's folder.
    """
    own = {"", existing_folder(), os.path.dirname(os.path.realpath(sys.argv[0]))}
    if sys.flags.safe_path or not sys.path or sys.path[0] not in own:
        return
    folder = os.path.abspath(sys.path.pop(0))
    if os.path.dirname(os.path.dirname(os.path.abspath(tfmagic.__file__))) == folder:
        sys.path.append(folder)  # a checkout, last on the path: the tasks need tfmagic
