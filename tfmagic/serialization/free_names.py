"""Find the names that a cell reads and assigns, from its source or its code objects, without running it.

Used by `tfmagic.serialization.capture`. A name that the cell always assigns before it reads it does not come
from the notebook; a name that only one branch assigns does.
"""

import ast
import dis
import functools
import re
import symtable
import types
from collections.abc import Iterable, Iterator, Sequence


def names_read(tree: ast.Module, source: str) -> set[str]:
    """Return the global names that `source` can read before it has assigned them itself.

    Args:
        tree: The parsed source.
        source: The same as text, for the scopes of functions and classes.

    Raises:
        SyntaxError: From Python's own symbol table (such as ``nonlocal`` at the top level).
    """
    top = _TopLevel()
    top.walk(tree)
    inner = {name for table in _tables(source) for name in _inner_globals(table)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            inner |= _names_in_texts(_name_of(node.func), map(_text_of, node.args[:1]))
    return top.read | (inner - top.assigned)


_MARKED = re.compile(r"(?<![\w@])@([^\W\d]\w*)")  # a variable in a text for pandas' query() or eval()


def _name_of(function: ast.expr) -> str:
    """Return the name by which a function is called; that of a method begins with a dot."""
    if isinstance(function, ast.Attribute):
        is_pandas = isinstance(function.value, ast.Name) and function.value.id in ("pd", "pandas")
        return function.attr if is_pandas else f".{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def _text_of(argument: ast.expr) -> str:
    parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
    return "".join(p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str))


def _names_in_texts(called: str, texts: Iterable[str]) -> set[str]:
    """Return the variables that these texts name, given the function that gets the texts."""
    found: set[str] = set()
    if called in (".query", ".eval"):
        return found.union(*map(_MARKED.findall, texts))
    for text in texts if called in ("eval", "exec") else ():
        try:
            nodes = list(ast.walk(ast.parse(text.strip())))
        except (SyntaxError, ValueError):
            continue
        found |= {node.id for node in nodes if isinstance(node, ast.Name)}
    return found


def _tables(source: str) -> list[symtable.SymbolTable]:
    """Return the scopes of the source; of each statement, as IPython runs them, if only these are valid."""
    try:
        return [symtable.symtable(source, "<cell>", "exec")]
    except SyntaxError:
        statements = map(ast.unparse, ast.parse(source).body)
        return [symtable.symtable(statement, "<cell>", "exec") for statement in statements]


def names_assigned(source: str) -> frozenset[str]:
    """Return the global names that running `source` can bind."""
    symbols = [symbol for table in _tables(source) for symbol in table.get_symbols()]
    return frozenset(s.get_name() for s in symbols if s.is_assigned() or s.is_imported())


@functools.lru_cache(maxsize=4096)  # a function is often sent more than once
def global_names(code: types.CodeType) -> frozenset[str]:
    """Return the global names to which `code`, with every function and class body inside it, refers."""
    found = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= global_names(constant)
    texts = [constant for constant in code.co_consts if isinstance(constant, str)]
    for called in {"query", "eval", "exec"}.intersection(code.co_names):
        found |= _names_in_texts(f".{called}", texts) | _names_in_texts(called, texts)
    return frozenset(found)


def _inner_globals(table: symtable.SymbolTable) -> Iterator[str]:
    for child in table.get_children():
        for symbol in child.get_symbols():
            if symbol.is_global() and (symbol.is_referenced() or symbol.is_declared_global()):
                yield symbol.get_name()
        yield from _inner_globals(child)


Children = Iterator[ast.AST]


class _TopLevel:
    """Walks the statements of a cell in order, without the bodies of functions and classes.

    A method for a kind of node yields the nodes inside it, in the order in which they run. The walk keeps
    them on a stack of its own, since a sum of a thousand terms is a thousand nodes deep.

    Attributes:
        assigned: Names that are certainly bound at this point.
        read: Names that were read before they were certainly bound.
    """

    def __init__(self) -> None:
        self.assigned: set[str] = set()
        self.read: set[str] = set()

    def walk(self, tree: ast.AST) -> None:
        stack = [self._children_of(tree)]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
            else:
                stack.append(self._children_of(node))

    def _children_of(self, node: ast.AST) -> Children:
        method = getattr(self, f"_in_{type(node).__name__}", ast.iter_child_nodes)
        return iter(method(node))

    def _in_Name(self, node: ast.Name) -> Children:
        if isinstance(node.ctx, ast.Store):
            self.assigned.add(node.id)
        elif node.id not in self.assigned:
            self.read.add(node.id)
        yield from ()

    def _in_Assign(self, node: ast.Assign) -> Children:
        yield from [node.value, *node.targets]

    def _in_AugAssign(self, node: ast.AugAssign) -> Children:
        if isinstance(node.target, ast.Name) and node.target.id not in self.assigned:
            self.read.add(node.target.id)
        yield from [node.value, node.target]

    def _in_AnnAssign(self, node: ast.AnnAssign) -> Children:
        yield node.annotation
        if node.value is not None:
            yield from [node.value, node.target]

    def _in_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Children:
        yield from [*node.decorator_list, node.args, *([node.returns] if node.returns else [])]
        self.assigned.add(node.name)

    _in_AsyncFunctionDef = _in_FunctionDef

    def _in_ClassDef(self, node: ast.ClassDef) -> Children:
        yield from [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]
        self.assigned.add(node.name)

    def _in_Lambda(self, node: ast.Lambda) -> Children:
        yield node.args

    def _in_comprehension_of(self, node: ast.AST) -> Children:
        outside = set(self.assigned)
        for generator in node.generators:  # type: ignore[attr-defined]
            yield from [generator.iter, generator.target, *generator.ifs]
        parts = ("key", "value") if isinstance(node, ast.DictComp) else ("elt",)
        yield from (getattr(node, part) for part in parts)
        self.assigned = outside

    _in_ListComp = _in_SetComp = _in_DictComp = _in_GeneratorExp = _in_comprehension_of

    def _in_Import(self, node: ast.Import | ast.ImportFrom) -> Children:
        for alias in node.names:
            self.assigned.add(alias.asname or alias.name.partition(".")[0])
        yield from ()

    _in_ImportFrom = _in_Import

    def _in_If(self, node: ast.If) -> Children:
        yield node.test
        yield from self._branches([node.body, node.orelse])

    def _in_For(self, node: ast.For | ast.AsyncFor | ast.While) -> Children:
        yield from [node.test] if isinstance(node, ast.While) else [node.iter, node.target]
        yield from self._branches([[*node.body, *node.orelse], []])

    _in_AsyncFor = _in_While = _in_For

    def _in_Try(self, node: ast.Try) -> Children:
        for handler in node.handlers:
            if handler.type is not None:
                yield handler.type
        yield from self._branches([[*node.body, *node.orelse], *(h.body for h in node.handlers)])
        yield from node.finalbody

    def _in_Match(self, node: ast.Match) -> Children:
        yield node.subject
        yield from self._branches([[case.pattern, case.guard, *case.body] for case in node.cases] + [[]])

    def _in_MatchAs(self, node: ast.MatchAs) -> Children:
        if node.pattern is not None:
            yield node.pattern
        if node.name is not None:
            self.assigned.add(node.name)

    def _branches(self, branches: Sequence[Sequence[ast.AST | None]]) -> Children:
        """Yield the nodes of alternatives. Afterwards those names are bound that all of them bind."""
        before, after = set(self.assigned), []
        for branch in branches:
            self.assigned = set(before)
            yield from (node for node in branch if node is not None)
            after.append(self.assigned)
        self.assigned = set.intersection(*after)
