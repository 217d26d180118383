"""``%tfcluster all on``: an input transformer puts ``%%tfcluster`` above the cells that have no such line.

What the notebook itself must run stays as typed: cells with a line of tfmagic (as ``%tfcluster all off``),
the magics for the last exception and for what was typed, ``exit``, and code that programs run in the kernel
without history. What ``%rerun`` and a macro repeat runs where it ran before.
"""

import ast
import re
import shlex
import sys
import traceback
from typing import Any

from tfmagic.frontends.notebook import awaited_cells, patches
from tfmagic.frontends.notebook.view_choice import request_of

_OURS = re.compile(r"^\s*(%%?tfcluster\b|%(re|un)?load_ext\s+tfmagic\b|%config\s+TFCluster\b)", re.M)
_IN_HISTORY = re.compile(r"(await )?get_ipython\(\)\.run_cell_magic\('_?tfcluster\w*', '--plain ")
_HISTORY = (
    "hist|history|recall|rep|rerun|save|macro|notebook|load|loadpy|edit|pastebin|logstart|logstop|logon|logoff|"
    "logstate"
)
_OF_THE_NOTEBOOK = re.compile(
    rf"%(debug|tb|xmode|pdb|{_HISTORY})\b.*|(exit|quit)(\(\))?|tfcluster( +[a-z].*)?|\s*"
)
_AUTOMAGIC = re.compile(rf"({_HISTORY}) +\S.*")


class PlainCells:
    """An entry of `input_transformers_cleanup` of a shell, before all others.

    Args:
        cluster: The name of the cluster that runs the cells.
        on: Selector of its tasks; None for those that run a cell.
    """

    has_side_effects = True  # IPython then leaves it out where it asks whether a typed cell is complete

    def __init__(self, shell: Any, cluster: str, on: str | None):
        self._shell, self.cluster = shell, cluster
        words = ["--plain", "--line", "1", "--cluster", cluster, *(["--on", on] if on else [])]
        self._line = f"%%tfcluster {shlex.join(words)}\n"

    def __call__(self, lines: list[str]) -> list[str]:
        text = "".join(lines)
        if _OURS.search(text) or self._is_of_the_notebook(text.strip()):
            return lines
        content = (request_of(self._shell) or {}).get("content", {})
        if content.get("silent") or not content.get("store_history", True):
            return lines
        if awaited_cells.is_nested() and not _is_rerun():
            return lines
        known = self._shell.user_ns.get(text.strip())
        is_macro = type(known).__module__ == "IPython.core.macro"
        return [self._line, *(known.value.splitlines(keepends=True) if is_macro else lines)]

    def _is_of_the_notebook(self, text: str) -> bool:
        if all(_OF_THE_NOTEBOOK.fullmatch(line) for line in text.split("\n")):
            return True
        magic = _AUTOMAGIC.fullmatch(text)
        return bool(magic) and self._shell.automagic and not _is_python(text)


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _is_rerun() -> bool:
    """Check whether ``%rerun`` runs this cell."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    return any(f.f_code.co_name == "rerun" and "IPython" in f.f_code.co_filename for f in frames)


def keep_as_typed(shell: Any, source: str) -> None:
    """Keep the running cell in the history without our line, so that ``%save`` writes what was typed.

    Args:
        source: The cell as IPython translates it.
    """
    inputs = shell.history_manager.input_hist_parsed
    if inputs and _IN_HISTORY.match(inputs[-1]):
        inputs[-1] = source.strip("\n")


def find(shell: Any) -> PlainCells | None:
    """Return the entry of this shell; None where plain cells run in the notebook."""
    found = [t for t in shell.input_transformers_cleanup if type(t).__name__ == PlainCells.__name__]
    return found[0] if found else None


def install(shell: Any, cluster: str, on: str | None) -> None:
    """Let plain cells run on a cluster; in a terminal the prompt has its name."""
    remove(shell)
    shell.input_transformers_cleanup.insert(0, PlainCells(shell, cluster, on))
    prompts = getattr(shell, "prompts", None)
    if prompts is not None and patches.TABLE.fits(patches.PROMPT):
        former = prompts.in_prompt_tokens
        prompts.in_prompt_tokens = lambda: [(former()[0][0], f"{cluster} "), *former()]


def remove(shell: Any, cluster: str | None = None) -> bool:
    """Let plain cells run in the notebook again; return whether they ran on this cluster (None: on any)."""
    entry = find(shell)
    if entry is None or cluster not in (None, entry.cluster):
        return False
    shell.input_transformers_cleanup.remove(entry)
    vars(getattr(shell, "prompts", entry)).pop("in_prompt_tokens", None)
    return True


def describe(shell: Any) -> str:
    """Return where plain cells run, as a clause."""
    entry = find(shell)
    if entry is None:
        return "plain cells run in the notebook"
    return f"plain cells run on cluster {entry.cluster}; %tfcluster all off  ends this"
