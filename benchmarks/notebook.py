"""Our side: a real IPython shell of this process with tfmagic loaded, as a notebook has it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import tfmagic

FIRST_OP = "import tensorflow as tf\ntf.constant(1) + 1\n"


class Notebook:
    """The shell, and what a user of tfmagic does in it."""

    def __init__(self, shell: Any):
        self.shell = shell

    def cell(self, body: str, line: str = "") -> None:
        """`%%tfcluster line`, with `body` below it."""
        self.shell.run_cell_magic("tfcluster", line, body)

    def line(self, line: str) -> None:
        """`%tfcluster line`."""
        self.shell.run_line_magic("tfcluster", line)

    @property
    def cluster(self) -> tfmagic.Cluster:
        """The cluster of its cells."""
        return self.shell.magics_manager.registry["TFClusterMagics"].clusters["default"]


def ipython_shell() -> Any:
    """The one shell of this process, without a history file."""
    return InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """What Python prints meanwhile goes to /dev/null, as text that is really encoded and written."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextlib.contextmanager
def notebook(workers: int) -> Iterator[Notebook]:
    """tfmagic loaded, and a cluster whose tasks are warm; everything of it ends with the block."""
    shell = ipython_shell()
    shell.run_line_magic("load_ext", "tfmagic")
    try:
        with muted():
            shell.run_line_magic("tfcluster", f"start --workers {workers}")
        yield Notebook(shell)
    finally:
        shell.run_line_magic("unload_ext", "tfmagic")
