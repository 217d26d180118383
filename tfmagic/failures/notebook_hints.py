"""The hint after a failure for want of something that the notebook's process has, and the task has not."""

import contextlib
import importlib.util
import os
import re
import sys

from tfmagic.protocol.payload import PackedError
from tfmagic.runs.given_hints import Hint
from tfmagic.system.advice import in_notebook

_NO_MODULE = re.compile(r"No module named '([^\W\d]\w*)")


def find_hint(error: PackedError) -> Hint:
    """Return the hint that names a module or an environment variable of this process, if it explains it."""
    here = in_notebook("the notebook") or "the calling process"
    for kind, message in error.chain if not error.explained else ():
        found = _NO_MODULE.match(message) if kind == "ModuleNotFoundError" else None
        if found and "import" in error.text and _can_import(found[1]):  # else the user's code has raised it
            return Hint(
                "module-of-the-notebook",
                f"{here} can import {found[1]}, and this task cannot. Tasks have its sys.path, but not what "
                "code has put into sys.modules or sys.meta_path, and other hosts have their own packages. "
                f"Repeat that in the {in_notebook('cell') or 'function'}, or install {found[1]} there.",
            )
        name = message.strip("'\"")
        if kind == "KeyError" and name in os.environ and "<frozen os>" in error.text:
            return Hint(
                "variable-of-the-notebook",
                f"{here} has the environment variable {name}, and this task has not: its own code has "
                f"removed it, or it is on another host. Set it there with --env {name}=VALUE.",
            )
    return Hint()


def _can_import(name: str) -> bool:
    with contextlib.suppress(Exception):  # a finder of the user's
        return name in sys.modules or importlib.util.find_spec(name) is not None
    return False
