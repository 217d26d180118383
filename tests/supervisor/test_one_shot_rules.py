"""Who is sent again and who is ended, by histories of ends."""

from dataclasses import replace

import pytest

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import TaskExited, TaskLost
from tfmagic.supervisor.one_shot_rules import Errand, Rules, Verdict, decide

CHIEF, A, B = TaskId("chief", 0), TaskId("worker", 0), TaskId("worker", 1)
RUNS = Errand(attempt=1, pid=7)


def ended(task, code, at=10.0, **more):
    return replace(RUNS, end=TaskExited(task, 1, code), ended_at=at, **more)


def test_nothing_is_decided_while_all_run():
    assert decide({CHIEF: RUNS, A: RUNS}, Rules(dependence_on_chief=True, watched_since=0), 5) == Verdict()


def test_what_an_exit_code_means():
    assert RUNS.exit_code is None and RUNS.failed_at is None
    assert ended(A, 0).failed_at is None and ended(A, 3).failed_at == 10
    assert ended(A, -9, terminated=True).failed_at is None and ended(A, -9).exit_code == -9
    lost = replace(RUNS, end=TaskLost(A, 1, "gone"), ended_at=4)
    assert lost.exit_code == -9 and lost.failed_at == 4
    assert replace(RUNS, raised_at=3).failed_at == 3, "it raised, and hangs on its way out"


def test_a_failure_leaves_the_others_their_grace_from_when_somebody_waits():
    errands = {A: ended(A, 1), B: RUNS}
    assert decide(errands, Rules(), 1000) == Verdict(), "nobody has asked"
    rules = Rules(watched_since=2.0, failure_grace_s=1.0)
    assert decide(errands, rules, 10.9) == Verdict(wake_at=11)
    assert decide(errands, rules, 11) == Verdict(dismiss=(B,), why="worker-0 failed")
    assert decide(errands, replace(rules, watched_since=20.0), 20.5) == Verdict(wake_at=21)


def test_a_death_leaves_peers_alone_whose_exceptions_are_waited_for():
    rules = Rules(watched_since=0, waits_for_peers=True)
    assert decide({A: ended(A, 1), B: RUNS}, rules, 1000) == Verdict()
    errands = {A: ended(A, 1, at=10), B: replace(RUNS, raised_at=20), CHIEF: RUNS}
    assert decide(errands, rules, 21) == Verdict(dismiss=(B, CHIEF), why="worker-1 failed")
    assert decide({A: ended(A, 1), B: RUNS}, replace(rules, until=30), 30).dismiss == (B,)


def test_the_first_failure_counts():
    errands = {A: ended(A, 1, at=10), B: replace(RUNS, raised_at=8), CHIEF: RUNS}
    verdict = decide(errands, Rules(watched_since=0), 9)
    assert verdict == Verdict(dismiss=(B, CHIEF), why="worker-1 failed")


def test_a_chief_that_is_done_leaves_the_others_three_seconds():
    errands = {CHIEF: ended(CHIEF, 0), A: RUNS, B: ended(B, 0)}
    rules = Rules(dependence_on_chief=True)
    assert decide(errands, rules, 12.9) == Verdict(wake_at=13)
    assert decide(errands, rules, 13) == Verdict(dismiss=(A,), why="the chief has ended")
    assert decide(errands, Rules(), 99) == Verdict()


def test_nobody_is_sent_again_once_the_chief_is_done():
    errands = {CHIEF: ended(CHIEF, 0), A: ended(A, 1), B: RUNS}
    rules = Rules(dependence_on_chief=True, auto_restart=float("inf"))
    assert decide(errands, rules, 11) == Verdict(wake_at=13)


def test_a_chief_that_failed_is_sent_again_as_any_other():
    errands = {CHIEF: ended(CHIEF, 1), A: RUNS}
    rules = Rules(dependence_on_chief=True, auto_restart=float("inf"), watched_since=0)
    assert decide(errands, rules, 20) == Verdict(restart=(CHIEF,), wake_at=10.1)


@pytest.mark.parametrize("restarts, due", [(0, 10.1), (1, 10.2), (3, 10.8), (9, 15)])
def test_restarts_come_later_each_time(restarts, due):
    errands = {A: ended(A, 1, restarts=restarts), B: RUNS}
    rules = Rules(auto_restart=float("inf"))
    assert decide(errands, rules, 10.05) == Verdict(wake_at=pytest.approx(due))
    assert decide(errands, rules, due + 0.001).restart == (A,)


def test_restarts_are_counted_and_the_last_failure_is_one():
    rules = Rules(auto_restart=2, watched_since=0)
    assert decide({A: ended(A, 1, restarts=1), B: RUNS}, rules, 20).restart == (A,)
    assert decide({A: ended(A, 1, restarts=2), B: RUNS}, rules, 20).dismiss == (B,)


def test_who_was_terminated_is_sent_again_and_who_was_dismissed_is_not():
    rules = Rules(auto_restart=float("inf"))
    assert decide({A: ended(A, -9, terminated=True)}, rules, 20).restart == (A,)
    assert decide({A: ended(A, -9, terminated=True, dismissed=True)}, rules, 20) == Verdict()


def test_together_all_are_recalled_and_then_sent_again():
    rules = Rules(auto_restart=1, together=True, watched_since=0)
    errands = {A: ended(A, 1), B: RUNS, CHIEF: ended(CHIEF, 0, at=9)}
    assert decide(errands, rules, 10) == Verdict(recall=(B,))
    errands[B] = ended(B, -9, at=10.05, terminated=True)
    assert decide(errands, rules, 10.06) == Verdict(wake_at=pytest.approx(10.15))
    assert decide(errands, rules, 10.2).restart == (A, B, CHIEF)


def test_all_end_when_the_time_is_up():
    errands = {A: RUNS, B: ended(B, 1)}
    rules = Rules(until=30, auto_restart=float("inf"))
    assert decide(errands, rules, 29).restart == (B,)
    assert decide(errands, rules, 30) == Verdict(dismiss=(A,), why="the time is up")
