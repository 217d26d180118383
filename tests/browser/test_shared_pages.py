"""A notebook that two pages share: what one page runs, the other one shows as well, without being loaded again.

`scripts/beside` installs jupyter-collaboration beside the packages of our environment.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import ARGUMENTS, NotebookPage, Server, chromium, write_notebook
from playwright.sync_api import expect, sync_playwright

PYTHON = Path(__file__).parents[2] / ".venv-beside" / "collaboration" / "bin" / "python"
LASTS = """%%tfcluster --workers 2
import os, time
print("begun")
while not os.path.exists({flag!r}):
    time.sleep(0.01)
print("ended")"""
FAILS = """%%tfcluster
import os, time, tfmagic
if tfmagic.current_task().index == 1:
    while not os.path.exists({flag!r}):
        time.sleep(0.01)
    raise ValueError("bad batch")
tfmagic.barrier()"""
SHORT = """%%tfcluster
import sys, tfmagic
print("on standard output")
print("on standard error", file=sys.stderr)
tfmagic.current_task().index + 40"""
DRAWS = """%%tfcluster --on worker-0
import matplotlib.pyplot as plt, pandas as pd
plt.plot([1, 2])
plt.show()
pd.DataFrame({"a": [1, 2]})"""
KINDS = """i => window.jupyterapp.shell.currentWidget.content.model.cells.get(i).outputs.toJSON()
    .map(output => [output.output_type, ...Object.keys(output.data ?? {}).sort()])"""
FORM = ["display_data", "text/html", "text/plain"]
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def two_pages(tmp_path_factory):
    """Return the two pages, and the file that ends the cells that last."""
    assert PYTHON.exists(), "it is not installed: scripts/beside .venv collaboration"
    folder = tmp_path_factory.mktemp("shared")
    flags = [folder / "go-1", folder / "go-2"]
    lasts, fails = (cell.format(flag=str(f)) for cell, f in zip((LASTS, FAILS), flags, strict=True))
    write_notebook(folder / "shared.ipynb", "%load_ext tfmagic", lasts, fails, SHORT, DRAWS)
    server = Server(folder, python=str(PYTHON))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS, headless=True)
        pages = [NotebookPage(browser.new_context().new_page(), server, "shared.ipynb") for _ in range(2)]
        pages[0].run(0)
        yield *pages, flags
        browser.close()
    server.close()


def kinds(page, index):
    """Return the type of each output of a cell in the page's notebook, and of its data."""
    return page.page.evaluate(KINDS, index)


def test_the_other_page_ends_with_the_form_of_a_first_cell(two_pages):
    one, other, (flag, _) = two_pages
    one.start(1)
    expect(other.output(1)).to_contain_text("begun")
    flag.touch()
    for page in (one, other):
        page.wait_until_ended(1)
        expect(page.output(1)).to_contain_text("2 of 2 done")
        expect(page.output(1).get_by_text("ended")).to_have_count(2)
        expect(page.output(1)).not_to_contain_text("a live panel is here")
        assert kinds(page, 1) == [FORM]


def test_the_other_page_ends_with_the_form_and_the_error_of_a_cell_that_failed(two_pages):
    one, other, (_, flag) = two_pages
    one.start(2)
    expect(other.output(2)).to_contain_text("0 of 2 done")
    flag.touch()
    for page in (one, other):
        page.wait_until_ended(2)
        expect(page.output(2)).to_contain_text("raised on worker-1")
        expect(page.output(2)).to_contain_text("2 failed")
        assert kinds(page, 2) == [FORM, ["error"]]
    assert [[o.output_type for o in cell.outputs] for cell in one.save().cells[1:3]] == [
        ["display_data"],
        ["display_data", "error"],
    ]


def test_the_other_page_shows_what_two_tasks_print_and_return(two_pages):
    one, other, _ = two_pages
    one.start(3)
    for page in (one, other):
        page.wait_until_ended(3)
        for text in ("on standard output", "on standard error"):
            expect(page.output(3).get_by_text(text)).to_have_count(2)
        expect(page.output(3).get_by_role("cell")).to_have_text(["worker-0", "40", "worker-1", "41"])
        assert kinds(page, 3) == [FORM]


def test_the_other_page_shows_a_figure_and_a_table(two_pages):
    one, other, _ = two_pages
    one.start(4)
    for page in (one, other):
        page.wait_until_ended(4)
        page.output(4).get_by_role("img", name="Figure").evaluate(
            "image => image.decode()"
        )  # fails if it is no picture
        expect(page.output(4).locator("table.dataframe td")).to_have_text(["1", "2"])
        assert kinds(page, 4) == [FORM]
