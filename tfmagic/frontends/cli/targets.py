"""What is to be run: whether it is there and reads, before anything is started for it."""

from __future__ import annotations

import io
import os
import pkgutil
import sys
import traceback
import warnings
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

import tfmagic
from tfmagic.clusters.environment import existing_folder
from tfmagic.frontends.cli.parsers import BAD_USAGE


def find_complaint(target: str, is_module: bool) -> tuple[int, str] | None:
    """An exit code, and what is wrong with the target; None where nothing is.

    Nothing of the user's is imported: of a dotted name only the first part is looked for.
    """
    if is_module:
        name = target.partition(".")[0]
        found = any(
            finder.find_spec(name, path)
            for finder, path in (
                (BuiltinImporter, None),
                (FrozenImporter, None),
                (PathFinder, [existing_folder(), *sys.path]),
            )
        )
        return None if found else (BAD_USAGE, f"No module named {name}")
    if os.path.isdir(target):
        is_program = os.path.exists(os.path.join(target, "__main__.py"))
        return None if is_program else (BAD_USAGE, f"can't find '__main__' module in {target!r}")
    try:
        with io.open_code(os.path.abspath(target)) as file:
            if pkgutil.get_importer(target) is not None or pkgutil.read_code(file) is not None:  # type: ignore[attr-defined]
                return None  # an archive, or a .pyc
            file.seek(0)
            return _find_mistake(file.read(), target)
    except OSError as error:
        return BAD_USAGE, f"can't open file {target!r}: {error.strerror or error}"


def _find_mistake(source: bytes, target: str) -> tuple[int, str] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each task will say the same
            compile(source, os.path.abspath(target), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return 1, "".join(traceback.format_exception_only(error)).rstrip()
    return None


def leave_own_folder() -> None:
    """Take from `sys.path` what is there for this program's sake: the tasks get the script's folder instead.

    With ``python -m`` that is the working directory, with the installed script its own folder.
    """
    own = {"", existing_folder(), os.path.dirname(os.path.realpath(sys.argv[0]))}
    if sys.flags.safe_path or not sys.path or sys.path[0] not in own:
        return
    folder = os.path.abspath(sys.path.pop(0))
    if os.path.dirname(os.path.dirname(os.path.abspath(tfmagic.__file__))) == folder:
        sys.path.append(folder)  # a checkout: the tasks find tfmagic there, behind everything else
