"""The choice of the root cause, and the notes about other failures: one exception for each history."""

import pickle

import pytest

from tfmagic.errors import TaskDied, TaskTimeoutError
from tfmagic.failures import hints, root_cause
from tfmagic.failures.root_cause import FailureContext
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import RunCell
from tfmagic.protocol.events import CellRaised, CellRequested, CellReturned, TaskExited, TaskLost
from tfmagic.protocol.payload import PackedError
from tfmagic.runs.folder import RunFolder
from tfmagic.supervisor.state import CellState

A, B, C = (TaskId("worker", i) for i in range(3))
ABORTED = (
    "Graph execution error:\n\nDetected at node X defined at\n  File y\n\nCollective ops is aborted by: x"
)
CONSEQUENCES = [
    ("UnavailableError", "Socket closed"),
    ("AbortedError", "unexpectedly tried to connect with a different incarnation"),
    ("CancelledError", "cancelled"),
    ("DeadlineExceededError", "RPC: /tensorflow.CoordinationService/Heartbeat"),
    ("BrokenBarrierError", "barrier 1: worker-1 raised ValueError"),
    ("InternalError", "recvmsg:Connection reset by peer"),
    ("UnknownError", "The following tasks are unhealthy (stopped sending heartbeats)"),
    ("RuntimeError", ABORTED),
]


def raised(task, kind="ValueError", message="bad", at=0.0, interrupted=False, causes=(), line=0):
    chain = ((kind, message), *causes)
    error = PackedError(kind, message, f"text of {kind}", None, f"{task} (pid 1, host)", chain, line)
    return CellRaised(task, 1, 1, 0.1, 0, error, interrupted, raised_at=at)


def finished(*outcomes, ended_at=None, **how):
    commands = {o.task: RunCell(cell=1, filename="<tfcluster-0>") for o in outcomes}
    request = CellRequested(1, commands, how.pop("timeout_s", None))
    at = ended_at or {o.task: i for i, o in enumerate(outcomes)}
    return CellState(request, 0.0, True, {o.task: o for o in outcomes}, at, **how)


@pytest.fixture
def build(tmp_path):
    def build_error(*outcomes, stacks="", **how):
        return root_cause.build_error(
            finished(*outcomes, **how), FailureContext({}, RunFolder(tmp_path), stacks=stacks)
        )

    return build_error


def test_a_cell_that_succeeded_raises_nothing(build):
    assert build(CellReturned(A, 1, 1, 0.1, 0)) is None


def test_the_earliest_failure_is_raised_whatever_came_in_first(build):
    error = build(raised(A, "KeyError", "late", at=2.0), raised(B, "ValueError", "early", at=1.0))
    assert type(error).__name__ == "ValueError"
    assert error.__notes__ == ["raised on worker-1 (pid 1, host)", "also on worker-0: KeyError: late"]
    assert list(error.failures) == ["worker-1", "worker-0"]
    assert error.failures["worker-1"] is error
    assert error.failures["worker-0"].type_name == "KeyError"


@pytest.mark.parametrize(("kind", "message"), CONSEQUENCES)
def test_a_consequence_is_never_the_root_cause(build, kind, message):
    error = build(raised(A, kind, message, at=1.0), raised(B, "ValueError", "the cause", at=2.0))
    assert str(error) == "the cause"


def test_what_is_raised_because_of_a_consequence_is_one(build):
    wrapped = raised(A, "RuntimeError", "training failed", at=1.0, causes=[("UnavailableError", "gone")])
    assert str(build(wrapped, raised(B, "ValueError", "the cause", at=2.0))) == "the cause"


def test_a_consequence_alone_is_raised(build):
    assert build(raised(A, "UnavailableError", "server is down")).type_name == "UnavailableError"


def test_a_death_is_the_root_of_what_follows_from_it(build):
    error = build(
        raised(A, "UnavailableError", "Socket closed", at=5.0), TaskExited(B, 1, -9), ended_at={B: 5.1}
    )
    assert isinstance(error, TaskDied) and error.task == "worker-1" and error.exit_code == -9
    assert "also on worker-0: UnavailableError: Socket closed" in error.__notes__


def test_a_task_that_we_killed_is_a_consequence(build):
    error = build(TaskExited(A, 1, -9), raised(B, at=9.0), replaced=(A,), stacks="worker-0:\n  File x")
    assert error.type_name == "ValueError"
    assert "also on worker-0: killed, since it waited for the failed task" in error.__notes__
    assert "worker-0 could not be reached" in error.__notes__[-1] and "File x" in error.__notes__[-1]


def test_equal_failures_are_folded_and_those_of_the_root_are_not_repeated(build):
    error = build(raised(A, at=1.0), raised(C, at=2.0), raised(B, at=3.0))
    assert error.__notes__[1:] == ["also on worker-1, worker-2"]


def test_failures_that_differ_in_an_address_are_equal(build):
    error = build(raised(A, message="at 0x7f00aa11", at=1.0), raised(B, message="at 0x7f00bb22", at=2.0))
    assert error.__notes__[1:] == ["also on worker-1"]


def test_different_failures_are_a_note_each(build):
    error = build(
        raised(A, at=1.0), raised(B, "KeyError", "b", at=2.0), TaskLost(C, 1, "its launcher was killed")
    )
    assert set(error.__notes__[1:]) == {
        "also on worker-1: KeyError: b",
        "also on worker-2: was lost: its launcher was killed",
    }


def test_a_note_has_the_one_line_of_a_long_tensorflow_message_that_matters(build):
    error = build(raised(A, at=1.0), raised(B, "UnavailableError", ABORTED, at=2.0))
    assert error.__notes__[1] == "also on worker-1: UnavailableError: Collective ops is aborted by: x"


def test_an_interrupt_is_a_keyboard_interrupt_with_the_place(build):
    interrupted = raised(A, "KeyboardInterrupt", "", interrupted=True, line=3)
    error = build(interrupted, raised(B, "KeyboardInterrupt", "", interrupted=True, line=3), presses=1)
    assert type(error) is KeyboardInterrupt
    assert error.__notes__ == ["worker-0, worker-1: at line 3 of the cell"]


def test_a_time_limit_names_the_late_tasks_and_their_places(build):
    late = raised(B, "KeyboardInterrupt", "", interrupted=True)
    error = build(
        CellReturned(A, 1, 1, 0.1, 0), late, timed_out=True, timeout_s=5, stacks="worker-1:\n  File x"
    )
    assert isinstance(error, TaskTimeoutError)
    assert "within 5 s" in str(error) and "stopped on worker-1." in str(error) and "File x" in str(error)


@pytest.mark.parametrize("all_wait", [True, False])
def test_a_time_limit_advises_more_time_only_where_that_can_help(build, all_wait):
    late = raised(B, "KeyboardInterrupt", "", interrupted=True)
    waits = "worker-1 waits in all_reduce (cell line 5); worker-0 has ended the cell"
    waits += "; all wait: no task can come" if all_wait else ""
    error = build(CellReturned(A, 1, 1, 0.1, 0), late, timed_out=True, timeout_s=5, waits=waits)
    assert ("More time would not help" in str(error), "Give it more time" in str(error)) == (
        all_wait,
        not all_wait,
    )


def test_every_failure_can_be_read_in_full(tmp_path):
    cell = finished(raised(A, at=2.0), TaskExited(B, 1, 3), ended_at={B: 1.0})
    found = root_cause.describe_failures(cell, FailureContext({}, RunFolder(tmp_path)))
    assert list(found) == ["worker-1", "worker-0"]
    assert found["worker-0"].text == "text of ValueError" and "exited with code 3" in found["worker-1"].text


def test_a_failure_says_whether_it_follows_from_another_one_and_how_the_process_ended(tmp_path):
    lost = raised(A, "UnavailableError", ABORTED, at=1.0)
    cell = finished(lost, TaskExited(B, 1, -11), TaskExited(C, 1, 3), ended_at={B: 2.0, C: 3.0})
    found = root_cause.describe_failures(cell, FailureContext({}, RunFolder(tmp_path)))
    assert {name: error.root for name, error in found.items()} == {
        "worker-1": True,
        "worker-2": True,
        "worker-0": False,
    }
    assert (found["worker-1"].signal, found["worker-1"].exit_code) == ("SIGSEGV", None)
    assert (found["worker-2"].signal, found["worker-2"].exit_code) == ("", 3)
    assert found["worker-0"].type == "UnavailableError" and found["worker-0"].exit_code is None


@pytest.mark.parametrize(
    "how, why",
    [
        ({"presses": 1}, "the cell was interrupted"),
        (
            {"timed_out": True, "timeout_s": 5, "waits": "worker-0 waits for worker-1"},
            "the cell was not done within 5 s; before that, worker-0 waits for worker-1",
        ),
    ],
)
def test_the_record_of_an_interrupted_task_says_why(tmp_path, how, why):
    late = raised(A, "KeyboardInterrupt", "", interrupted=True)
    found = root_cause.describe_failures(finished(late, **how), FailureContext({}, RunFolder(tmp_path)))
    assert found["worker-0"].message == why
    assert found["worker-0"].text == f"text of KeyboardInterrupt: {why}"


def test_the_raised_error_can_be_pickled_with_its_failures(build):
    error = build(raised(A, at=1.0), TaskExited(B, 1, -11), raised(C, "KeyError", at=2.0))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


def test_an_ordinary_error_gets_no_hint():
    for kind, message in [
        ("ValueError", "bad value"),
        ("KeyError", "'ps'"),
        ("TypeError", "f() takes 1 argument"),
    ]:
        assert not hints.find_hint(raised(A, kind, message).error).advice


def test_an_interrupt_has_notes_on_what_failed_before(build):
    stopped = raised(A, "KeyboardInterrupt", "", interrupted=True, line=3, at=5.0)
    error = build(raised(B, message="root trouble", at=1.0), TaskExited(C, 1, 9), stopped, presses=1)
    assert type(error) is KeyboardInterrupt
    assert "failed before: worker-1: ValueError: root trouble" in error.__notes__
    assert "failed before: worker-2: exited with code 9" in error.__notes__
    assert sorted(error.failures) == ["worker-1", "worker-2"]


def test_a_time_limit_does_not_blame_a_task_that_had_failed_by_itself(build):
    late = raised(A, "KeyboardInterrupt", "", interrupted=True)
    error = build(raised(B, message="root trouble"), late, timed_out=True, timeout_s=2)
    assert "it was stopped on worker-0." in str(error)
    assert error.__notes__ == ["failed before: worker-1: ValueError: root trouble"]


def test_a_keyboard_interrupt_of_the_cells_own_keeps_its_words(build):
    error = build(
        raised(A, "KeyboardInterrupt", "mine", interrupted=True),
        raised(B, "KeyboardInterrupt", "mine", interrupted=True),
    )
    assert type(error) is KeyboardInterrupt and str(error) == "mine"
    assert error.__notes__[1:] == ["also on worker-1"]


def test_what_was_raised_comes_before_a_death_where_asked_for():
    cell = finished(
        TaskExited(A, 1, 3), raised(B, "UnavailableError", "Socket closed", at=2.0), raised(C, at=3.0)
    )
    assert list(root_cause.find_failures(cell)) == [A, C, B]
    assert list(root_cause.find_failures(cell, raised_first=True)) == [C, B, A]
