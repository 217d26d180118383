"""Translate a cell that has run into statements of a program.

Imports at the top of a cell are taken out. Magics that Python can express become Python, the others are left
out and named. The last value is printed, as the notebook shows it. All other text stays as it was typed.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from tfmagic.features.exports.kernel import RanCell
from tfmagic.system.secret_rules import ISSUED, SENT

_SETS_ENVIRONMENT = re.compile(
    r"\bos\.(environ|putenv|chdir)\b|\bsys\.path\b|run_line_magic\('(env|set_env|cd)'"
)
_VALUELESS = ("print", "display")


@dataclass(slots=True)
class Translated:
    """A cell as part of a program.

    Attributes:
        imports: Its import statements, which come first in the program.
        text: Its other statements.
        left_out: The magics that have no place in a program.
    """

    imports: list[str] = field(default_factory=list)
    text: str = ""
    left_out: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Edits:
    """Replacements in a source, by offsets in its UTF-8 bytes, in which Python counts columns."""

    source: bytes
    found: list[tuple[int, int, str]] = field(default_factory=list)

    def place(self, line: int, column: int) -> int:
        return sum(map(len, self.source.splitlines(True)[: line - 1])) + column

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self.place(node.lineno, node.col_offset), self.place(end_line, end_column)

    def text(self, node: ast.stmt | ast.expr) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def apply(self) -> str:
        result = self.source
        for start, end, text in sorted(self.found, key=lambda edit: edit[:2], reverse=True):
            result = result[:start] + text.encode() + result[end:]
        return result.decode()


def translate(cell: RanCell) -> Translated:
    """Return a cell as part of a program."""
    tree, edits, result = ast.parse(cell.source), Edits(cell.source.encode()), Translated()
    _take_imports(tree, edits, result)
    last = tree.body[-1] if tree.body else None
    shown = last.value if cell.show_value and isinstance(last, ast.Expr) and _has_value(last.value) else None
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for call, method, words in sorted(_shell_calls(tree), key=lambda found: found[0].lineno):
        text = _in_python(method, words)
        if text is None:
            result.left_out.append(_as_typed(method, words))
            text = f"pass  # left out: {result.left_out[-1]}" if id(call) in statements else "None"
        if call is shown and (method == "system" or not _is_expression(text)):
            shown = None
        edits.found.append((*edits.span(call), textwrap.indent(text, " " * call.col_offset).lstrip()))
    if shown is not None:
        start, end = edits.span(shown)
        parts = "()" if isinstance(shown, ast.Tuple) else ("", "")  # else each item were an argument
        edits.found += [(start, start, f"sys.displayhook({parts[0]}"), (end, end, f"{parts[1]})")]
        result.imports.append("import sys")
    result.text = edits.apply().strip("\n")
    for module in ("os", "subprocess"):
        if any(re.search(rf"\b{module}\.", text) for *_, text in edits.found):
            result.imports.append(f"import {module}")
    return result


def _take_imports(tree: ast.Module, edits: Edits, result: Translated) -> None:
    """Take out the imports that come before any change of what an import can see."""
    lines = edits.source.splitlines(True)
    for statement in tree.body:
        text = edits.text(statement)
        if _SETS_ENVIRONMENT.search(text):
            return
        start, end = edits.span(statement)
        line_start = edits.place(statement.lineno, 0)
        line_end = edits.place((statement.end_lineno or 0) + 1, 0)
        rest = b"".join(lines)[end:line_end].strip()
        is_alone = line_start == start and (not rest or rest.startswith(b"#"))
        if isinstance(statement, ast.Import | ast.ImportFrom) and is_alone:
            result.imports.append(text)
            edits.found.append((start, line_end, ""))


def _has_value(node: ast.expr) -> bool:
    return not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _VALUELESS)


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


def _shell_calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str, list[str]]]:
    """Yield each call that stands for a magic, its method and its arguments."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Call)
            and ast.unparse(node.func.value) == "get_ipython()"
        ):
            yield node, node.func.attr, [a.value for a in node.args if _is_text(a)]  # type: ignore[attr-defined]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _in_python(method: str, words: list[str]) -> str | None:
    """Return a magic in Python, or None if it has no place in a program."""
    match method, words:
        case (("run_line_magic" | "run_cell_magic"), ["time" | "prun", *code]):
            return "\n".join(filter(None, (part.strip() for part in code)))
        case "run_line_magic", ["env" | "set_env", setting] if re.fullmatch(r"\w+[= ].+", setting):
            name, value = re.split(r"[= ]", setting, maxsplit=1)
            return f"os.environ[{name!r}] = {value.strip()!r}"
        case "run_line_magic", ["cd", folder] if folder.strip():
            return f"os.chdir(os.path.expanduser({folder.strip()!r}))"
        case "system", [command] if not re.search(r"[${]", command):
            return f"subprocess.run({command!r}, shell=True)"
        case "getoutput", [command] if not re.search(r"[${]", command):
            return f"subprocess.getoutput({command!r}).splitlines()"
    return None


def _as_typed(method: str, words: list[str]) -> str:
    """Return a magic as the user has typed it, in one line."""
    first = " ".join(words).strip().partition("\n")[0]
    if ISSUED.search(first) or SENT.search(first):
        first = f"{first.split()[0]} ..."
    return {"run_line_magic": "%", "run_cell_magic": "%%"}.get(method, "!") + first
