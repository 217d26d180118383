"""`make demo`: execute the quickstart notebook in a real kernel and print what it shows."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "01-quickstart.ipynb"


def show(cell: nbformat.NotebookNode) -> None:
    """Print a cell and its outputs."""
    print("\n" + "\n".join(f"    {line}" for line in cell.source.splitlines()) + "\n")
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            print(*(line.rpartition("\r")[2] for line in output.text.splitlines()), sep="\n")
        elif output.output_type in ("display_data", "execute_result"):
            print(output.data.get("text/plain", ""))
        else:
            print("\n".join(output.traceback))


def main() -> int:
    """Run the notebook. Return 0 when every cell succeeded."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(NOTEBOOK.parent)}}
    quiet = ["--IPKernelApp.log_level=40"]
    client = NotebookClient(notebook, timeout=600, resources=folder, extra_arguments=quiet)
    failed = ""
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                print("\n" + cell.source)
                continue
            try:
                client.execute_cell(cell, index)
            except CellExecutionError as error:
                failed = str(error)
            show(cell)
            sys.stdout.flush()
            if failed:
                print(failed)
                return 1
    print("\nThat was notebooks/01-quickstart.ipynb. Open it in JupyterLab with:  make lab")
    return 0


if __name__ == "__main__":
    sys.exit(main())
