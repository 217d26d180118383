"""Modules that tasks could not import as this process did: those that pytest has loaded.

    pytest's process: find_origins() ── with the boot ──→ task: install() ── at its import ──→
                                     the same file, under the same name, its asserts rewritten alike

A test's functions and classes travel by name, so that an exception class of a test module is the same
class when it comes back. Sent by value, as those of a notebook are, a test module would have to give up
every global that cannot be pickled, and ``except MyError`` with it. What a test module does when it is
imported is done once in each task, as with the workers of `multiprocessing`.

pytest's own importer cannot do it in a task: it needs a session. Where its parts are not as we know them,
the module is loaded without rewriting.
"""

import builtins
import contextlib
import importlib.util
import os
import re
import sys
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

from tfmagic.protocol.commands import Origin

UNPACKED = "modules-"
"""Begins the name of a folder of sources that an agent has unpacked in its run folder."""

_REWRITE = "_pytest.assertion.rewrite"
_UNPACKED_PATH = re.compile(rf"\A.*/runs/[^/]+/{UNPACKED}[0-9a-f]{{16}}(?=/)", re.DOTALL)


def import_path() -> list[str]:
    """Return `sys.path` for another process, without entries that are no text.

    Python ignores such entries, as after ``sys.path.append(Path("src"))``, here too; the other process would
    not start with them.
    """
    return [str(entry) for entry in sys.path if isinstance(entry, str)]


def original_path(file: str) -> str:
    """Return the file on the notebook's machine of which a host has an unpacked copy; others unchanged."""
    return _UNPACKED_PATH.sub("", file)


def find_origins() -> tuple[Origin, ...]:
    """Return the modules that pytest has rewritten, or loaded from where no other process finds them."""
    if _REWRITE not in sys.modules:
        return ()
    roots = {os.path.abspath(entry) for entry in sys.path}
    found: dict[str, Origin] = {}
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", {})  # asked directly: some modules load more when asked
        if name.startswith("__") or not isinstance(names.get("__file__"), str):
            continue
        loader = getattr(names.get("__spec__"), "loader", None)
        if name.partition(".")[0] == "tfmagic":
            continue  # pytest rewrites all of a package that has a plugin; ours the tasks have
        rewritten = type(loader).__module__ == _REWRITE
        if rewritten or (type(loader) is SourceFileLoader and not _is_below(names["__file__"], name, roots)):
            found[name] = _origin(name, names, rewritten)
    for name in [parent for module in found for parent in _parents(module)]:
        if name not in found and name in sys.modules:
            found[name] = _origin(name, vars(sys.modules[name]), False)
    return tuple(found.values())


def _origin(name: str, names: Mapping[str, Any], rewritten: bool) -> Origin:
    file = names.get("__file__") or ""
    search = tuple(names["__path__"]) if "__path__" in names else None
    return Origin(name, file, () if not file and search is None else search, rewritten)


def _is_below(file: str, name: str, roots: Iterable[str]) -> bool:
    """Check whether an import by this name finds the file below one of the folders."""
    relative = os.sep + name.replace(".", os.sep)
    for ending in (relative + ".py", os.path.join(relative, "__init__.py")):
        if file.endswith(ending):
            return file[: -len(ending)] in roots
    return False


def _parents(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        yield name


def install(origins: Sequence[Origin]) -> None:
    """Let imports in this process find these modules, before anything else of the name."""
    if origins:
        sys.meta_path.insert(0, _Finder(origins))


class _Finder:
    def __init__(self, origins: Sequence[Origin]):
        self._origins = {origin.name: origin for origin in origins}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        origin = self._origins.get(name)
        if origin is None:
            return None
        search = None if origin.search is None else list(origin.search)
        if not origin.file:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = search
            return spec
        loader = (_RewritingLoader if origin.rewritten else SourceFileLoader)(name, origin.file)
        return importlib.util.spec_from_file_location(
            name, origin.file, loader=loader, submodule_search_locations=search
        )


class _RewritingLoader(SourceFileLoader):
    """Runs a module's code as pytest has rewritten it."""

    def get_code(self, fullname: str) -> types.CodeType | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # pytest has shown them
                return _read_rewritten(Path(self.path)) or _rewrite(Path(self.path))
        except Exception:  # parts of pytest that are not promised: asserts say less then
            return super().get_code(fullname)

    def exec_module(self, module: types.ModuleType) -> None:
        # nested functions come by value, and were rewritten whether or not this module can be
        with contextlib.suppress(ImportError):  # a host without pytest
            vars(module).update({"@py_builtins": builtins, "@pytest_ar": importlib.import_module(_REWRITE)})
        super().exec_module(module)


def _read_rewritten(path: Path) -> types.CodeType | None:
    """Return the code that pytest keeps on disk, if that is up to date."""
    rewrite = importlib.import_module(_REWRITE)
    code = rewrite._read_pyc(path, rewrite.get_cache_dir(path) / (path.name[:-3] + rewrite.PYC_TAIL))
    return code if isinstance(code, types.CodeType) else None


def _rewrite(path: Path) -> types.CodeType:
    source = path.read_bytes()
    tree = importlib.import_module("ast").parse(source, filename=str(path))
    importlib.import_module(_REWRITE).rewrite_asserts(tree, source, str(path))
    return compile(tree, str(path), "exec", dont_inherit=True)
