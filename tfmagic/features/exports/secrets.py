"""Keep secrets out of an exported program: it reads them from its environment when it starts.

constants, ``--env``, functions, cells   ─→ `Secrets.hide`     ─→ ``os.environ['HF_TOKEN']``
objects, arrays, copied modules          ─→ `Secrets.found_in` ─→ why the export is refused
"""

from __future__ import annotations

import ast
import os
import pickletools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfmagic.features.exports.translation import Edits
from tfmagic.system.secret_rules import ISSUED, SENT, is_secret_field, is_secret_name, secret_values

_ASKS = re.compile(r"getpass|input|get_?(pass|secret|token)\w*", re.I)  # functions that ask for a value
_LONG = 8  # characters: a shorter value can stand in a longer text by chance
_OF_SHELLS = ("PWD", "USER", "HOME", "PATH", "HOSTNAME", "LOGNAME", "SHELL", "NAME", "LANG")
Named = Iterator[tuple[str, ast.Constant]]


class Secrets:
    """What an export takes for a secret.

    Attributes:
        variables: The environment variable of each secret that the program needs, by its value.
    """

    def __init__(self, namespace: Mapping[str, Any], environ: Mapping[str, str]):
        self.typed = _names_asked_for(namespace)
        self.variables: dict[str, str] = {}
        self._known = secret_values({**os.environ, **environ})
        asked = {str(namespace[name]): name for name in self.typed if name in namespace}
        self._known |= {value: name for value, name in asked.items() if len(value) >= 4}
        self._long = [value for value in self._known if len(value) >= _LONG]

    def without(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that can be written; the program needs the others."""
        hidden = {name: value for name, value in environ.items() if self._is_secret(name, value, True)}
        self.variables |= {value: name for name, value in hidden.items()}
        return {name: value for name, value in environ.items() if name not in hidden}

    def hide(self, text: str, is_constant: bool = False) -> tuple[str, str]:
        """Return a source that reads its secrets from the environment, and what it still has, or "".

        Args:
            is_constant: Whether the source assigns one variable of the notebook: then more names count.
        """
        edits = Edits(text.encode())
        for name, node in _named_constants(ast.parse(text)):
            if self._is_secret(name, node.value, is_constant):
                read = f"os.environ[{self._variable(name, _as_text(node.value))!r}]"
                if not isinstance(node.value, str):
                    is_bytes = isinstance(node.value, bytes)
                    read = f"{read}.encode()" if is_bytes else f"{type(node.value).__name__}({read})"
                edits.found.append((*edits.span(node), read))
        hidden = edits.apply()
        return hidden, self.found_in(hidden)

    def found_in(self, text: str) -> str:
        """Return in which line a text has a secret, as a sentence, or ""."""
        for number, line in enumerate(text.splitlines(), 1):
            if ISSUED.search(line) or any(value in line for value in self._long):
                return f"line {number} has what looks like a password, key or token"
        return ""

    def found_in_pickle(self, packed: bytes) -> str:
        """Return what a pickled object has of secrets, as a sentence, or ""."""
        before = ""
        for text in _texts_of(packed):
            if self._is_secret(before, text, False):
                return f"it holds what looks like a password, key or token{f' ({before})' if before else ''}"
            before = text if text.isidentifier() else ""
        return ""

    def _is_secret(self, name: str, value: Any, is_variable: bool) -> bool:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return is_variable and name in self.typed
        text = _as_text(value)
        if not text or text.isspace():
            return False
        if is_variable and (name in self.typed or is_secret_name(name)):
            return not (text.startswith("/") and os.path.exists(text))
        return (
            text in self._known
            or bool(ISSUED.search(text) or SENT.search(text) or is_secret_field(name, text))
            or any(known in text for known in self._long)
        )

    def _variable(self, name: str, value: str) -> str:
        """Return the environment variable that the program reads for a value."""
        if value not in self.variables:
            word = re.sub(r"\W", "_", self._known.get(value, "") or name or "secret").upper()
            taken = self.variables.values()
            if word in _OF_SHELLS or word in taken or os.environ.get(word, value) != value:
                word = f"SECRET_{word}"
            while word in taken:
                word += "_2"
            self.variables[value] = word
        return self.variables[value]


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    is_text = isinstance(value, str | int | float) and not isinstance(value, bool)
    return str(value) if is_text else ""


def _names_asked_for(namespace: Mapping[str, Any]) -> frozenset[str]:
    """Return the variables that the notebook's cells have assigned from what the user has typed."""
    found: set[str] = set()
    for cell in namespace.get("In", ()):
        if not _ASKS.search(cell):
            continue
        try:
            nodes = list(ast.walk(ast.parse(cell)))
        except (SyntaxError, ValueError):
            continue
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and _asks(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = (inner for target in targets for inner in ast.walk(target))
                found |= {name.id for name in names if isinstance(name, ast.Name)}
    return frozenset(found)


def _asks(node: ast.expr | None) -> bool:
    calls = (inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call)) if node else ()
    return any(_ASKS.fullmatch(ast.unparse(called).rpartition(".")[2]) for called in calls)


def _named_constants(tree: ast.Module) -> Named:
    """Yield the constants that can be replaced, each with the name under which it is used, or ""."""
    named: dict[ast.AST, str] = {}
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        named |= {value: name for name, value in _pairs(node) if name}
        if isinstance(
            node, ast.JoinedStr | ast.MatchValue | ast.MatchMapping | ast.Expr
        ):  # the last: docstrings
            skipped |= {inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in skipped:
            yield named.get(node, ""), node


def _pairs(node: ast.AST) -> Iterable[tuple[str, ast.AST]]:
    """Yield values that stand below a node, with the names that it gives them."""
    match node:
        case ast.Assign(targets=targets, value=value):
            inner = value.args[0] if isinstance(value, ast.Call) and len(value.args) == 1 else value
            return [(_name_of(target), inner) for target in targets]
        case ast.AnnAssign(target=target, value=ast.AST() as value) | ast.NamedExpr(target, value):
            return [(_name_of(target), value)]
        case ast.keyword(arg=str(name), value=value):
            return [(name, value)]
        case ast.Dict(keys=keys, values=values):
            return [(_name_of(key), value) for key, value in zip(keys, values, strict=True)]
        case ast.arguments():
            arguments = [*node.posonlyargs, *node.args][::-1]
            defaults = [*zip(arguments, node.defaults[::-1], strict=False)]
            defaults += [(a, d) for a, d in zip(node.kwonlyargs, node.kw_defaults, strict=True) if d]
            return [(argument.arg, default) for argument, default in defaults]
        case ast.Call(args=[ast.Constant() as name, value, *_]):  # os.environ.setdefault("HF_TOKEN", "...")
            return [(_name_of(name), value)]
        case ast.Compare(left=left, comparators=[value]):
            return [(_name_of(left), value)]
    return []


def _name_of(node: ast.AST | None) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=inner):
            return _name_of(inner)
        case ast.Constant(value=str(name)):
            return name
    return ""


def _texts_of(packed: bytes) -> Iterator[str]:
    """Yield the texts of a pickle in their order; those that it has only once are repeated."""
    memo: list[str] = []
    last = ""
    for code, argument, _ in pickletools.genops(packed):
        if code.name in ("BINGET", "LONG_BINGET"):
            if text := memo[int(str(argument))]:
                yield text
        elif code.name == "MEMOIZE":
            memo.append(last)
        elif "UNICODE" in code.name or "BINBYTES" in code.name:
            last = _as_text(argument)
            yield last
            continue
        last = ""
