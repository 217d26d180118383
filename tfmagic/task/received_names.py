"""The names that the notebook has sent to a task, and which of them its cells have assigned.

A name from the notebook is the notebook's until a cell assigns it. Another object is found by comparing. An
assignment of the object that was sent (None, True, a small integer, ``x = x or []``) is not, so a cell that
can assign such a name runs with marks: statements that record an assignment once it was made. A function that
the cell uses counts as called: what it assigns with ``global`` on every way through its code is the task's
own. Names that `exec`, ``globals()[...]`` or ``import *`` bind are found by comparing alone.
"""

import ast
import builtins
import dis
import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any

from tfmagic.serialization import pickling
from tfmagic.serialization.free_names import global_names

_JUMPS = frozenset([*dis.hasjrel, *dis.hasjabs])
_MARK = "__tfmagic_assigned__"  # among Python's own names, where a cell finds it and `globals()` does not


class ReceivedNames:
    """The names in a task's namespace that are still the notebook's.

    Args:
        namespace: The task's.
    """

    def __init__(self, namespace: dict[str, Any]):
        self._namespace = namespace
        self._values: dict[str, Any] = {}
        self._assigned: set[str] = set()
        self._used: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._values)

    def bind(self, names: dict[str, Any]) -> None:
        """Put names that travel with a cell into the namespace; delete those deleted in the notebook."""
        for name in [name for name, value in names.items() if value is pickling.Deleted]:
            del names[name]
            if name in self._values and self._namespace.get(name) is self._values.pop(name):
                self._namespace.pop(name, None)
        self._namespace.update(names)
        self._values.update(names)

    def has(self, name: str) -> bool:
        """Check whether a name is still bound to the object that the notebook has sent."""
        return name in self._values and self._namespace.get(name, self) is self._values[name]

    def marked(self, tree: Any) -> Any:
        """Return the tree of a cell with marks where it assigns a name of the notebook."""
        if not self._values:
            return tree
        nodes = list(ast.walk(tree))
        self._used.update(n.id for n in nodes if isinstance(n, ast.Name))
        if self._values.keys().isdisjoint(_bound(nodes)):
            return tree
        setattr(builtins, _MARK, self._assigned.add)
        return ast.fix_missing_locations(_Marks(self._values).visit(tree))

    def note_call(self, function: Any) -> None:
        """Note that a function is called without a cell's source."""
        self._assigned |= stores_of([function], self._namespace)

    def settle(self) -> bool:
        """Give up the names that the last cell has assigned: they are the task's own. Return if any is."""
        if self._used:
            used = (self._namespace.get(name) for name in self._used)
            self._assigned |= stores_of(used, self._namespace)
        given_up = self._assigned & self._values.keys()
        for name in given_up:
            del self._values[name]
        self._assigned.clear()
        self._used.clear()
        return bool(given_up)

    def unchanged(self) -> list[str]:
        """Return the names that are the notebook's."""
        return [name for name in self._values if self.has(name)]


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that these nodes bind by themselves, without what is inside them."""
    found = set[str]()
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.add(name)
            case ast.MatchMapping(rest=str(name)):
                found.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found.update(a.asname or a.name.partition(".")[0] for a in aliases)
    return found


class _Marks(ast.NodeTransformer):
    """Adds a mark after each assignment at the top level of a cell, and where a block begins with one.

    Args:
        names: Those whose assignment matters.
    """

    def __init__(self, names: Mapping[str, Any]):
        self._names = names

    def _marks(self, place: ast.AST, *targets: ast.AST) -> list[ast.stmt]:
        names = _bound(node for target in targets for node in ast.walk(target))
        calls = [self._call(name, place) for name in sorted(names & self._names.keys())]
        return [ast.copy_location(ast.Expr(call), place) for call in calls]

    def _call(self, name: str, place: ast.AST) -> ast.Call:
        call = ast.Call(ast.Name(_MARK, ast.Load()), [ast.Constant(name)], [])
        return ast.copy_location(call, place)

    def _after(self, node: Any) -> Any:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        self.generic_visit(node)
        return [node, *self._marks(node, *targets)]

    visit_Assign = visit_AugAssign = _after

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        return self._after(node) if node.value is not None else node

    def _definition(self, node: Any) -> Any:
        """Mark what is defined; the names inside it are its own."""
        names = sorted(_bound([node]) & self._names.keys())
        return [node, *(ast.copy_location(ast.Expr(self._call(n, node)), node) for n in names)]

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _definition
    visit_Import = visit_ImportFrom = _definition

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return node

    def _block(self, node: Any) -> Any:
        targets: list[ast.AST]
        match node:
            case ast.With() | ast.AsyncWith():
                targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
            case _:
                targets = [node.pattern if isinstance(node, ast.match_case) else node.target]
        marks = self._marks(node.body[0], *targets)
        self.generic_visit(node)
        node.body[:0] = marks
        return node

    visit_For = visit_AsyncFor = visit_With = visit_AsyncWith = visit_match_case = _block

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        self.generic_visit(node)
        if node.target.id in self._names:  # (x := value) → (x := (value, mark)[0])
            pair = ast.Tuple([node.value, self._call(node.target.id, node)], ast.Load())
            taken = ast.Subscript(pair, ast.Constant(0), ast.Load())
            node.value = ast.copy_location(taken, node.value)
            ast.copy_location(pair, node.value)
        return node


def stores_of(used: Iterable[Any], namespace: dict[str, Any]) -> set[str]:
    """Return the global names that functions of the namespace among `used`, and those they read, assign."""
    found, seen, queue = set[str](), set[int](), list(used)
    while queue:
        value = queue.pop()
        value = value.__func__ if isinstance(value, types.MethodType) else value
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.FunctionType) and value.__globals__ is namespace:
            found |= _certain_stores(value.__code__)
            queue += [namespace.get(name) for name in global_names(value.__code__)]
    return found


@functools.lru_cache(maxsize=4096)
def _certain_stores(code: types.CodeType) -> frozenset[str]:
    """Return the global names that the code assigns unless it raises: no jump goes past the assignment."""
    found, end = set[str](), 0
    for step in dis.get_instructions(code):
        if step.opname == "STORE_GLOBAL" and step.offset >= end:
            found.add(step.argval)
        elif step.opcode in _JUMPS:
            end = max(end, step.argval)
        elif step.opname in ("RETURN_VALUE", "RETURN_CONST"):
            break
    return frozenset(found)
