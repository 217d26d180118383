"""What programs get as JSON, from a run folder: cells, failures, tracked values and pieces of logs."""

import re
import time
from pathlib import Path

import msgspec
import pytest

from tfmagic.features.track.recorded import last
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import FeatureRecorded
from tfmagic.runs import schemas
from tfmagic.runs.cell_records import CellRecord, ErrorRecord, TaskRecord
from tfmagic.runs.feature_records import append_feature_record
from tfmagic.runs.folder import RunFolder

A, B = TaskId("worker", 0), TaskId("worker", 1)


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path)


def track(run, task, cell, points):
    append_feature_record(run, FeatureRecorded(task, 1, cell, "track", points), 1 << 20)


def record(*tasks, verdict="", elapsed_s=62.0):
    return CellRecord(3, "default", "2 workers", tasks, 5, "x", time.time(), elapsed_s, verdict)


def test_the_last_values_are_those_of_the_asked_cell(run):
    track(run, A, 1, b'{"loss":[[0,9]],"old":[[0,1]]}')
    track(run, A, 2, b'{"loss":[[0,3],[1,2]]}')
    track(run, A, 2, b'{"accuracy":[[1,0.5]],"loss":[[2,1]]}')
    assert last(run, A) == {"loss": (2, 1), "accuracy": (1, 0.5)}
    assert last(run, A, 1) == {"loss": (0, 9), "old": (0, 1)}
    assert last(run, A, 3) == last(run, B) == {}


def test_a_cell_that_runs_is_one_sentence(run):
    track(run, A, 3, b'{"loss":[[340,0.21]]}')
    cell = record(TaskRecord("worker-0", "running"), TaskRecord("worker-1", "running"))
    found = schemas.cell_report(cell, run, {"worker-0": 4, "worker-1": 4})
    sentence = "cell [5] still runs: step 340, loss 0.21 (worker-0), line 4; 62 s"
    assert schemas.describe(found) == sentence
    apart = schemas.cell_report(cell, run, {"worker-0": 4, "worker-1": 6})
    assert "(worker-0), line 4 (worker-0), line 6 (worker-1); 62 s" in schemas.describe(apart)
    assert schemas.describe(schemas.cell_report(record(), run)) == "cell [5] still runs: 62 s"


def test_the_root_cause_is_the_first_error(run):
    lost = ErrorRecord("UnavailableError", "a peer is gone", 4, root=False)
    bad = ErrorRecord("ValueError", "bad batch 3\nmore", 2, hint="do this", hint_name="a-trap")
    cell = record(
        TaskRecord("worker-0", "failed", seconds=1.0, error=lost),
        TaskRecord("worker-1", "failed", seconds=2.0, error=bad),
        verdict="failed",
    )
    found = schemas.cell_report(cell, run)
    assert [(e.task, e.root, e.cell_line) for e in found.errors] == [
        ("worker-1", True, 2),
        ("worker-0", False, 4),
    ]
    assert found.errors[0].hint_name == "a-trap" and found.errors[0].log.endswith("worker-1.log")
    said = schemas.describe(found)
    assert said == "cell [5] failed after 62 s: worker-1: ValueError: bad batch 3, at line 2 of the cell"
    decoded = msgspec.json.decode(schemas.as_json(found), type=schemas.CellReport)
    assert decoded == found


def test_a_piece_of_a_log_ends_with_a_line_and_says_where_to_go_on(run):
    run.log_path(A).write_bytes(b"one\ntwo\n\x1b[31mthree\x1b[0m\nfour")
    first = schemas.log_report(run, A, 0, 10)
    assert (first.text, first.next, first.size) == ("one\ntwo\n", 8, 27)
    rest = schemas.log_report(run, A, first.next, None)
    assert rest.text == "three\nfour\n" and rest.next == rest.size == 27
    assert schemas.log_report(run, A, 99, 10).next == 27
    assert schemas.log_report(run, B, 0, 10).size == 0
    assert schemas.log_report(run, A, 4, 2).text == "tw\n", "of a line that is longer than the piece"


def test_the_documentation_has_every_field():
    page = (Path(__file__).parents[2] / "docs/agents.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+Report)` \| (.*) \|$", page, re.MULTILINE))
    of_features = schemas.OfTask, schemas.OfRun
    kinds = [kind for base in (schemas.Report, *of_features) for kind in base.__subclasses__()]
    structs = {kind.__name__: kind for kind in kinds if kind not in of_features}
    assert rows.keys() == structs.keys()
    for name, kind in structs.items():
        assert set(kind.__struct_fields__) <= set(re.findall(r"`(\w+)`", rows[name])), name
