"""The magics that ``%load_ext tfmagic`` registers; what they do is imported while nothing waits for it.

%load_ext tfmagic ── registered, in the foreground ──→ the launcher starts
                └─── whole, in a thread ─────────────→ a cell that comes earlier waits for this import
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from typing import TYPE_CHECKING

from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class

from tfmagic.frontends import replaced_packages
from tfmagic.frontends.notebook import awaited_cells

if TYPE_CHECKING:
    from tfmagic.frontends.notebook.magic import NotebookClusters

_WHOLE = "tfmagic.frontends.notebook.whole"
_THREAD = "tfmagic-import"
_FORK_S = 10.0  # the import takes 0.3 s, and never ends where a module that it needs forks in its own import


@magics_class
class TFClusterMagics(Magics):  # IPython is untyped
    """The magics; `notebook` has the clusters."""

    @functools.cached_property
    def notebook(self) -> NotebookClusters:
        """Import what the magics do, or wait for this import.

        It is waited for as a whole: an import that another thread is in, and that fails there, leaves only
        "cannot import name".
        """
        for thread in threading.enumerate():
            if thread.name == _THREAD:
                thread.join(_FORK_S)
        with replaced_packages.named():
            from tfmagic.frontends.notebook.whole import NotebookClusters
        return NotebookClusters(self.shell)

    @line_cell_magic
    def tfcluster(self, line: str, cell: str | None = None) -> None:
        """Run a cell on a TensorFlow cluster, or manage clusters; see --help of each."""
        self.notebook.run(line, cell)

    @cell_magic(awaited_cells.ASYNC_MAGIC)
    async def tfcluster_async(self, line: str, cell: str) -> None:
        """`%%tfcluster`, awaited: the notebook's event loop goes on meanwhile."""
        await self.notebook.run_async(line, cell)

    @line_magic(awaited_cells.ASYNC_WAIT)
    async def wait_async(self, line: str) -> None:
        """`%tfcluster wait`, awaited."""
        await self.notebook.wait_async(line)


def _overview() -> str:
    from tfmagic.frontends.notebook.whole import overview

    return overview()


vars(TFClusterMagics)["tfcluster"].getdoc = _overview  # IPython asks for it at  %%tfcluster?


def import_meanwhile() -> None:
    """Import in a thread what the first use needs.

    A fork waits until it is done: in the new process nobody would end the import and free its lock.
    """
    if _WHOLE in sys.modules:
        return
    thread = threading.Thread(None, _import_whole, _THREAD)
    thread.start()
    os.register_at_fork(before=functools.partial(thread.join, _FORK_S))


def _import_whole() -> None:
    with contextlib.suppress(Exception):  # the first use raises it again
        import tfmagic.frontends.notebook.whole  # noqa: F401
