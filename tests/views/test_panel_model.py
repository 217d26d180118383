"""The messages to the page of a live panel: only changes, and everything in a snapshot."""

import json
import os
import signal
import subprocess
import sys

import msgspec
import pytest
from conftest import wait_until
from histories import observed, reached

from tfmagic.backends.fake import FakeBackend
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import RunCell
from tfmagic.protocol.events import (
    Cause,
    CellRaised,
    CellRequested,
    CellReturned,
    Displayed,
    FeatureRecorded,
    LineReached,
    SignalAsked,
    StopRequested,
    TaskExited,
    TaskReady,
    TaskStarted,
)
from tfmagic.protocol.payload import PackedError
from tfmagic.runs.cell_records import ErrorRecord
from tfmagic.runs.feature_records import append_feature_record
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.given_hints import Hint, append_hint
from tfmagic.supervisor.cell_controls import CellControls
from tfmagic.supervisor.lifecycle import apply, decide, new_state
from tfmagic.supervisor.running_cell import RunningCell
from tfmagic.supervisor.state import Policy
from tfmagic.system.usage import Sampler
from tfmagic.task.cell_position import find_frame
from tfmagic.views import panel_model
from tfmagic.views.facts import describe_cell
from tfmagic.views.panel_model import PanelModel
from tfmagic.views.protocol import ViewContext
from tfmagic.views.saved_cell import Look, SavedCell
from tfmagic.views.static_form import render

A, B = TaskId("worker", 0), TaskId("worker", 1)


class Supervisor:
    """A cluster state that the test changes by events, and the requests that arrived."""

    def __init__(self, *tasks):
        self.state, self.asked = new_state(tasks), []
        self.usage, self.warning = {}, ""
        self.backend = FakeBackend()

    def policy(self):
        return Policy()

    def happen(self, *events):
        for event in events:
            self.state = apply(self.state, event, 0.0)
        self.state = decide(self.state, Policy(), 0.0).state

    def interrupt(self, tasks=(), cell=0):
        self.asked.append((tasks, cell))

    def ask(self, event):
        self.asked.append(event)


class ShownCell:
    """A cell on some workers, its logs, and the panel model that shows it."""

    def __init__(self, folder, *tasks, **how):
        self.run = RunFolder(folder)
        self.supervisor = Supervisor(*tasks)
        self.supervisor.happen()
        for task in tasks:
            self.run.log_path(task).touch()
            self.supervisor.happen(TaskStarted(task, 1, 0, False), TaskReady(task, 1, 0, "host"))
        request = CellRequested(1, {task: RunCell(cell=1, tasks=tasks) for task in tasks})
        self.cell = RunningCell(request, dict.fromkeys(tasks, 0))
        self.supervisor.happen(request)
        error = ErrorRecord("ValueError", "bad", 3, "Traceback of it", hint="Mend it.", hint_name="mend")
        self.context = ViewContext(
            "default",
            "2 workers",
            self.run,
            self.cell,
            self.supervisor,
            CellControls(self.supervisor, 1),
            lambda cell: {"worker-0": error},
            prompt=7,
        )
        self.model = PanelModel(self.context, **how)
        self.sent = []

    def write(self, task, text):
        with self.run.log_path(task).open("a") as file:
            file.write(text)

    def look(self):
        return {
            **self.model.look(),
            **self.model.look(),
        }  # the second look shows what had been written at the first


@pytest.fixture
def shown(tmp_path):
    made = ShownCell(tmp_path, A, B)
    yield made
    made.model.close()


def test_the_setup_names_the_tasks_and_those_that_are_open(shown):
    setup = shown.model.setup
    assert [t["name"] for t in setup["tasks"]] == ["worker-0", "worker-1"]
    assert setup["cell"] == 7 and setup["open"] == [0, 1]
    assert not setup["kept"] and setup["attach"].endswith("--cell 7")
    json.dumps(setup)


def test_charts_are_drawn_at_most_twice_a_second_and_once_more_at_the_end(shown, monkeypatch):
    def track(step):
        append_feature_record(
            shown.run, FeatureRecorded(A, 1, 1, "track", b'{"loss":[[%d,1]]}' % step), 1 << 20
        )

    track(0)
    assert "step 0" in shown.model.look()["figures"]["loss"]
    track(1)
    assert "figures" not in shown.model.look(), "too soon"
    assert "step 0" in shown.model.snapshot()["figures"]["loss"]
    monkeypatch.setattr(panel_model, "_DRAW_S", 0.0)
    assert "step 1" in shown.model.look()["figures"]["loss"]
    assert "figures" not in shown.model.look(), "nothing is new"


def test_a_hint_is_sent_once_with_all_tasks_that_have_it_and_that_of_a_failure_beside_it(shown):
    shown.look()
    append_hint(shown.run, 1, Hint("a-name", "Do it.", ("worker-0",)))
    shown.cell.has_hints = True
    (first,) = shown.model.look()["hints"]
    assert first["advice"] == "Do it." and first["tasks"] == "worker-0" and "a-name" in first["more"]
    assert "hints" not in shown.model.look(), "nothing is new"
    append_hint(shown.run, 1, Hint("a-name", "Do it.", ("worker-1",)))
    append_hint(shown.run, 2, Hint("other", "Of another cell.", ("worker-1",)))
    (both,) = shown.model.look()["hints"]
    assert both["tasks"] == "worker-0, worker-1"
    shown.supervisor.happen(CellRaised(A, 1, 1, 0.5, 0, PackedError("ValueError", "bad", "", None, "")))
    assert [hint["advice"] for hint in shown.model.look()["hints"]] == ["Do it.", "Mend it."]
    assert [hint["tasks"] for hint in shown.model.snapshot()["hints"]] == ["worker-0, worker-1", "worker-0"]


def test_a_look_returns_what_has_changed_and_the_next_one_nothing(shown):
    first = shown.model.look()
    assert first["tasks"]["0"]["state"] == "running" and first["head"]["total"] == 2
    assert shown.model.look() == {}
    shown.write(A, "one\ntwo")
    message = shown.look()
    assert message["rows"] == {"0": {"base": 0, "items": ["one", "two"]}}
    assert set(message["tasks"]) == {"0"} and message["tasks"]["0"]["last"] == "two"
    shown.write(A, " more\n")
    assert shown.look()["rows"] == {"0": {"base": 1, "items": ["two more"]}}


def test_a_snapshot_has_everything_and_takes_nothing_from_later_looks(shown):
    shown.write(A, "one\n")
    shown.look()
    shot = shown.model.greet()
    assert shot["reset"] and shot["rows"]["0"]["items"] == ["one"] and "state" in shot["tasks"]["1"]
    shown.write(A, "two\n")
    assert shown.look()["rows"]["0"] == {"base": 1, "items": ["two"]}


def test_rows_go_out_for_watched_tasks_only_and_in_full_when_a_panel_opens(tmp_path):
    tasks = [TaskId("worker", n) for n in range(6)]
    shown = ShownCell(tmp_path, *tasks)
    shown.write(tasks[3], "quiet\n")
    message = shown.look()
    assert "rows" not in message and message["tasks"]["3"]["last"] == "quiet"
    shown.model.obey({"kind": "watch", "tasks": [3], "merged": False}, shown.sent.append)
    assert shown.sent[-1]["rows"] == {"3": {"base": 0, "items": ["quiet"]}}
    assert shown.model.complete(shown.model._describe()).open == ("worker-3",)
    shown.model.obey({"kind": "watch", "tasks": [3], "merged": True}, shown.sent.append)
    assert set(shown.sent[-1]["rows"]) == {"0", "1", "2", "4", "5"}
    shown.model.close()


def test_an_updated_display_is_replaced_where_it_is(shown):
    for n, (text, update) in enumerate((("one", False), ("two", True))):
        content = {"data": {"text/plain": text}, "transient": {"display_id": "x"}, "update": update}
        shown.cell.displays.append(Displayed(A, 1, 1, n * 5, json.dumps(content).encode()))
        shown.write(A, "line\n")
        message = shown.look()
    assert message["replaced"]["0"]["0"]["d"] == {"text/plain": "two"}


def test_equal_values_are_folded(shown):
    for task in (A, B):
        content = {"data": {"text/plain": "42"}, "value": True}
        shown.cell.displays.append(Displayed(task, 1, 1, 0, json.dumps(content).encode()))
    (row,) = shown.look()["values"]
    assert row["names"] == "worker-0, worker-1"


def test_a_failure_is_shown_with_its_text(shown):
    error = PackedError("ValueError", "bad", "", None, "", line=3)
    shown.supervisor.happen(CellRaised(A, 1, 1, 0.5, 0, error))
    facts = shown.look() or shown.model.snapshot()
    changed = facts["tasks"]["0"]
    shot = shown.model.snapshot()["tasks"]["0"]
    assert shot["state"] == "failed" and shot["error"]["text"] == "Traceback of it"
    assert changed.get("state", "failed") == "failed"


def test_the_end_is_shown_with_the_outcome(shown):
    for task in (A, B):
        shown.supervisor.state = apply(shown.supervisor.state, CellReturned(task, 1, 1, 0.5, 0), 0.0)
    outcome = shown.supervisor.state.cells[1]
    shown.cell.finish(outcome)
    message = shown.model.look(describe_cell(shown.context, outcome, 1.0))
    assert message["head"]["over"] and message["head"]["verdict"] == "done" and message["head"]["done"] == 2


@pytest.mark.parametrize("how", [TaskExited(A, 1, -9, 0, 5), CellReturned(A, 1, 1, 0.5, 5)], ids=type)
def test_what_a_later_cell_writes_is_not_shown_by_one_that_others_still_run(shown, how):
    shown.write(A, "mine\n")
    shown.supervisor.state = apply(shown.supervisor.state, how, 0.0)
    shown.write(A, "of another cell\n")
    shown.look()
    assert shown.model.greet()["rows"]["0"]["items"] == ["mine"]


def test_what_the_user_has_ended_is_stopped_and_no_failure(shown):
    assert shown.model.act({"kind": "kill", "task": 0})
    shown.supervisor.happen(*shown.supervisor.asked, TaskExited(A, 1, -9))
    facts = shown.look()
    assert facts["tasks"]["0"]["state"] == "stopped" and facts["tasks"]["0"]["error"] is None
    assert facts["tasks"]["0"]["note"] == "killed by you (SIGKILL)"
    follow = "worker-0 was killed; the other tasks are interrupted after 3 s"
    assert facts["head"]["message"] == follow
    shown.supervisor.happen(StopRequested())
    shown.supervisor.happen(TaskExited(B, 1, -9))
    assert shown.look()["tasks"]["1"]["state"] == "stopped"
    shown.cell.finish(None)
    record = describe_cell(shown.context, None, 1.0)
    assert record.verdict == "stopped" and not any(task.error for task in record.tasks)


def test_a_signal_that_nobody_asked_for_is_a_death(shown):
    shown.supervisor.happen(SignalAsked(A, signal.SIGTERM, Cause.USER), TaskExited(A, 1, -9))
    assert shown.look()["tasks"]["0"]["state"] == "died"


def test_an_interrupted_task_says_what_becomes_of_the_others(shown):
    error = PackedError("KeyboardInterrupt", "", "", None, "")
    shown.supervisor.happen(CellRaised(A, 1, 1, 0.5, 0, error, interrupted=True))
    expected = "worker-0 was interrupted; the other tasks are interrupted after 3 s"
    assert shown.look()["head"]["message"] == expected


def test_buttons_reach_the_supervisor_and_foreign_requests_nothing(shown):
    for request in ({"kind": "interrupt"}, {"kind": "interrupt", "task": 1}, {"kind": "stop"}):
        assert shown.model.act(request)
    assert shown.supervisor.asked == [((), 1), ((B,), 1), StopRequested()]
    assert not shown.model.act({"kind": "hello"})
    for request in ({}, {"kind": "watch"}, {"kind": "stacks", "task": 9}):
        with pytest.raises((KeyError, IndexError)):
            shown.model.obey(request, shown.sent.append)


def test_the_log_goes_out_in_parts_with_its_path(shown):
    shown.write(A, "x" * 99 + "\n")
    shown.write(A, "bar 1\rbar 2\n" * 10_000)
    shown.model.obey({"kind": "log", "task": 0, "request": 5}, shown.sent.append)
    parts = [message["log"] for message in shown.sent]
    text = "".join(part["text"] for part in parts)
    assert text.count("bar 2") == 10_000 and "bar 1" not in text and text.startswith("x" * 99)
    assert parts[0]["path"].endswith("worker-0.log") and parts[0]["request"] == 5


def test_a_busy_process_and_a_stopped_one_are_distinguished():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sampler = Sampler()
    try:
        sampler.sample({A: process.pid})
        wait_until(lambda: (sampler.sample({A: process.pid})[A].cpu_percent or 0) > 20)
        usage = Sampler().sample({A: process.pid})[A]  # the process is larger than at the first sample
        assert usage.memory_bytes > 1 << 20 and not usage.paused
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: sampler.sample({A: process.pid})[A].paused)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: sampler.sample({A: process.pid})[A].memory_bytes is None)
    assert sampler.sample({A: 0}) == {}


def test_a_stopped_task_is_stalled_and_the_head_names_the_task_that_waits(shown):
    shown.supervisor.happen(reached(B, "barrier 1", (A, B)), observed({A: 1.0, B: 1.0}, stopped=(A,)))
    message = shown.model.look()
    stopped = message["tasks"]["0"]
    assert stopped["state"] == "stalled" and "SIGSTOP" in stopped["note"]
    assert message["tasks"]["1"]["state"] == "waiting"
    assert message["head"]["message"] == "worker-1 waits at barrier 1; worker-0 is stopped"


def test_memory_that_runs_out_is_shown_in_the_head(shown):
    shown.supervisor.warning = "memory is nearly used up"
    assert shown.model.look()["head"]["message"] == "memory is nearly used up"


def test_the_line_of_a_cell_is_that_of_its_innermost_frame():
    code = compile("def f():\n    return look()\n\nplace = f()", "<tfcluster-1>", "exec")
    names = {"look": lambda: find_frame(sys._getframe(), "<tfcluster-1>").f_lineno}
    exec(code, names)
    assert names["place"] == 2
    assert find_frame(sys._getframe(), "<tfcluster-2>") is None
    assert find_frame(None, "") is None


def test_a_draft_has_the_text_so_far_is_drawn_when_that_has_changed_and_not_too_often(shown):
    published = []
    saved = SavedCell(shown.context, lambda *what, **how: published.append((*what, how)), Look(), "bar", 0.0)
    shown.write(A, "one\n")
    assert saved.draft()
    data, metadata, place = published.pop()
    assert data["text/plain"].startswith("[worker-0]:    one\ntfmagic: this is the cell at ")
    assert (
        data["text/plain"].endswith(f"%tfcluster attach {shown.run} --cell 7")
        and "tfm-draft" in data["text/html"]
    )
    assert metadata == {"tfmagic": {"run": str(shown.run), "cell": 1}}
    assert place == {"display_id": "bar", "update": True}
    shown.write(A, "two\n")
    assert not saved.draft(), "a page draws it again each time"
    wait_until(saved.draft)
    assert "two" in published.pop()[0]["text/plain"] and not saved.message()["over"]
    saved._draft_at = 0.0
    assert not saved.draft() and not published, "nothing is new"
    saved.finish(describe_cell(shown.context, None, 1.0))
    assert saved.message() == {"kind": "form", "data": published.pop()[0], "over": True}


def test_a_draft_of_a_flood_is_short_and_the_whole_one_comes_after_it(shown):
    published = []
    saved = SavedCell(shown.context, lambda data, *_, **how: published.append(data), Look(), "bar", 0.0)
    shown.write(A, f"{'a line':60}\n" * 800)
    assert saved.draft()
    short = published.pop()
    assert 5_000 < len(short["text/html"]) + len(short["text/plain"]) < 20_000
    saved._draft_at = 0.0
    assert saved.draft()
    assert published.pop()["text/plain"].count("a line") == 800
    saved._draft_at = 0.0
    shown.write(A, "one more\n")
    assert saved.draft()
    whole = published.pop()["text/plain"]
    assert whole.count("a line") == 800 and "one more" in whole


def test_a_cell_that_waits_for_another_one_shows_none_of_its_output(shown):
    request = CellRequested(2, {A: RunCell(cell=2, tasks=(A,))})
    shown.supervisor.happen(request)
    queued = msgspec.structs.replace(shown.context, run=RunningCell(request, {A: 0}))
    shown.write(A, "of the first cell\n")
    record = describe_cell(queued, None, 1.0)
    assert record.tasks[0].note == "queued" and "first" not in render(record, shown.run).text


def test_times_and_places_are_those_of_the_saved_form(shown):
    """The page writes none of them itself, but the clock of a cell that runs."""
    head = shown.look()["head"]
    assert (head["words"], head["sign"]) == ("0 of 2 done", "")
    error = PackedError("ValueError", "bad", "", None, "", line=3)
    shown.supervisor.happen(CellRaised(A, 1, 1, 61.0, 0, error))
    failed = shown.look()["tasks"]["0"]
    assert failed["memory"] == "1 min 1 s" and failed["place"] == "line 3"
    assert failed["error"]["at"] == "line 3 of the cell"


def test_a_task_that_is_done_has_its_time_and_no_place(shown):
    shown.supervisor.happen(LineReached(A, 1, 1, "cell", 4), CellReturned(A, 1, 1, 0.5, 0))
    done = shown.look()["tasks"]["0"]
    assert (done["state"], done["memory"], done["place"]) == ("done", "0.50 s", "")
