"""The panel in JupyterLab and Notebook 7, in a real browser."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys

import nbformat
import psutil
import pytest
from conftest import wait_until
from pages import write_notebook
from PIL import Image
from playwright.sync_api import expect

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


def _open(pages, name, *cells, app="lab"):
    write_notebook(pages.server.folder / name, *cells)
    return pages.open(name, app)


class Shared:
    """A notebook with two workers whose cells each run until their flag file exists.

    It is closed when a test opens a notebook of its own, which gets its page and its kernel.
    """

    def __init__(self, pages, folder):
        self._pages, self._folder = pages, folder
        self._book, self._flags = None, iter(())

    def next_cell(self):
        """Return the notebook, with `at` and `flag` of a cell that has not run."""
        if self._book is None:
            flags = [self._folder / f"go-{n}" for n in range(20)]
            cells = [UNTIL.format(flag=str(flag)) for flag in flags]
            self._book = _open(self._pages, "shared.ipynb", LOAD + "\nimport tfmagic", *cells)
            self._book.run(0)
            self._flags = iter(enumerate(flags, 1))
        self._book.at, self._book.flag = next(self._flags)
        self._book.flag.unlink(missing_ok=True)
        return self._book

    def close(self):
        if self._book is not None:
            self._pages.close(self._book)
            self._book = None


@pytest.fixture(scope="module")
def shared(pages, tmp_path_factory):
    made = Shared(pages, tmp_path_factory.mktemp("flags"))
    yield made
    made.close()


@pytest.fixture
def open_notebook(pages, shared):
    """Return a function that writes a notebook of these cells and opens it, until the test ends."""
    shared.close()
    books = []

    def make(name, *cells, app="lab"):
        books.append(_open(pages, name, *cells, app=app))
        return books[-1]

    yield make
    for book in books:
        pages.close(book)


@pytest.fixture
def flag(tmp_path):
    return tmp_path / "go"


@pytest.fixture
def running(shared):
    """Run a cell of the shared notebook on two workers; it ends when the file `flag` exists."""
    book = shared.next_cell()
    _begin(book)
    yield book
    book.flag.touch()
    book.wait_until_ended(book.at)


@pytest.fixture
def alone(open_notebook, flag, request):
    """Run a cell as `running` does, in a notebook of its own."""
    name = re.sub(r"\W", "_", request.node.name) + ".ipynb"
    book = open_notebook(name, LOAD + "\nimport tfmagic", UNTIL.format(flag=str(flag)), "1 + 1")
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
    expect(head).to_contain_text(re.compile(r"[\d.]+ MiB"))


def test_a_closed_panel_shows_its_last_line(running):
    head = panel(running, "worker-0").locator("summary").first
    head.click()
    expect(running.shown.get_by_role("log", name="Output of worker-0")).not_to_be_visible()
    expect(head).to_contain_text(re.compile(r"step \d+"))
    head.press("Enter")  # by the keyboard
    expect(running.shown.get_by_role("log", name="Output of worker-0")).to_be_visible()


def test_interrupt_of_one_task(running):
    button(running, "Interrupt worker-1").click()
    expect(panel(running, "worker-1").locator("summary").first).to_contain_text("interrupted")
    follows = "worker-1 was interrupted; the other tasks are interrupted after 3 s"
    expect(running.shown.get_by_text(follows)).to_be_visible()
    assert error_of(running) == "KeyboardInterrupt"


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


def test_merged_lines_are_folded_and_filtered(running):
    running.shown.get_by_role("switch", name="Merged").click()
    merged = running.shown.get_by_role("log", name="Output of all tasks, merged")
    folded = merged.locator(".tfm-row", has_text="the same everywhere")
    expect(folded).to_have_count(1)
    expect(folded).to_contain_text("[worker-0,1]: the same everywhere×2")
    expect(merged.locator(".tfm-row", has_text="begun on")).to_have_count(2)
    expect(merged.get_by_text("begun on worker-1")).to_be_visible()
    search = running.shown.get_by_role("searchbox", name="Filter lines")
    search.fill("/on worker-[0-5]$/")
    expect(folded).not_to_be_visible()
    search.fill("EVERYWHERE")
    expect(folded).to_be_visible()
    expect(merged.get_by_text("begun on worker-1")).not_to_be_visible()
    search.fill("/(/")
    expect(running.shown.get_by_text("no regular expression: Unterminated group")).to_be_visible()
    search.press("Escape")
    search.fill("dd")  # two keys that would delete the cell, were they the notebook's
    assert running.is_running(running.at)
    search.fill("/begun on worker-1|ended/")
    running.flag.touch()
    running.wait_until_ended(running.at)
    search = running.shown.get_by_role("searchbox", name="Filter lines")
    expect(search).to_have_value("/begun on worker-1|ended/")
    expect(running.shown.locator("pre", has_text="begun on")).to_have_text(["begun on worker-1\nended"])
    search.fill("everywhere")
    expect(running.shown.get_by_text("2 of 8 lines")).to_be_visible()
    expect(running.shown.get_by_text(re.compile(r"^logs: .*/runs/")).first).to_be_visible()


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


def test_interrupt_ends_the_cell_while_it_runs(alone):
    button(alone, "Interrupt").click()
    assert error_of(alone) == "KeyboardInterrupt"
    alone.run(2)
    expect(alone.output(2)).to_contain_text("2")


def test_a_task_that_was_killed_by_a_button_is_stopped_and_no_failure(alone):
    button(alone, "Kill worker-1").click()
    assert alone.is_running(alone.at)
    button(alone, "Kill worker-1 and lose its variables?").click()
    expect(panel(alone, "worker-1").locator("summary").first).to_contain_text("killed by you (SIGKILL)")
    expect(alone.shown).to_contain_text("worker-1 was killed; the other tasks are interrupted after 3 s")
    assert error_of(alone) == "TaskDied"
    head = alone.shown.locator("summary", has_text="worker-1")
    expect(head).to_contain_text("stopped")
    expect(alone.shown.get_by_text(re.compile("^(1 )?died$"))).to_have_count(0)


def test_stop_asks_before_it_ends_the_cluster_and_its_tasks_are_stopped(alone):
    gap = button(alone, "Stop").bounding_box()["x"] - button(alone, "Interrupt").bounding_box()["x"]
    assert gap > button(alone, "Interrupt").bounding_box()["width"] + 16
    button(alone, "Stop").click()
    assert alone.is_running(alone.at)
    button(alone, "Stop the cluster and lose all variables?").click()
    assert error_of(alone) == "TfmagicError"
    expect(alone.shown.get_by_text("cluster was stopped while the cell ran")).to_be_visible()
    expect(alone.shown.get_by_text("2 stopped")).to_be_visible()
    expect(alone.shown.get_by_text("SIGKILL")).to_have_count(0)


def text_saved(book):
    """Save the notebook; return the text of the cell's form."""
    outputs = book.save().cells[book.at].outputs
    return "\n".join(o.data["text/plain"] for o in outputs if "text/html" in o.get("data", {}))


def text_of_html(book):
    """Return the html that the saved notebook has of the cell."""
    return "".join(
        o.data["text/html"] for o in book.save().cells[1].outputs if "text/html" in o.get("data", {})
    )


def last_step(text):
    return int(re.findall(r"step (\d+)", text)[-1])


def test_the_saved_notebook_has_the_text_so_far_whichever_page_saves_it(alone):
    wait_until(lambda: "[worker-1]:    begun on worker-1" in text_saved(alone))
    first = text_saved(alone)
    assert re.search(
        r"the cell at \d\d:\d\d:\d\d, while it runs\. .*logs \S+ --follow .*%tfcluster attach \S+ --cell 2$",
        first,
    )
    alone.open(kernel="connected")  # loads the page again
    log = alone.shown.get_by_role("log", name="Output of worker-0")
    expect(log.get_by_text("begun on worker-0")).to_be_visible()
    expect(button(alone, "Interrupt")).to_be_enabled()
    expect(alone.output(1).locator(".tfm-draft")).to_be_hidden()
    wait_until(lambda: last_step(text_saved(alone)) > last_step(first))
    alone.flag.touch()
    expect(alone.shown.locator("pre").get_by_text("ended").first).to_be_visible()
    expect(alone.shown.locator(".tfm-root")).to_have_count(0)
    (saved,) = alone.save().cells[1].outputs
    assert "ended" in saved.data["text/plain"] and set(saved.data) == {"text/plain", "text/html"}


def test_a_cell_that_ended_while_no_page_was_open_is_in_the_saved_notebook(alone):
    wait_until(lambda: "begun on worker-0" in text_saved(alone))
    assert alone.close_notebook()
    alone.open_in_page("connected")
    first = last_step(text_saved(alone))
    wait_until(lambda: last_step(text_saved(alone)) > first)
    assert alone.close_notebook()
    alone.flag.touch()
    wait_until(lambda: alone.kernel["execution_state"] == "idle", 30)
    alone.open_in_page("idle")
    expect(alone.shown.get_by_text("2 of 2 done")).to_be_visible()
    (saved,) = alone.save().cells[1].outputs
    assert saved.data["text/plain"].count("ended") == 2 and "text/html" in saved.data


# Jupyter interrupts the cell before a restart: its end may or may not be noted; the note after a kill: test_attach
@pytest.mark.parametrize(
    ("end", "noted"),
    [
        ("restart", ""),
        pytest.param(
            "kill", "the kernel ended while the cell ran, and the tasks with it", marks=pytest.mark.soak
        ),
    ],
)
def test_the_panel_of_a_kernel_that_has_gone_says_so_and_the_saved_notebook_has_its_text(
    open_notebook, flag, end, noted
):
    attach = "%load_ext tfmagic\n%tfcluster attach"
    book = open_notebook("gone.ipynb", LOAD + "\nimport tfmagic", UNTIL.format(flag=str(flag)), attach)
    book.run(0)
    _begin(book)
    wait_until(lambda: "begun on worker-0" in text_saved(book))
    if end == "kill":
        os.kill(book.kernel_pid, signal.SIGKILL)
    else:
        book.page.evaluate(
            "() => { window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart() }"
        )
    expect(book.shown.get_by_text("the kernel of this cell was restarted or has ended")).to_be_visible()
    for name in ("Interrupt", "Stop", "Interrupt worker-0", "Kill worker-0", "Open log of worker-1"):
        expect(button(book, name)).to_be_disabled()
    expect(panel(book, "worker-0").locator("summary").first).to_contain_text("ended with its kernel")
    expect(book.shown.locator(".tfm-elapsed")).to_have_text(re.compile(r"^\d+\.\d+ s$"))  # it stands
    assert "[worker-0]:    begun on worker-0" in text_saved(book)
    assert book.close_notebook()
    book.open_in_page("")
    expect(book.shown.get_by_text("begun on worker-1")).to_be_visible()
    expect(book.output(1).get_by_text(re.compile("model not found|Loading widget"))).to_be_hidden()
    book.wait_until_open("idle")  # a cell that is run before the new kernel is there is lost
    book.run(2)
    expect(book.output(2)).to_contain_text(
        re.compile(r"2 workers · [\d.]+ s · 0 of 2 done(, interrupted)? 2 stopped")
    )
    expect(book.output(2)).to_contain_text(noted)


def test_a_hint_is_a_bar_in_panel_and_form_and_is_read_out(open_notebook, flag):
    cell = (
        "%%tfcluster\nimport os, time\nfrom tfmagic.task.tensorflow import notices\n"
        "notices.hint_once('own-statistics', 'A <hint> for you.')\nprint('given')\n"
        f"while not os.path.exists({str(flag)!r}):\n    time.sleep(0.02)"
    )
    book = open_notebook("hint.ipynb", LOAD, cell)
    book.run(0)
    book.start(1)
    text = "Hint for worker-0, worker-1: A <hint> for you. (%tfcluster explain own-statistics)"
    live = book.shown.locator(".tfm-root")
    expect(live.get_by_role("note")).to_have_text(text)
    expect(live.locator(".tfm-header").get_by_text("1 hint")).to_be_visible()
    expect(book.page.locator(".tfm-announcements")).to_contain_text("Hint: A <hint> for you.")
    wait_until(lambda: "tfmagic: hint: A <hint> for you. (worker-0, worker-1; " in text_saved(book))
    flag.touch()
    book.wait_until_ended(1)
    expect(live).to_have_count(0)
    expect(book.shown.get_by_role("note")).to_have_text(text)
    expect(book.shown.get_by_text("1 hint")).to_be_visible()
    expect(book.shown.locator("pre").get_by_text("given").first).to_be_visible()
    assert "hint" not in book.shown.locator("pre").first.inner_text()


def test_hints_that_do_not_fit_into_the_form_are_named_with_where_they_stand(open_notebook):
    cell = (
        "%%tfcluster\nfrom tfmagic.task.tensorflow import notices\n"
        "for n in range(30):\n    notices.hint_once(f'trap-{n}', f'{n}. ' + 'word ' * 300)"
    )
    load = LOAD.replace("\n", "\n%config TFCluster.saved_bytes = 30_000\n")
    book = open_notebook("hints.ipynb", load, cell, "")
    book.run(0)
    book.run(1)
    form = book.output(1).locator(".tfm-form")
    expect(form.get_by_text("30 hints")).to_be_visible()
    notes = form.get_by_role("note")
    shown = notes.count() - 1
    assert 1 <= shown < 20
    last = notes.last.inner_text()
    found = re.fullmatch(r"(\d+) hints do not fit here: (.*): (%tfcluster attach .* --full)", last)
    assert found, last
    assert int(found[1]) == 30 - shown
    assert found[2] == ", ".join(f"trap-{n}" for n in range(shown, 30))
    book.page.evaluate(
        "text => window.jupyterapp.shell.currentWidget.content.model.cells.get(2).sharedModel.setSource(text)",
        found[3],
    )
    book.run(2)
    expect(book.output(2).get_by_role("note")).to_have_count(30)  # the line does what it says


def test_the_form_stands_where_the_panel_stood(alone):
    """What moves is at most a line's height away: the eye finds each task again."""

    def places(names):
        found = {name: alone.shown.get_by_text(re.compile(f"^(· )?{name}$")).first for name in names}
        boxes = {name: where.bounding_box() for name, where in found.items()}
        return {name: (box["x"], box["y"]) for name, box in boxes.items()}

    names = ("default", "2 workers", "worker-0", "begun on worker-0", "worker-1")
    tall = alone.page.viewport_size
    before = places(names)
    alone.flag.touch()
    alone.wait_until_ended(1)
    expect(alone.shown.locator(".tfm-root")).to_have_count(0)
    after = places(names[:3] + names[4:])
    assert alone.page.viewport_size == tall
    moved = {name: (after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in after}
    assert all(abs(x) <= 4 and abs(y) <= 20 for x, y in moved.values()), moved


def test_merged_open_log_and_the_curve_of_the_cpu_stay_in_the_form(alone):
    curves = alone.shown.locator(".tfm-usage path[d^=M]")
    expect(curves).to_have_count(2)  # after two seconds
    curve = alone.shown.locator(".tfm-usage svg").first
    alone.shown.get_by_role("switch", name="Merged").click()
    alone.shown.get_by_role("searchbox", name="Filter lines").fill("/begun|same/")
    logs = [button(alone, f"Open log of worker-{index}") for index in (0, 1)]
    at = [*(log.bounding_box() for log in logs), curve.bounding_box()]
    alone.flag.touch()
    alone.wait_until_ended(1)
    expect(alone.shown.locator(".tfm-root")).to_have_count(0)
    merged = alone.shown.get_by_role("log", name="Output of all tasks, merged")
    rows = merged.locator(".tfm-row:visible:not(.tfm-remark)")
    wanted = ["[worker-0,1]: the same everywhere×2"]
    expect(rows.filter(has_text="same")).to_have_text(wanted)
    expect(rows.filter(has_text="begun")).to_have_count(2)
    expect(rows).to_have_count(3)
    curves = alone.shown.locator("summary img[title^='CPU in its last']")
    expect(curves).to_have_count(2)
    assert curves.first.evaluate("image => image.naturalWidth") == 60
    now = [*(log.bounding_box() for log in logs), curves.first.bounding_box()]
    moved = [abs(a[side] - b[side]) for a, b in zip(at, now, strict=True) for side in ("x", "width")]
    assert max(moved) <= 30, moved
    with alone.page.context.expect_page() as opened:
        logs[1].click()
    expect(opened.value.locator("body")).to_contain_text("begun on worker-1")
    expect(opened.value.locator("body")).to_contain_text("worker-1.log")
    switch = alone.shown.get_by_role("switch", name="Merged")
    expect(switch).to_be_checked()
    alone.page.evaluate(  # the form is drawn again, as with a note
        """() => { const { outputs } = window.jupyterapp.shell.currentWidget.content.widgets[1].model;
        document.querySelector(".tfm-form.tfm-merged").classList.add("former");
        for (let place = 0; place < outputs.length; place++) outputs.set(place, outputs.get(place).toJSON()) }"""
    )
    expect(alone.page.locator(".former")).to_have_count(0)
    expect(switch).to_be_checked()
    expect(rows).to_have_count(3)
    expect(logs[0]).to_be_visible()
    expect(alone.shown.get_by_role("group", name="Output of worker-0")).not_to_be_visible()
    switch.press("Space")
    expect(merged).not_to_be_visible()
    expect(alone.shown.locator("pre", has_text="begun on worker-0")).to_be_visible()
    assert "tfm-spark" in text_of_html(alone), "it is in the saved notebook, too"


def test_a_form_whose_kernel_has_gone_opens_no_log(alone):
    expect(alone.shown.locator(".tfm-live")).to_be_visible()
    alone.flag.touch()
    alone.wait_until_ended(1)
    expect(alone.shown.locator(".tfm-root")).to_have_count(0)
    expect(button(alone, "Open log of worker-0")).to_be_visible()
    kernel = psutil.Process(alone.kernel_pid)
    kernel.suspend()
    with alone.page.context.expect_page() as opened:
        button(alone, "Open log of worker-0").click()
    body = opened.value.locator("body")
    expect(body).to_contain_text(
        re.compile("no answer: the kernel is busy or has ended. The log is in /.*/runs/")
    )
    kernel.resume()
    expect(body).to_contain_text("begun on worker-0")
    expect(body).not_to_contain_text("no answer")
    alone.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    expect(button(alone, "Open log of worker-0")).to_have_count(0)
    expect(alone.shown.get_by_role("switch", name="Merged")).to_be_visible()  # needs no kernel
    expect(alone.shown.get_by_text(re.compile(r"^logs: .*/runs/"))).to_be_visible()


def test_a_failing_task_opens_by_itself_and_shows_its_error(open_notebook, flag):
    cell = (
        "%%tfcluster --workers 6 --keep-going\nimport os, time\n"
        "if tfmagic.current_task().index == 4:\n    raise ValueError('<b>bad</b> batch')\n"
        f"while not os.path.exists({str(flag)!r}):\n    time.sleep(0.01)"
    )
    book = open_notebook("failing.ipynb", "%load_ext tfmagic\nimport tfmagic", cell)
    book.run(0)
    book.start(1)
    failed = panel(book, "worker-4")
    expect(failed).to_have_attribute("open", "", timeout=30_000)
    expect(failed).to_contain_text("ValueError")
    expect(failed).to_contain_text("<b>bad</b> batch")
    expect(panel(book, "worker-0")).not_to_have_attribute("open", "")
    flag.touch()
    assert error_of(book) == "ValueError"


def test_hostile_output_is_shown_as_text(open_notebook, flag):
    long = flag.with_name("long")  # more at once than a page shows, and all before would be left out
    cell = (
        "%%tfcluster --workers 1\nimport os, sys, time\n"
        "os.write(1, b'</pre></details><script>document.title=1</script><img src=x onerror=alert(1)>\\n')\n"
        "os.write(1, b'\\x1b]0;title\\x07\\x1b]8;;javascript:alert(1)\\x07link\\x1b]8;;\\x07\\x1b[38;2;1;2;999;x)mred\\n')\n"
        "os.write(1, b'\\x1b[2J\\x1b[10;10Hmoved \\xff\\x00 \\xe2\\x80\\xaetfel\\n')\n"
        f"while not os.path.exists({str(long)!r}):\n    time.sleep(0.01)\n"
        "for _ in range(50):\n    os.write(1, b'y' * 1_000_000)\nos.write(1, b'\\n')\nprint('last')\n"
        f"while not os.path.exists({str(flag)!r}):\n    time.sleep(0.01)\n"
        "raise ValueError('</span><script>document.title=2</script><img src=x onerror=alert(2)>')"
    )
    book = open_notebook("hostile.ipynb", "%load_ext tfmagic", cell)
    dialogs = []
    book.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    book.run(0)
    title = book.page.title()
    book.received_bytes = 0
    book.start(1)
    log = book.output(1).get_by_role("log", name="Output of worker-0")
    expect(log.get_by_text("moved �␀")).to_be_visible()
    long.touch()
    expect(log.get_by_text("last", exact=True)).to_be_visible()
    with book.page.context.expect_page() as opened:  # the page still answers, with 50 MB in one line
        button(book, "Open log of worker-0").click()
    expect(opened.value.locator("pre")).to_contain_text("last")
    opened.value.close()
    book.shown.get_by_role("switch", name="Merged").click()
    merged = book.shown.get_by_role("log", name="Output of all tasks, merged")
    expect(merged.get_by_text("<script>document.title=1</script>")).to_be_visible()
    assert book.output(1).locator(".tfm-root").locator("script, img, a").count() == 0
    flag.touch()
    book.wait_until_ended(1)
    expect(book.output(1)).to_contain_text("<script>document.title=1</script>")
    expect(book.output(1)).to_contain_text("moved �␀")
    expect(book.output(1)).to_contain_text("<script>document.title=2</script>")
    theirs = (
        "script, img:not([src^='data:image/svg+xml,']), a[href^=javascript]"  # we draw a curve of the CPU
    )
    assert book.output(1).locator(theirs).count() == 0
    assert book.page.title() == title and not dialogs
    assert book.received_bytes < 5_000_000 and book.largest_message < 1_000_000


def test_a_flood_costs_the_page_little_and_the_disk_has_every_line(open_notebook):
    lines = 150_000
    cell = f"%%tfcluster --workers 4\nfor i in range({lines}):\n    print(f'{{i:069d}}')\nprint('the end')"
    check = (
        "%tfcluster stop\nimport glob, os\nfolder = get_ipython().magics_manager.registry['TFClusterMagics'].notebook"
        ".clusters['default'].run_folder.folder\n"
        "[sum(1 for _ in open(p)) for p in sorted(glob.glob(f'{folder}/worker-*.log'))]"
    )
    book = open_notebook("flood.ipynb", "%load_ext tfmagic", cell, check)
    book.run(0)
    book.received_bytes = book.large_messages = 0
    book.run(1, 120)
    expect(book.output(1).get_by_text("the end").first).to_be_visible()
    assert book.received_bytes < 5_000_000
    # the saved form: drafts of a flood are short; once more for a view whose question a busy kernel finds after the end
    assert book.large_messages in (1, 2)
    expect(book.output(1).get_by_text("150,001 lines").first).to_be_visible()
    note = re.compile(r"lines, \d+ MiB, left out here:  %tfcluster attach \S+ --cell 2 --full")
    expect(book.output(1).get_by_text(note)).to_be_in_viewport()
    book.run(2)
    expect(book.output(2)).to_contain_text(str([lines + 1] * 4))


def test_noise_is_folded_and_opens(open_notebook):
    cell = "%%tfcluster --workers 1\nimport tensorflow as tf\ntf.constant(1)\nprint('mine')"
    book = open_notebook("noise.ipynb", "%load_ext tfmagic", cell)
    book.run(0)
    book.run(1)
    folded = book.output(1).locator("details", has_text="TensorFlow log").last
    expect(folded).not_to_have_attribute("open", "")
    folded.locator("summary").click()
    expect(folded.get_by_text(re.compile("cuda|CPU|oneDNN")).first).to_be_visible()


def test_figures_and_values_in_place(open_notebook, flag):
    cell = (
        "%%tfcluster --workers 2\nimport os, time\nimport matplotlib.pyplot as plt\nprint('before')\n"
        "plt.plot([1, 2]); plt.show()\nhandle = display('first', display_id=True)\nhandle.update('second')\n"
        "import tfmagic\nfor n in range(30):\n    tfmagic.track(loss=1 / (n + 1))\n"
        f"print('after')\nwhile not os.path.exists({str(flag)!r}):\n    time.sleep(0.01)\n42"
    )
    book = open_notebook("figures.ipynb", "%load_ext tfmagic", cell)
    book.run(0)
    book.start(1)
    log = book.output(1).get_by_role("log", name="Output of worker-0")
    expect(log.locator("img")).to_be_visible(timeout=30_000)
    expect(log.get_by_text("'second'")).to_be_visible()
    expect(log.get_by_text("'first'")).to_have_count(0)
    chart = book.output(1).locator(".tfm-figures img")
    expect(chart).to_have_attribute(
        "alt", re.compile(r"^loss: worker-0 0\.03333 \(step 29\), worker-1 0\.03333")
    )
    assert chart.evaluate("image => image.naturalWidth") == 320, "drawn, and no broken image"
    flag.touch()
    book.wait_until_ended(1)
    expect(book.output(1).locator("img[alt^='loss: ']")).to_be_visible()
    row = book.output(1).locator("tr", has_text="worker-0, worker-1")
    expect(row).to_contain_text("42")


WIDGETS = """%%tfcluster --workers 2
import os, time
import anywidget, traitlets
from ipywidgets import IntSlider
from tqdm.notebook import tqdm
class Counter(anywidget.AnyWidget):
    _esm = '''export default { render({ model, el }) {
        const button = document.createElement("button");
        const paint = () => { button.textContent = `${model.get("bytes").byteLength} bytes, count ${model.get("count")}`; };
        button.onclick = () => { model.set("count", model.get("count") + 1); model.save_changes(); };
        model.on("change:count", paint);
        paint();
        el.append(button);
    } };'''
    count = traitlets.Int(0).tag(sync=True)
    bytes = traitlets.Bytes(b"12345").tag(sync=True)
for _ in tqdm(range(10)): pass
for _ in tqdm(range(30), leave=False): time.sleep(0.01)
slider, counter = IntSlider(value=3), Counter()
display(slider)
"""


def test_widgets_of_tasks_are_live_during_the_cell_and_after_it(open_notebook, flag):
    until = f"while not os.path.exists({str(flag)!r}):\n    time.sleep(0.01)\ncounter"
    look = "%%tfcluster --view text\nprint('value', slider.value, counter.count)"
    lines = (look, look, "%tfcluster kill worker-0", "%tfcluster stop")
    book = open_notebook("widgets.ipynb", "%load_ext tfmagic", WIDGETS + until, *lines)
    book.run(0)
    book.start(1)
    handles = book.output(1).locator("[role=slider]")
    expect(handles).to_have_count(2)
    expect(panel(book, "worker-0").get_by_text("10/10")).to_be_visible()
    expect(panel(book, "worker-0").get_by_text(re.compile("/30"))).to_have_count(0)
    for _ in range(3):  # the page sends the second step when the first one was handled
        panel(book, "worker-1").locator("[role=slider]").press("ArrowRight")
    expect(panel(book, "worker-1").locator(".widget-readout")).to_have_text("6")
    flag.touch()
    book.wait_until_ended(1)
    below = book.output(1).locator(".widget-vbox > .widget-hbox")
    expect(below).to_have_count(4)
    counters = below.get_by_role("button")
    counters.nth(1).click()
    expect(counters.nth(1)).to_have_text("5 bytes, count 1")
    text = book.output(1).locator("pre", has_text="100% |████████████████████| 10/10")
    expect(text).to_have_count(2)
    book.run(2)
    expect(book.output(2)).to_contain_text(re.compile("worker-0]: +value 3 0"))
    expect(book.output(2)).to_contain_text(re.compile("worker-1]: +value 6 1"))

    book.save()
    assert book.close_notebook()
    book.open_in_page("idle")
    row = below.filter(has_text="worker-0").first
    row.locator("[role=slider]").press("ArrowLeft")
    expect(row.locator(".widget-readout")).to_have_text("2")
    expect(below.filter(has_text="worker-1").locator(".widget-readout")).to_have_text("6")
    expect(counters.nth(1)).to_have_text("5 bytes, count 1")
    book.run(3)
    expect(book.output(3)).to_contain_text(re.compile("worker-0]: +value 2"))
    book.run(4)
    expect(handles).to_have_count(1)
    book.run(5)
    expect(handles).to_have_count(0)


RICH = """%%tfcluster --workers 2
import os, sys, time
from IPython.display import HTML, JSON, SVG, Latex, Markdown
print("to stdout")
print("to stderr", file=sys.stderr)
display(Markdown("# A heading\\n\\n| column |\\n|---|\\n| *entry* of $x_1*y*z$ |"))
display(Latex(r"$\\frac{a}{b}$"))
display(JSON({"first": [1, {"second": None}], "price": "$5 and $6 more"}))
display({"image/svg+xml": '<svg width="40" height="20"><rect width="40" height="20"/></svg>', "text/plain": "-"}, raw=True)
print("costs $5 and $6")
"""


def test_rich_displays_stand_in_the_panel_of_their_task_as_jupyterlab_shows_them(open_notebook, lab, flag):
    until = f"while not os.path.exists({str(flag)!r}): time.sleep(0.01)"
    book = open_notebook("rich.ipynb", "%load_ext tfmagic", RICH + until)
    book.run(0)
    book.start(1)
    log = book.output(1).get_by_role("log", name="Output of worker-0")
    expect(log.get_by_text("costs $5 and $6")).to_be_visible()
    _check_rich(log)
    expect(log.get_by_text("first")).to_be_visible()
    error = log.locator(".tfm-row", has_text="to stderr")
    colour = "element => getComputedStyle(element).backgroundColor"
    assert error.evaluate(colour) != log.locator(".tfm-row", has_text="to stdout").evaluate(colour)
    book.page.screenshot(path=str(lab.folder / "rich-live.png"))
    flag.touch()
    book.wait_until_ended(1)
    form = book.output(1).locator("details", has=book.page.get_by_text("worker-0", exact=True)).first
    _check_rich(form)
    expect(form.get_by_text("first")).to_be_visible()
    expect(form.locator("pre span", has_text="to stderr")).to_have_attribute(
        "style", re.compile("background")
    )
    expect(book.output(1).locator(".jp-OutputArea-child")).to_have_count(1)
    book.page.screenshot(path=str(lab.folder / "rich-final.png"))


def _check_rich(place):
    expect(place.locator("h1", has_text="A heading")).to_be_visible()
    expect(place.locator("td em", has_text="entry")).to_be_visible()
    expect(place.locator("mjx-container")).to_have_count(2)
    image = place.locator("img[src*=svg]").last
    expect(image).to_be_visible()
    assert image.evaluate("async element => { await element.decode(); return element.naturalWidth }") == 40
    expect(place.get_by_text("costs $5 and $6")).to_be_visible()


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
    assert alone.close_notebook()
    alone.path = path.name
    alone.open_in_page(kernel="")
    assert not alone.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.content.widgets[1].model.trusted"
    )
    expect(alone.shown.get_by_text("begun on worker-0")).to_be_visible()
    tinted = alone.shown.locator("div", has_text="2 of 2 done").last
    expect(tinted).to_have_css("background-color", "rgba(128, 128, 128, 0.07)")
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


def test_nested_uses_run_by_the_blocking_way(open_notebook):
    cells = (
        "%%time\nget_ipython().run_cell_magic('tfcluster', '', 'print(6 * 7)')",
        "%%capture caught\nget_ipython().run_cell_magic('tfcluster', '', 'print(6 * 7)')",
        "_ = get_ipython().run_cell('%%tfcluster\\nprint(6 * 7)')",
        "def f():\n    get_ipython().run_cell_magic('tfcluster', '', 'print(6 * 7)')\nf()",
        "%%time\n%%tfcluster\nprint(6 * 7)",
        "len(caught.outputs)",
    )
    book = open_notebook("nested.ipynb", LOAD, *cells)
    for index in range(len(cells) + 1):
        book.run(index)
    for index in (1, 3, 4):
        expect(book.output(index).get_by_text("42").first).to_be_visible()
    expect(book.output(6)).to_contain_text("1")


def test_a_detached_cell_stays_live_while_others_run(open_notebook, flag):
    loop = f"while not os.path.exists({str(flag)!r}):\n    time.sleep(0.01)\n"
    book = open_notebook(
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


def test_a_cell_that_asks_for_it_tells_the_browser_that_it_is_done(open_notebook, flag):
    loop = f"import os, time\nwhile not os.path.exists({str(flag)!r}):\n    time.sleep(0.01)\n"
    book = open_notebook(
        "notify.ipynb", LOAD, f"%%tfcluster --detach --notify --on worker-0\n{loop}[][1]", "%%tfcluster\n1"
    )
    book.page.evaluate(
        """() => { window.told = []; window.Notification = class {
            static permission = "granted";
            constructor(title, { body }) { window.told.push(`${title}: ${body}`); }
        } }"""
    )
    book.run(0)
    book.run(1)
    expect(book.output(1).get_by_role("log").first).to_be_attached()
    flag.touch()
    wait_until(lambda: book.page.evaluate("() => window.told.length"))
    (told,) = book.page.evaluate("() => window.told")
    assert re.match(r"tfmagic: cluster default: cell \[2\] failed after \d+ s: worker-0: IndexError", told), (
        told
    )


def test_the_buttons_of_notebook_7_work_while_a_cell_runs(open_notebook, flag):
    cells = (LOAD + "\nimport tfmagic", UNTIL.format(flag=str(flag)))
    book = open_notebook("seven.ipynb", *cells, app="notebook")
    book.run(0)
    book.start(1)
    expect(book.shown.get_by_text("begun on worker-0")).to_be_visible()
    button(book, "Interrupt").click()
    assert error_of(book) == "KeyboardInterrupt"


@pytest.mark.soak  # papermill executes with nbclient, as tests/notebooks does: test_quickstart
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
    book = open_notebook("hang.ipynb", LOAD + "\n%config TFCluster.stall_s = 2", hang)
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
        "death.ipynb",
        LOAD + "\nimport tfmagic",
        "%%tfcluster\nprint('well')\nimport os, time; time.sleep(0.3); os.getpid()",
        "%tfcluster kill worker-1",
        "%%tfcluster\n1",
    )
    book.run(0)
    book.run(1)
    book.run(2)
    expect(book.output(1)).to_contain_text("worker-1 was killed by you (SIGKILL)")
    expect(book.output(1)).to_contain_text("%tfcluster revive brings it back")
    expect(book.output(1).get_by_text("well").first).to_be_visible()
    book.run(3)
    expect(book.output(3)).to_contain_text("TaskDied")
    book.page.screenshot(path=str(lab.folder / "death.png"))


def test_pictures_need_no_trust_and_a_trusted_timeline_can_be_zoomed(open_notebook, lab):
    book = open_notebook(
        "pictures.ipynb",
        LOAD,
        "%%tfcluster\nimport time, tfmagic\ntime.sleep(tfmagic.current_task().index)\ntfmagic.barrier()",
        "%tfcluster map",
        "%tfcluster timeline",
    )
    for index in range(4):
        book.run(index)
    picture, wait = book.output(3).locator(".tfmagic-timeline svg"), "rect.span[fill^='url(#hatch-amber']"
    expect(picture.locator(wait)).to_have_count(1)  # drawn by the script
    first_tick = picture.locator(".axis text").first
    expect(first_tick).to_have_text("0 s")
    box = picture.bounding_box()
    book.page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] / 2)
    book.page.mouse.down()
    book.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] / 2, steps=3)
    book.page.mouse.up()
    assert 0.2 < float(first_tick.text_content().removesuffix(" s")) < 0.5  # of one second
    book.page.mouse.dblclick(box["x"] + box["width"] * 0.9, box["y"] + box["height"] - 5)
    expect(first_tick).to_have_text("0 s")
    picture.locator(wait).click()
    expect(book.output(3)).to_contain_text("worker-0: waits for worker-1 at barrier 1")
    book.page.screenshot(path=str(lab.folder / "pictures.png"))
    for theme, is_dark in (("Dark", True), ("Light", False)):
        book.page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })",
            f"JupyterLab {theme}",
        )
        image = book.output(2).locator("img.tfm-picture")
        wait_until(lambda image=image, is_dark=is_dark: is_dark == (max(corner_of(image)) < 60))
        wait_until(lambda is_dark=is_dark: is_dark == (max(corner_of(picture)) < 60))
    # the same outputs as a notebook of somebody else has them
    book.page.evaluate(
        "() => { for (const c of window.jupyterapp.shell.currentWidget.content.widgets) c.model.trusted = false }"
    )
    expect(picture).to_have_count(0)
    for index, title in ((2, "worker-1: worker: computes"), (3, "worker-0: waits for worker-1 at barrier 1")):
        image = book.output(index).locator("img[src^='data:image/svg']")
        expect(image).to_be_visible()
        spot = book.output(index).locator(f'[title^="{title}"]').first
        inner, outer = spot.bounding_box(), image.bounding_box()
        assert outer["x"] < inner["x"] and inner["x"] + inner["width"] <= outer["x"] + outer["width"] + 1
        assert outer["y"] < inner["y"] and inner["y"] + inner["height"] < outer["y"] + outer["height"]
        assert inner["width"] > 20 and inner["height"] > 10
    book.output(2).locator("summary", has_text="TF_CONFIG of worker-1").click()
    expect(book.output(2).get_by_text("this task listens here").locator("visible=true")).to_have_count(1)


def corner_of(picture):
    """Return the colour of the paper of a picture, as it is shown."""
    image = Image.open(io.BytesIO(picture.screenshot()))
    return image.convert("RGB").getpixel((12, 12))


@pytest.mark.soak  # the frame that a kernel displays, and what TensorBoard serves: test_log_folders
def test_tensorboard_is_a_frame_in_the_notebook(open_notebook, tmp_path):
    (tmp_path / "worker-0").mkdir()
    cells = ("%tfcluster start --workers 1", f"%tfcluster tensorboard {tmp_path}", "%tfcluster stop")
    book = open_notebook("tensorboard.ipynb", LOAD, *cells)
    for index in range(3):
        book.run(index)
    board = book.output(2).frame_locator("iframe")
    expect(board.get_by_text("No dashboards are active").first).to_be_visible(timeout=30_000)
    book.run(3)
