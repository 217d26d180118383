"""Private parts of other packages that tfmagic replaces or relies on: rows of tables, and their probe.

    table of rows ── fits(name) ──→ probe: is each target there, and of the shape that we expect?
                                      │ no: the row is left out, `left_out` has a line, its user falls back

To read a table imports nothing. A row is probed once in a process and its forks, before it is installed.
"""

import importlib
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_TARGET = re.compile(r"([\w.]+)(?::([\w.|]+))?(?:\(([^)]*)\))?(?: uses (.+))?")
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Patch:
    """A private part of another package.

    A target is ``module:Class.method(parameter) uses name``: a function has at least these parameters, and
    its code these names; ``A|B`` are names in different versions. `wrap` and `install` name functions,
    ``module:function(argument)``; without both we only rely on the targets.
    """

    name: str  #: What tfmagic does with it.
    targets: tuple[str, ...]
    why: str  #: What it is for.
    without_it: str  #: What is different where it does not fit.
    wrap: str = ""  #: It returns what takes the place of the first target, which is its first argument.
    install: str = ""  #: It replaces the targets itself.
    versions_tried: str = ""  #: A requirement, as in pyproject.toml.
    only: str = ""  #: When it is wanted; "" always. The code that installs the table knows these words.
    needs: tuple[str, ...] = ()  #: Names of rows that must fit, too.
    probe: str = ""  #: A further probe, ``module:function``, which returns what is missing, or "".


class PatchTable:
    """The rows of a table, and what is missing of each that was probed."""

    def __init__(self, *rows: Patch):
        self.rows = {row.name: row for row in rows}
        self._missing: dict[str, str] = {}

    def missing(self, name: str) -> str:
        """Name the parts that a row lacks, or "". The first call probes it, which imports its modules."""
        if name not in self._missing:
            row = self.rows[name]
            found = [*map(_missing_of, row.targets), *map(self.missing, row.needs)]
            self._missing[name] = next(filter(None, found), "") or _own_probe(row)
        return self._missing[name]

    def fits(self, name: str) -> bool:
        """Check whether a row can be used."""
        known = self._missing.get(name)  # mostly: it is asked in each cell
        return not (self.missing(name) if known is None else known)

    def install(self, name: str, **given: Any) -> bool:
        """Install a row that fits, with those of the `given` arguments that it asks for.

        Return whether that was possible. If it fails, it does not fit.
        """
        row = self.rows[name]
        if self.fits(name) and (function := row.install or row.wrap):
            arguments = {argument: given[argument] for argument in _parse(function)[2]}
            try:
                if row.install:
                    find(row.install)(**arguments)
                else:
                    owner, last = place(row.targets[0])
                    setattr(owner, last, find(row.wrap)(getattr(owner, last), **arguments))
            except Exception as error:  # private parts can fail in any way
                self._missing[name] = f"{type(error).__name__}: {error}"
        return self.fits(name)

    def left_out(self, names: Iterable[str] | None = None) -> list[str]:
        """Return a line for each row, of all or of these, that does not fit."""
        return [
            f"{name} is left out ({missing}): {self.rows[name].without_it}"
            for name in (self.rows if names is None else names)
            if (missing := self.missing(name))
        ]


def find(target: str) -> Any:
    """Return the object of a target. Raises ImportError or AttributeError if there is none."""
    module, path, _, _ = _parse(target)
    found = importlib.import_module(module)
    for names in filter(None, path.split(".")):
        known = [name for name in names.split("|") if hasattr(found, name)]
        if not known:
            raise AttributeError(f"no {module}:{path}")
        found = getattr(found, known[0])
    return found


def place(target: str) -> tuple[Any, str]:
    """Return the object that holds a target, and the target's name there."""
    module, path, _, _ = _parse(target)
    above, _, last = path.rpartition(".")
    return find(f"{module}:{above}") if above else importlib.import_module(module), last


def _parse(target: str) -> tuple[str, str, list[str], list[str]]:
    """Return the module, the path in it, the parameters, and the names in its code."""
    match = _TARGET.fullmatch(target)
    assert match is not None, target
    module, path, parameters, names = match.groups(default="")
    return module, path, _WORDS.findall(parameters), _WORDS.findall(names)


def _missing_of(target: str) -> str:
    module, path, parameters, names = _parse(target)
    place = f"{module}:{path}" if path else module
    try:
        found = find(target)
        if "(" in target and not callable(found):
            return f"{place} is no function"
        if parameters:
            known = inspect.signature(found).parameters
            if lacking := [name for name in parameters if name not in known]:
                return f"{place} has no parameter {lacking[0]}"
        if lacking := sorted(set(names) - _names_in(found)):
            return f"{place} does not use {lacking[0]}"
    except Exception as error:  # an import can raise anything
        return f"no {place}" if isinstance(error, AttributeError) else f"{place}: {error}"
    return ""


def _names_in(function: Any) -> set[str]:
    """Return the names of variables and attributes in the code of a function; none if it is no Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return {*code.co_names, *code.co_varnames, *code.co_cellvars} if code is not None else set()


def _own_probe(row: Patch) -> str:
    try:
        return str(find(row.probe)()) if row.probe else ""
    except Exception as error:  # as in `_missing_of`
        return f"{type(error).__name__}: {error}"
