"""The panel in JupyterLab and Notebook 7, in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from conftest import wait_until
from pages import ARGUMENTS, NotebookPage, Server, chromium, write_notebook
from playwright.sync_api import expect, sync_playwright

LOAD = "%load_ext tfmagic\n%tfcluster start --workers 2"
expect.set_options(timeout=30_000)  # a busy machine needs time; a check that holds returns at once
# runs until the flag file exists: tests wait for what they see, never for a time
UNTIL = """%%tfcluster
import os, time
print("begun on", tfmagic.current_task().name)
print("the same everywhere")
step = 0
while not os.path.exists({flag!r}):
    step += 1
    print(f"\\rstep {{step}}", end="")
    time.sleep(0.02)
print("\\nended")
"""


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS, headless=True)
        yield made
        made.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("lab"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def context(browser):
    """Share one browser context, so that JupyterLab's megabytes of scripts are fetched and compiled once."""
    made = browser.new_context(viewport={"width": 1280, "height": 1000})
    yield made
    made.close()


def _open(context, server, name, *cells):
    write_notebook(server.folder / name, *cells)
    return NotebookPage(context.new_page(), server, name)


@pytest.fixture
def open_notebook(context):
    """Return a function that writes a notebook of these cells and opens it on a server, until the test ends."""
    books = []

    def make(server, name, *cells):
        books.append(_open(context, server, name, *cells))
        return books[-1]

    yield make
    for book in books:
        book.close()


@pytest.fixture
def flag(tmp_path):
    return tmp_path / "go"


@pytest.fixture(scope="module")
def shared(context, lab, tmp_path_factory):
    """Open a notebook with two workers whose cells each run until their flag file exists."""
    folder = tmp_path_factory.mktemp("flags")
    flags = [folder / f"go-{n}" for n in range(20)]
    cells = [UNTIL.format(flag=str(flag)) for flag in flags]
    book = _open(context, lab, "shared.ipynb", LOAD + "\nimport tfmagic", *cells)
    book.run(0)
    book.flags = iter(enumerate(flags, 1))
    yield book
    book.close()


@pytest.fixture
def running(shared):
    """Run a cell of the shared notebook on two workers; it ends when the file `flag` exists."""
    shared.at, shared.flag = next(shared.flags)
    _begin(shared)
    yield shared
    shared.flag.touch()
    shared.wait_until_ended(shared.at)


@pytest.fixture
def alone(open_notebook, lab, flag, request):
    """Run a cell as `running` does, in a notebook of its own."""
    name = re.sub(r"\W", "_", request.node.name) + ".ipynb"
    book = open_notebook(lab, name, LOAD + "\nimport tfmagic", UNTIL.format(flag=str(flag)), "1 + 1")
    book.run(0)
    book.at, book.flag = 1, flag
    _begin(book)
    yield book
    flag.touch()


def _begin(book):
    book.start(book.at)
    expect(book.shown.get_by_text("begun on worker-0")).to_be_visible()


def button(book, name):
    return book.shown.get_by_role("button", name=name, exact=True)


def panel(book, task):
    name = book.page.locator("summary").get_by_text(task, exact=True)
    return book.shown.locator("details.tfm-task").filter(has=name)


def error_of(book):
    """Return the name of the error that the cell ended with, from the notebook's model."""
    book.wait_until_ended(book.at)
    outputs = book.save().cells[book.at].outputs
    return next((o.ename for o in outputs if o.output_type == "error"), "")


def test_output_streams_and_progress_moves_in_place(running):
    log = running.shown.get_by_role("log", name="Output of worker-1")
    expect(log.get_by_text(re.compile(r"^step \d+$"))).to_have_count(1)
    before = log.get_by_text(re.compile(r"^step \d+$")).inner_text()
    wait_until(lambda: log.get_by_text(re.compile(r"^step \d+$")).inner_text() != before)
    assert running.is_running(running.at)
    running.flag.touch()
    running.wait_until_ended(running.at)
    expect(running.shown.get_by_text("2 of 2 done")).to_be_visible()


def test_the_row_of_a_task_shows_its_line_and_its_usage(running):
    head = panel(running, "worker-0").locator("summary").first
    expect(head).to_contain_text("running")
    expect(head).to_contain_text(re.compile(r"line \d+"))
    expect(head).to_contain_text(re.compile(r"time\.sleep|print|while|step"))
    expect(head).to_contain_text(re.compile(r"\d+ ?%"))
    expect(head).to_contain_text(re.compile(r"[\d.]+ MB"))


def test_a_closed_panel_shows_its_last_line(running):
    head = panel(running, "worker-0").locator("summary").first
    head.click()
    expect(running.shown.get_by_role("log", name="Output of worker-0")).not_to_be_visible()
    expect(head).to_contain_text(re.compile(r"step \d+"))
    head.press("Enter")  # by the keyboard
    expect(running.shown.get_by_role("log", name="Output of worker-0")).to_be_visible()


def test_interrupt_ends_the_cell_while_it_runs(alone):
    button(alone, "Interrupt").click()
    assert error_of(alone) == "KeyboardInterrupt"
    alone.run(2)
    expect(alone.output(2)).to_contain_text("2")


def test_interrupt_of_one_task(running):
    button(running, "Interrupt worker-1").click()
    expect(panel(running, "worker-1").locator("summary").first).to_contain_text("interrupted")
    assert error_of(running) == "KeyboardInterrupt"


def test_kill_of_a_task_opens_its_panel_with_the_reason(alone):
    panel(alone, "worker-1").locator("summary").first.click()
    panel(alone, "worker-1").locator("summary").first.click()
    button(alone, "Kill worker-1").click()
    assert error_of(alone) == "TaskDied"
    expect(alone.shown.locator("details[open]", has_text="SIGKILL").first).to_be_visible()


def test_stacks_of_a_running_task(running):
    button(running, "Stacks of worker-0").click()
    stack = panel(running, "worker-0").locator("pre", has_text=re.compile(r"Cell In\[\d+\]"))
    expect(stack).to_be_visible()
    assert running.is_running(running.at)


def test_the_whole_log_opens_in_a_tab_of_its_own(running):
    with running.page.context.expect_page() as opened:
        button(running, "Open log of worker-0").click()
    expect(opened.value.locator("body")).to_contain_text("begun on worker-0")
    expect(opened.value.locator("body")).to_contain_text("worker-0.log")


def test_stop_ends_the_cluster(alone):
    button(alone, "Stop").click()
    assert error_of(alone) == "TfmagicError"
    expect(alone.shown.get_by_text("cluster was stopped while the cell ran")).to_be_visible()


def test_a_page_that_is_loaded_again_during_a_run_has_panel_and_buttons_back(alone):
    alone.save()
    alone.open(kernel="connected")
    log = alone.shown.get_by_role("log", name="Output of worker-0")
    expect(log.get_by_text("begun on worker-0")).to_be_visible()
    alone.flag.touch()
    expect(log.get_by_text("ended")).to_be_visible()
    expect(button(alone, "Interrupt")).to_be_disabled()


def test_a_failing_task_opens_by_itself_and_shows_its_error(open_notebook, lab, flag):
    cell = (
        "%%tfcluster --workers 6 --keep-going\nimport os, time\n"
        "if tfmagic.current_task().index == 4:\n    raise ValueError('<b>bad</b> batch')\n"
        f"while not os.path.exists({str(flag)!r}):\n    time.sleep(0.01)"
    )
    book = open_notebook(lab, "failing.ipynb", "%load_ext tfmagic\nimport tfmagic", cell)
    book.run(0)
    book.start(1)
    failed = panel(book, "worker-4")
    expect(failed).to_have_attribute("open", "", timeout=30_000)
    expect(failed).to_contain_text("ValueError")
    expect(failed).to_contain_text("<b>bad</b> batch")
    expect(panel(book, "worker-0")).not_to_have_attribute("open", "")
    flag.touch()
    assert error_of(book) == "ValueError"


def test_hostile_output_is_shown_as_text(open_notebook, lab, flag):
    cell = (
        "%%tfcluster --workers 1\nimport os, sys, time\n"
        "os.write(1, b'<script>document.title=1</script><img src=x onerror=alert(1)>\\n')\n"
        "os.write(1, b'\\x1b]0;title\\x07\\x1b[2J\\x1b[10;10Hmoved \\xff\\x00 \\xe2\\x80\\xaetfel\\n')\n"
        "os.write(1, b'y' * 5_000_000 + b'\\n')\nprint('last')\n"
        f"while not os.path.exists({str(flag)!r}):\n    time.sleep(0.01)"
    )
    book = open_notebook(lab, "hostile.ipynb", "%load_ext tfmagic", cell)
    book.run(0)
    book.start(1)
    log = book.output(1).get_by_role("log", name="Output of worker-0")
    expect(log.get_by_text("last", exact=True)).to_be_visible(timeout=30_000)
    assert log.locator("script, img").count() == 0
    flag.touch()
    book.wait_until_ended(1)
    expect(book.output(1)).to_contain_text("<script>document.title=1</script>")
    expect(book.output(1)).to_contain_text("moved �␀")


def test_a_flood_costs_the_page_little_and_the_disk_has_every_line(open_notebook, lab):
    lines = 150_000
    cell = f"%%tfcluster --workers 4\nfor i in range({lines}):\n    print(f'{{i:069d}}')\nprint('the end')"
    check = (
        "%tfcluster stop\nimport glob, os\nfolder = get_ipython().magics_manager.registry['TFClusterMagics']"
        ".clusters['default'].run_folder.folder\n"
        "[sum(1 for _ in open(p)) for p in sorted(glob.glob(f'{folder}/worker-*.log'))]"
    )
    book = open_notebook(lab, "flood.ipynb", "%load_ext tfmagic", cell, check)
    book.run(0)
    book.received_bytes = 0
    book.run(1, 120)
    expect(book.output(1).get_by_text("the end").first).to_be_visible()
    assert book.received_bytes < 5_000_000
    book.run(2)
    expect(book.output(2)).to_contain_text(str([lines + 1] * 4))


def test_noise_is_folded_and_opens(open_notebook, lab):
    cell = "%%tfcluster --workers 1\nimport tensorflow as tf\ntf.constant(1)\nprint('mine')"
    book = open_notebook(lab, "noise.ipynb", "%load_ext tfmagic", cell)
    book.run(0)
    book.run(1)
    folded = book.output(1).locator("details", has_text="TensorFlow start-up").last
    expect(folded).not_to_have_attribute("open", "")
    folded.locator("summary").click()
    expect(folded.get_by_text(re.compile("cuda|CPU|oneDNN")).first).to_be_visible()


def test_merged_lines_are_folded_and_filtered(running):
    running.shown.get_by_role("switch", name="Merged").click()
    merged = running.shown.get_by_role("log", name="Output of all tasks, merged")
    folded = merged.locator(".tfm-row", has_text="the same everywhere")
    expect(folded).to_have_count(1)
    expect(folded).to_contain_text("×2")
    expect(merged.locator(".tfm-row", has_text="begun on")).to_have_count(2)
    expect(merged.get_by_text("begun on worker-1")).to_be_visible()
    search = running.shown.get_by_role("searchbox", name="Filter lines")
    search.fill("/on worker-[0-5]$/")
    expect(folded).not_to_be_visible()
    search.fill("EVERYWHERE")
    expect(folded).to_be_visible()
    expect(merged.get_by_text("begun on worker-1")).not_to_be_visible()
    search.press("Escape")
    search.fill("dd")  # two keys that would delete the cell, were they the notebook's
    assert running.is_running(running.at)


def test_figures_and_values_in_place(open_notebook, lab, flag):
    cell = (
        "%%tfcluster --workers 2\nimport os, time\nimport matplotlib.pyplot as plt\nprint('before')\n"
        "plt.plot([1, 2]); plt.show()\nhandle = display('first', display_id=True)\nhandle.update('second')\n"
        f"print('after')\nwhile not os.path.exists({str(flag)!r}):\n    time.sleep(0.01)\n42"
    )
    book = open_notebook(lab, "figures.ipynb", "%load_ext tfmagic", cell)
    book.run(0)
    book.start(1)
    log = book.output(1).get_by_role("log", name="Output of worker-0")
    expect(log.locator("img")).to_be_visible(timeout=30_000)
    expect(log.get_by_text("'second'")).to_be_visible()
    expect(log.get_by_text("'first'")).to_have_count(0)
    flag.touch()
    book.wait_until_ended(1)
    row = book.output(1).locator("tr", has_text="worker-0, worker-1")
    expect(row).to_contain_text("42")


def test_the_saved_notebook_reads_untrusted_and_converted(alone, lab, browser):
    alone.flag.touch()
    alone.wait_until_ended(alone.at)
    saved = alone.save()
    (shown,) = [o for o in saved.cells[1].outputs if o.output_type == "display_data"]
    assert "<details" in shown.data["text/html"]
    assert "[worker-0]:    begun on worker-0" in shown.data["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" not in shown.data
    path = lab.folder / "untrusted.ipynb"
    saved.metadata["changed"] = "by somebody else, so that the signature does not fit"
    nbformat.write(saved, path)
    alone.path = path.name
    alone.open(kernel="")
    assert not alone.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.content.widgets[1].model.trusted"
    )
    expect(alone.shown.get_by_text("begun on worker-0")).to_be_visible()
    head = alone.shown.locator("summary", has_text="worker-0")
    head.click()
    expect(alone.shown.get_by_text("begun on worker-0")).not_to_be_visible()
    converted = subprocess.run(
        [sys.executable, "-m", "nbconvert", "--to", "html", "--stdout", path],
        capture_output=True,
        text=True,
        check=True,
    )
    page = browser.new_page()
    page.set_content(converted.stdout)
    expect(page.get_by_text("begun on worker-1")).to_be_visible()
    page.close()


def test_nested_uses_run_by_the_blocking_way(open_notebook, lab):
    cells = (
        "%%time\nget_ipython().run_cell_magic('tfcluster', '', 'print(6 * 7)')",
        "%%capture caught\nget_ipython().run_cell_magic('tfcluster', '', 'print(6 * 7)')",
        "_ = get_ipython().run_cell('%%tfcluster\\nprint(6 * 7)')",
        "def f():\n    get_ipython().run_cell_magic('tfcluster', '', 'print(6 * 7)')\nf()",
        "%%time\n%%tfcluster\nprint(6 * 7)",
        "len(caught.outputs)",
    )
    book = open_notebook(lab, "nested.ipynb", LOAD, *cells)
    for index in range(len(cells) + 1):
        book.run(index)
    for index in (1, 3, 4):
        expect(book.output(index).get_by_text("42").first).to_be_visible()
    expect(book.output(6)).to_contain_text("1")


def test_a_detached_cell_stays_live_while_others_run(open_notebook, lab, flag):
    loop = f"while not os.path.exists({str(flag)!r}):\n    time.sleep(0.01)\n"
    book = open_notebook(
        lab,
        "detached.ipynb",
        LOAD,
        f"%%tfcluster --detach --on worker-0 --out found\nimport os, time\nprint('goes on')\n{loop}print('over')\n7",
        "%%tfcluster --on worker-1\nprint('meanwhile')",
        "%%tfcluster --detach --on worker-0\nprint('queued')",
        "%tfcluster wait",
        "found",
    )
    book.run(0)
    book.run(1)
    expect(book.output(1).get_by_role("log").get_by_text("goes on")).to_be_visible()
    book.run(2)
    expect(book.output(2).get_by_text("meanwhile")).to_be_visible()
    book.run(3)
    expect(book.output(3)).to_contain_text("queued: it begins when")
    flag.touch()
    book.run(4)
    expect(book.output(1).locator("details pre")).to_have_text("goes on\nover")
    expect(book.output(3).locator("details pre")).to_have_text("queued")
    book.run(5)
    expect(book.output(5).locator("tr", has_text="worker-0")).to_contain_text("7")


def test_the_buttons_of_notebook_7_work_while_a_cell_runs(open_notebook, tmp_path, flag):
    server = Server(tmp_path, "notebook")
    try:
        book = open_notebook(server, "seven.ipynb", LOAD + "\nimport tfmagic", UNTIL.format(flag=str(flag)))
        book.run(0)
        book.start(1)
        expect(book.output(1).get_by_text("begun on worker-0")).to_be_visible()
        button(book, "Interrupt").click()
        assert error_of(book) == "KeyboardInterrupt"
    finally:
        server.close()


def test_the_panel_follows_the_dark_theme(running):
    use = "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
    try:
        running.page.evaluate(use, "JupyterLab Dark")
        wait_until(lambda: min(_text_colour(running)) > 150)  # text is light on a dark page
    finally:
        running.page.evaluate(use, "JupyterLab Light")
    wait_until(lambda: min(_text_colour(running)) < 100)


def _text_colour(book):
    row = book.shown.get_by_text("begun on worker-0")
    colour = row.evaluate("element => getComputedStyle(element).color")
    return [int(part) for part in re.findall(r"\d+", colour)[:3]]


def test_papermill_runs_a_notebook_and_leaves_the_static_form(tmp_path):
    source = write_notebook(
        tmp_path / "in.ipynb", "%load_ext tfmagic", "%%tfcluster --workers 2\nprint('hi')"
    )
    papermill = [shutil.which("papermill", path=str(sys.prefix) + "/bin") or "papermill"]
    subprocess.run(
        [*papermill, source, tmp_path / "out.ipynb", "--no-progress-bar"], check=True, capture_output=True
    )
    made = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    (shown,) = [o for o in made.cells[1].outputs if "data" in o]
    assert shown.data["text/plain"].splitlines() == ["[worker-0]:    hi", "[worker-1]:    hi"]
    assert "<details open" in shown.data["text/html"]
    assert "widgets" not in made.metadata


def test_the_panel_shows_which_task_waits_for_which(open_notebook, lab, flag):
    hang = f"""%%tfcluster
import os, time, tfmagic
if tfmagic.current_task().index == 1:
    while not os.path.exists({str(flag)!r}): time.sleep(3)
tfmagic.barrier()
print("met")
"""
    book = open_notebook(lab, "hang.ipynb", LOAD + "\n%config TFCluster.stall_s = 2", hang)
    book.run(0)
    book.start(1)
    said = "worker-0 waits at barrier 1 (cell line 5); worker-1 is in time.sleep (line 4)"
    expect(book.output(1).get_by_text(said)).to_be_visible()
    expect(book.output(1).locator('[data-state="stalled"]').first).to_be_visible()
    book.page.screenshot(path=str(lab.folder / "hang.png"))
    flag.touch()
    book.wait_until_ended(1)
    expect(book.output(1).get_by_text("met").first).to_be_visible()


def test_a_death_between_cells_is_shown_in_the_static_form(open_notebook, lab):
    book = open_notebook(
        lab,
        "death.ipynb",
        LOAD + "\nimport tfmagic",
        "%%tfcluster\nprint('well')\nimport os, time; time.sleep(0.3); os.getpid()",
        "%tfcluster kill worker-1",
        "%%tfcluster\n1",
    )
    book.run(0)
    book.run(1)
    book.run(2)
    expect(book.output(1)).to_contain_text("worker-1 was ended by SIGKILL")
    expect(book.output(1)).to_contain_text("%tfcluster revive brings it back")
    expect(book.output(1).get_by_text("well").first).to_be_visible()
    book.run(3)
    expect(book.output(3)).to_contain_text("TaskDied")
    book.page.screenshot(path=str(lab.folder / "death.png"))


def test_tensorboard_is_a_frame_in_the_notebook(open_notebook, lab, tmp_path):
    (tmp_path / "worker-0").mkdir()
    cells = ("%tfcluster start --workers 1", f"%tfcluster tensorboard {tmp_path}", "%tfcluster stop")
    book = open_notebook(lab, "tensorboard.ipynb", LOAD, *cells)
    for index in range(3):
        book.run(index)
    board = book.output(2).frame_locator("iframe")
    expect(board.get_by_text("No dashboards are active").first).to_be_visible(timeout=30_000)
    book.run(3)
