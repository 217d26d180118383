"""Execute the notebooks of the course one after the other in one kernel: TensorFlow is imported once."""

from __future__ import annotations

from pathlib import Path

import nbformat
from kernels import Kernel
from nbclient import NotebookClient
from nbformat import NotebookNode


class Lessons:
    """One kernel that executes notebooks of the course and is reset after each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kernel: Kernel | None = None

    def execute(self, name: str, then: str = "") -> NotebookNode:
        """Run all cells of a notebook, as nbclient and papermill do, and return it with its outputs.

        Args:
            then: Code that is run after them, and must not raise.
        """
        notebook = nbformat.read(self.folder / name, as_version=4)
        if then:
            notebook.cells.append(nbformat.v4.new_code_cell(then))
        return self.run(notebook)

    def run(self, notebook: NotebookNode) -> NotebookNode:
        """Do the same with a notebook that is no file."""
        self.kernel = self.kernel or Kernel(cwd=str(self.folder))
        self.kernel.client.stop_channels()  # nbclient's has the same identity: the kernel answers one of them
        client = NotebookClient(notebook, km=self.kernel.manager, timeout=240)
        try:
            client.execute()
        finally:
            if client.kc is not None:  # it is ours to close, as the kernel is
                client.kc.stop_channels()
        self.kernel.connect()
        if not self.kernel.clear():
            self.close()
        return notebook

    def close(self) -> None:
        if self.kernel is not None:
            self.kernel.close()
            self.kernel = None
