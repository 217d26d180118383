"""Modules that have changed since tasks imported them: a line that names them, and `Cluster.reload`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from tfmagic.clusters.cells.task_variables import Prepared, TaskVariables
from tfmagic.errors import TfmagicError
from tfmagic.serialization import user_modules
from tfmagic.system import notices
from tfmagic.system.advice import Step


def warn_of_old_modules(variables: TaskVariables, prepared: Prepared, runs_here: bool) -> None:
    """Print which modules have changed since tasks imported them, and how to mend it; each change once.

    Tasks on hosts import a copy, which is older than a change even if nothing was imported before.
    """
    found = variables.find_old_modules(prepared)
    if not found:
        return
    tasks = sorted({task for those in found.values() for task in those})
    names = ", ".join(sorted(found))
    files = ", ".join(sorted({os.path.basename(user_modules.file_of(name)) for name in found}))
    where = ", ".join(task.name for task in tasks)
    known = {name for each in variables.names_of(prepared.attempts).values() for name in each.modules}
    step = Step("reload", *sorted(found), *user_modules.with_values_of(sorted(found), known))
    if runs_here:
        why = f"changed after {where} imported it, and the old version runs there"
    else:
        why = f"changed after {where} got copies of this notebook's files, which they import"
    notices.say(f"tfmagic: {names}: {files} {why}:  {step}")


def check_names(modules: Iterable[Any]) -> None:
    """Raise TypeError or ValueError for what is no name of a module."""
    for name in modules:
        if not isinstance(name, str):
            raise TypeError(f"reload() takes the names of modules, as text, not {type(name).__qualname__}")
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(
                f"{name!r} is no name of a module; reload() takes names as in an import statement"
            )


def check_reloaded(found: Mapping[str, Mapping[str, str]]) -> None:
    """Raise TfmagicError if tasks have read another file than that of this machine.

    Args:
        found: A digest of the file of each module that was reloaded, by name, by name of the task.
    """
    ours = {name: user_modules.digest_of(name) for digests in found.values() for name in digests}
    old = {name for digests in found.values() for name, digest in digests.items() if digest != ours[name]}
    tasks = [task for task, digests in found.items() if any(digests[name] != ours[name] for name in digests)]
    if old:
        raise TfmagicError(
            f"{', '.join(tasks)} reloaded {', '.join(sorted(old))} from other files than this machine has: "
            "their hosts have modules of this name without tfmagic, which sends none "
            "(max_module_bytes, .tfmagicignore)"
        )
