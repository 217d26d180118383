"""Which tasks get a new process and when, and what ends with the chief. Histories."""

from histories import A, B, C, History, reached, started

from tfmagic.events import LaunchRequested, TaskExited, TaskReady, TaskStarted
from tfmagic.respawns import must_rejoin
from tfmagic.spec import TaskId
from tfmagic.states import SIGKILL, FinishCell, Launch, Phase, Policy, Signal

CHIEF = TaskId("chief", 0)


def come(history, task, attempt):
    history.happen(TaskStarted(task, attempt, 7, False), TaskReady(task, attempt, 7, "host"))


def test_each_restart_waits_twice_as_long_as_the_one_before():
    h = started(A, policy=Policy(auto_restart=10, restart_delay_s=0.1))
    waits = []
    for attempt in range(1, 11):
        h.happen(TaskExited(A, attempt, 1))
        died, waits = h.now, [*waits, h.wake_at - h.now]
        assert h.tick(died + waits[-1] - 0.001) == []
        assert h.tick(h.wake_at) == [Launch(A, attempt + 1)]
        come(h, A, attempt + 1)
    assert [round(s, 3) for s in waits] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
    h.happen(TaskExited(A, 11, 1))
    assert h.phase(A) is Phase.DEAD and h.wake_at is None


def test_a_user_who_restarts_a_task_does_not_wait():
    h = started(A, policy=Policy(auto_restart=1))
    h.happen(TaskExited(A, 1, 1))
    assert h.happen(LaunchRequested((A,))) == [Launch(A, 2)]
    assert h.tick(100.0) == []


def test_a_chief_that_ends_takes_the_others_along_by_policy():
    h = started(CHIEF, A, B, policy=Policy(dependence_on_chief=True))
    h.run(CHIEF, A, B)
    actions = h.happen(TaskExited(CHIEF, 1, 0))
    assert [a for a in actions if isinstance(a, Signal)] == [Signal(A, SIGKILL), Signal(B, SIGKILL)]
    h.happen(TaskExited(A, 1, -9))
    actions = h.happen(TaskExited(B, 1, -9))
    assert any(isinstance(a, FinishCell) for a in actions)
    assert {h.phase(t) for t in (CHIEF, A, B)} == {Phase.DEAD}


def test_without_the_policy_the_others_live_on():
    h = started(CHIEF, A)
    assert h.happen(TaskExited(CHIEF, 1, 0)) == [] and h.phase(A) is Phase.READY


def test_a_chief_that_is_restarted_takes_nobody_along():
    h = started(CHIEF, A, policy=Policy(dependence_on_chief=True, auto_restart=1))
    assert h.happen(TaskExited(CHIEF, 1, 1)) == []
    assert h.tick(h.wake_at) == [Launch(CHIEF, 2)]
    assert h.phase(A) is Phase.READY
    h = started(CHIEF, A, policy=Policy(dependence_on_chief=True))
    assert h.happen(LaunchRequested((CHIEF,))) == [Signal(CHIEF, SIGKILL)]
    assert h.happen(TaskExited(CHIEF, 1, -9)) == [Launch(CHIEF, 2)]
    assert h.phase(A) is Phase.READY


def test_tasks_whose_strategy_knows_a_former_process_must_meet_anew():
    h = started(A, B, C)
    h.run(A, B)
    for task in (A, B):
        h.happen(reached(task, "first strategy 1", (A, B)))
    assert not must_rejoin(h.state)
    h.happen(TaskExited(C, 1, -9), LaunchRequested((C,)))  # it took no part
    come(h, C, 2)
    assert not must_rejoin(h.state)
    h.happen(TaskExited(B, 1, -9))
    assert not must_rejoin(h.state)  # nobody has taken its place
    h.happen(LaunchRequested((B,)))
    come(h, B, 2)
    assert must_rejoin(h.state)


def test_new_processes_for_all_have_met_nobody():
    h = started(A, B)
    h.run(A, B)
    for task in (A, B):
        h.happen(reached(task, "first strategy 1", (A, B)))
    h.happen(LaunchRequested((A, B)))
    for task in (A, B):
        h.happen(TaskExited(task, 1, -9))
        come(h, task, 2)
    assert not must_rejoin(h.state)


def test_one_that_only_waits_at_a_barrier_has_made_no_strategy():
    h = started(A, B)
    h.run(A, B)
    h.happen(reached(A, "barrier 1", (A, B)), TaskExited(B, 1, -9), LaunchRequested((B,)))
    come(h, B, 2)
    assert not must_rejoin(h.state)


def test_a_history_needs_no_tasks_to_begin():
    assert History().tick() == []
