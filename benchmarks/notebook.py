"""The side of tfmagic: a real IPython shell in this process with tfmagic loaded, as in a notebook."""

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
    """The shell, and the commands of a user."""

    def __init__(self, shell: Any):
        self.shell = shell

    def cell(self, body: str, line: str = "") -> None:
        """Run `%%tfcluster line` with `body` below it."""
        self.shell.run_cell_magic("tfcluster", line, body)

    def line(self, line: str) -> None:
        """Run `%tfcluster line`."""
        self.shell.run_line_magic("tfcluster", line)

    @property
    def cluster(self) -> tfmagic.Cluster:
        """The cluster of the cells."""
        return self.shell.magics_manager.registry["TFClusterMagics"].notebook.clusters["default"]


def ipython_shell() -> Any:
    """Return the one shell of this process, without a history file."""
    return InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Redirect standard output to /dev/null; the text is still encoded and written."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextlib.contextmanager
def notebook(workers: int, options: str = "") -> Iterator[Notebook]:
    """Load tfmagic and start a cluster, with further options of `start`; both end with the block."""
    shell = ipython_shell()
    shell.run_line_magic("load_ext", "tfmagic")
    try:
        with muted():
            shell.run_line_magic("tfcluster", f"start --workers {workers} {options}")
        yield Notebook(shell)
    finally:
        shell.run_line_magic("unload_ext", "tfmagic")
