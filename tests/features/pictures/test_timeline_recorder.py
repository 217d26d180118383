"""The recorder of timelines: histories of a cluster in, records on disk out. No process, no clock."""

import pytest
from histories import A, B, C, History, at_line, observed, raised, reached, returned

from tfmagic.features.pictures import lanes, timeline_file
from tfmagic.features.pictures import recorder as timeline_recorder
from tfmagic.features.pictures.recorder import TimelineRecorder, describe_tasks
from tfmagic.features.pictures.timeline_file import CellBegan, CellEnded, Change, Mark, read_timeline
from tfmagic.protocol.events import (
    Cause,
    InputWanted,
    InterruptPressed,
    LaunchRequested,
    SignalAsked,
    TaskExited,
    TaskReady,
    TaskStarted,
    Wait,
)
from tfmagic.runs.folder import RunFolder
from tfmagic.supervisor.lifecycle import apply, decide
from tfmagic.supervisor.state import Policy


class Recorded(History):
    """A history whose decisions are recorded into a folder."""

    def __init__(self, folder, *tasks, policy=None):
        self.run_folder = RunFolder(folder)
        self.recorder = TimelineRecorder(self.run_folder)
        self.recorder._offset = 1000.0  # the clock begins at 0
        super().__init__(*tasks, policy=policy)

    def happen(self, *events, now=None):
        self.now = self.now if now is None else now
        for event in events:
            self.state = apply(self.state, event, self.now)
        decision = decide(self.state, self.policy, self.now)
        self.state = decision.state
        self.recorder.note(events, decision, self.policy, self.now)
        return list(decision.actions)

    def records(self, kind):
        self.recorder.flush()
        return [record for record in read_timeline(self.run_folder) if isinstance(record, kind)]

    def of(self, task):
        return [(round(c.t - 1000, 3), c.doing) for c in self.records(Change) if c.task == task.name]


def test_a_cell_its_lines_and_its_end(tmp_path):
    history = Recorded(tmp_path, A, B).ready()
    history.run(A, B, now=1.0, source="a\nb\n")
    history.happen(at_line(A, 1), now=1.5)
    history.happen(at_line(A, 2), now=2.0)
    history.happen(returned(A), now=3.0)
    history.happen(raised(B), now=3.5)
    assert [(c.t, c.tasks, c.source) for c in history.records(CellBegan)] == [
        (1001.0, ("worker-0", "worker-1"), "a\nb\n")
    ]
    lines = [(c.t - 1000, c.doing, c.line) for c in history.records(Change) if c.task == "worker-0"][-4:]
    assert lines == [(1.0, "running", 0), (1.5, "running", 1), (2.0, "running", 2), (3.0, "idle", 0)]
    (end,) = history.records(CellEnded)
    assert (end.parts["worker-0"].how, end.parts["worker-0"].t) == ("done", 1003.0)
    assert end.parts["worker-1"].how == "failed" and "ValueError: bad" in end.parts["worker-1"].note


def test_a_cell_that_is_over_at_once_is_noted_with_its_end(tmp_path):
    history = Recorded(tmp_path, A).ready()
    for cell in range(1, 4):
        history.run(A, cell=cell, now=5 + cell / 1000, source="x")
        history.happen(returned(A, cell=cell), now=5 + cell / 1000 + 0.0005)
    assert len(history.records(CellBegan)) == len(history.records(CellEnded)) == 3


def test_variables_that_are_pushed_are_no_cell(tmp_path):
    history = Recorded(tmp_path, A).ready()
    history.run(A, now=1.0)
    history.happen(returned(A), now=1.1)
    assert not history.records(CellBegan) and not history.records(CellEnded)


def test_whoever_waits_at_a_barrier_waits_for_those_who_have_not_come(tmp_path):
    history = Recorded(tmp_path, A, B, C).ready()
    history.run(A, B, C, now=1.0, source="x")
    history.happen(reached(A, "barrier 1", (A, B, C)), now=2.0)
    history.happen(reached(B, "barrier 1", (A, B, C)), now=3.0)
    history.happen(reached(C, "barrier 1", (A, B, C)), now=4.0)
    changes = [c for c in history.records(Change) if c.task == "worker-0"]
    waits = [(c.t - 1000, c.whom, c.what) for c in changes if c.doing == "waiting"]
    assert waits == [(2.0, ("worker-1", "worker-2"), "barrier 1"), (3.0, ("worker-2",), "barrier 1")]
    assert (changes[-1].t - 1000, changes[-1].doing) == (4.0, "running")


def test_whoever_waits_in_a_collective_waits_for_those_that_are_elsewhere(tmp_path):
    history = Recorded(tmp_path, A, B, C).ready()
    history.run(A, B, C, now=1.0, source="x")
    history.happen(at_line(A, 3, "all_reduce", Wait.COLLECTIVE), at_line(C, 9), now=2.0)
    history.happen(at_line(B, 3, "all_reduce", Wait.COLLECTIVE), now=3.0)
    history.happen(observed({A: 0.0, B: 0.0, C: 0.0}), now=3.5)
    last = {c.task: c for c in history.records(Change)}
    assert (last["worker-0"].doing, last["worker-0"].what, last["worker-0"].whom) == (
        "waiting",
        "all_reduce",
        ("worker-2",),
    )
    assert last["worker-1"].whom == ("worker-2",) and last["worker-2"].doing == "running"


def test_input_stalls_and_stops_are_seen(tmp_path):
    history = Recorded(tmp_path, A, B, C, policy=Policy(stall_s=2)).ready()
    history.run(A, B, C, now=1.0, source="x")
    history.happen(InputWanted(A, 1, 1, 0, 1, "? "), at_line(C, 4, "time.sleep"), now=1.5)
    for second in range(2, 6):
        history.happen(observed({A: 0.0, B: 0.0, C: 0.0}, stopped=(B,)), now=float(second))
    doing = {c.task: c.doing for c in history.records(Change)}
    assert doing == {"worker-0": "input", "worker-1": "paused", "worker-2": "stalled"}


def test_a_killed_task_and_its_new_process(tmp_path):
    history = Recorded(tmp_path, A, B).ready()
    history.run(A, B, now=1.0, source="x")
    history.happen(SignalAsked(B, 9, Cause.USER), now=2.0)
    history.happen(TaskExited(B, 1, -9), now=2.1)
    history.happen(LaunchRequested((B,)), now=3.0)
    history.happen(TaskStarted(B, 2, 7, False), TaskReady(B, 2, 7, "host"), now=4.0)
    assert history.of(B)[-3:] == [(2.1, "dead"), (3.0, "starting"), (4.0, "idle")]
    marks = [(round(m.t - 1000, 3), m.what, m.note) for m in history.records(Mark)]
    assert marks == [
        (2.0, "signal", "SIGKILL: a signal of the user's"),
        (2.1, "ended", "was killed by you (SIGKILL)"),
        (3.0, "restart", "a new process was asked for"),
    ]
    assert [c.attempt for c in history.records(Change) if c.task == "worker-1"][-1] == 2


def test_a_restart_by_the_policy_leaves_the_end_in_the_file(tmp_path):
    history = Recorded(tmp_path, A, policy=Policy(auto_restart=1)).ready()
    history.happen(TaskExited(A, 1, -11), now=2.0)
    (mark,) = history.records(Mark)
    assert mark.what == "ended" and "SIGSEGV" in mark.note


def test_a_script_that_is_done_has_ended_well_and_a_cell_that_ends_its_process_has_not(tmp_path):
    history = Recorded(tmp_path, A, B).ready()
    history.run(A, B, now=1.0, source="x")
    history.happen(TaskExited(B, 1, 0), now=1.5)
    history.happen(returned(A), now=2.0)
    history.happen(TaskExited(A, 1, 0), now=3.0)
    assert [c.note for c in history.records(Change) if c.doing == "dead"] == [timeline_file.ENDED_WELL] * 2
    in_cell, well = history.records(Mark)
    assert "something in the cell ended the process" in in_cell.note and well.note == timeline_file.ENDED_WELL
    events = lanes.build(read_timeline(history.run_folder), "run", until=1004.0, whole=True).events
    assert [(event.task, event.sign) for event in events if "code 0" in event.text] == [
        ("worker-1", "died"),
        ("worker-0", "other"),
    ]


def test_an_interrupt_names_the_tasks_of_the_cell(tmp_path):
    history = Recorded(tmp_path, A, B, C).ready()
    history.run(A, B, now=1.0, source="x")
    history.happen(InterruptPressed(), now=2.0)
    history.happen(raised(A, "KeyboardInterrupt", interrupted=True), now=2.2)
    (mark,) = history.records(Mark)
    assert (mark.what, mark.tasks) == ("interrupt", ("worker-0", "worker-1"))


def test_the_last_change_of_a_burst_is_noted_with_its_own_time(tmp_path):
    history = Recorded(tmp_path, A).ready()
    history.run(A, now=1.0, source="x")
    for place in range(20):
        history.happen(at_line(A, place + 1), now=2 + place / 1000)
    history.happen(observed({A: 1.0}), now=2.5)
    history.happen(observed({A: 2.0}), now=3.5)
    changes = [(round(c.t - 1000, 3), c.line) for c in history.records(Change) if c.line]
    assert changes[0] == (2.0, 1) and changes[-1] == (2.019, 20)
    assert len(changes) <= 3


def test_a_wait_that_begins_at_once_has_its_own_time(tmp_path):
    """The line at which a task waits is seen later than the wait."""
    history = Recorded(tmp_path, A, B).ready()
    history.run(A, B, now=1.0, source="x")
    history.happen(reached(A, "barrier 1", (A, B)), now=1.005)
    history.happen(at_line(A, 4), at_line(B, 3), now=1.2)
    waits = [(round(c.t - 1000, 3), c.line) for c in history.records(Change) if c.doing == "waiting"]
    assert waits == [(1.005, 0), (1.2, 4)]


def test_a_long_cell_grows_the_file_with_the_logarithm_of_its_time(tmp_path):
    history = Recorded(tmp_path, A).ready()
    history.run(A, now=0.0, source="x")
    for tick in range(20_000):  # 2,000 s, ten lines a second
        history.happen(at_line(A, tick % 7 + 1), now=tick / 10)
    count = len(history.records(Change))
    assert 200 < count < 1800
    assert (tmp_path / "timeline.jsonl").stat().st_size < 200_000


def test_a_full_file_begins_anew_with_what_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline_file, "HALF_BYTES", 3000)
    history = Recorded(tmp_path, A, B).ready()
    history.run(A, B, now=0.0, source="the cell")
    for tick in range(400):
        history.happen(at_line(A, tick + 1), now=1.0 + tick)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 8000
    assert {record.source for record in history.records(CellBegan)} == {"the cell"}
    assert {change.task for change in history.records(Change)} == {"worker-0", "worker-1"}


def test_a_folder_that_was_deleted_and_made_anew_gets_the_whole_state(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    history = Recorded(folder, A, B).ready()
    history.run(A, B, now=1.0, source="x")
    history.records(Change)
    (folder / "timeline.jsonl").unlink()
    folder.rmdir()
    history.happen(at_line(A, 1), now=2.0)
    history.happen(at_line(A, 2), now=3.0)
    folder.mkdir()
    history.happen(at_line(A, 3), now=4.0)
    assert {change.task for change in history.records(Change)} == {"worker-0", "worker-1"}
    assert len(history.records(CellBegan)) == 1


def test_a_defect_of_the_recorder_is_reported_once_and_ends_no_cluster(tmp_path, monkeypatch, capsys):
    history = Recorded(tmp_path, A).ready()
    monkeypatch.setattr(timeline_recorder, "describe_tasks", lambda *args: 1 / 0)
    for second in range(3):
        history.happen(observed({A: 0.0}), now=10.0 + second)
    assert capsys.readouterr().err.count("ZeroDivisionError") == 1


@pytest.mark.parametrize("count", [1, 1000])
def test_every_task_is_described(count):
    from tfmagic.protocol.cluster_spec import TaskId

    tasks = tuple(TaskId("worker", n) for n in range(count))
    history = History(*tasks).ready()
    found = describe_tasks(history.state, history.policy, history.now, 0.0)
    assert {change.doing for change in found.values()} == {"idle"} and len(found) == count
