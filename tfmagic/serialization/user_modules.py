"""The modules of the user's own that tasks import: notice that a file has changed.

    a cell that uses a module ──→ `stamps_of`: its file, and those of the user's modules that it uses
    a later cell              ──→ `changed_since`: which of these files are others now

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name

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
Sent = Callable[[str], Stamp | None]


def _none_sent(file: str) -> Stamp | None:
    return None


def stamps_of(names: Iterable[str], sent: Sent = _none_sent) -> dict[str, Stamp]:
    """Return the stamps of these modules, and of the user's modules that they use, by name.

    Args:
        sent: Returns the stamp of a file of which the tasks have a copy.
    """
    found: dict[str, Stamp] = {}
    for name in names:
        for used in used_by(name, set()):
            if used in found or len(found) == _MOST:
                continue
            if (stamp := sent(file_of(used)) or stamp_of(file_of(used))) is not None:
                found[used] = stamp
    return found


def changed_since(stamps: Mapping[str, Stamp], look: Callable[[str], Stamp | None]) -> dict[str, Stamp]:
    """Return the present stamps, by `look`, of the modules whose files have changed."""
    now = {name: look(stamp[0]) for name, stamp in stamps.items()}
    return {name: stamp for name, stamp in now.items() if stamp is not None and stamp != stamps[name]}


@functools.lru_cache(maxsize=256)
def names_imported(source: str, package: str = "") -> frozenset[str]:
    """Return the modules that an import statement of `source` names; relative ones are of `package`."""
    if "import" not in source:
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            with contextlib.suppress(ImportError):  # beyond the top of the package
                name = resolve_name("." * node.level + (node.module or ""), package or None)
                found |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def with_values_of(changed: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the modules among `names` that have values of changed ones, as by ``from settings import RATE``.

    Those that have them from such a module come after it. Functions and classes are changed in place.
    """
    found, left = list(changed), sorted({*names}.difference(changed))
    first = len(found)
    for source in found:  # it grows
        found += (more := [name for name in left if _has_value_of(source, name)])
        left = [name for name in left if name not in more]
    return found[first:]


def _has_value_of(source: str, name: str) -> bool:
    package = name if os.path.basename(file_of(name)) == "__init__.py" else name.rpartition(".")[0]
    names = [each.rpartition(".") for each in _names_imported_by(file_of(name), package)]
    taken = {each for home, _, each in names if home == source}
    if (module := sys.modules.get(source)) is None:  # only tasks have imported it: what it has is not known
        return any(not file_of(f"{source}.{each}") for each in taken)
    taken |= {each for each in vars(module) if "*" in taken and not each.startswith("_")}
    values = [value for each, value in vars(module).items() if each in taken]
    return any(not isinstance(v, types.ModuleType) and not pickling.is_definition(v) for v in values)


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


def used_by(name: str, seen: set[str]) -> Iterator[str]:
    """Yield the user's modules that a module uses, each one before those that use it; and the module."""
    if name in seen or not file_of(name):
        return
    seen.add(name)
    if name in sys.modules:
        values = list(vars(sys.modules[name]).values())
        names = [module_of(v) for v in values if isinstance(v, types.ModuleType | type | types.FunctionType)]
        package = getattr(sys.modules[name], "__package__", None) or ""
        imported = _names_imported_by(file_of(name), package)  # constants do not name their module
        names += sorted(imported & sys.modules.keys() - {name, package})
    else:
        names = sorted(_names_imported_by(file_of(name), name.rpartition(".")[0]))
    for other in names:
        yield from used_by(other, seen)
    yield name


def _names_imported_by(file: str, package: str) -> frozenset[str]:
    try:
        with open(file, "rb") as source:
            return names_imported(source.read().decode(), package)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return frozenset()


def file_of(name: str) -> str:
    """Return the file of a module if it is the user's own source, else ""."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) if module is not None else _file_to_import(name)
    return file if isinstance(file, str) and _is_own(file) else ""


@functools.lru_cache(maxsize=1024)
def _is_own(file: str) -> bool:
    is_installed = file.startswith(_INSTALLED) or any(part in file for part in _INSTALLED_PARTS)
    return file.endswith(".py") and not is_installed


_origins = {"": ""}  # found once: a search takes 0.1 ms; "" is the module of what comes from none


def _file_to_import(name: str) -> str:
    """Return the file of a module that only the tasks have imported. Imports nothing."""
    if name not in _origins and not _is_below_installed(name):
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            if (spec := _spec_of(name)) is not None:
                _origins[name] = spec.origin or ""
    return _origins.get(name, "")


def _is_below_installed(name: str) -> bool:
    top = name.partition(".")[0]
    if top == name:
        return False
    file = getattr(sys.modules.get(top), "__file__", None) or _file_to_import(top)
    return bool(file) and not _is_own(file)


def _spec_of(name: str) -> ModuleSpec | None:
    parent = name.rpartition(".")[0]
    if not parent:
        return importlib.util.find_spec(name)  # a search for `a.b` would import `a`
    found = sys.modules.get(parent)
    above = found.__spec__ if found is not None else _spec_of(parent)
    if above is None or above.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(name, list(above.submodule_search_locations))


def stamp_of(file: str) -> Stamp | None:
    """Return the present stamp of a file; None if there is none."""
    try:
        found = os.stat(file)
    except OSError:  # it was moved, for example: what was imported goes on
        return None
    return file, found.st_mtime_ns, found.st_size
