"""Charts of what tasks track: thinned out, drawn for several tasks, and as text."""

import xml.etree.ElementTree as ElementTree

import pytest

from tfmagic.features.track.figures import MOST_NAMES, MOST_POINTS, Series, draw
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import FeatureRecorded
from tfmagic.runs import folder
from tfmagic.runs.feature_records import append_feature_record
from tfmagic.views.figures import Figures

A, B = TaskId("worker", 0), TaskId("worker", 1)


def series(*points):
    found = Series()
    for point in points:
        found.add(point)
    return found


def test_a_long_series_keeps_its_whole_range_and_its_last_point():
    found = series(*((step, float(step)) for step in range(100_003)))
    assert len(found.points) <= MOST_POINTS
    assert found.points[0] == (0, 0.0) and found.drawn[-1] == (100_002, 100_002.0)
    gaps = [later[0] - earlier[0] for earlier, later in zip(found.points, found.points[1:], strict=False)]
    assert max(gaps) <= 2 * min(gaps), "evenly thinned out"


def test_a_chart_has_a_line_for_each_task_and_is_xml():
    svg = draw("loss<&", {"worker-1": series((0, 3.0), (1, 2.0)), "worker-0": series((0, 1.0), (1, 2.5))})
    root = ElementTree.fromstring(svg)
    lines = [e for e in root.iter() if e.tag.endswith("polyline")]
    assert len(lines) == 2 and lines[0].get("stroke") != lines[1].get("stroke")
    dashes = [line.get("stroke-dasharray") for line in lines]
    assert dashes[0] != dashes[1], "they can be told apart without colours"
    assert lines[0][0].text == "worker-0: 2.5 (step 1)"
    assert "loss<&: worker-0 2.5 (step 1), worker-1 2 (step 1)" in root[0].text
    first = [tuple(map(float, point.split(","))) for point in lines[0].get("points").split()]
    assert first[0][0] < first[1][0] and first[0][1] > first[1][1], "larger values are higher up"


@pytest.mark.parametrize("points", [[(0, 1.0)], [(0, float("nan")), (1, float("inf"))], [(5, 0.0), (5, 0.0)]])
def test_few_points_and_points_that_are_no_numbers_are_drawn(points):
    ElementTree.fromstring(draw("x", {"worker-0": series(*points)}))


def test_figures_are_read_from_disk_as_they_grow(tmp_path):
    run = folder.create_run(tmp_path, "c", {"shape": ""})
    figures = Figures(run, 7, [A, B])
    assert not figures.read() and figures.pictures() == {}
    append_feature_record(run, FeatureRecorded(A, 1, 7, "track", b'{"loss":[[0,1.5],[1,0.5]]}'), 1 << 20)
    append_feature_record(run, FeatureRecorded(A, 1, 8, "track", b'{"loss":[[0,9]]}'), 1 << 20)
    append_feature_record(
        run, FeatureRecorded(B, 1, 7, "track", b'{"loss":[[0,2.5]],"accuracy":[[0,0.25]]}'), 1 << 20
    )
    assert figures.read() and not figures.read()
    assert figures.lines() == [
        "loss: worker-0 0.5 (step 1), worker-1 2.5 (step 0)",
        "accuracy: worker-1 0.25 (step 0)",
    ]
    for number in range(MOST_NAMES):
        append_feature_record(run, FeatureRecorded(A, 1, 7, "track", b'{"n%d":[[0,1]]}' % number), 1 << 20)
    figures.read()
    assert len(figures.pictures()) == MOST_NAMES


def test_a_file_that_is_full_takes_no_more_points(tmp_path):
    run = folder.create_run(tmp_path, "c", {"shape": ""})
    for _ in range(10):
        append_feature_record(run, FeatureRecorded(A, 1, 7, "track", b'{"loss":[[0,1.5]]}'), 100)
    assert (run.folder / "worker-0.track.jsonl").stat().st_size <= 100
