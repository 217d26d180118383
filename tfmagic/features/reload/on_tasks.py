"""Reload modules on a task, so that what it holds of them is of the new version."""

import contextlib
import importlib
import os
import sys
import types
from collections.abc import Mapping
from typing import Any

from tfmagic.features.reload import enums
from tfmagic.protocol.module_origins import original_path
from tfmagic.serialization import pickling, user_modules

_MOST_CONTAINERS = 10_000  # in which old definitions are looked for, and their length

_old_objects: dict[Any, Any] = {}  # weak references to functions and classes of all versions


def reload_modules(names: tuple[str, ...], sources: Mapping[str, bytes]) -> dict[str, str]:
    """Reload modules with their submodules; return a digest of the file of each, by name.

    Functions, classes and instances of the old module are changed in place, as by IPython's ``%autoreload``;
    names that were imported `from` it are bound again. Members of enums stay the objects that they were. A
    module that was not imported is left out.

    Args:
        sources: Changed files, for a task that has a copy of the notebook's modules.
    """
    from IPython.extensions.autoreload import superreload

    _write_copies(sources)
    chosen = [m for m in list(sys.modules) if any(m == name or m.startswith(f"{name}.") for name in names)]
    seen: set[str] = set()
    order = [used for name in chosen for used in user_modules.used_by(name, seen) if used in chosen]
    importlib.invalidate_caches()
    for name in order:
        module = sys.modules[name]
        before, members = dict(vars(module)), enums.members_of(vars(module))
        _forget_bytecode(module)
        superreload(module, old_objects=_old_objects)
        enums.keep(members, vars(module))
        _bind_again(before, vars(module), sys.modules["__main__"].__dict__)
    return {name: user_modules.digest_of(name) for name in order}


def _write_copies(sources: Mapping[str, bytes]) -> None:
    """Write files into the copy of the notebook's modules. Other tasks of the host write the same."""
    roots = [folder.removesuffix(original_path(folder)) for folder in sys.path]
    root = next((root for root in roots if root), "")
    for source, content in sources.items() if root else ():
        os.makedirs(os.path.dirname(root + source), exist_ok=True)
        unfinished = f"{root}{source}.{os.getpid()}"
        with open(unfinished, "wb") as out:
            out.write(content)
        os.replace(unfinished, root + source)


def _forget_bytecode(module: types.ModuleType) -> None:
    """Delete the compiled file, which Python uses if the new source has the same second and size."""
    with contextlib.suppress(OSError):  # another task has done it
        os.unlink(getattr(module, "__cached__", None) or "")


def _bind_again(before: Mapping[str, Any], after: Mapping[str, Any], names: dict[str, Any]) -> None:
    """Bind the names of functions and classes of the old module to those of the new one.

    So also in lists, and as values of dictionaries, that these names have.
    """
    old = {id(value): name for name, value in before.items() if pickling.is_definition(value)}
    new = {key: after[name] for key, name in old.items() if after.get(name) is not None}
    seen, queue = set[int](), list[Any]([names])
    while queue and len(seen) < _MOST_CONTAINERS:
        space = queue.pop()
        if id(space) not in seen and new:
            seen.add(id(space))
            places: Any = list(space.items()) if type(space) is dict else list(enumerate(space))
            for place, value in places:
                if id(value) in new:
                    space[place] = new[id(value)]
                elif type(value) in (dict, list) and len(value) < _MOST_CONTAINERS:
                    queue.append(value)
