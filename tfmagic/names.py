"""Which names a cell reads and assigns: analysis of source and of code objects, nothing is run.

Used by `tfmagic.capture`. Errs on the side of fewer surprises: a name that a straight line of the
cell assigns before it reads it is not read from outside; one that only some branch assigns is.
"""

from __future__ import annotations

import ast
import dis
import functools
import symtable
import types
from collections.abc import Iterable, Iterator, Sequence


def names_read(tree: ast.Module, source: str) -> set[str]:
    """The global names that running `source` may read before the cell itself assigned them.

    Args:
        tree: The parsed source.
        source: The same as text, for the scopes of functions and classes.

    Raises:
        SyntaxError: From Python's own symbol table (such as ``nonlocal`` at the top level).
    """
    walk = _TopLevel()
    walk.visit(tree)
    inner = set(_inner_globals(symtable.symtable(source, "<cell>", "exec")))
    return walk.read | (inner - walk.assigned)


def names_assigned(source: str) -> frozenset[str]:
    """The global names that running `source` may bind itself."""
    symbols = symtable.symtable(source, "<cell>", "exec").get_symbols()
    return frozenset(s.get_name() for s in symbols if s.is_assigned() or s.is_imported())


@functools.lru_cache(maxsize=4096)  # of a function that is called again and again
def global_names(code: types.CodeType) -> frozenset[str]:
    """The global names that `code`, and every function and class body inside it, refers to."""
    found = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= global_names(constant)
    return frozenset(found)


def _inner_globals(table: symtable.SymbolTable) -> Iterator[str]:
    for child in table.get_children():
        for symbol in child.get_symbols():
            if symbol.is_global() and (symbol.is_referenced() or symbol.is_declared_global()):
                yield symbol.get_name()
        yield from _inner_globals(child)


class _TopLevel(ast.NodeVisitor):
    """Walks the statements of a cell in order. Bodies of functions and classes are left out.

    `assigned` holds what is certainly bound at this point, `read` what was read before it was.
    """

    def __init__(self) -> None:
        self.assigned: set[str] = set()
        self.read: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.assigned.add(node.id)
        elif node.id not in self.assigned:
            self.read.add(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._visit_all([node.value, *node.targets])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and node.target.id not in self.assigned:
            self.read.add(node.target.id)
        self._visit_all([node.value, node.target])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None:
            self._visit_all([node.value, node.target])

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = node.args
        defaults = [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        annotations = [a.annotation for a in every if a.annotation] + ([node.returns] if node.returns else [])
        self._visit_all([*node.decorator_list, *defaults, *annotations])
        self.assigned.add(node.name)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all([*node.decorator_list, *node.bases, *(k.value for k in node.keywords)])
        self.assigned.add(node.name)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)])

    def _visit_comprehension(self, node: ast.AST) -> None:
        outside = set(self.assigned)
        for generator in node.generators:  # type: ignore[attr-defined]
            self.visit(generator.iter)
            self.visit(generator.target)
            self._visit_all(generator.ifs)
        parts = ("key", "value") if isinstance(node, ast.DictComp) else ("elt",)
        self._visit_all(getattr(node, part) for part in parts)
        self.assigned = outside

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self.assigned.add(alias.asname or alias.name.partition(".")[0])

    visit_ImportFrom = visit_Import

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._branches([node.body, node.orelse])

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._visit_all([node.iter, node.target])
        self._branches([[*node.body, *node.orelse], []])

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._branches([[*node.body, *node.orelse], []])

    def visit_Try(self, node: ast.Try) -> None:
        for handler in node.handlers:
            if handler.type is not None:
                self.visit(handler.type)
        self._branches([[*node.body, *node.orelse], *(h.body for h in node.handlers)])
        self._visit_all(node.finalbody)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        self._branches([[case.pattern, case.guard, *case.body] for case in node.cases] + [[]])

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.pattern is not None:
            self.visit(node.pattern)
        if node.name is not None:
            self.assigned.add(node.name)

    def _branches(self, branches: Sequence[Sequence[ast.AST | None]]) -> None:
        """Visit alternatives; bound afterwards is what every one of them binds."""
        before, after = set(self.assigned), []
        for branch in branches:
            self.assigned = set(before)
            self._visit_all(node for node in branch if node is not None)
            after.append(self.assigned)
        self.assigned = set.intersection(*after)

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)
