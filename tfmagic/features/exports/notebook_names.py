"""Find how a program gets the names that its cells read from the notebook.

a module, or what a module has   an import
a function or class              its source, after those that it needs
a number, text, list of these    an assignment; what looks like a secret is read from the environment
an array of numpy                data.npz
another value that pickles       data.pickle
"""

from __future__ import annotations

import ast
import builtins
import inspect
import io
import pickle
import sys
import textwrap
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfmagic.features.exports.secrets import Secrets
from tfmagic.serialization import definitions
from tfmagic.serialization.free_names import names_assigned, names_read

_LONGEST_LITERAL = 2000


@dataclass(slots=True)
class NotebookNames:
    """What a program takes from the notebook.

    Attributes:
        data: The content of data.npz and of data.pickle.
        problems: Names that a program cannot get, with the reason.
        missing: Names that the notebook has not, or no longer.
    """

    namespace: Mapping[str, Any]
    secrets: Secrets
    imports: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    data: dict[str, dict[str, Any]] = field(default_factory=lambda: {"data.npz": {}, "data.pickle": {}})
    problems: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def add(self, names: Iterable[str]) -> None:
        """Add names, and those that their functions need."""
        for name in sorted(names):
            if name in self._seen:  # also since this loop began: a function before has needed it
                continue
            self._seen.add(name)
            if name == "get_ipython":
                self.problems[name] = "a program has no notebook"
            elif name in ("display", "In", "Out"):
                pass
            elif name in self.namespace:
                self._add(name, self.namespace[name])
            elif not hasattr(builtins, name) and not name.startswith("__"):
                self.missing.append(name)

    def _add(self, name: str, value: Any) -> None:
        found = inspect.unwrap(value) if callable(value) else value  # a tf.function has the user's inside
        if isinstance(value, types.ModuleType):
            module = min((n for n, m in list(sys.modules.items()) if m is value), key=len, default=name)
            self.imports.append(f"import {module}" + (f" as {name}" if module != name else ""))
        elif definitions.is_importable(value):
            self.imports.append(_import_of(name, value))
        elif isinstance(found, types.FunctionType | type) and found.__module__ == "__main__":
            self._add_source(name, found)
        elif (text := _literal(value)) is not None:
            self.constants.append(self.without_secrets(name, f"{name} = {text}", is_constant=True))
        elif (type(value).__module__, type(value).__name__) == ("numpy", "ndarray") and value.dtype != object:
            texts = pickle.dumps(value.tolist(), 4) if value.dtype.kind in "US" else b"N."
            self._add_data("data.npz", name, value, texts)
        else:
            self._add_pickle(name, value)

    def _add_source(self, name: str, value: types.FunctionType | type) -> None:
        """Add the source of a definition, after what it needs."""
        free = getattr(getattr(value, "__code__", None), "co_freevars", ())
        if free:
            self.problems[name] = f"it was made inside another function, and uses its {', '.join(free)}"
            return
        source = _source_of(value, self.namespace)
        try:
            assigned = names_assigned(source)
        except SyntaxError:
            assigned = frozenset()
        own = (n for n in (name, value.__name__, *sorted(assigned)) if n in assigned)
        if value.__name__ == "<lambda>":
            own = (n for n in own if self.namespace.get(n) is value)
        if (first := next(own, None)) is None:
            self.problems[name] = "its source cannot be found; write it as a def"
            return
        self._seen |= assigned
        self.add(names_read(ast.parse(source), source))
        if (source := self.without_secrets(name, source)) not in self.sources:
            self.sources.append(source)
        if name != first:
            self.sources.append(f"{name} = {first}")

    def without_secrets(self, name: str, source: str, is_constant: bool = False) -> str:
        """Return a source that reads its secrets from the environment; what it still has is a problem."""
        hidden, kept = self.secrets.hide(source, is_constant)
        if kept:
            self.problems[name] = f"{kept}; read it from os.environ"
        return hidden

    def _add_data(self, file: str, name: str, value: Any, packed: bytes) -> None:
        if kept := self.secrets.found_in_pickle(packed):
            self.problems[name] = f"{kept}; read that from os.environ"
        self.data[file][name] = value

    def _add_pickle(self, name: str, value: Any) -> None:
        pickler = _NotebookPickler(stream := io.BytesIO(), protocol=4)
        try:
            pickler.dump(value)
        except Exception as error:  # the user's own __reduce__ can raise anything
            self.problems[name] = f"{type(error).__name__}: {error}"
            return
        if pickler.needed:
            self.add(pickler.needed)
            self._add_data("data.pickle", name, stream.getvalue(), stream.getvalue())
            self.sources.append(f"{name} = pickle.loads({name})  # an object of what is defined above")
        else:
            self._add_data("data.pickle", name, value, stream.getvalue())


class _NotebookPickler(pickle.Pickler):
    """Collects the names of the notebook's functions and classes that a pickle needs."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.needed: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType | type) and value.__module__ == "__main__":
            self.needed.add(value.__qualname__.partition(".")[0])
        return NotImplemented


def _import_of(name: str, value: Any) -> str:
    """Return the import of a function or class, from the shortest module that has it."""
    module, path = value.__module__, value.__qualname__
    if "." in path:
        return f"from {module} import {path.partition('.')[0]}\n{name} = {path}"
    parts = module.split(".")
    for end in range(1, len(parts)):
        if definitions.is_found(value, shorter := ".".join(parts[:end]), path):
            module = shorter
            break
    if module == "builtins":
        return f"{name} = {path}"
    return f"from {module} import {path}" + (f" as {name}" if path != name else "")


def _literal(value: Any) -> str | None:
    """Return a value as Python writes it; None if that is long, or another value."""
    text = repr(value) if type(value) in (int, float, str, bytes, bool, tuple, list, dict, set) else ""
    text = "None" if value is None else text
    try:
        is_same = 0 < len(text) <= _LONGEST_LITERAL and ast.literal_eval(text) == value
    except (ValueError, SyntaxError, TypeError):
        return None
    return text if is_same else None


def _source_of(value: types.FunctionType | type, namespace: Mapping[str, Any]) -> str:
    """Return the source of a definition; "" if there is none.

    Before Python 3.13, `inspect` finds no classes of a notebook: the cells have them.
    """
    try:
        return textwrap.dedent(inspect.getsource(value)).strip()
    except (OSError, TypeError):
        pass
    for cell in reversed(namespace.get("In", ())):
        try:
            statements = ast.parse(cell).body[::-1]
        except SyntaxError:
            continue
        for node in statements:
            if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return "\n".join(cell.splitlines()[first - 1 : node.end_lineno])
    return ""
