"""The input transformer that lets a notebook await a ``%%tfcluster`` cell, so that its buttons work.

While a blocking cell runs, ipykernel 7.4 handles no message of the page; while an awaited cell runs, it does
(measured in JupyterLab 4.6 and Notebook 7.6, with every setting of subshells). So the transformer turns

    get_ipython().run_cell_magic('tfcluster', ...)
into
    await get_ipython().run_cell_magic('_tfcluster_async', ...)

where that can be awaited: on a kernel whose loop is asyncio's, with autoawait on, and not in a nested call
(``%%time``, ``%%capture``, a function, ``ip.run_cell``), whose caller expects plain code. Other cells block;
they differ only in the buttons. ``%tfcluster wait`` is transformed in the same way.
"""

import re
import sys
import traceback
from typing import Any

from tfmagic.frontends.notebook import patches

ASYNC_MAGIC, ASYNC_WAIT = "_tfcluster_async", "_tfcluster_wait_async"
_CALL = "get_ipython().run_cell_magic('tfcluster',"
_AWAITED = f"await get_ipython().run_cell_magic('{ASYNC_MAGIC}',"
_EMPTY = ", '')"  # without a body IPython raises an error that names the magic: it stays as typed
_WAIT = re.compile(r"get_ipython\(\)\.run_line_magic\('tfcluster', (?=['\"]wait\b)")
_AWAITED_WAIT = f"await get_ipython().run_line_magic('{ASYNC_WAIT}', "
_NESTING = frozenset({"run_cell_magic", "run_line_magic", "run_code"})


class Transformer:
    """An entry of `input_transformers_post` of a shell."""

    def __init__(self, shell: Any):
        self._shell = shell

    def __call__(self, lines: list[str]) -> list[str]:
        is_cell = bool(lines) and lines[0].startswith(_CALL) and not lines[0].rstrip().endswith(_EMPTY)
        if not is_cell and not any(map(_WAIT.match, lines)):
            return lines
        if not can_await(self._shell) or is_nested():
            return lines
        if is_cell:
            return [_AWAITED + lines[0][len(_CALL) :], *lines[1:]]
        return [_WAIT.sub(_AWAITED_WAIT, line, count=1) if _WAIT.match(line) else line for line in lines]


def can_await(shell: Any) -> bool:
    """Check whether this shell can await a cell, and handles its front end's messages meanwhile."""
    return (
        hasattr(shell, "kernel")
        and bool(getattr(shell, "autoawait", False))
        and str(getattr(shell, "loop_runner", None)) == "asyncio"
        and patches.TABLE.fits(patches.AWAITED)
    )


def missing() -> str:
    """Return why the calls that IPython makes of magics cannot be found, or ""."""
    from IPython.core.inputtransformer2 import TransformerManager

    transform = TransformerManager().transform_cell
    is_known = transform("%%tfcluster\nx").startswith(_CALL) and _WAIT.match(transform("%tfcluster wait"))
    return "" if is_known else f"IPython turns a magic into {transform('%tfcluster wait').strip()!r}"


def install(shell: Any) -> None:
    """Let the shell await its cells."""
    remove(shell)
    shell.input_transformers_post.append(Transformer(shell))


def remove(shell: Any) -> None:
    """Remove the transformer, also one of an earlier import of this module."""
    kept = [t for t in shell.input_transformers_post if type(t).__name__ != Transformer.__name__]
    shell.input_transformers_post[:] = kept


def is_nested() -> bool:
    """Check whether a cell that already runs has caused this transformation."""
    codes = (frame.f_code for frame, _ in traceback.walk_stack(sys._getframe(2)))
    return any(code.co_name in _NESTING and "IPython" in code.co_filename for code in codes)
