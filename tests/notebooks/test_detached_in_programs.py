"""Detached cells in a notebook that a program runs: nothing shows what a kernel sends while no cell runs."""

import nbformat
import pytest

AWAIT_END = """import asyncio
jobs = get_ipython().magics_manager.registry["TFClusterMagics"].notebook.detached._jobs
while jobs:
    await asyncio.sleep(0.01)"""


@pytest.mark.parametrize("between", ["pass", AWAIT_END], ids=["ends in the wait", "ends before the wait"])
def test_a_detached_cell_keeps_its_own_output_in_the_saved_notebook(lessons, between):
    cells = [
        "%load_ext tfmagic\n%tfcluster start --workers 2",
        "%%tfcluster --detach\nimport tfmagic\ntfmagic.barrier()\nprint('all are here')",
        between,
        "%tfcluster wait",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    _, detached, _, wait = lessons.run(notebook).cells
    (form,) = detached.outputs
    assert form.data["text/plain"].count("all are here") == 2
    assert "2 of 2 done" in form.data["text/html"]
    (sentence,) = wait.outputs
    assert sentence.name == "stdout"
