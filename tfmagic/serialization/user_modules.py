"""The modules of the user's own that tasks import: notice that a file has changed, and reload a module there.

    a cell that uses a module ──→ `stamps_of`: its file, and those of the user's modules that it uses
    a later cell              ──→ `changed_since`: which of these files are others now
    %tfcluster reload         ──→ `reload_modules`, on the tasks

Modules travel by name: a task imports each one once. What is installed is left out.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfmagic.serialization import pickling
from tfmagic.system.own_code import OUR_FOLDER

_INSTALLED = (
    *(os.path.join(sysconfig.get_path(kind), "") for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    OUR_FOLDER,
)
_INSTALLED_PARTS = ("/site-packages/", "/dist-packages/")
_MOST = 200  # modules whose files are looked at

Stamp = tuple[str, int, int]
"""Path, time and size of a file."""


def stamps_of(names: Iterable[str]) -> dict[str, Stamp]:
    """Return the stamps of these modules, and of the user's modules that they use, by name."""
    found: dict[str, Stamp] = {}
    for name in names:
        for used in _used(name, set()):
            if used not in found and len(found) < _MOST and (stamp := _stamp(file_of(used))) is not None:
                found[used] = stamp
    return found


def changed_since(stamps: Mapping[str, Stamp]) -> dict[str, Stamp]:
    """Return the present stamps of the modules whose files have changed."""
    now = {name: _stamp(stamp[0]) for name, stamp in stamps.items()}
    return {name: stamp for name, stamp in now.items() if stamp is not None and stamp != stamps[name]}


@functools.lru_cache(maxsize=256)
def names_imported(source: str) -> frozenset[str]:
    """Return the modules that an import statement of `source` names."""
    if "import" not in source:
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def module_of(value: object) -> str:
    """Return the name of the module that a value is, or from which it or its class comes; "" if none."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    home = value if isinstance(value, type | types.FunctionType) else type(value)
    name = getattr(home, "__module__", "")
    return name if isinstance(name, str) and name != "__main__" else ""


def digest_of(name: str) -> str:
    """Return a digest of the file of a module; "" if there is none."""
    try:
        with open(file_of(name), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _used(name: str, seen: set[str]) -> Iterator[str]:
    """Yield the user's modules that a module uses, each one before those that use it; and the module."""
    if name in seen or not file_of(name):
        return
    seen.add(name)
    for value in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
        if isinstance(value, types.ModuleType | type | types.FunctionType):
            yield from _used(module_of(value), seen)
    yield name


def file_of(name: str) -> str:
    """Return the file of a module if it is the user's own source, else ""."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) if module is not None else _file_to_import(name)
    return file if isinstance(file, str) and _is_own(file) else ""


@functools.lru_cache(maxsize=1024)
def _is_own(file: str) -> bool:
    is_installed = file.startswith(_INSTALLED) or any(part in file for part in _INSTALLED_PARTS)
    return file.endswith(".py") and not is_installed


_origins: dict[str, str] = {}  # found once: a search takes 0.1 ms


def _file_to_import(name: str) -> str:
    """Return the file of a module that only the tasks have imported."""
    if name not in _origins and "." not in name:  # a search for `a.b` would import `a`
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            spec = importlib.util.find_spec(name)
            if spec is not None:
                _origins[name] = spec.origin or ""
    return _origins.get(name, "")


def _stamp(file: str) -> Stamp | None:
    try:
        found = os.stat(file)
    except OSError:  # it was moved, for example: what was imported goes on
        return None
    return file, found.st_mtime_ns, found.st_size


# ---- on the tasks --------------------------------------------------------------------------------


_old_objects: dict[Any, Any] = {}  # weak references to functions and classes of all versions


def reload_modules(names: tuple[str, ...]) -> dict[str, str]:
    """Reload modules with their submodules; return a digest of the file of each, by name.

    Functions, classes and instances of the old module are changed in place, as by IPython's ``%autoreload``;
    names that were imported `from` it are bound anew. A module that was not imported is left out.
    """
    from IPython.extensions.autoreload import superreload

    chosen = [m for m in list(sys.modules) if any(m == name or m.startswith(f"{name}.") for name in names)]
    seen: set[str] = set()
    order = [used for name in chosen for used in _used(name, seen) if used in chosen]
    importlib.invalidate_caches()
    for name in order:
        module = sys.modules[name]
        before = dict(vars(module))
        _forget_bytecode(module)
        superreload(module, old_objects=_old_objects)
        _bind_anew(before, vars(module), sys.modules["__main__"].__dict__)
    return {name: digest_of(name) for name in order}


def _forget_bytecode(module: types.ModuleType) -> None:
    """Delete the compiled file, which Python uses if the new source has the same second and size."""
    with contextlib.suppress(OSError):  # another task has done it
        os.unlink(getattr(module, "__cached__", None) or "")


def _bind_anew(before: Mapping[str, Any], after: Mapping[str, Any], names: dict[str, Any]) -> None:
    """Bind the names of functions and classes of the old module to those of the new one."""
    old = {id(value): name for name, value in before.items() if pickling.is_definition(value)}
    for name, value in list(names.items()):
        found = after.get(old.get(id(value), ""))
        if found is not None:
            names[name] = found
