"""The file of what tasks did: bounded, readable after a crash, private."""

import stat

from tfmagic.features.pictures import timeline_file
from tfmagic.features.pictures.timeline_file import (
    CellBegan,
    CellEnded,
    Change,
    Mark,
    TaskPart,
    TimelineFile,
    read_timeline,
)
from tfmagic.runs.folder import RunFolder

RECORDS = [
    CellBegan(1.0, 3, ("worker-0", "worker-1"), 7, "print('é')\n"),
    Change(1.1, "worker-0", "waiting", 2, 3, 12, "", "barrier 1", ("worker-1",), "for worker-1 at barrier 1"),
    Mark(1.2, "signal", ("worker-1",), "SIGKILL"),
    CellEnded(
        1.3,
        3,
        {"worker-0": TaskPart("failed", 1.25, "ValueError: \udc80"), "worker-1": TaskPart("done", 1.3)},
    ),
]


def test_records_are_read_as_they_were_written(tmp_path):
    run = RunFolder(tmp_path)
    assert TimelineFile(run).append(RECORDS[:3])
    assert read_timeline(run) == RECORDS[:3]
    assert stat.S_IMODE((tmp_path / "timeline.jsonl").stat().st_mode) == 0o600


def test_text_that_is_no_unicode_is_written_too(tmp_path):
    run = RunFolder(tmp_path)
    assert TimelineFile(run).append(RECORDS)
    assert read_timeline(run)[3].parts["worker-0"].how == "failed"


def test_lines_that_were_cut_short_or_are_foreign_are_skipped(tmp_path):
    run = RunFolder(tmp_path)
    TimelineFile(run).append(RECORDS[:1])
    with (tmp_path / "timeline.jsonl").open("ab") as file:
        file.write(b'{"kind":"other","t":1}\n[1,2]\n\xff\xfe\n{"kind":"mark","t":"x"}\n')
        file.write(b'{"kind":"mark","t":5.0,"what":"stop"}\n{"kind":"ta')
    assert read_timeline(run) == [RECORDS[0], Mark(5.0, "stop")]


def test_a_run_without_the_file_has_no_records(tmp_path):
    assert read_timeline(RunFolder(tmp_path)) == []
    assert not TimelineFile(RunFolder(tmp_path / "gone")).append(RECORDS[:1])


def test_two_files_hold_the_newest_records(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline_file, "HALF_BYTES", 1000)
    run = RunFolder(tmp_path)
    file = TimelineFile(run)
    for number in range(100):
        if file.is_full:
            file.turn()
        file.append([Mark(float(number), "flood", ("worker-0",))])
    found = read_timeline(run)
    assert found[-1].t == 99 and 20 < len(found) < 60
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2200
