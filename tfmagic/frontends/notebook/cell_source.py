"""`prepare_cell`: the text of a notebook cell becomes a `CellPlan`, and the names that it reads.

`tfmagic.frontends.notebook.magic` calls it in the notebook before anything is started, so that a cell with a
syntax error starts nothing.
"""

import ast
import functools
import io
import itertools
import linecache
import re
import sys
import tokenize
import types
import warnings
from typing import Any

from IPython.core.compilerop import CachingCompiler
from IPython.core.inputtransformer2 import TransformerManager

from tfmagic.clusters.cells.cell_plan import CellPlan
from tfmagic.failures import ipython_tracebacks
from tfmagic.serialization.all_names import names_asked
from tfmagic.serialization.free_names import names_read

_numbers = itertools.count(1)
_names: dict[int, dict[str, str]] = {}  # file names of cells, by the notebook's number and their text
_TIMING_MAGICS = ("time", "timeit", "prun", "capture")
_SHELL_VARIABLE = re.compile(r"\$(\w+)|\{([^}]*)\}")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")


def prepare_cell(body: str, shell: Any = None) -> tuple[CellPlan, frozenset[str]]:
    """Translate and check a cell's body; return it as a plan, with the names that it reads.

    Args:
        body: The text of the cell, with an empty line in the place of its magic line, so that tracebacks have
            the line numbers that the notebook shows.
        shell: The notebook's shell, which then shows the cell's lines in tracebacks.

    Raises:
        SyntaxError: With the notebook's line number.
    """
    names = getattr(getattr(shell, "compile", None), "_filename_map", None)
    prompt = 0 if shell is None else _running_cell_number(names or {}, shell.execution_count)
    filename = _name_cell(prompt, body)
    if prompt and names is None:  # before IPython 8, which takes other names for paths
        filename = f"<{filename}>"
    if names is not None:  # private to IPython: gives the header "Cell In[7], line 5"
        names[filename] = prompt
    lines = body.splitlines(True)
    linecache.cache[filename] = (len(body), None, lines, filename)
    try:
        source, reads, show = _analyse(body)
    except SyntaxError as error:
        error.filename = filename
        if error.text is None and 0 < (error.lineno or 0) <= len(lines):
            error.text = lines[(error.lineno or 0) - 1]
        raise ipython_tracebacks.hide_our_frames(error.with_traceback(None)) from None
    return CellPlan(source, filename, prompt, show), reads


def _name_cell(prompt: int, text: str) -> str:
    """Return the file name of a cell, which Python, warnings, `logging` and `inspect` show everywhere.

    Cells of the same number (run in a loop of the notebook, for example) get different names, because each
    name has one source.
    """
    if not prompt:
        return f"<tfcluster-{next(_numbers)}>"
    known = _names.setdefault(prompt, {})
    return known.setdefault(text, f"Cell In[{prompt}]" + (f" ({len(known) + 1})" if known else ""))


def _running_cell_number(names: dict[str, int], default: int) -> int:
    """Return the number of the notebook cell that called us; the shell's own count can be one ahead."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if (number := names.get(frame.f_code.co_filename)) is not None:
            return number
        frame = frame.f_back
    return default


class _Translator(TransformerManager):
    """Translates magics, and keeps the lines below a continued one (``files = !ls \\``) at their numbers."""

    def do_one_token_transform(self, lines: list[str]) -> tuple[bool, list[str]]:
        changed, made = super().do_one_token_transform(lines)
        if joined := len(lines) - len(made):
            at = next((i for i, (old, new) in enumerate(zip(lines, made, strict=False)) if old != new), 0) + 1
            made[at:at] = ["\n"] * joined
        return changed, made


@functools.lru_cache(maxsize=256)
def _analyse(text: str) -> tuple[str, frozenset[str], bool]:
    """Return the Python source, the names that it reads, and whether its last value is shown."""
    if not text.strip():
        return "", frozenset(), True
    blank = _leading_blank_lines(text)  # IPython drops them
    try:
        source = _Translator().transform_cell(text)
    except SyntaxError as error:
        error.lineno = None if error.lineno is None else error.lineno + blank
        raise
    source = "\n" * (blank - _leading_blank_lines(source)) + source
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the task shows them, once
        try:
            tree = _check(source)
        except SyntaxError:
            if (expanded := _with_automagic(source)) == source:
                raise
            source, tree = expanded, _check(expanded)
    reads = names_read(tree, source).union(names_asked(tree), *map(_names_in_magic, ast.walk(tree)))
    return source, frozenset(reads), not _ends_in_semicolon(text)


def _with_automagic(source: str) -> str:
    """Return the source, with a single line such as ``cd /tmp`` turned into a call of a magic."""
    shell, text = ipython_tracebacks.find_shell(), source.strip()
    if shell is None or "\n" in text or not shell.automagic:
        return source
    padding = source[: len(source) - len(source.lstrip("\n"))]
    return padding + str(shell.prefilter_manager.prefilter_lines(text))


def _leading_blank_lines(text: str) -> int:
    lines = text.splitlines()
    return next((i for i, line in enumerate(lines) if line.strip()), len(lines))


def _check(source: str) -> ast.Module:
    """Parse and compile as IPython does: each statement by itself. Raise `SyntaxError` as Python does."""
    compiler = CachingCompiler()
    tree = compiler.ast_parse(source, "<cell>")
    assert isinstance(tree, ast.Module)
    with compiler.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
        for statement in tree.body:
            compiler(ast.Module([statement], []), "<cell>", "exec")
    return tree


def _names_in_magic(node: ast.AST) -> set[str]:
    """Return the names in the text of a translated ``%time f(x)`` or ``!echo $x {y}``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return set()
    texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if node.func.attr in ("system", "getoutput") and texts:
        return {
            name for pair in _SHELL_VARIABLE.findall(texts[0]) for name in _IDENTIFIER.findall("".join(pair))
        }
    is_timing = node.func.attr.startswith("run_") and texts[:1] and texts[0] in _TIMING_MAGICS
    return set().union(*map(_names_in_code, texts[1:])) if is_timing else set()


def _names_in_code(text: str) -> set[str]:
    """Return the names in the line or the cell of a magic that runs code, after its options."""
    code = TransformerManager().transform_cell(re.sub(r"^(\s*-\w+\s*\d*\s+)+", "", text))
    try:
        tree = ast.parse(code)
        return names_read(tree, code) | names_asked(tree)
    except SyntaxError:
        return set()


def _ends_in_semicolon(text: str) -> bool:
    """Check whether the last token is a semicolon, which keeps IPython from showing the value."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):  # the text has magics
        return text.rstrip().endswith(";")
    code = [token.string for token in tokens if token.string.strip() and token.type != tokenize.COMMENT]
    return code[-1:] == [";"]
