"""Buttons that work while a cell runs: a top-level ``%%tfcluster`` of a notebook becomes an awaited call.

While a blocking cell runs, ipykernel 7.4 handles no message of the page; while an awaited one runs, it does
(measured in JupyterLab 4.6 and Notebook 7.6, with every setting of subshells). So an input transformer turns

    get_ipython().run_cell_magic('tfcluster', ...)
into
    await get_ipython().run_cell_magic('_tfcluster_async', ...)

where that can be awaited: on a kernel whose loop is asyncio's, with autoawait on, and not in a nested call
(``%%time``, ``%%capture``, a function, ``ip.run_cell``), whose caller expects plain code. Everything else
takes the blocking way: all the same but for the buttons.
"""

from __future__ import annotations

import re
import sys
from typing import Any

ASYNC_MAGIC, ASYNC_WAIT = "_tfcluster_async", "_tfcluster_wait_async"
_CALL = "get_ipython().run_cell_magic('tfcluster',"
_AWAITED = f"await get_ipython().run_cell_magic('{ASYNC_MAGIC}',"
_EMPTY = ", '')"  # a body: IPython's complaint of it names the magic
_WAIT = re.compile(r"get_ipython\(\)\.run_line_magic\('tfcluster', (?=['\"]wait\b)")
_AWAITED_WAIT = f"await get_ipython().run_line_magic('{ASYNC_WAIT}', "
_NESTING = frozenset({"run_cell_magic", "run_line_magic", "run_code"})


class Transformer:
    """What is put into `input_transformers_post` of a shell."""

    def __init__(self, shell: Any):
        self._shell = shell

    def __call__(self, lines: list[str]) -> list[str]:
        is_cell = bool(lines) and lines[0].startswith(_CALL) and not lines[0].rstrip().endswith(_EMPTY)
        if not is_cell and not any(map(_WAIT.match, lines)):
            return lines
        if not can_await(self._shell) or _is_nested():
            return lines
        if is_cell:
            return [_AWAITED + lines[0][len(_CALL) :], *lines[1:]]
        return [_WAIT.sub(_AWAITED_WAIT, line, count=1) if _WAIT.match(line) else line for line in lines]


def can_await(shell: Any) -> bool:
    """Whether a cell of this shell may be awaited, and its front end's messages are handled meanwhile."""
    return (
        hasattr(shell, "kernel")
        and bool(getattr(shell, "autoawait", False))
        and str(getattr(shell, "loop_runner", None)) == "asyncio"
    )


def install(shell: Any) -> None:
    """Make the shell await its cells."""
    remove(shell)
    shell.input_transformers_post.append(Transformer(shell))


def remove(shell: Any) -> None:
    """Take it back."""
    kept = [t for t in shell.input_transformers_post if type(t).__name__ != Transformer.__name__]
    shell.input_transformers_post[:] = kept


def _is_nested() -> bool:
    """Whether code of a cell that runs already asks for this transformation."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name in _NESTING and "IPython" in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]  # None at the end, which ends the loop
    return False
