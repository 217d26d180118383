"""Timelines: from records to lanes, to SVG and to text."""

import base64
import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest

from tfmagic.features.pictures import lanes, timeline_svg, timeline_text
from tfmagic.features.pictures.timeline_file import CellBegan, CellEnded, Change, Mark, TaskPart
from tfmagic.system import advice

A, B = "worker-0", "worker-1"
CELL = CellBegan(100.0, 1, (A, B), 7, "first()\nsecond()\nthird()")


def change(t, task, doing, **more):
    return Change(t, task, doing, **{"cell": 1 if doing != "idle" else 0, **more})


WAIT = [
    Change(95.0, A, "starting"),
    Change(95.0, B, "starting"),
    Change(98.0, A, "idle"),
    Change(98.0, B, "idle"),
    CELL,
    change(101.0, A, "running", line=1),
    change(101.0, B, "running", line=1),
    change(102.0, A, "waiting", line=2, what="barrier 1", whom=(B,), note="for worker-1 at barrier 1"),
    change(104.0, A, "running", line=3),
    CellEnded(105.0, 1, {A: TaskPart("done", 104.5), B: TaskPart("failed", 105.0, "ValueError: bad")}),
    Change(105.0, A, "idle"),
    Change(105.0, B, "idle"),
]
KILLED = [
    *WAIT,
    Mark(110.0, "signal", (B,), "SIGKILL: a signal of the user's"),
    Mark(110.1, "ended", (B,), "was killed by you (SIGKILL)"),
    Change(110.1, B, "dead", note="was killed by you (SIGKILL)"),
    Change(112.0, B, "starting", 2),
    Change(113.0, B, "idle", 2),
]


def build(records, **how):
    return lanes.build(records, "cluster default", **{"until": records[-1].t, **how})


def spans_of(timeline, task):
    (lane,) = [lane for lane in timeline.lanes if lane.task == task]
    return [(round(span.begin, 3), round(span.end, 3), span.doing, span.line) for span in lane.spans]


def test_the_timeline_of_a_script_has_all_its_tasks():
    records = [
        CellBegan(100.0, 1, (A,)),
        CellBegan(100.1, 2, (B,)),
        CellEnded(103.0, 2, {B: TaskPart("done", 103.0, "")}),
    ]
    timeline = build(records)
    assert timeline.title == "cluster default: the whole run" and [lane.task for lane in timeline.lanes] == [
        A,
        B,
    ]
    assert build([CellBegan(99.0, 1, (A,)), CellBegan(100.0, 2, (A,))]).title.startswith(
        "cluster default: call 2 on"
    )


def test_the_last_cell_has_a_span_for_each_line_and_wait():
    timeline = build(WAIT)
    assert timeline.title == "cluster default: cell [7] on 2 tasks, 5.00 s"
    assert (timeline.began, timeline.seconds) == (100.0, 5.0)
    assert spans_of(timeline, A) == [
        (0, 1, "running", 0),
        (1, 2, "running", 1),
        (2, 4, "waiting", 2),
        (4, 4.5, "running", 3),
        (4.5, 5, "idle", 0),
    ]
    assert spans_of(timeline, B) == [(0, 1, "running", 0), (1, 5, "running", 1)]


def test_an_arrow_leads_from_who_waits_to_whom():
    (arrow,) = build(WAIT).arrows
    assert (arrow.at, arrow.source, arrow.target) == (2, A, B)
    assert arrow.text == "worker-0 waits for worker-1 at barrier 1; line 2: second()"


def test_the_whole_run_shows_starts_deaths_and_new_processes():
    timeline = build(KILLED, whole=True)
    assert spans_of(timeline, B)[0] == (0, 3, "starting", 0)
    assert [doing for _, _, doing, _ in spans_of(timeline, B)][-3:] == ["idle", "dead", "starting"]
    assert [(event.at, event.task, event.sign) for event in timeline.events] == [
        (10.0, B, "failed"),
        (15.0, B, "other"),
        (pytest.approx(15.1), B, "died"),
        (17.0, B, "new"),
    ]
    assert timeline.events[-1].text == "new process, number 2"


def test_a_cell_is_found_by_its_number_in_the_notebook(monkeypatch):
    monkeypatch.setattr(advice, "_front_end", advice.FrontEnd.PYTHON)
    later = CellBegan(120.0, 2, (A,), 8, "x")
    records = [*WAIT, later]
    assert "cell [8] on worker-0, 10.0 s, not ended" in build(records, until=130.0).title
    assert "cell [7]" in build(records, prompt=7).title
    with pytest.raises(lanes.NoRecords, match=r"no record of cell \[9\]"):
        build(records, prompt=9)
    with pytest.raises(lanes.NoRecords, match="no record of a cell; whole=True shows"):
        build(records[:4])
    with pytest.raises(lanes.NoRecords, match="no records"):
        lanes.build([], "run x", until=0.0, whole=True)


def test_a_cell_that_never_ended_goes_on_until_its_kernel_was_seen_last():
    timeline = build(WAIT[:-3], until=107.0, note="The kernel of this run died.")
    assert timeline.seconds == 7
    assert spans_of(timeline, A)[-1] == (4, 7, "running", 3)
    assert "The kernel of this run died." in timeline_text.draw(timeline)


def test_the_line_of_a_wait_can_be_seen_late():
    records = [
        *WAIT[:7],
        change(102.0, A, "waiting", line=1, what="barrier 1", whom=(B,)),
        change(102.2, A, "waiting", line=2, what="barrier 1", whom=(B,)),
        WAIT[-3],
    ]
    assert spans_of(build(records), A)[2] == (2, 4.5, "waiting", 2)


def test_a_change_that_was_noted_after_the_end_of_the_cell_is_left_out():
    records = [*WAIT[:-2], change(104.9, A, "running", line=3)]
    assert spans_of(build(records), A)[-1] == (4.5, 5, "idle", 0)


def test_text_has_a_row_for_each_task_and_lists_what_happened():
    text = timeline_text.draw(build(WAIT), 50)
    rows = text.splitlines()
    assert rows[2] == "worker-0  ==========1=========~~~~~~~~~~~~~~~~~~~~3====....."
    assert rows[3] == "worker-1  ==========1======================================F"
    assert rows[4].strip() == ". idle   = running   ~ waiting   F failed   12= line 12 of the cell"
    assert rows[5] == "    2.00 s  worker-0 waits for worker-1 at barrier 1; line 2: second() (for 2.00 s)"
    assert rows[6] == "    5.00 s  worker-1 failed: ValueError: bad"


def test_text_of_a_task_cannot_move_the_cursor():
    records = [*WAIT[:-3], CellEnded(105.0, 1, {A: TaskPart("failed", 105.0, "E: \x1b[2J\r\nx")})]
    text = timeline_text.draw(build(records))
    assert "\x1b" not in text and "\r" not in text


def elements(picture, name):
    return [e for e in ElementTree.fromstring(picture).iter() if e.tag.rpartition("}")[2] == name]


def test_the_picture_hatches_waits_and_draws_their_arrow():
    picture = timeline_svg.draw(build(WAIT)).svg
    (wait,) = [
        rect
        for rect in elements(picture, "rect")
        if rect.get("fill") == "url(#hatch-amber)" and rect.get("data-a")
    ]
    assert (wait.get("data-a"), wait.get("data-b")) == ("2.0000", "4.0000")
    arrows = [path for path in elements(picture, "path") if path.get("marker-end") == "url(#end-amber)"]
    assert len(arrows) == 1
    titles = [element.text for element in elements(picture, "title")]
    assert any("worker-1 failed: ValueError: bad" in title for title in titles)
    assert any("line 2: second()" in title for title in titles)


def test_a_saved_notebook_keeps_image_texts_and_no_need_of_the_script():
    timeline = build(KILLED, whole=True)
    page = timeline_svg.bundle(timeline, "the text")["text/html"]
    without = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert 'title="worker-0: waits for worker-1 at barrier 1' in without
    encoded = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', without)[1]
    ElementTree.fromstring(base64.b64decode(encoded))
    assert page.count("<script>") == page.count("</script>") == 1


def test_no_text_of_a_task_breaks_out_of_the_picture():
    evil = "</script><script>alert(1)</script>\"'&\x00\udc80"
    cell = CellBegan(100.0, 1, (A, B), 1, evil)
    records = [
        cell,
        change(100.5, A, "waiting", line=1, file=evil, what=evil, whom=(B, evil), note=evil),
        CellEnded(101.0, 1, {A: TaskPart("failed", 101.0, evil)}, evil),
        Mark(100.7, evil, (A,), evil),
    ]
    timeline = build(records)
    page = timeline_svg.bundle(timeline, timeline_text.draw(timeline))["text/html"]
    assert page.count("<script") == 1 and page.count("</script") == 1
    ElementTree.fromstring(timeline_svg.draw(timeline).svg)


def test_pictures_of_long_runs_are_bounded():
    tasks = tuple(f"worker-{n}" for n in range(8))
    records = [CellBegan(0.0, 1, tasks, 1, "x")]
    records += [
        Change(
            n / 10, tasks[n % 8], "waiting" if n % 3 else "running", 1, 1, n % 9 + 1, "", "b", (tasks[n % 5],)
        )
        for n in range(1, 40_000)
    ]
    timeline = lanes.coarsen(build(records, whole=True), lanes.MOST_SPANS)
    assert sum(len(lane.spans) for lane in timeline.lanes) <= lanes.MOST_SPANS
    assert "are joined to others" in timeline.note
    for lane in timeline.lanes:
        ends = [(span.begin, span.end) for span in lane.spans]
        assert all(one[1] == pytest.approx(two[0]) for one, two in itertools.pairwise(ends))
    page = timeline_svg.bundle(timeline, timeline_text.draw(timeline))["text/html"]
    assert len(page) < 600_000


def test_many_tasks_are_bounded_too():
    tasks = tuple(f"worker-{n}" for n in range(1000))
    timeline = build([CellBegan(0.0, 1, tasks, 1, "x")], until=5.0)
    assert len(timeline_svg.draw(timeline).svg) < 200_000
    assert "and 900 more tasks" in timeline_text.draw(timeline)


@pytest.mark.parametrize("seconds", [0.003, 0.05, 0.99, 1, 7, 59, 61, 3600, 86400 * 3])
def test_ticks_are_round_and_few(seconds):
    step = timeline_svg.step_of(seconds)
    assert 3.9 < seconds / step < 10.1
