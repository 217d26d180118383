"""Profiles of tasks compared: waiting, transferring, the straggler, and what is shown."""

import re

import pytest

from tfmagic.features.profile.records import Collective, OpTime, TaskProfile
from tfmagic.features.profile.shares import PARTS, compare

MS = 1_000_000
EPOCH = 1_800_000_000_000_000_000
HERE = {"worker-0": "a", "worker-1": "a"}


def profile(entries, ends, ahead_ms=0, **others):
    """Return a profile of a second whose collectives begin and end at these milliseconds."""
    at = EPOCH + ahead_ms * MS
    spans = [(at + begin * MS, at + end * MS) for begin, end in zip(entries, ends, strict=True)]
    given = {"compute_ns": 300 * MS, "input_ns": 100 * MS, "ops": (OpTime("MatMul", 4, 300 * MS),), **others}
    return TaskProfile(
        start=at,
        end=at + 1000 * MS,
        collective_parts=tuple(spans),
        collectives=tuple(Collective("1/100", *span) for span in spans),
        events=1234,
        path="/run/profile/worker.xplane.pb",
        **given,
    )


def late_worker(ahead_ms=0):
    """Return two tasks of which worker-1 is 80 ms late to two of three collectives, and 5 ms early to the other."""
    return {
        "worker-0": profile([100, 300, 505], [190, 390, 515]),
        "worker-1": profile([180, 380, 500], [190, 390, 515], ahead_ms),
    }


def test_a_collective_is_a_wait_until_the_last_task_has_come():
    found = compare(late_worker(), HERE)
    first, second = found.tasks["worker-0"].seconds, found.tasks["worker-1"].seconds
    assert first["waiting"] == pytest.approx(0.160) and first["transferring"] == pytest.approx(0.030)
    assert second["waiting"] == pytest.approx(0.005) and second["transferring"] == pytest.approx(0.030)


def test_the_shares_of_a_task_add_up():
    for share in compare(late_worker(), HERE).tasks.values():
        assert set(share.seconds) == set(PARTS)
        assert sum(share.shares.values()) == pytest.approx(1)
        assert share.total_s == pytest.approx(1) and share.seconds["idle"] >= 0


def test_the_straggler_is_the_task_that_comes_last_most_of_the_time():
    found = compare(late_worker(), HERE).straggler
    assert (found.task, found.last, found.collectives) == ("worker-1", 2, 3)
    assert found.cost_s == pytest.approx(0.160)
    assert "worker-1 is the straggler: it came last to 2 of 3 collectives" in str(found)
    assert "waited 0.16 s for it (80 ms each time)" in str(found)


@pytest.mark.parametrize("late_ms", [0, 9])
def test_a_short_wait_makes_no_straggler(late_ms):
    tasks = {
        "worker-0": profile([100, 200], [120, 220]),
        "worker-1": profile([100 + late_ms, 200 + late_ms], [120, 220]),
    }
    found = compare(tasks, HERE)
    assert found.straggler is None
    assert "no task is a straggler" in repr(found)


def test_tasks_that_come_last_in_turn_are_no_stragglers():
    tasks = {"worker-0": profile([100, 250], [200, 260]), "worker-1": profile([190, 210], [200, 260])}
    assert compare(tasks, HERE).straggler is None


def test_clocks_of_two_machines_are_shifted_by_the_ends_of_the_collectives():
    apart = compare(late_worker(ahead_ms=7_000), {"worker-0": "a", "worker-1": "b"})
    agreeing = compare(late_worker(), HERE)
    assert {t: s.seconds for t, s in apart.tasks.items()} == {t: s.seconds for t, s in agreeing.tasks.items()}
    assert apart.straggler == agreeing.straggler


def test_a_collective_that_only_one_task_has_seen_is_a_transfer():
    tasks = {"worker-0": profile([100, 300], [190, 390]), "worker-1": profile([], [])}
    found = compare(tasks, HERE)
    assert found.tasks["worker-0"].seconds["waiting"] == 0
    assert found.straggler is None


def test_a_task_without_a_profile_says_why():
    tasks = {**late_worker(), "worker-2": TaskProfile(problem="the cell uses <it> itself")}
    found = compare(tasks, HERE)
    assert list(found.tasks) == ["worker-0", "worker-1"]
    assert "worker-2 has no profile: the cell uses <it> itself" in repr(found)
    assert "the cell uses &lt;it&gt; itself" in found._repr_mimebundle_()["text/html"]
    nobody = compare({"worker-0": TaskProfile(problem="because")}, HERE)
    assert repr(nobody) == "worker-0 has no profile: because"


def test_a_trace_that_was_cut_says_so():
    tasks = {"worker-0": profile([], [], is_cut=True)}
    assert "worker-0: the trace was cut after 1.0 s (1,234 events)" in repr(compare(tasks, HERE))


def test_the_text_has_a_bar_of_one_length_for_each_task():
    lines = repr(compare(late_worker(), HERE, "open it so")).splitlines()
    assert re.split(r"\s{2,}", lines[0]) == [
        *("task", "seconds", "where they went"),
        *("compute █", "waiting ░", "transferring ▒", "input =", "idle ·"),
        "slowest op / calls",
    ]
    bars = [line.split()[2] for line in lines[1:3]]
    assert [len(bar) for bar in bars] == [40, 40]
    assert [bars[0].count(mark) for mark in "█░▒=·"] == [12, 6, 2, 4, 16]
    assert "MatMul 0.30 s / 4" in lines[1]
    assert lines[-1] == "open it so"


def test_remote_calls_have_a_column_only_where_there_are_some():
    assert "remote" not in repr(compare(late_worker(), HERE))
    found = repr(compare({"chief-0": profile([], [], remote_ns=200 * MS, tracing_ns=MS)}, HERE))
    assert "20 %" in found and "remote ▓" in found and "tracing" not in found


def test_the_html_has_a_stacked_bar_for_each_task_and_no_script():
    page = compare(late_worker(), HERE)._repr_mimebundle_()["text/html"]
    assert page.count("<tr>") == 3
    widths = [
        sum(map(int, re.findall(r"width:(\d+)px;background", bar)))
        for bar in re.findall(r"<td[^>]*><span.*?</td>", page)
    ]
    assert widths == [420, 420]
    assert "<script" not in page and "<svg" not in page and "<style" not in page
    assert 'title="waiting 16.0 %, 0.160 s"' in page
