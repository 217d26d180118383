"""From records to events of a trace: pure functions. `test_perfetto` opens real ones."""

import json

import pytest

from tfmagic.features.pictures import lanes
from tfmagic.features.pictures.perfetto_trace import (
    Point,
    arrivals_of,
    describe_processes,
    events_of,
)
from tfmagic.features.pictures.timeline_file import CellBegan, CellEnded, Change, Mark, TaskPart

A, B, C = "worker-0", "worker-1", "worker-2"
CELL = CellBegan(100.0, 1, (A, B, C), 7, "\n  first()\nsecond()")


def change(t, task, doing, **more):
    return Change(t, task, doing, **{"cell": 1 if doing not in ("idle", "dead", "starting") else 0, **more})


def waits(t, task, *whom):
    return change(t, task, "waiting", line=3, what="barrier 1", whom=whom)


def end(t, **parts):
    found = {task: TaskPart(*parts.get(task[-1:], ("done", t))) for task in (A, B, C)}
    return CellEnded(t, 1, {task: part for task, part in found.items() if part.how})


MET = [
    CELL,
    waits(102.0, A, B, C),
    waits(103.0, B, C),
    waits(103.0, A, C),
    change(104.0, A, "running", line=3),
    change(104.0, B, "running", line=3),
    end(105.0),
]


def timeline_of(records, **how):
    return lanes.build(records, "run", until=records[-1].t, **how)


def arrivals(records):
    found = arrivals_of(timeline_of(records), records)
    return {(round(a.at, 3), a.source): [after.task for after in waiters] for a, waiters in found.items()}


def events(records, names=None, points=(), **how):
    return events_of(timeline_of(records, **how), records, names or {}, points)


def slices(records, task, track, **how):
    """Return the slices of a track in milliseconds."""
    found = events(records, **how)
    named = {e["args"]["name"]: e["pid"] for e in found if e["name"] == "process_name"}
    tids = {e["tid"] for e in found if e["name"] == "thread_name" and e["args"]["name"] == track}
    return [
        (e["ts"] // 1000, (e["ts"] + e["dur"]) // 1000, e["name"])
        for e in found
        if e["ph"] == "X" and e["pid"] == named[task] and e["tid"] in tids and e["cat"] != "arrow"
    ]


def test_the_last_task_that_arrives_lets_the_others_go_on():
    assert arrivals(MET) == {(4.0, C): [A, B]}


def test_a_task_that_has_ended_the_cell_before_the_others_were_looked_at_had_arrived():
    records = [CELL, waits(102.0, A, C), end(104.0, **{"2": ("done", 103.9)})]
    found = arrivals_of(timeline_of(records), records)
    ((arrival, (after,)),) = found.items()
    assert (round(arrival.at, 3), arrival.source, round(after.at, 3), after.task) == (3.9, C, 4.0, A)


def test_a_task_that_waits_at_the_next_barrier_has_gone_on():
    again = change(104.0, A, "waiting", line=4, what="barrier 2", whom=(C,))
    records = [CELL, waits(102.0, A, C), again, change(105.0, A, "running", line=4), end(106.0)]
    assert arrivals(records) == {(4.0, C): [A], (5.0, C): [A]}


def test_where_the_barrier_is_the_last_line_the_end_of_the_cell_tells_it():
    records = [CELL, waits(102.0, A, C), end(104.0)]
    assert arrivals(records) == {(4.0, C): [A]}


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([end(104.0, **{"0": ("failed", 104.0, "BrokenBarrierError: x")})], id="a failure"),
        pytest.param([change(104.0, A, "dead"), end(105.0, **{"0": ("died", 104.0)})], id="a death"),
        pytest.param([Change(103.5, B, "running", cell=1)], id="nothing yet"),
        pytest.param(
            [
                change(104.0, A, "running"),
                end(105.0, **{"2": ("failed", 103.0, "ValueError: x")}),
            ],
            id="one that had failed before",
        ),
        pytest.param(
            [change(104.0, A, "running"), end(105.0, **{"2": ("failed", 104.0, "ValueError: x")})],
            id="one that failed instead of coming",
        ),
    ],
)
def test_a_wait_that_ends_otherwise_has_no_arrow(after):
    assert arrivals([CELL, waits(102.0, A, C), *after]) == {}


def test_an_arrow_that_would_come_from_many_tasks_is_not_drawn():
    tasks = tuple(f"worker-{n}" for n in range(6))
    records = [
        CellBegan(100.0, 1, tasks, 7, "x"),
        waits(102.0, A, *tasks[1:]),
        change(104.0, A, "running"),
        CellEnded(105.0, 1, {task: TaskPart("done", 105.0) for task in tasks}),
    ]
    assert arrivals(records) == {}
    assert (2000, 4000, "waiting for worker-1, worker-2, worker-3, worker-4 and 1 more") in slices(
        records, A, "state"
    )


def test_both_ends_of_an_arrow_have_a_slice_that_is_inside_the_others():
    found = events(MET)
    starts, ends = ([e for e in found if e["ph"] == phase] for phase in "sf")
    assert [(e["ts"], e["id"]) for e in starts] == [(3_999_999, 1), (3_999_999, 2)]
    assert [(e["ts"], e["id"], e["bp"]) for e in ends] == [(4_000_000, 1, "e"), (4_000_000, 2, "e")]
    bound = {(e["pid"], e["tid"], e["ts"]) for e in found if e.get("cat") == "arrow"}
    assert {(e["pid"], e["tid"], e["ts"]) for e in (*starts, *ends)} == bound
    assert len([e for e in found if e.get("cat") == "arrow"]) == 3, "the arrival is there once"


def test_a_task_is_failed_until_its_cell_ends():
    records = [CELL, end(105.0, **{"1": ("failed", 102.0, "ValueError: bad")}), Change(107.0, B, "running")]
    found = slices(records, B, "state", whole=True)
    assert found == [(0, 2000, "running"), (2000, 5000, "failed"), (5000, 7000, "idle")]
    marks = [e for e in events(records) if e["ph"] == "i"]
    assert [(e["name"], e["ts"], e["cat"]) for e in marks] == [
        ("failed: ValueError: bad", 2_000_000, "failed")
    ]


def test_a_second_process_restarts():
    records = [
        Change(100.0, A, "starting", 1),
        Change(101.0, A, "idle", 1, pid=11),
        Change(102.0, A, "dead", 1),
        Change(103.0, A, "starting", 1),
        Change(104.0, A, "starting", 2, pid=12),
        Change(105.0, A, "idle", 2, pid=12, host="here"),
        Mark(106.0, "stop"),
    ]
    names = [name for _, _, name in slices(records, A, "state", whole=True)]
    assert names == ["starting", "idle", "dead", "restarting", "restarting", "idle"]
    assert describe_processes(records) == {A: "pid 12, before 11, here"}
    pids = [e["args"].get("pid") for e in events(records, whole=True) if e.get("cat") == "state"]
    assert pids == [11, 11, 11, 11, 12, 12]


def test_cells_have_their_first_line_and_their_end_on_each_task():
    records = [CELL, end(105.0, **{"0": ("done", 103.0), "2": ("", 0)})]
    (one,), (whole,) = slices(records, A, "cells"), slices(records, "notebook", "cells")
    assert one == (0, 3000, "cell [7]: first()") and whole == (0, 5000, "cell [7]: first()")
    assert slices(records, C, "cells") == [], "it had not begun"
    outcomes = [e["args"].get("outcome") for e in events(records) if e.get("cat") == "cell"]
    assert outcomes == [None, "done", "done"]


def test_cells_that_overlap_are_on_tracks_of_their_own():
    second = CellBegan(101.0, 2, (B,), 8, "x")
    records = [CellBegan(100.0, 1, (A,), 7, "y"), second, CellEnded(103.0, 2, {B: TaskPart("done", 103.0)})]
    found = [e for e in events(records, whole=True) if e.get("cat") == "cell" and e["pid"] == 1]
    assert len({e["tid"] for e in found}) == 2
    assert found[0]["args"]["not ended"] == ""


def test_lines_are_slices_whatever_the_task_did_there():
    assert slices(MET, A, "line") == [(2000, 5000, "3: second()")]


def test_counters_are_inside_the_timeline_and_numbers():
    points = [(99.0, 1.0), (101.0, 0.5), (102.0, float("nan")), (102.5, float("inf")), (200.0, 1.0)]
    found = events(MET, points=[Point(at, A, "loss", value) for at, value in points])
    assert [(e["ts"], e["args"]) for e in found if e["ph"] == "C"] == [(1_000_000, {"value": 0.5})]
    json.dumps(found, allow_nan=False)


def test_processes_have_names():
    found = events(MET, {"": "pid 1, here", A: "pid 2"})
    names = [e["args"]["name"] for e in found if e["name"] == "process_name"]
    assert names == ["notebook (pid 1, here)", f"{A} (pid 2)", B, C]
    script = [CellBegan(100.0, 1, (A,)), CellEnded(103.0, 1, {A: TaskPart("done", 103.0)})]
    assert [e["args"]["name"] for e in events(script) if e["name"] == "process_name"] == ["program", A]
