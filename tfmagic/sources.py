"""From the text of a notebook cell to a `Cell`: magics translated, syntax checked, names found.

Runs in the notebook before anything is started, so that a cell with a syntax error starts nothing.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import re
import sys
import tokenize
from io import StringIO
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

from tfmagic.cells import Cell
from tfmagic.names import names_read

_numbers = itertools.count(1)
_TIMING_MAGICS = ("time", "timeit", "prun")
_SHELL_VARIABLE = re.compile(r"\$(\w+)|\{([^}]*)\}")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")


def prepare_cell(body: str, shell: Any = None) -> Cell:
    """Translate and check a cell's body.

    Args:
        body: The text below the magic line; a line is put in its place, so that line numbers in
            tracebacks are those that the notebook shows.
        shell: The notebook's shell, which then shows the cell's own lines in tracebacks.

    Raises:
        SyntaxError: With the notebook's line number.
    """
    filename = f"<tfcluster-{next(_numbers)}>"
    names = getattr(getattr(shell, "compile", None), "_filename_map", None)
    if names is not None:  # private to IPython: gives the header "Cell In[7], line 5"
        names[filename] = _running_cell_number(names, shell.execution_count)
    try:
        source, reads, show = _analyse("\n" + body)
    except SyntaxError as error:
        error.filename = filename
        raise error.with_traceback(None) from None
    lines = ("\n" + body).splitlines(True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    return Cell(source, filename, reads, show)


def _running_cell_number(names: dict[str, int], default: int) -> int:
    """The number of the notebook cell that called us (the shell's own count may be one ahead)."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in names:
            return names[frame.f_code.co_filename]
        frame = frame.f_back  # type: ignore[assignment]  # None at the end, which ends the loop
    return default


@functools.lru_cache(maxsize=256)
def _analyse(text: str) -> tuple[str, frozenset[str], bool]:
    """The Python source, the names that it reads, and whether its last value is shown."""
    if not text.strip():
        return "", frozenset(), True
    source = TransformerManager().transform_cell(text)
    padding = len(text) - len(text.lstrip("\n")) - (len(source) - len(source.lstrip("\n")))
    source = "\n" * max(padding, 0) + source  # IPython drops leading blank lines
    tree = ast.parse(source, "<cell>")
    compile(source, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    reads = names_read(tree, source).union(*map(_names_in_magic, ast.walk(tree)))
    return source, frozenset(reads), not _ends_in_semicolon(text)


def _names_in_magic(node: ast.AST) -> set[str]:
    """The names in the text of a translated ``%time f(x)`` or ``!echo $x {y}``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return set()
    texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if node.func.attr in ("system", "getoutput") and texts:
        return {
            name for pair in _SHELL_VARIABLE.findall(texts[0]) for name in _IDENTIFIER.findall("".join(pair))
        }
    if node.func.attr == "run_line_magic" and len(texts) == 2 and texts[0] in _TIMING_MAGICS:
        code = re.sub(r"^(\s*-\w+\s*\d*\s+)+", "", texts[1])
        try:
            return names_read(ast.parse(code), code)
        except SyntaxError:
            return set()
    return set()


def _ends_in_semicolon(text: str) -> bool:
    """Whether the last token is a semicolon, which keeps IPython from showing the value."""
    last = ""
    try:
        for token in tokenize.generate_tokens(StringIO(text).readline):
            if token.type == tokenize.OP or token.string.strip():
                last = token.string if token.type != tokenize.COMMENT else last
    except (tokenize.TokenError, SyntaxError):  # magics are no Python tokens
        return text.rstrip().endswith(";")
    return last == ";"
