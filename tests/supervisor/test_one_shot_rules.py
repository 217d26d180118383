"""Who is sent again and who is ended, by histories of ends."""

from dataclasses import replace

import pytest

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import TaskExited, TaskLost
from tfmagic.supervisor.one_shot_rules import OneShotDecision, OneShotTask, Rules, decide

CHIEF, A, B = TaskId("chief", 0), TaskId("worker", 0), TaskId("worker", 1)
RUNS = OneShotTask(attempt=1, pid=7)


def ended(task, code, at=10.0, **more):
    return replace(RUNS, end=TaskExited(task, 1, code), ended_at=at, **more)


def test_nothing_is_decided_while_all_run():
    assert (
        decide({CHIEF: RUNS, A: RUNS}, Rules(dependence_on_chief=True, watched_since=0), 5)
        == OneShotDecision()
    )


def test_what_an_exit_code_means():
    assert RUNS.exit_code is None and RUNS.failed_at is None
    assert ended(A, 0).failed_at is None and ended(A, 3).failed_at == 10
    assert ended(A, -9, terminated=True).failed_at is None and ended(A, -9).exit_code == -9
    lost = replace(RUNS, end=TaskLost(A, 1, "gone"), ended_at=4)
    assert lost.exit_code == -9 and lost.failed_at == 4
    assert replace(RUNS, raised_at=3).failed_at == 3, "it raised, and hangs on its way out"


def test_a_failure_leaves_the_others_their_grace_from_when_somebody_waits():
    tasks = {A: ended(A, 1), B: RUNS}
    assert decide(tasks, Rules(), 1000) == OneShotDecision(), "nobody has asked"
    rules = Rules(watched_since=2.0, failure_grace_s=1.0)
    assert decide(tasks, rules, 10.9) == OneShotDecision(wake_at=11)
    assert decide(tasks, rules, 11) == OneShotDecision(dismiss=(B,), why="worker-0 failed")
    assert decide(tasks, replace(rules, watched_since=20.0), 20.5) == OneShotDecision(wake_at=21)


def test_a_death_leaves_peers_alone_whose_exceptions_are_waited_for():
    rules = Rules(watched_since=0, waits_for_peers=True)
    assert decide({A: ended(A, 1), B: RUNS}, rules, 1000) == OneShotDecision()
    tasks = {A: ended(A, 1, at=10), B: replace(RUNS, raised_at=20), CHIEF: RUNS}
    assert decide(tasks, rules, 21) == OneShotDecision(dismiss=(B, CHIEF), why="worker-1 failed")
    assert decide({A: ended(A, 1), B: RUNS}, replace(rules, until=30), 30).dismiss == (B,)


def test_the_first_failure_counts():
    tasks = {A: ended(A, 1, at=10), B: replace(RUNS, raised_at=8), CHIEF: RUNS}
    decision = decide(tasks, Rules(watched_since=0), 9)
    assert decision == OneShotDecision(dismiss=(B, CHIEF), why="worker-1 failed")


def test_a_chief_that_is_done_leaves_the_others_three_seconds():
    tasks = {CHIEF: ended(CHIEF, 0), A: RUNS, B: ended(B, 0)}
    rules = Rules(dependence_on_chief=True)
    assert decide(tasks, rules, 12.9) == OneShotDecision(wake_at=13)
    assert decide(tasks, rules, 13) == OneShotDecision(dismiss=(A,), why="the chief has ended")
    assert decide(tasks, Rules(), 99) == OneShotDecision()


def test_nobody_is_sent_again_once_the_chief_is_done():
    tasks = {CHIEF: ended(CHIEF, 0), A: ended(A, 1), B: RUNS}
    rules = Rules(dependence_on_chief=True, auto_restart=float("inf"))
    assert decide(tasks, rules, 11) == OneShotDecision(wake_at=13)


def test_a_chief_that_failed_is_sent_again_as_any_other():
    tasks = {CHIEF: ended(CHIEF, 1), A: RUNS}
    rules = Rules(dependence_on_chief=True, auto_restart=float("inf"), watched_since=0)
    assert decide(tasks, rules, 20) == OneShotDecision(restart=(CHIEF,), wake_at=10.1)


@pytest.mark.parametrize("restarts, due", [(0, 10.1), (1, 10.2), (3, 10.8), (9, 15)])
def test_restarts_come_later_each_time(restarts, due):
    tasks = {A: ended(A, 1, restarts=restarts), B: RUNS}
    rules = Rules(auto_restart=float("inf"))
    assert decide(tasks, rules, 10.05) == OneShotDecision(wake_at=pytest.approx(due))
    assert decide(tasks, rules, due + 0.001).restart == (A,)


def test_restarts_are_counted_and_the_last_failure_is_one():
    rules = Rules(auto_restart=2, watched_since=0)
    assert decide({A: ended(A, 1, restarts=1), B: RUNS}, rules, 20).restart == (A,)
    assert decide({A: ended(A, 1, restarts=2), B: RUNS}, rules, 20).dismiss == (B,)


def test_who_was_terminated_is_sent_again_and_who_was_dismissed_is_not():
    rules = Rules(auto_restart=float("inf"))
    assert decide({A: ended(A, -9, terminated=True)}, rules, 20).restart == (A,)
    assert decide({A: ended(A, -9, terminated=True, dismissed=True)}, rules, 20) == OneShotDecision(over=True)


def test_together_all_are_recalled_and_then_sent_again():
    rules = Rules(auto_restart=1, together=True, watched_since=0)
    tasks = {A: ended(A, 1), B: RUNS, CHIEF: ended(CHIEF, 0, at=9)}
    assert decide(tasks, rules, 10) == OneShotDecision(recall=(B,))
    tasks[B] = ended(B, -9, at=10.05, terminated=True)
    assert decide(tasks, rules, 10.06) == OneShotDecision(wake_at=pytest.approx(10.15))
    assert decide(tasks, rules, 10.2).restart == (A, B, CHIEF)


def test_it_is_over_when_all_have_ended_for_good():
    assert decide({A: ended(A, 0), B: ended(B, 1)}, Rules(), 11).over
    assert not decide({A: ended(A, 0), B: RUNS}, Rules(), 11).over
    assert not decide({A: ended(A, 1)}, Rules(auto_restart=1), 10).over, "it comes back in a moment"
    late = Rules(until=30, watched_since=0)
    assert decide({A: ended(A, 0), B: ended(B, 1)}, late, 31).over
    assert not decide({A: ended(A, 1), B: RUNS}, late, 31).over, "B is only asked to end"
    together = Rules(auto_restart=1, together=True)
    assert not decide({A: ended(A, 1), B: replace(RUNS, terminated=True)}, together, 11).over, "it ends now"


def test_all_end_when_the_time_is_up():
    tasks = {A: RUNS, B: ended(B, 1)}
    rules = Rules(until=30, auto_restart=float("inf"))
    assert decide(tasks, rules, 29).restart == (B,)
    assert decide(tasks, rules, 30) == OneShotDecision(dismiss=(A,), why="the time is up")
