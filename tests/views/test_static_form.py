"""The static form of a cell: html without script or style sheet, and text, both of bounded size."""

import base64
import json
import re
import time
from html.parser import HTMLParser

import pytest

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import Displayed, FeatureRecorded
from tfmagic.runs.cell_records import (
    CellRecord,
    ErrorRecord,
    TaskRecord,
    append_display,
    append_record,
    read_displays,
    read_records,
)
from tfmagic.runs.feature_records import append_feature_record
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.given_hints import Hint, append_hint
from tfmagic.views import embedding, static_form
from tfmagic.views.values import fold_values

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Balanced(HTMLParser):
    """Fails if html does not close its tags in order, or runs anything."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "style", "iframe", "svg")
        assert not any(name.startswith("on") for name, _ in attrs)
        assert not any("var(" in (value or "") for _, value in attrs), "the sanitizer drops variables"
        self.tags.append(tag)
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


class Kept:
    """A cell on disk."""

    def __init__(self, folder, **logs):
        self.run = RunFolder(folder)
        self.tasks = []
        for name, data in logs.items():
            task = TaskId(*_split(name))
            self.run.log_path(task).write_bytes(data)
            self.tasks.append(TaskRecord(task.name, "done", seconds=0.5, start=0, end=len(data)))

    def change(self, place, **facts):
        from dataclasses import replace

        self.tasks[place] = replace(self.tasks[place], **facts)

    def display(self, place, offset, data, **content):
        task = TaskId(*_split(self.tasks[place].task.replace("-", "_")))
        bundle = json.dumps({"data": data, "metadata": {}, **content}).encode()
        append_display(self.run, Displayed(task, 1, 1, offset, bundle), 1 << 30)

    def render(self, verdict="done", **how):
        record = CellRecord(1, "default", "2 workers", tuple(self.tasks), 7, "x", time.time(), 1.5, verdict)
        return static_form.render(record, self.run, **how)


def _split(name):
    kind, _, index = name.partition("_")
    return kind, int(index)


def words(html):
    return re.sub(r"<[^>]+>", " ", html)


def test_the_text_is_the_prefixed_lines(tmp_path):
    form = Kept(tmp_path, worker_0=b"a\nb\n", worker_1=b"c").render()
    assert form.text.splitlines() == ["[worker-0]:    a", "[worker-0]:    b", "[worker-1]:    c"]


def test_the_html_has_a_panel_for_each_task_with_output(tmp_path):
    form = Kept(tmp_path, worker_0=b"hello\n", worker_1=b"").render()
    assert Balanced(form.html).tags.count("details") == 1
    assert '<details open="" ' in form.html and "worker-0" in form.html  # euporie needs the value
    assert "2 of 2 done" in words(form.html) and "1.50 s" in form.html


def test_what_was_tracked_is_a_chart_and_its_last_values_are_text(tmp_path):
    kept = Kept(tmp_path, worker_0=b"a\n", worker_1=b"b\n")
    for number in range(2):
        task = TaskId("worker", number)
        append_feature_record(
            kept.run, FeatureRecorded(task, 1, 1, "track", b'{"loss<":[[0,1],[1,0.5]]}'), 1 << 20
        )
    form = kept.render()
    Balanced(form.html)
    assert form.text.splitlines()[-1] == "loss<: worker-0 0.5 (step 1), worker-1 0.5 (step 1)"
    (code,) = re.findall(
        r'src="data:image/svg\+xml;base64,([^"]+)" alt="loss&lt;: worker-0 0.5 [^"]*"', form.html
    )
    assert base64.b64decode(code).count(b"<polyline") == 2
    small = kept.render(limit_bytes=4_000)
    assert "data:image" not in small.html and small.text.endswith("(step 1)"), "the text has it in any case"


def test_a_hint_is_a_bar_that_the_heading_counts_and_a_line_below_the_output(tmp_path):
    kept = Kept(tmp_path, worker_0=b"a\n", worker_1=b"b\n")
    assert "1 hint" not in words(kept.render().html)
    for name in ("worker-0", "worker-1"):
        append_hint(kept.run, 1, Hint("a-name", "Write <this>.", (name,)))
    form = kept.render()
    assert Balanced(form.html).tags.count("details") == 2
    assert form.html.count('role="note"') == 1 and "1 hint" in words(form.html.partition('role="note"')[0])
    assert "Hint for worker-0, worker-1 : Write &lt;this&gt;." in words(form.html)
    assert form.text.splitlines()[-1].startswith("tfmagic: hint: Write <this>. (worker-0, worker-1; ")
    error = ErrorRecord("ValueError", "bad", hint="Mend it.", hint_name="mend")
    kept.change(0, state="failed", error=error)
    form = kept.render("failed")
    assert "2 hints" in words(form.html) and "Hint for worker-0 : Mend it." in words(form.html)
    assert "Mend it" not in form.text, "its traceback has it"


def test_hints_without_end_leave_room_for_the_rest(tmp_path):
    kept = Kept(tmp_path, worker_0=b"a line\n" * 2000)
    for number in range(500):
        append_hint(kept.run, 1, Hint("a-name", f"Do it {number} times. " * 20, ("worker-0",)))
    form = kept.render(limit_bytes=60_000)
    assert len(form.html.encode()) + len(form.text.encode()) <= 60_000
    assert "500 hints" in words(form.html) and "a line" in words(form.html)


def test_the_end_is_a_word_where_no_task_says_it_and_the_keyboard_scrolls_a_log(tmp_path):
    kept = Kept(tmp_path, worker_0=b"\x1b[31mred\x1b[0m\n")
    page = kept.render("timed out").html
    assert "1 of 1 done, timed out" in words(page)
    assert '<div tabindex="0" role="group" aria-label="Output of worker-0"' in page
    assert "color:#d9485f;color:color-mix(in srgb, #d9485f 70%, currentcolor);" in page


def test_a_root_cause_stands_above_what_follows_from_it(tmp_path):
    kept = Kept(tmp_path, worker_0=b"a\n", worker_1=b"b\n", worker_2=b"c\n")
    kept.change(0, state="failed", error=ErrorRecord("UnavailableError", "a peer is gone", root=False))
    kept.change(2, state="failed", error=ErrorRecord("ValueError", "bad batch 3"))
    form = kept.render("failed")
    assert form.text.splitlines() == ["[worker-2]:    c", "[worker-0]:    a", "[worker-1]:    b"]
    assert form.html.index("bad batch 3") < form.html.index("a peer is gone")
    kept.change(0, state="done", error=None)
    assert kept.render("failed").text.startswith("[worker-0]:    a"), "nothing follows from it: in order"


def test_a_silent_cell_is_one_line(tmp_path):
    form = Kept(tmp_path, worker_0=b"", worker_1=b"").render()
    assert form.text == "" and "<details" not in form.html


def test_the_failing_task_is_open_and_has_its_traceback(tmp_path):
    kept = Kept(tmp_path, **{f"worker_{n}": b"x\n" for n in range(6)})
    kept.change(3, state="failed", error=ErrorRecord("ValueError", "<b>bad", 2, "Traceback ..."))
    html = kept.render("failed").html
    Balanced(html)
    assert html.count("<details open") == 1
    assert "&lt;b&gt;bad" in html and "line 2 of the cell" in html and "1 failed" in words(html)
    assert "background:" not in html  # JupyterLab takes long to read it: see `static_html`


def test_markup_in_output_is_text(tmp_path):
    form = Kept(tmp_path, worker_0=b"<script>alert(1)</script></details>\x1b[31mred\x1b[0m\n").render()
    Balanced(form.html)
    assert "&lt;script&gt;" in form.html and "color:#" in form.html
    assert form.text == "[worker-0]:    <script>alert(1)</script></details>red"


def test_html_and_text_together_stay_below_the_limit(tmp_path):
    lines = b"".join(b"<&>%064d\n" % n for n in range(200_000))
    for limit in (20_000, 200_000):
        form = Kept(tmp_path, worker_0=lines, worker_1=lines, ps_0=b"short\n").render(limit_bytes=limit)
        assert limit / 3 < len(form.html.encode()) + len(form.text.encode()) < limit
        Balanced(form.html)
        assert f"<&>{0:064d}" in form.text and f"<&>{199_999:064d}" in form.text
        assert "left out here; the whole: " in form.text and str(tmp_path) in form.html
        assert re.search(r"worker-0</b>.*?200,000 lines</div>", form.html)
        head = form.html.partition("<details")[0]
        assert "left out here:  %tfcluster attach " in head and " --cell 7 --full" in head
        assert form.text.splitlines()[-1].startswith("tfmagic: ")
        left = sum(int(n.replace(",", "")) for n in re.findall(r"\[([\d,]+) lines, ", form.text))
        assert left + form.text.count("\n[worker-") + 1 - 2 == 400_000
        assert "[ps-0]:        short" in form.text


def test_one_long_line_that_is_left_out_is_one_line(tmp_path):
    text = Kept(tmp_path, worker_0=b"before\n" + b"y" * 3_000_000 + b"\nafter\n").render().text
    assert "    before\n[worker-0]:    [1 line, 2.9 MiB, left out here; the whole: " in text
    assert "]\n[worker-0]:    after\ntfmagic: 1 line, 2.9 MiB, left out here:  " in text


def test_attach_full_leaves_nothing_out_of_a_part_of_megabytes(tmp_path):
    kept = Kept(tmp_path, worker_0=b"".join(b"%069d\n" % n for n in range(40_000)))
    assert "left out here" in kept.render().html
    full = kept.render(limit_bytes=static_form.FULL_BYTES)
    assert "left out here" not in full.html + full.text and full.html.count("\n") == 39_999


def test_a_thousand_failing_tasks_stay_below_the_limit(tmp_path):
    kept = Kept(tmp_path, **{f"worker_{n}": b"x" * 300 + b"\n" for n in range(1000)})
    for place in range(0, 1000, 2):
        kept.change(place, state="failed", error=ErrorRecord("ValueError", "bad" * 50, 2, "Traceback" * 500))
    form = kept.render("failed")
    assert len(form.html.encode()) + len(form.text.encode()) < 200_000
    assert "more tasks had output" in form.html and "500 failed" in words(form.html)


def test_of_many_tasks_those_that_failed_stand_first(tmp_path):
    kept = Kept(tmp_path, **{f"worker_{n}": b"x\n" for n in range(64)})
    kept.change(40, state="failed", error=ErrorRecord("ValueError", "bad"))
    kept.change(20, state="died", error=ErrorRecord("TaskDied", "gone"))
    form = kept.render("failed")
    assert re.findall(r">(worker-\d+)</b>", form.html)[:4] == [
        "worker-20",
        "worker-40",
        "worker-0",
        "worker-1",
    ]
    assert form.text.startswith("[worker-20]:   x\n[worker-40]:   x\n[worker-0]:    x\n")


def test_the_folder_of_the_logs_is_named_once(tmp_path):
    assert Kept(tmp_path, worker_0=b"x\n", worker_1=b"x\n").render().html.count(f"logs: {tmp_path}") == 1
    assert "logs: " not in Kept(tmp_path, worker_0=b"", worker_1=b"").render().html


def test_the_lines_of_a_draft_that_were_not_counted_are_no_number(tmp_path):
    form = Kept(tmp_path, worker_0=b"%069d\n" % 0 * 100_000).render("")
    assert not re.search(r"\d lines", words(form.html)) and "left out here:  %tfcluster attach" in form.html


def test_wide_characters_count_in_bytes(tmp_path):
    form = Kept(tmp_path, worker_0="日本語の行\n".encode() * 50_000).render(limit_bytes=50_000)
    assert len(form.html.encode()) + len(form.text.encode()) < 50_000


def test_noise_is_folded_unless_switched_off(tmp_path):
    kept = Kept(tmp_path, worker_0=b"I0000 00:00:1795263132.426098   21339 port.cc:153] oneDNN\nmine\n")
    assert "TensorFlow log: 1 line" in kept.render().html
    off = kept.render(fold_noise=False)
    assert "TensorFlow log" not in off.html and "oneDNN" in off.html and "oneDNN" in off.text


def test_a_figure_stands_where_it_happened_and_an_equal_one_is_kept_once(tmp_path):
    kept = Kept(tmp_path, worker_0=b"before\nafter\n", worker_1=b"")
    for place, offset in ((0, 7), (1, 0)):
        kept.display(place, offset, {"image/png": PNG, "text/plain": "<Figure>"})
    form = kept.render()
    Balanced(form.html)
    assert form.html.index("before") < form.html.index("data:image/png") < form.html.index("after")
    assert form.html.count("data:image/png") == 1 and "equal to that of worker-0" in form.html
    assert form.text.splitlines()[1] == "[worker-0]:    <Figure>"


def test_a_figure_that_does_not_fit_is_named(tmp_path):
    kept = Kept(tmp_path, worker_0=b"line\n")
    kept.display(0, 5, {"image/png": "A" * 500_000, "text/plain": "<Figure>"})
    form = kept.render()
    assert len(form.html) < 10_000 and "too large for a saved cell" in form.html
    assert "data:image/png" in kept.render(limit_bytes=2_000_000).html


def test_what_html_cannot_hold_is_shown_apart(tmp_path):
    kept = Kept(tmp_path, worker_0=b"")
    kept.display(0, 0, {"application/vnd.plotly.v1+json": {"data": []}, "text/plain": "plot"})
    kept.display(0, 0, {"text/html": "<script>1</script>", "text/plain": "bokeh"})
    form = kept.render()
    assert [item.data["text/plain"] for item in form.apart] == ["plot", "bokeh"]
    Balanced(form.html)


@pytest.mark.parametrize(
    "more",
    [
        {"application/vnd.vegalite.v5+json": {"mark": "bar"}},
        {"application/geo+json": {"type": "Point"}},
        {"application/x.of-a-renderer": "text"},
        {"text/html": "<script>1</script>"},
        {"text/html": "<script>1</script>", "application/vnd.vegalite.v5+json": {}},
        {"application/pdf": "JVBERi0="},
    ],
)
def test_a_value_that_html_cannot_hold_is_shown_apart_as_a_display_is(tmp_path, more):
    data = {**more, "text/plain": "Chart()"}
    (tmp_path / "shown").mkdir()
    shown = Kept(tmp_path / "shown", worker_0=b"", worker_1=b"")
    kept = Kept(tmp_path, worker_0=b"", worker_1=b"")
    for place in (0, 1):
        kept.display(place, 0, data, value=True)
    shown.display(0, 0, data)
    form = kept.render()
    assert [item.data for item in form.apart] == [item.data for item in shown.render().apart] == [data]
    Balanced(form.html)
    assert "Chart()" in form.html and "shown below]" in form.html
    assert "[worker-1]:    Chart()" in form.text


def test_a_picture_that_is_a_value_is_a_display_for_programs_too(tmp_path):
    kept = Kept(tmp_path, worker_0=b"", worker_1=b"")
    for place in (0, 1):
        kept.display(place, 0, {"image/png": PNG, "text/plain": "<Figure>"}, value=True)
    form = kept.render()
    assert [item.data for item in form.pictures] == [{"image/png": PNG}] and not form.apart


def test_equal_values_are_one_row(tmp_path):
    kept = Kept(tmp_path, worker_0=b"", worker_1=b"", worker_2=b"")
    for place, value in enumerate(("1", "2", "1")):
        kept.display(place, 0, {"text/plain": value}, value=True)
    form = kept.render()
    assert form.text.splitlines() == ["[worker-0]:    1", "[worker-2]:    1", "[worker-1]:    2"]
    assert re.search(r"worker-0, worker-2</td>", form.html)


def test_values_that_differ_in_order_only_are_folded_per_place():
    bundle = ({"text/plain": "1"}, {})
    rows = fold_values({"worker-0": [bundle, bundle], "worker-1": [bundle]})
    assert [row.tasks for row in rows] == [("worker-0", "worker-1"), ("worker-0",)]


@pytest.mark.parametrize(
    "fragment",
    ["</div>", "<div>", "<b><i></b></i>", "<script>1</script>", "<p onclick='x'>a</p>", "<iframe></iframe>"],
)
def test_html_that_could_break_out_or_run_stands_apart(fragment):
    assert embedding.as_html({"text/html": fragment}, {}) is None


@pytest.mark.parametrize(
    ("fragment", "shown"),
    [
        ("<table><tr><td>1</td></tr></table>", "<table><tbody><tr><td>1</td></tr></tbody></table>"),
        ("<p>a<br>b</p>", "<p>a<br>b</p>"),
        ("plain", "plain"),
        ("<img src='x'/>", '<img src="x">'),
        ("<p style='color:red' class=\"a\">1 &lt; 2</p>", '<p style="color:red" class="a">1 &lt; 2</p>'),
        ("<audio controls><source src='data:audio/wav;base64,eA=='></audio>", None),
    ],
)
def test_harmless_html_stands_in_place(fragment, shown):
    made = embedding.as_html({"text/html": fragment}, {})
    assert made == shown if shown else 'src="data:audio/wav;base64,eA=="' in made


@pytest.mark.parametrize(
    ("fragment", "shown"),
    [
        (
            "<div style='position:fixed;inset:0;z-index:99999;color:red'><input type='password'></div>",
            '<div style="color:red"><input type="password"></div>',
        ),
        ("<p style='pos\\69tion:fixed'>x</p>", "<p>x</p>"),
        ("<p style='color:red;/**/position:fixed;MARGIN-top:1px;top:0'>x</p>", '<p style="color:red">x</p>'),
        ("<p style='margin:-900px 0 0;margin:4px;transform:scale(9)'>x</p>", '<p style="margin:4px">x</p>'),
        ("<p style='text-align: right;border-left: 1px solid;'>x</p>", None),
        ("<p data-tfmagic='run/3' data-tfmagic-x='y' data-x='z'>x</p>", '<p data-x="z">x</p>'),
        ("<img src='http://example.org/a.png'>", None),
        ("<p style='background:url(http://example.org/a.png)'>x</p>", None),
        ("<p style='background-image:image-set(url(a.png) 1x)'>x</p>", None),
        ("<p style='background:url(data:image/png;base64,AA==) no-repeat;color:red'>x</p>", None),
        (
            "<p style='color:red;base64,position:fixed;position:fixed'>x</p>",
            '<p style="color:red;base64,position:fixed">x</p>',  # one declaration, which is none
        ),
        ("<a href='data&#58;text/html;base64,eA=='>x</a>", '<a rel="noopener noreferrer">x</a>'),
        ("<a href=' da\tta:text/html,x'>x</a>", '<a rel="noopener noreferrer">x</a>'),
    ],
)
def test_html_stays_in_its_place(fragment, shown):
    assert embedding.as_html({"text/html": fragment}, {}) == (shown or fragment.replace("'", '"'))


@pytest.mark.parametrize(
    "fragment",
    [
        "<style>@import url(http://example.org/a.css);</style><p>x</p>",
        "<link rel='stylesheet' href='http://example.org/a.css'><p>x</p>",
        "<iframe src='http://example.org'></iframe>",
        "<object data='http://example.org'></object>",
    ],
)
def test_what_brings_code_or_styles_of_others_is_left_to_the_front_end(fragment):
    assert embedding.as_html({"text/html": fragment}, {}) is None


def test_markdown_that_would_take_minutes_is_left_to_the_front_end():
    assert embedding.as_html({"text/markdown": "[" * 200_000}, {}) is None
    links = "[a](https://example.org/b) and text. " * 300
    assert embedding.as_html({"text/markdown": links}, {}).count("<a ") == 300


@pytest.mark.parametrize("name", ["", " xmlns='http://www.w3.org/2000/svg'"])
def test_a_drawing_is_an_image_that_runs_nothing_and_has_its_namespace(name):
    made = embedding.as_html({"image/svg+xml": f"<svg{name}><script>1</script></svg>"}, {})
    assert made.startswith('<img src="data:image/svg+xml;base64,')
    drawing = base64.b64decode(made.split(",")[1].split('"')[0]).decode()
    assert drawing.count("xmlns=") == 1


def test_markdown_is_shown_as_html_with_its_formulas():
    made = embedding.as_html(
        {"text/markdown": "# a\n\n*b* $x_1*y*z$\n\n|c|\n|-|\n|d|", "text/plain": "-"}, {}
    )
    assert "<h1>a</h1>" in made and "<em>b</em> $x_1*y*z$" in made and "<td>d</td>" in made
    assert 'class="tex2jax_process' in made
    assert embedding.as_html({"text/markdown": "<script>1</script>"}, {}) is None


def test_a_formula_is_left_to_the_front_end_and_a_dollar_in_output_is_none(tmp_path):
    made = embedding.as_html({"text/latex": "$a<b$", "text/plain": "-"}, {})
    assert made == '<div class="tex2jax_process mathjax_process">$a&lt;b$</div>'
    form = Kept(tmp_path, worker_0=b"$5 and $6\n").render()
    assert form.html.startswith('<div class="tfm-form tex2jax_ignore')


def test_json_is_a_tree():
    made = embedding.as_html({"application/json": {"a": [1, {"<b>": None}]}, "text/plain": "-"}, {})
    assert Balanced(made).tags.count("details") == 3
    assert "1 key a : 2 items 0 : 1 1 : 1 key &lt;b&gt; : null" in " ".join(words(made).split())
    deep = value = []
    for _ in range(900):
        value.append([])
        value = value[0]
    Balanced(embedding.as_html({"application/json": deep}, {}))


def test_a_drawing_that_is_no_text_is_an_image_too():
    made = embedding.as_html({"image/svg+xml": ["<svg>", "</svg>"]}, {})
    assert made.startswith('<img src="data:image/svg+xml;base64,')


def test_records_and_displays_survive_a_crash_in_mid_line(tmp_path):
    run, task = RunFolder(tmp_path), TaskId("worker", 0)
    for verdict in ("", "done"):
        append_record(
            run, CellRecord(1, "default", "2 workers", (TaskRecord("worker-0", "done"),), verdict=verdict)
        )
    append_display(run, Displayed(task, 1, 1, 5, b'{"data": {}}'), 1000)
    for path in tmp_path.iterdir():
        with path.open("a") as file:
            file.write('{"cell": 2, "torn')
    (record,) = read_records(run)
    assert record.verdict == "done" and record.tasks[0].state == "done"
    assert [d.offset for d in read_displays(run, task, 1)] == [5]


def test_displays_are_kept_up_to_a_limit(tmp_path):
    run, task = RunFolder(tmp_path), TaskId("worker", 0)
    for _ in range(10):
        append_display(run, Displayed(task, 1, 1, 0, b'{"data": {}}'), 200)
    assert 0 < len(read_displays(run, task, 1)) < 5


@pytest.mark.parametrize(
    "fragment",
    [
        "<img src=x onerror=alert(1) />",
        "<a href='java script:alert(1)'>x</a>",
        "<style>body{display:none}</style>",
        "<div",
        "<p>a</p><!x",
        "<?php <div>",
        "<div/>",
    ],
)
def test_html_that_swallows_what_follows_or_hides_a_script_stands_apart(fragment):
    assert embedding.as_html({"text/html": fragment}, {}) is None


@pytest.mark.parametrize(
    "fragment",
    [
        "<a href='&#106;&#97;va&#115;cript&colon;alert(1)'>x</a>",
        "<a href='\x01javas\tcript&#58;alert(1)'>x</a>",
        "<img src='x'\x0conerror&#61;'y'>",
        "<svg/onload=alert(1)>",
        "<math><mi xlink:href='x'><mglyph><style><img src=x onerror=alert(1)>",
        "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
        "<a href='DATA:text/HTML,<b>'>x</a>",
    ],
)
def test_a_script_that_is_well_hidden_never_runs(fragment):
    made = embedding.as_html({"text/html": fragment}, {})
    if made is not None:
        Balanced(made)
        assert "script" not in made.lower() and "onerror" not in made.lower()


def test_an_images_data_does_not_leave_its_attribute():
    made = embedding.as_html(
        {"image/png": 'x" onerror="alert(1)', "text/plain": '"'}, {"image/png": {"width": float("nan")}}
    )
    Balanced(made)


def test_a_pandas_table_stands_in_place():
    import pandas

    made = embedding.as_html({"text/html": pandas.DataFrame({"a": [1]})._repr_html_()}, {})
    assert "<table" in made and "<style" not in made


def test_half_characters_are_shown_as_such(tmp_path):
    kept = Kept(tmp_path, worker_0=b"")
    kept.display(0, 0, {"text/plain": "\ud800"})
    assert "?" in kept.render().text
