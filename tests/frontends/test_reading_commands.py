"""The shell's commands that read a run of a notebook from its folder: errors, wait, and pieces of logs."""

import json
import os

import msgspec
import pytest

from tfmagic.frontends.cli import main
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import FeatureRecorded
from tfmagic.runs import schemas
from tfmagic.runs.cell_records import CellRecord, ErrorRecord, TaskRecord, append_record
from tfmagic.runs.feature_records import append_feature_record
from tfmagic.runs.folder import RunFolder
from tfmagic.system.process_identity import identify


@pytest.fixture
def failed_run(tmp_path, monkeypatch):
    """A run of a notebook whose last cell has failed on worker-1, and then on worker-0."""
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(tmp_path))
    run = RunFolder(tmp_path / "runs" / "20260101-1-broken-1")
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_text(json.dumps({"cluster": "broken", "started": 9e9}))
    lost = ErrorRecord("UnavailableError", "a peer is gone", 4, "Traceback of worker-0", root=False)
    bad = ErrorRecord("ValueError", "bad batch 3", 2, "Traceback of worker-1")
    tasks = []
    for name, error, seconds in (("worker-0", lost, 1.0), ("worker-1", bad, 2.0)):
        (run.folder / f"{name}.log").write_text("one\ntwo\nthree\n")
        tasks.append(TaskRecord(name, "failed", seconds=seconds, end=14, error=error))
    append_record(run, CellRecord(1, "broken", "2 workers", tuple(tasks), 5, "x", 1.0, 2.5, "failed"))
    return run


def read_json(capsys, kind):
    text = capsys.readouterr().out.rstrip("\n")
    found = msgspec.json.decode(text, type=kind)
    assert schemas.as_json(found) == text, "nothing in it is unknown to its schema"
    return found


def test_the_failures_of_a_run_are_read_from_disk(failed_run, capsys):
    assert main(["errors", "broken", "--json"]) == 0
    first, second = read_json(capsys, list[schemas.ErrorReport])
    assert (first.task, first.root, first.cell_line) == ("worker-1", True, 2) and not second.root
    assert main(["errors", "broken"]) == 0
    text = capsys.readouterr().out
    assert text.index("Traceback of worker-1") < text.index("Traceback of worker-0")
    assert main(["errors", "broken", "worker-7"]) == 1 and "worker-7" in capsys.readouterr().err


def test_a_cell_that_was_stopped_is_not_taken_for_one_that_ended_well(failed_run, capsys):
    late = TaskRecord("worker-0", "stopped", "interrupted", seconds=1.0)
    append_record(failed_run, CellRecord(2, "broken", "2 workers", (late,), 6, "x", 1.0, 2.5, "timed out"))
    assert main(["errors", "broken"]) == 0
    assert capsys.readouterr().out.rstrip().endswith(" (timed out)")


def test_a_run_is_waited_for_from_outside(failed_run, capsys):
    assert main(["wait", "broken", "--json"]) == 1
    found = read_json(capsys, schemas.WaitReport)
    assert (found.state, found.cells[0].errors[0].type) == ("failed", "ValueError")
    running = CellRecord(2, "broken", "2 workers", (TaskRecord("worker-0", "running"),), 6, "x", 1.0, 2.5)
    (failed_run.folder / "run.json").write_text(
        json.dumps({"cluster": "broken", "started": 9e9, **identify(os.getpid()).as_json()})
    )
    append_record(failed_run, running)
    append_feature_record(
        failed_run, FeatureRecorded(TaskId("worker", 0), 1, 2, "track", b'{"loss":[[340,0.21]]}'), 1 << 20
    )
    assert main(["wait", "broken", "--timeout", "0.01"]) == 124
    assert "cell [6] still runs: step 340, loss 0.21 (worker-0);" in capsys.readouterr().out
    assert main(["wait", "nothing"]) == 1 and "nothing" in capsys.readouterr().err


def test_logs_of_a_run_are_read_in_pieces(failed_run, capsys):
    assert main(["logs", "broken", "worker-0", "--json", "--since", "4", "--max-bytes", "5"]) == 0
    (piece,) = read_json(capsys, list[schemas.LogReport])
    assert (piece.text, piece.start, piece.next, piece.size) == ("two\n", 4, 8, 14)
    assert main(["logs", "broken", "worker-0", "--since", "8"]) == 0
    assert capsys.readouterr().out.startswith("[worker-0]:    three\n")
    with pytest.raises(SystemExit):
        main(["logs", "broken", "--since", "8", "--tail", "1"])
