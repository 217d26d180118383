"""Which tasks get a new process and when, and what ends with the chief. Histories."""

from histories import A, B, C, History, end, reached, returned, started

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import Rejoin, RunCell
from tfmagic.protocol.events import CellRequested, LaunchRequested, TaskExited, TaskReady, TaskStarted
from tfmagic.supervisor.restarts import must_rejoin
from tfmagic.supervisor.state import SIGKILL, FinishCell, Launch, Phase, Policy, Signal

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
    assert h.happen(LaunchRequested((CHIEF,))) == [end(CHIEF)]
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


def test_what_ends_with_its_chief_is_not_restarted():
    h = started(CHIEF, A, policy=Policy(dependence_on_chief=True, auto_restart=1))
    h.happen(TaskExited(CHIEF, 1, 0))
    h.tick(h.wake_at)
    come(h, CHIEF, 2)
    h.happen(TaskExited(CHIEF, 2, 0))  # for good
    assert h.phase(A) is Phase.ENDING
    h.happen(TaskExited(A, 1, -9))
    assert {h.phase(A), h.phase(CHIEF)} == {Phase.DEAD} and h.tick(1000.0) == []


def test_a_process_that_never_gets_ready_is_given_up():
    h = History(A, policy=Policy(start_timeout_s=20))
    assert h.wake_at == 25 and h.tick(24.9) == []
    assert h.tick(25) == [Signal(A, SIGKILL)] and h.tick(26) == []
    h.happen(TaskExited(A, 1, -9))
    assert h.phase(A) is Phase.DEAD


def test_what_the_user_restarts_has_all_its_restarts_again():
    h = started(A, policy=Policy(auto_restart=1))
    h.happen(TaskExited(A, 1, 1))
    h.tick(h.wake_at)
    come(h, A, 2)
    assert h.state.tasks[A].restarts == 1
    h.happen(LaunchRequested((A,)))
    h.happen(TaskExited(A, 2, -9))
    come(h, A, 3)
    assert h.state.tasks[A].restarts == 0


def test_a_task_that_was_told_the_new_addresses_has_no_old_peers():
    h = started(A, B)
    h.run(A, B)
    for task in (A, B):
        h.happen(reached(task, "first strategy 1", (A, B)))
    h.happen(returned(A), returned(B), LaunchRequested((B,)), TaskExited(B, 1, -9))
    come(h, B, 2)
    assert must_rejoin(h.state)
    h.happen(CellRequested(2, {A: RunCell(cell=2, kind=Rejoin("{}"))}))
    h.happen(returned(A, cell=2))
    assert not must_rejoin(h.state)


def test_a_history_needs_no_tasks_to_begin():
    assert History().tick() == []
