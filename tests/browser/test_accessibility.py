"""The panel, the saved form and the pictures without a mouse, without colours, read aloud, and enlarged.

Axe checks names, roles and contrast; it checks nothing that it takes for invisible, so each test counts what it saw.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from conftest import wait_until
from pages import write_notebook
from playwright.sync_api import expect

expect.set_options(timeout=30_000)
AXE = Path(sys.prefix) / "node_modules/axe-core/axe.min.js"  # `make test` installs it: npm install axe-core
OPTIONS = {"rules": {"target-size": {"enabled": True}}}
LOAD = "%load_ext tfmagic\n%config TFCluster.stall_s = {}\n%tfcluster start --workers {}\nimport tfmagic"
RUN = """%%tfcluster
import os, sys, time
print("begun on", tfmagic.current_task().name)
print(" ".join(f"\\033[{30 + n}mcolour {n}\\033[{90 + n}mbright {n}\\033[0m" for n in range(8)))
print("\\033[31mred\\033[0m \\033[2mfaint\\033[0m \\033[41msurface\\033[0m", file=sys.stderr)
print("ready")
for step in range(9):
    tfmagic.track(step=step, loss=1 / (step + 1 + tfmagic.current_task().index))
while not os.path.exists(FLAG):
    time.sleep(0.02)
tfmagic.current_task().index
"""
NO_PANEL = "from tfmagic.views import panel\nafter_s, panel._SHOW_AFTER_S = panel._SHOW_AFTER_S, 60"  # however busy it is
PANEL = "panel._SHOW_AFTER_S = after_s"  # the next notebook has this kernel
HEIGHT = "body { height: 100vh }"  # axe sees no text in a page without height
COLOURS = ("colour 0", "colour 7", "bright 0", "bright 7", "red", "faint", "surface")
FAIL = """%%tfcluster --keep-going
import os, time
print("begun")
if tfmagic.current_task().index:
    raise ValueError("bad batch 3")
while not os.path.exists(FLAG):
    time.sleep(0.02)
"""


class Book:
    """A notebook in JupyterLab whose cells end when `end` is called.

    Attributes:
        notebook: The open notebook.
        page: The page of Playwright.
    """

    def __init__(self, pages, folder, name, *cells, workers=2, stall_s=10):
        self._pages, self._flag = pages, folder / f"{name}-go"
        cells = [cell.replace("FLAG", repr(str(self._flag))) for cell in cells]
        write_notebook(pages.server.folder / f"{name}.ipynb", LOAD.format(stall_s, workers), *cells)
        self.notebook = pages.open(f"{name}.ipynb")
        self.page = self.notebook.page
        self.page.set_viewport_size({"width": 1280, "height": 1600})
        self.page.add_style_tag(content=HEIGHT)
        self.page.evaluate(AXE.read_text())
        self.page.evaluate("() => { window.jupyterapp.shell.collapseLeft() }")
        self.notebook.run(0)

    def load_again(self):
        """Save the notebook, and load its page again."""
        self.notebook.save()
        self.notebook.open()
        self.page.add_style_tag(content=HEIGHT)

    def begin(self, index, text):
        """Start a cell, and wait for this text."""
        self._flag.unlink(missing_ok=True)
        self.notebook.at = index
        self.notebook.start(index)
        expect(self.shown.locator(".tfm-live").get_by_text(text).first).to_be_visible()

    @property
    def shown(self):
        return self.notebook.shown

    def end(self):
        self._flag.touch()
        self.notebook.wait_until_ended(self.notebook.at)
        expect(self.shown.locator(".tfm-root")).to_have_count(0)

    def use_theme(self, name):
        self.page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })",
            f"JupyterLab {name}",
        )
        is_light = str(name == "Light").lower()
        expect(self.page.locator(f"body[data-jp-theme-light={is_light}]")).to_be_attached()
        ending = "a => a.playState === 'running' && a.effect.getTiming().iterations < Infinity"
        wait_until(lambda: not self.page.evaluate(f"() => document.getAnimations().some({ending})"))

    def listen(self):
        """Note from now on what a screen reader gets to read, in a page that has shown no panel yet."""
        self.page.evaluate(
            """() => { document.querySelector('.tfm-announcements')?.remove();
            window.told = []; window.listener?.disconnect();
            const note = text => window.told.push([performance.now(), text]);
            window.listener = new MutationObserver(records => { for (const { target, addedNodes } of records) for (const node of addedNodes)
                if (target.matches('.tfm-announcements')) note(node.textContent);
                else if (node.matches?.('.tfm-announcements') && node.textContent) note('UNREAD, with the region');
            });
            window.listener.observe(document.body, { childList: true, subtree: true }) }"""
        )

    def told(self, end):
        """Return what was read, each with its time in ms, when a text with these words was the last."""
        wait_until(lambda: any(end in text for _, text in self.page.evaluate("() => window.told")))
        return self.page.evaluate("() => window.told.splice(0)")

    @property
    def focused(self):
        """The name of the element that has the focus."""
        return self.page.evaluate(
            "() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
        )

    def close(self):
        self._flag.touch()
        self._pages.close(self.notebook)


@pytest.fixture(scope="module")
def book_of_module(pages, tmp_path_factory):
    made = Book(pages, tmp_path_factory.mktemp("flags"), "running", RUN, stall_s=0)  # no task stalls
    yield made
    made.close()


@pytest.fixture
def running(book_of_module):
    """Return a notebook whose cell 2 runs; a test can end it."""
    if not book_of_module.notebook.is_running(1):
        book_of_module.begin(1, "begun on worker-0")
    return book_of_module


@pytest.fixture
def book(pages, tmp_path):
    """Return a notebook with a cell that runs, one that fails and pictures."""
    made = Book(pages, tmp_path, "states", RUN, FAIL, "%tfcluster map", "%tfcluster timeline")
    yield made
    made.close()


def check(book, locator, *texts):
    """Let axe look at the elements in both themes; it must have measured the contrast of these texts."""
    expect(locator.first).to_be_visible()
    book.page.evaluate("() => document.querySelectorAll('[data-axe]').forEach(e => delete e.dataset.axe)")
    locator.last.scroll_into_view_if_needed()  # nor does it measure a text that is scrolled out of sight
    locator.evaluate_all("elements => elements.forEach(element => { element.dataset.axe = '' })")
    for theme in ("Dark", "Light"):
        book.use_theme(theme)
        found = book.page.evaluate("options => axe.run('[data-axe]', options)", OPTIONS)
        assert found["violations"] == [], f"{theme}: {json.dumps(found['violations'], indent=1)}"
        seen = next(rule for rule in found["passes"] if rule["id"] == "color-contrast")
        measured = "".join(node["html"] for node in seen["nodes"])
        missed = [text for text in texts if text not in measured]
        assert missed == [], [
            (node["html"], node["any"][0]["message"])
            for rule in found["incomplete"]
            for node in rule["nodes"]
        ]


def test_axe_finds_nothing_wrong_with_panel_form_and_pictures(book):
    forms = book.page.locator("[data-tfmagic]:visible")
    book.begin(1, "begun on worker-0")
    expect(book.shown.locator(".tfm-figures img[alt^='loss: worker-0 0.1111']")).to_be_visible()
    check(book, book.shown.locator(".tfm-root"), "0 of 2 done", "line 10", "bright 7")
    book.shown.get_by_role("switch", name="Merged").click()
    expect(book.shown.get_by_role("log", name="Output of all tasks, merged")).to_be_visible()
    check(book, book.shown.locator(".tfm-root"), *COLOURS, "×2")
    book.end()
    check(book, forms, *COLOURS, "2 of 2 done")
    expect(forms.locator("img[alt^='loss: worker-0 0.1111']")).to_be_visible()  # the chart
    book.begin(2, "ValueError")
    check(book, book.shown.locator(".tfm-root"), "ValueError", ": bad batch 3", "failed")
    book.end()
    check(book, forms, "ValueError", ": bad batch 3", "line 5 of the cell")
    for index, name in ((3, "cluster default: 2 workers"), (4, "cluster default: cell [3] on 2 tasks")):
        book.notebook.run(index)
        book.notebook.at = index
        shown = book.shown.locator(".jp-OutputArea-output").first
        expect(shown.locator(f"img[alt^='{name}'], svg[role=img] > title").first).to_be_attached()
        shown.locator("summary", has_text="As text").click()
        expect(shown.locator("pre", has_text="worker-1")).to_be_visible()
        check(book, shown, "As text")


def test_each_control_is_reached_by_keyboard_and_can_be_seen_to_have_the_focus(running):
    running.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.activeCell.node.focus()")
    seen, wanted = [], ["Filter lines", "Merged", "Interrupt", "Stop"]
    for task in ("worker-0", "worker-1"):
        wanted += [
            f"Interrupt {task}",
            f"Kill {task}",
            f"Stacks of {task}",
            f"Open log of {task}",
            f"Output of {task}",
        ]
    outline = "() => getComputedStyle(document.activeElement).outline"
    row = re.compile(r"[a-z]+worker-\d")  # begins with what its task does
    while "Output of worker-1" not in seen and len(seen) < 40:
        running.page.keyboard.press("Tab")
        seen.append(running.focused)
        if seen[-1] in wanted or row.match(seen[-1]):
            assert re.search(r"solid 2px$", running.page.evaluate(outline)), seen[-1]
    assert [name for name in seen if name in wanted] == wanted
    assert [bool(row.match(name)) for name in seen].count(True) == 2, seen


def test_keys_open_arm_filter_and_leave(running):
    row = running.shown.locator("summary", has_text="worker-0")
    row.focus()
    for key in ("Enter", "Space"):
        before = row.evaluate("element => element.parentElement.open")
        running.page.keyboard.press(key)
        assert row.evaluate("element => element.parentElement.open") is not before
    kill = running.shown.get_by_role("button", name="Kill worker-0", exact=True)
    kill.focus()
    running.page.keyboard.press("Space")
    sure = running.shown.get_by_role("button", name="Kill worker-0 and lose its variables?")
    expect(sure).to_be_focused()
    running.page.keyboard.press("Escape")
    expect(sure).to_have_count(0)
    expect(kill).to_be_focused()
    running.page.keyboard.press("Enter")
    expect(sure).to_be_focused()
    running.page.keyboard.press("Tab")  # whoever goes on has not decided
    expect(sure).to_have_count(0)
    search = running.shown.get_by_role("searchbox", name="Filter lines")
    search.focus()
    running.page.keyboard.type("begun")
    expect(running.shown.get_by_text("2 of 8 lines")).to_be_visible()
    running.page.keyboard.press("Escape")
    expect(search).to_have_value("")
    expect(running.shown.get_by_text("2 of 8 lines")).to_have_count(0)
    running.page.keyboard.press("Escape")
    assert running.page.evaluate("() => document.activeElement.matches('.jp-Cell.jp-mod-active')")
    assert running.notebook.is_running(1)


@pytest.mark.parametrize("width", [400, 640], ids=["400 px", "200 %"])
def test_nothing_is_lost_on_a_narrow_page(running, width):
    size = running.page.viewport_size
    running.shown.locator("summary", has_text="worker-0").click()  # closed, it shows its last line
    try:
        running.page.set_viewport_size({"width": width, "height": 900})
        root = running.shown.locator(".tfm-root")
        wait_until(lambda: root.bounding_box()["width"] < width)
        expect(root.locator(".tfm-last").first).to_be_visible()
        texts = (
            ".tfm-head > :not(svg), .tfm-head span:not(:empty), .tfm-button, .tfm-row, .tfm-facts > *, img"
        )
        cut = root.locator(texts).evaluate_all(
            """elements => { const right = document.querySelector('.tfm-live').getBoundingClientRect().right;
            return elements.filter(e => e.checkVisibility() && (e.getBoundingClientRect().right > right
                || (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflow === 'hidden')))
                .map(e => e.outerHTML) }"""
        )
        assert cut == []
    finally:
        running.page.set_viewport_size(size)
        running.shown.locator("summary", has_text="worker-0").click()


def test_a_whole_log_is_a_page_with_a_name_and_a_heading(running):
    with running.page.context.expect_page() as opened:
        running.shown.get_by_role("button", name="Open log of worker-0").press("Enter")
    page = opened.value
    expect(page.locator("main")).to_contain_text("begun on worker-0")
    assert page.title() == "Log of worker-0"
    page.evaluate(AXE.read_text())
    assert page.evaluate("async () => (await axe.run()).violations") == []
    page.close()


def test_nothing_moves_for_users_who_ask_for_that(running):
    running.page.emulate_media(reduced_motion="reduce")
    moving = "() => document.getAnimations().filter(a => a.effect.target.closest?.('.tfm-root')).map(a => a.playState)"
    try:
        running.shown.get_by_role("button", name="Stacks of worker-0").click()
        assert running.page.evaluate(moving) == []
        running.page.emulate_media(reduced_motion="no-preference")
        running.shown.get_by_role("button", name="Stacks of worker-0").click()
        assert "running" in running.page.evaluate(moving)
    finally:
        running.page.emulate_media(reduced_motion=None)


def test_progress_and_end_are_read_out_politely(running):
    bar = running.shown.get_by_role("progressbar", name="Tasks that are done")
    expect(bar).to_have_attribute("aria-valuetext", "0 of 2 done")
    expect(bar).to_have_attribute("aria-valuemax", "2")
    told = running.page.locator(".tfm-announcements")
    expect(told).to_have_attribute("aria-live", "polite")
    expect(told).not_to_contain_text("interrupted")  # of an earlier test: it is gone soon
    running.shown.get_by_role("button", name="Interrupt", exact=True).press("Enter")
    expect(told).to_contain_text(re.compile(r"Cell \d+ is over: interrupted"))  # also when the panel has gone
    number = re.search(r"Cell (\d+) is over: interrupted", told.inner_text())[1]
    running.notebook.wait_until_ended(1)
    prompt = running.page.locator(".jp-Notebook .jp-Cell").nth(1).locator(".jp-InputArea .jp-InputPrompt")
    expect(prompt).to_have_text(f"[{number}]:")
    expect(running.shown.locator(".tfm-root")).to_have_count(0)
    # by words, too: the sign and its colour are those of other ends
    expect(running.shown.get_by_text("0 of 2 done, interrupted")).to_be_visible()


@pytest.mark.parametrize("pause_ms", [0, 1000], ids=["at once", "late"])
def test_the_focus_stays_on_its_task_when_the_form_takes_the_place_of_the_panel(running, pause_ms):
    running.page.evaluate(
        """pause => { const { outputs } = window.jupyterapp.shell.currentWidget.content.widgets[1].model;
        outputs.set = (_, form) => setTimeout(() => {
            delete outputs.set;
            const places = Array.from({ length: outputs.length }, (_, place) => place);
            outputs.set(places.find(place => outputs.get(place).data["text/html"]), form);
        }, pause) }""",
        pause_ms,
    )
    running.shown.get_by_role("button", name="Stacks of worker-1").focus()
    running.end()
    wait_until(lambda: running.focused.startswith("worker-1 done"))
    assert running.page.evaluate("() => document.activeElement.tagName") == "SUMMARY"
    running.page.keyboard.press("Enter")  # and it works
    expect(running.shown.locator("details", has=running.page.locator(":focus"))).not_to_have_attribute(
        "open", ""
    )
    running.begin(1, "begun on worker-0")
    running.shown.get_by_role("searchbox").focus()
    running.end()
    wait_until(lambda: running.focused == "Filter lines")
    running.page.keyboard.type("begun")
    running.page.evaluate(  # as with a note that comes later
        """() => { const { outputs } = window.jupyterapp.shell.currentWidget.content.widgets[1].model;
        document.activeElement.closest("[data-tfmagic]").classList.add("former");
        for (let place = 0; place < outputs.length; place++) outputs.set(place, outputs.get(place).toJSON()) }"""
    )
    expect(running.page.locator(".former")).to_have_count(0)
    wait_until(lambda: running.focused == "Filter lines")
    running.page.keyboard.type(" on")
    expect(running.page.locator(":focus")).to_have_value("begun on")
    expect(running.shown.get_by_text(re.compile(r"^2 of \d+ lines"))).to_be_visible()
    running.begin(1, "begun on worker-0")
    running.shown.get_by_role("button", name="Interrupt", exact=True).focus()
    running.end()
    wait_until(lambda: "2 of 2 done" in running.focused)


def test_the_focus_stays_on_a_control_that_does_nothing_any_more(book):
    book.begin(2, "ValueError")
    control = book.shown.get_by_role("button", name="Interrupt worker-1")
    expect(control).to_be_disabled()
    control.focus()
    book.page.keyboard.press("Enter")
    assert book.notebook.is_running(2)
    book.page.evaluate(  # this ends the cell, and the panel stays
        "() => { window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart() }"
    )
    for name in ("Kill worker-1", "Stop"):
        expect(book.shown.get_by_role("button", name=name)).to_be_disabled()
    expect(control).to_be_focused()


def test_a_focus_that_has_left_the_panel_stays_where_it_is(running):
    running.shown.get_by_role("button", name="Stacks of worker-1").focus()
    running.page.get_by_role("textbox").first.focus()
    elsewhere = running.page.evaluate_handle("() => document.activeElement")
    running.end()
    assert elsewhere.evaluate("element => element === document.activeElement")


def test_a_failure_before_there_is_a_panel_is_read_out_the_cause_first(pages, tmp_path):
    fails = """%%tfcluster
    if tfmagic.current_task().index:
        raise ValueError("bad batch 3")
    tfmagic.barrier()
    """
    cells = (RUN, NO_PANEL, textwrap.dedent(fails), "%%tfcluster\n1 / 0", PANEL)
    book = Book(pages, tmp_path, "short", *cells, stall_s=0)
    book.listen()
    book.begin(1, "begun on worker-0")
    book.end()
    book.told("Cell 2 is over: done")
    book.notebook.run(2)
    book.notebook.run(3)
    ((_, said),) = book.told("Cell 4 is over: failed")
    assert said.startswith(
        "worker-1 failed: ValueError: bad batch 3. worker-0 failed as a consequence: BrokenBarr"
    )
    book.notebook.run(4)
    ((_, said),) = book.told("Cell 5 is over: failed")
    assert said.count("failed: ZeroDivisionError: division by zero. ") == 2
    book.notebook.run(5)
    book.close()


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (
            "if not tfmagic.current_task().index:\n    1 / 0",
            "worker-0 failed: ZeroDivisionError: division by zero. ",
        ),
        (
            "from tfmagic.task.tensorflow import notices\n"
            "notices.hint_once('own-statistics', 'A hint for you.')",
            "Hint: A hint for you.",
        ),
    ],
    ids=["failure", "hint"],
)
def test_a_cell_of_a_page_that_has_had_no_panel_is_read_out(pages, tmp_path, cell, said):
    forget = "from tfmagic.views import widget\nwidget.close_all()"  # a page that is loaded gets those of its kernel
    cells = (f"%%tfcluster\n{cell}", f"{forget}\n{NO_PANEL}", PANEL)
    book = Book(pages, tmp_path, "fresh", *cells, stall_s=0)
    book.notebook.run(2)
    book.load_again()
    assert book.page.locator(".tfm-announcements").count() == 0, "it has no script of ours"
    book.listen()
    book.notebook.run(1)
    told = book.told("Cell 3 is over: ")
    assert told[0][1].startswith(said), told
    assert book.page.locator(".tfm-root").count() == 0
    outputs = book.notebook.save().cells[1].outputs
    assert [o.output_type for o in outputs] == ["display_data", "error"][: len(outputs)]
    assert len(outputs) == 1 + ("failed" in said)
    book.notebook.run(3)
    book.close()


def test_a_crowd_of_failures_is_a_short_sentence_and_the_end_is_the_last(pages, tmp_path):
    """The page is not seen, so it gets no frames: the panel tells all when it goes."""
    fails = """%%tfcluster --keep-going
    import os, time
    print("begun")
    here = tfmagic.current_task().index
    while not os.path.exists(FLAG + ("-first" if here < 4 else "")):
        time.sleep(0.02)
    open(f"{FLAG}-{here}", "w").write(str(os.getpid()))
    raise ValueError("x" * 5000)
    """
    book = Book(pages, tmp_path, "crowd", textwrap.dedent(fails), workers=6, stall_s=0)
    book.listen()
    book.begin(1, "6 running")
    book.page.evaluate(
        """() => { const frame = window.frame = window.requestAnimationFrame;
        window.requestAnimationFrame = f => /this\\.flush\\(\\)/.test(f) ? 1 : frame(f) }"""
    )
    (tmp_path / "crowd-go-first").touch()
    expect(book.shown.locator("details.tfm-task[open]")).to_have_count(4)  # the failed ones
    kernel = psutil.Process(book.notebook.kernel_pid)
    kernel.suspend()  # so that one message has the last failures and the end
    (tmp_path / "crowd-go").touch()
    last = [tmp_path / f"crowd-go-{index}" for index in (4, 5)]
    wait_until(lambda: all(path.exists() and path.read_text() for path in last))
    wait_until(lambda: all(psutil.Process(int(path.read_text())).status() == "sleeping" for path in last))
    kernel.resume()
    told = book.told("is over: failed")
    assert [re.sub("x+|-[0-5]", "#", text) for _, text in told] == [
        f"{3 * 'worker# failed: ValueError: #. '}and 3 more. Cell 2 is over: failed"
    ]
    assert len(told[0][1]) < 1100
    book.page.evaluate("() => { window.requestAnimationFrame = window.frame }")
    book.close()


def test_what_comes_and_goes_is_told_once(pages, tmp_path):
    stalls = """%%tfcluster
    import os, time
    step = 0
    while not os.path.exists(FLAG):
        print("step", step)
        step += 1
        time.sleep(1.5)
    """
    book = Book(pages, tmp_path, "stalls", textwrap.dedent(stalls), workers=1, stall_s=0.5)
    book.listen()
    book.begin(1, "step 3")
    book.end()
    told = book.told("is over: done")
    sentences = [sentence for _, text in told for sentence in text.split(". ")]
    assert any("worker-0 stalled" in sentence for sentence in sentences)
    assert len(set(sentences)) == len(sentences), sentences
    assert all(after[0] - before[0] >= 2000 for before, after in pairwise(told[:-1])), told
    book.close()


def test_a_timeline_is_read_and_zoomed_by_keyboard(book):
    book.begin(1, "begun on worker-0")
    book.end()
    book.notebook.run(4)
    book.notebook.at = 4
    tools = book.shown.get_by_role("button", name="Next")
    tools.focus()
    book.page.keyboard.press("Enter")
    live = book.shown.locator(".tfmagic-timeline [aria-live=polite]")
    expect(live).to_contain_text(re.compile(r"worker-\d: running\s.* s to "))
    first = live.text_content()
    book.page.keyboard.press("Space")
    expect(live).not_to_have_text(first)
    book.shown.get_by_role("button", name="Previous").press("Enter")
    expect(live).to_have_text(first)
    ticks = book.shown.locator(".tfmagic-timeline .axis text")
    whole = ticks.all_text_contents()
    book.shown.get_by_role("button", name="Zoom in").press("Enter")
    assert ticks.all_text_contents() != whole
    book.shown.get_by_role("button", name="Whole").press("Enter")
    expect(ticks.first).to_have_text("0 s")
