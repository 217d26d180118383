"""Find what a cell asks of its `__main__` without naming it, by ``globals()`` or `unittest.main`.

Names that stand there as text (``globals()["x"]``, ``"x" in dir()``, ``__main__.x``) are names that the cell
reads. `ALL_NAMES` stands for the rest: any name of the notebook can be wanted.
"""

import ast
import functools
import inspect
import textwrap
import types

ALL_NAMES = "*"

_ASKING = (  # who looks through `__main__`: the last part of the module's name or "", the function
    *((module, "main") for module in ("unittest", "absltest", "googletest", "test")),
    ("ipytest", "run"),
    *(("", "testmod"), ("", "DocTestSuite"), ("", "DocTestFinder"), ("", "TestProgram")),
)
_FUNCTIONS = frozenset(["globals", "testmod", "DocTestSuite", "DocTestFinder", "TestProgram", "main", "run"])
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def names_asked(tree: ast.AST) -> set[str]:
    """Return the names that code asks of its `__main__`, and `ALL_NAMES` if it can be any."""
    asked = _Asked()
    for node in ast.walk(tree):  # each node before those inside it
        asked.look_at(node)
    return asked.found


@functools.lru_cache(maxsize=4096)
def names_asked_by(function: types.CodeType) -> frozenset[str]:
    """Return the same of a function of the notebook."""
    if not _names_of(function) & (_FUNCTIONS | {"__main__", "__name__"}):
        return frozenset()
    try:
        return frozenset(names_asked(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    except (OSError, TypeError, SyntaxError, ValueError):  # no source, or a part of a line
        return frozenset([ALL_NAMES] if "globals" in function.co_names else [])


def _names_of(code: types.CodeType) -> set[str]:
    found = {*code.co_names, *(text for text in code.co_consts if isinstance(text, str))}
    return found.union(*(_names_of(part) for part in code.co_consts if isinstance(part, types.CodeType)))


class _Asked:
    """What was found in the nodes so far.

    Attributes:
        found: The names.
    """

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._modules = {"__main__"}  # the names of that module
        self._called: dict[str, tuple[str, str]] = {}  # what an import calls otherwise
        self._settled: set[int] = set()  # nodes inside others that were looked at
        self._inside: set[int] = set()  # nodes inside functions and classes

    def look_at(self, node: ast.AST) -> None:
        if isinstance(node, _SCOPES) or id(node) in self._inside:
            self._inside.update(map(id, ast.iter_child_nodes(node)))
        if id(node) in self._settled:
            return
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    self._note_module(alias)
            case ast.ImportFrom(module="__main__", names=aliases):
                self.found.update(alias.name for alias in aliases)  # of `import *` it is ALL_NAMES
            case ast.ImportFrom(module=str(module), names=aliases):
                home = module.rpartition(".")[2]
                self._called |= {alias.asname or alias.name: (home, alias.name) for alias in aliases}
            case ast.Subscript(value=inner, slice=ast.Constant(str(name))) if self._is_main(inner):
                self._settle(inner, name if isinstance(node.ctx, ast.Load) else None)
            case ast.Subscript(value=inner, ctx=ast.Store() | ast.Del()) if self._is_main(inner):
                self._settle(inner)
            case ast.Subscript(slice=ast.Name("__name__")):  # sys.modules[__name__]
                self.found.add(ALL_NAMES)
            case ast.Compare():
                self._look_at_comparison(node)
            case ast.Attribute(value=ast.Name(id=module) as inner) if module in self._modules:
                self._settle(inner, node.attr if isinstance(node.ctx, ast.Load) else None)
            case ast.Call():
                self._look_at_call(node)
            case ast.Name(id=name, ctx=ast.Load()) if name in self._modules:
                self.found.add(ALL_NAMES)
            case ast.Constant(value=str(text)) if text.partition(".")[0] == "__main__":
                self.found.add(ALL_NAMES)

    def _note_module(self, alias: ast.alias) -> None:
        if alias.name == "__main__":
            self._modules.add(alias.asname or alias.name)
        elif alias.asname:
            self._called[alias.asname] = (alias.name.rpartition(".")[2], "")

    def _settle(self, node: ast.AST, name: str | None = None) -> None:
        self._settled.add(id(node))
        if name is not None:
            self.found.add(name)

    def _look_at_comparison(self, node: ast.Compare) -> None:
        """Settle ``"x" in globals()`` and ``__name__ == "__main__"``."""
        match node:
            case ast.Compare(left=ast.Constant(str(name)), ops=[ast.In() | ast.NotIn()], comparators=[inner]):
                if self._is_main(inner):
                    self._settle(inner, name)
        for part in (node.left, *node.comparators):
            if isinstance(part, ast.Constant):
                self._settle(part)

    def _look_at_call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr="update")) if self._is_main(inner):
                self._settle(inner)
            case ast.Call(
                func=ast.Attribute(value=inner, attr="get" | "pop" | "setdefault"),
                args=[ast.Constant(str(name)), *_],
            ) if self._is_main(inner):
                self._settle(inner, name)
            case ast.Call(
                func=ast.Name("getattr" | "hasattr" | "setattr"),
                args=[ast.Name(module) as inner, ast.Constant(str(name)), *_],
            ) if module in self._modules:
                self._settle(inner, name)
            case ast.Call(
                func=ast.Attribute(attr="run_line_magic"),
                args=[ast.Constant("run"), ast.Constant(str(line)), *_],
            ):
                self.found |= {ALL_NAMES} if "-i" in line.split() else set()
            case _ if self._is_main(node) or self._looks_through_main(node):
                self.found.add(ALL_NAMES)

    def _is_main(self, node: ast.AST) -> bool:
        """Check for ``globals()``, and for ``vars()``, ``locals()`` and ``dir()`` outside of functions."""
        match node:
            case ast.Call(func=ast.Name("globals")):
                return True
            case ast.Call(func=ast.Name("vars" | "locals" | "dir"), args=[], keywords=[]):
                return id(node) not in self._inside
        return False

    def _looks_through_main(self, node: ast.Call) -> bool:
        match node.func:
            case ast.Name(id=name):
                home, function = self._called.get(name, ("", name))
            case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=function):
                home = self._called.get(name, (name, ""))[0]
            case ast.Attribute(attr=function):
                home = ""
            case _:
                return False
        given = {keyword.arg for keyword in node.keywords}
        if function == "testmod" and (node.args or "m" in given):
            return False  # another module, or `__main__`, which is seen by itself
        is_unittests = function == "main" and {"argv", "exit"} <= given  # under whatever name
        return is_unittests or (home, function) in _ASKING or ("", function) in _ASKING
