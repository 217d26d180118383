"""Tracked values over time: what the trace of a timeline gets."""

import time

from tfmagic.features.track import counters
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import FeatureRecorded
from tfmagic.runs import folder
from tfmagic.runs.feature_records import append_feature_record, records_path

A = TaskId("worker", 0)


def test_the_last_of_the_points_that_came_together_has_their_time(tmp_path):
    run = folder.create_run(tmp_path, "c", {"shape": ""})
    before = time.time()
    for points in (b'{"loss":[[0,3.0],[1,2.0]],"rate":[[0,0.5]]}', b'{"loss":[[2,1.0]]}'):
        append_feature_record(run, FeatureRecorded(A, 1, 7, "track", points), 1 << 20)
    found = list(counters.read(run, A))
    assert [(name, value) for _, name, value in found] == [("loss", 2.0), ("rate", 0.5), ("loss", 1.0)]
    times = [at for at, _, _ in found]
    assert times == sorted(times) and before - 0.001 <= times[0] and times[-1] <= time.time() + 0.001


def test_records_without_a_time_and_torn_ones_are_left_out(tmp_path):
    run = folder.create_run(tmp_path, "c", {"shape": ""})
    records_path(run, A, "track").write_text(
        '{"cell": 7, "record": {"loss":[[0,3.0]]}}\n[1]\n{"cell": 7, "t": 5.5, "record": {"loss":[[1,2.0]]}}\n'
        '{"cell": 7, "t": 6.5, "rec'
    )
    assert list(counters.read(run, A)) == [(5.5, "loss", 2.0)]
    assert list(counters.read(run, TaskId("worker", 1))) == []
