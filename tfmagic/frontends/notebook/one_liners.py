"""``%tfcluster run CODE``: a cell of one line, after the options of ``%%tfcluster``.

    %tfcluster run --on worker-0 print(f"{loss}")   is   %%tfcluster --on worker-0
                                                         print(f"{loss}")

The line is rewritten before IPython runs it: IPython would put the notebook's variables into the braces. The
line magic runs a line that was not, such as one in the cell that loads the extension.
"""

import ast
import re
from typing import Any

_LINE = re.compile(r"(\s*)get_ipython\(\)\.run_line_magic\('tfcluster', (['\"]run\b.*)\)\s*$")
_WORD = re.compile(r"\s*(--[\w-]+)(=\S*)?(?=\s|$)")
_VALUE = re.compile(r"\s+(\"[^\"]*\"|'[^']*'|\S+)")


def install(shell: Any) -> None:
    """Let the shell rewrite these lines; before `awaited_cells.install`, which awaits the cells."""
    remove(shell)
    shell.input_transformers_post.insert(0, rewrite_lines)


def remove(shell: Any) -> None:
    """Undo `install`, also that of an earlier import of this module."""
    name = rewrite_lines.__name__
    kept = [each for each in shell.input_transformers_post if getattr(each, "__name__", "") != name]
    shell.input_transformers_post[:] = kept


def rewrite_lines(lines: list[str]) -> list[str]:
    """Rewrite the lines of a cell."""
    return [rewrite(line, number) for number, line in enumerate(lines, 1)]


def rewrite(line: str, number: int) -> str:
    """Return a call of the line magic as one of the cell magic if it has code to run."""
    if not (found := _LINE.match(line)):
        return line
    options, code = split(ast.literal_eval(found[2]))
    if not code:
        return line
    options = f"--line {number} {options}".rstrip()
    return f"{found[1]}get_ipython().run_cell_magic('tfcluster', {options!r}, {code!r})\n"


def split(line: str) -> tuple[str, str]:
    """Return the options of a line that begins with ``run``, and its code: "" if there is none to run."""
    from tfmagic.frontends.notebook.options import cell_parser  # no other line of a notebook needs it

    name, _, line = line.strip().partition(" ")
    known, place = cell_parser()._option_string_actions, 0
    while (word := _WORD.match(line, place)) and word[1] in known:
        place = word.end()
        if known[word[1]].nargs is None and not word[2] and (value := _VALUE.match(line, place)):
            place = value.end()
    options, code = line[:place].strip(), line[place:].strip()
    return options, f"{code}\n" if code and name == "run" and not {"--help", "-h"} & {
        *options.split()
    } else ""
