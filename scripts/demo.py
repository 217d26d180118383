"""`make demo`: execute the quickstart notebook in a real kernel and print what it shows.

With ``--ray`` (`make demo-ray`) its tasks run on the two nodes of a Ray cluster of this machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "how-to" / "quickstart.ipynb"


def show_outputs(cell: nbformat.NotebookNode) -> None:
    """Print the outputs of a cell."""
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            print(*(line.rpartition("\r")[2] for line in output.text.splitlines()), sep="\n")
        elif output.output_type in ("display_data", "execute_result"):
            print(output.data.get("text/plain", ""))
        else:
            text = "\n".join(output.traceback)
            print(text if sys.stdout.isatty() else re.sub(r"\x1b\[[\d;]*m", "", text))


def main() -> int:
    """Run the notebook. Return 0 when every cell succeeded."""
    with contextlib.ExitStack() as stack:
        on_ray = "--ray" in sys.argv[1:]
        if not run_notebook(start_ray(stack) if on_ray else []):
            return 1
    print_next(on_ray)
    return 0


def start_ray(stack: contextlib.ExitStack) -> list[str]:
    """Start a Ray cluster that ends with the stack. Return the kernel's arguments for it."""
    from local_ray import local_ray

    print("starting a Ray cluster with two nodes on this machine, 127.0.0.2 and 127.0.0.3", flush=True)
    ray = stack.enter_context(local_ray(2, cpus=4))
    os.environ.update(ray.environ)
    return ["--TFCluster.backend=ray", f"--TFCluster.address={ray.address}"]


def run_notebook(settings: list[str]) -> bool:
    """Run the notebook with these settings of the kernel. Return whether every cell succeeded."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(NOTEBOOK.parent)}}
    arguments = ["--IPKernelApp.log_level=40", *settings]
    client = NotebookClient(notebook, timeout=600, resources=folder, extra_arguments=arguments)
    if settings:  # where the tasks run
        started = next(n for n, cell in enumerate(notebook.cells) if cell.source.startswith("%%tfcluster"))
        notebook.cells.insert(started + 1, nbformat.v4.new_code_cell("%tfcluster status"))
    failed = ""
    count = sum(cell.cell_type == "code" for cell in notebook.cells)
    print(f"running {NOTEBOOK.name} in a Jupyter kernel: {count} cells of code, about a minute", flush=True)
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                print("\n" + cell.source)
                continue
            print("\n" + "\n".join(f"    {line}" for line in cell.source.splitlines()) + "\n", flush=True)
            try:
                client.execute_cell(cell, index)
            except CellExecutionError as error:
                failed = str(error)
            show_outputs(cell)
            sys.stdout.flush()
            if failed:
                print(failed)
                return False
    return True


def print_next(on_ray: bool) -> None:
    """Print what to try next."""
    program = os.path.relpath(os.path.join(os.path.dirname(sys.executable), "tfmagic"))
    print("\nThat was notebooks/how-to/quickstart.ipynb. Where to go next:")
    for line, what in (
        ("make lab", "open it in JupyterLab, with a live panel; the course is in notebooks/course"),
        (f"{program} run train.py", "run a script of yours on a cluster"),
        (f"{program} doctor", "check this machine for larger clusters"),
        ("docs/ray.md", "run it on the machines of a Ray cluster" + (" of yours" if on_ray else "")),
        ("docs/index.md", "the guides, by task"),
    ):
        print(f"    {line:<32} {what}")


if __name__ == "__main__":
    sys.exit(main())
