"""Histories: events and clock ticks in, actions and outcome out. No process, no sleep."""

import pytest

from tfmagic.events import (
    BarrierReached,
    CellRaised,
    CellRequested,
    CellReturned,
    InterruptPressed,
    LaunchRequested,
    PackedError,
    RunCell,
    StopRequested,
    TaskExited,
    TaskReady,
    TaskStarted,
)
from tfmagic.lifecycle import apply, decide, new_state
from tfmagic.spec import TaskId
from tfmagic.states import (
    SIGKILL,
    SIGUSR1,
    Abort,
    AnswerBarrier,
    Cancel,
    FinishCell,
    Interrupt,
    Launch,
    Phase,
    Policy,
    Send,
    Signal,
)

A, B, C = (TaskId("worker", i) for i in range(3))


class History:
    """Feeds events at given times and keeps every action in order."""

    def __init__(self, *tasks, policy=None):
        self.policy = policy or Policy()
        self.state = new_state(tasks)
        self.tasks, self.now, self.actions, self.wake_at = tasks, 0.0, [], None
        self.tick()

    def tick(self, now=None):
        """Let time pass to `now`; the actions that it brought."""
        self.now = self.now if now is None else now
        decision = decide(self.state, self.policy, self.now)
        self.state, self.wake_at = decision.state, decision.wake_at
        self.actions += decision.actions
        return list(decision.actions)

    def happen(self, *events, now=None):
        self.now = self.now if now is None else now
        for event in events:
            self.state = apply(self.state, event, self.now)
        return self.tick()

    def ready(self):
        for task in self.tasks:
            attempt = self.state.tasks[task].attempt
            self.happen(TaskStarted(task, attempt, 100 + task.index, False))
            self.happen(TaskReady(task, attempt, 100 + task.index, "host"))
        self.actions.clear()
        return self

    def run(self, *tasks, now=None, **how):
        commands = {t: RunCell(cell=1, tasks=tasks) for t in tasks}
        return self.happen(CellRequested(1, commands, **how), now=now)

    def phase(self, task):
        return self.state.tasks[task].phase


def returned(task, attempt=1):
    return CellReturned(task, attempt, 1, 0.1, 0)


def raised(task, kind="ValueError", interrupted=False, attempt=1, message="bad", at=0.0):
    error = PackedError(kind, message, "", None, task.name, ((kind, message),))
    return CellRaised(task, attempt, 1, 0.1, 0, error, interrupted, raised_at=at)


def started(*tasks, policy=None):
    return History(*tasks, policy=policy).ready()


def test_every_task_is_launched_once():
    h = History(A, B)
    assert h.actions == [Launch(A, 1), Launch(B, 1)]
    assert h.tick() == []


def test_a_cell_is_sent_to_its_tasks_and_ends_when_all_have_returned():
    h = started(A, B)
    assert [a.task for a in h.run(A, B)] == [A, B]
    assert h.phase(A) is Phase.RUNNING
    assert h.happen(returned(A)) == []
    (finish,) = h.happen(returned(B))
    assert isinstance(finish, FinishCell)
    assert set(finish.cell.outcomes) == {A, B}


def test_a_cell_waits_for_tasks_that_are_starting():
    h = History(A)
    assert h.run(A) == []
    h.happen(TaskStarted(A, 1, 100, False))
    (sent,) = h.happen(TaskReady(A, 1, 100, "host"))
    assert isinstance(sent, Send)


def test_the_end_of_an_old_process_is_no_outcome_of_a_cell_that_waits_for_the_new_one():
    h = started(A)
    h.happen(LaunchRequested((A,)))
    assert h.run(A) == []
    assert h.happen(TaskExited(A, 1, -9)) == [Launch(A, 2)]
    assert not h.state.cell.outcomes
    (sent,) = h.happen(TaskReady(A, 2, 101, "host"))
    assert isinstance(sent, Send)


def test_a_task_may_be_ready_before_its_launcher_says_that_it_started():
    h = History(A)
    h.happen(TaskReady(A, 1, 100, "host"))
    h.happen(TaskStarted(A, 1, 100, False))
    assert h.phase(A) is Phase.READY
    assert h.state.tasks[A].pid == 100


def test_events_of_an_earlier_attempt_change_nothing():
    h = started(A)
    h.happen(LaunchRequested((A,)))
    h.happen(TaskExited(A, 1, -9))
    before = h.state
    h.happen(TaskReady(A, 1, 1, "host"), returned(A, attempt=1), TaskExited(A, 1, 0))
    assert h.state == before


def test_a_restart_kills_and_launches_again_at_the_end_of_the_old_process():
    h = started(A, B)
    assert h.happen(LaunchRequested((A,))) == [Signal(A, SIGKILL)]
    assert h.tick() == []
    assert h.happen(TaskExited(A, 1, -9)) == [Launch(A, 2)]
    assert h.phase(B) is Phase.READY


def test_a_dead_task_stays_dead_without_a_policy():
    h = started(A, B)
    assert h.happen(TaskExited(A, 1, -11)) == []
    assert h.phase(A) is Phase.DEAD


def test_auto_restart_counts():
    h = started(A, policy=Policy(auto_restart=1))
    assert h.happen(TaskExited(A, 1, 1)) == [Launch(A, 2)]
    h.happen(TaskStarted(A, 2, 101, False), TaskReady(A, 2, 101, "host"))
    assert h.happen(TaskExited(A, 2, 1)) == []
    assert h.phase(A) is Phase.DEAD


def test_a_task_that_dies_while_starting_is_not_started_for_ever():
    h = History(A, policy=Policy(auto_restart=5))
    assert h.happen(TaskExited(A, 1, 1)) == []


def test_a_failure_gives_the_others_their_grace_then_climbs_the_ladder():
    h = started(A, B, policy=Policy(3, 0.5, 0.5, 0.8))
    h.run(A, B, now=10)
    assert h.happen(raised(A), now=11) == [Abort(B, "worker-0 raised ValueError", when_stuck=True)]
    assert h.wake_at == 14
    assert h.tick(13.9) == []
    assert h.tick(14) == [Interrupt(B)]
    assert h.wake_at == 14.5
    assert h.tick(14.5) == [Cancel(B)]
    (abort,) = h.tick(15)
    assert isinstance(abort, Abort) and abort.task == B and not abort.when_stuck
    assert "worker-0 failed" in abort.message
    assert h.tick(15.6) == [Signal(B, SIGUSR1)]
    assert h.tick(15.8) == [Signal(B, SIGKILL)]
    assert h.wake_at is None
    actions = h.happen(TaskExited(B, 1, -9))
    assert {type(a) for a in actions} == {FinishCell, Launch}
    assert h.state.cell.replaced == (B,)


def test_the_grace_counts_from_the_failure_itself_not_from_its_arrival():
    h = started(A, B, policy=Policy(3))
    h.run(A, B, now=10)
    h.happen(raised(A, at=11), now=12.5)
    assert h.wake_at == 14


def test_a_task_that_only_may_wait_for_a_failed_one_is_not_told_twice():
    h = started(A, B, C)
    h.run(A, B, C, now=0)
    assert [type(a) for a in h.happen(raised(A), now=1)] == [Abort, Abort]
    assert h.happen(raised(B), now=1.1) == []
    aborts = h.happen(TaskExited(B, 1, -9), now=1.2)
    assert aborts == []  # it had raised already: its end breaks nothing that this cell needs


def test_a_death_after_a_failure_aborts_at_once():
    h = started(A, B, C)
    h.run(A, B, C, now=0)
    h.happen(raised(A), now=1)
    assert h.happen(TaskExited(B, 1, -9), now=1.2) == [Abort(C, "worker-1 died")]


def test_keep_going_lets_the_others_finish():
    h = started(A, B)
    h.run(A, B, keep_going=True)
    h.happen(raised(A), now=1)
    assert h.tick(1000) == []
    (finish,) = h.happen(returned(B))
    assert isinstance(finish, FinishCell)


def test_a_death_aborts_the_collectives_of_the_others_at_once_and_once():
    h = started(A, B, C)
    h.run(A, B, C, now=0)
    aborts = h.happen(TaskExited(B, 1, -9), now=1)
    assert [a.task for a in aborts] == [A, C]
    assert "worker-1 died" in aborts[0].message
    assert h.tick(1.1) == []


def test_the_first_interrupt_climbs_and_the_second_skips_the_rungs():
    h = started(A, B, policy=Policy(3, 0.5, 0.5, 0.8))
    h.run(A, B, now=0)
    assert h.happen(InterruptPressed(), now=1) == [Interrupt(A), Interrupt(B)]
    h.happen(raised(A, "KeyboardInterrupt", interrupted=True))
    assert h.happen(InterruptPressed(), now=1.1) == [Signal(B, SIGUSR1)]
    assert h.wake_at == pytest.approx(1.3)
    assert h.tick(1.31) == [Signal(B, SIGKILL)]


def test_one_task_can_be_interrupted_and_the_others_get_their_grace():
    h = started(A, B, policy=Policy(3, 0.5, 0.5, 0.8))
    h.run(A, B, now=0)
    assert h.happen(InterruptPressed((B,)), now=1) == [Interrupt(B)]
    assert h.tick(1.5) == [Cancel(B)]
    h.happen(raised(B, "KeyboardInterrupt", interrupted=True), now=1.6)
    assert h.tick(4.5) == []
    assert h.tick(4.6) == [Interrupt(A)]


def test_an_interrupt_of_all_includes_those_that_were_not_interrupted_yet():
    h = started(A, B)
    h.run(A, B, now=0)
    h.happen(InterruptPressed((B,)), now=1)
    assert Interrupt(A) in h.happen(InterruptPressed(), now=1.1)


def test_an_interrupt_of_a_task_that_does_not_run_the_cell_changes_nothing():
    h = started(A, B)
    h.run(A, now=0)
    assert h.happen(InterruptPressed((B,)), now=1) == []
    assert h.tick(100) == []


def test_a_cell_that_waits_for_tasks_to_start_is_given_up_unsent():
    h = History(A)
    h.run(A)
    (finish,) = h.happen(InterruptPressed())
    assert isinstance(finish, FinishCell) and finish.cell.waiting_for == (A,)
    h.happen(TaskStarted(A, 1, 100, False), TaskReady(A, 1, 100, "host"))
    assert not [a for a in h.actions if isinstance(a, Send)]


def test_an_interrupt_between_cells_does_nothing():
    h = started(A)
    assert h.happen(InterruptPressed()) == []
    h.run(A, now=1)
    assert h.tick(2) == []


def test_a_time_limit_takes_stacks_first():
    h = started(A, B)
    h.run(A, B, now=0, timeout_s=5)
    h.happen(returned(A), now=1)
    assert h.wake_at == 5
    assert h.tick(5) == [Signal(B, SIGUSR1)]
    assert h.wake_at == 5.2
    assert h.tick(5.2) == [Interrupt(B)]
    assert h.tick(6.7) == [Cancel(B), Abort(B, "tfmagic released this task: the time limit has passed")]
    assert h.state.cell.timed_out


def test_a_barrier_opens_when_everybody_is_there():
    h = started(A, B)
    h.run(A, B)
    assert h.happen(BarrierReached(A, 1, "barrier 1", (A, B))) == []
    assert set(h.happen(BarrierReached(B, 1, "barrier 1", (A, B)))) == {
        AnswerBarrier(A, "barrier 1"),
        AnswerBarrier(B, "barrier 1"),
    }
    assert h.state.barriers == {}


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (returned(B), "ended the cell"),
        (raised(B), "raised ValueError: bad"),
        (TaskExited(B, 1, -9), "died"),
    ],
)
def test_a_barrier_breaks_at_once_when_somebody_will_not_come(end, why):
    h = started(A, B)
    h.run(A, B)
    h.happen(BarrierReached(A, 1, "barrier 1", (A, B)))
    answers = [a for a in h.happen(end) if isinstance(a, AnswerBarrier)]
    assert len(answers) == 1 and answers[0].task == A
    assert "worker-1" in answers[0].reason and why in answers[0].reason


def test_a_barrier_that_was_given_up_does_not_open():
    h = started(A, B)
    h.run(A, B)
    h.happen(BarrierReached(A, 1, "barrier 1", (A, B)))
    h.happen(raised(A, "KeyboardInterrupt", interrupted=True))
    (answer,) = [
        a for a in h.happen(BarrierReached(B, 1, "barrier 1", (A, B))) if isinstance(a, AnswerBarrier)
    ]
    assert answer.task == B and "worker-0 raised KeyboardInterrupt" in answer.reason


def test_a_task_waits_at_one_barrier_at_a_time():
    h = started(A, B)
    h.run(A, B)
    h.happen(BarrierReached(A, 1, "barrier 1", (A, B)))
    h.happen(BarrierReached(A, 1, "barrier 2", (A, B)))
    assert set(h.state.barriers) == {"barrier 2"}


def test_a_barrier_breaks_in_every_waiter_when_its_time_is_up_and_names_who_is_missing():
    h = started(A, B, C)
    h.run(A, B, C, now=0)
    h.happen(BarrierReached(A, 1, "barrier 1", (A, B, C), 5.0), now=1)
    assert h.wake_at == 6
    assert h.happen(BarrierReached(B, 1, "barrier 1", (A, B, C)), now=2) == []
    reason = "worker-2 did not come within 5 s"
    assert set(h.tick(6)) == {AnswerBarrier(A, "barrier 1", reason), AnswerBarrier(B, "barrier 1", reason)}
    assert h.wake_at is None


def test_a_barrier_with_a_task_that_does_not_run_the_cell_breaks():
    h = started(A, B)
    h.run(A)
    (answer,) = h.happen(BarrierReached(A, 1, "strategy 1", (A, B)))
    assert "does not run this cell" in answer.reason


def test_tasks_that_wait_at_different_barriers_are_told_so():
    h = started(A, B)
    h.run(A, B)
    assert h.happen(BarrierReached(A, 1, "barrier 1", (A, B))) == []
    answers = h.happen(BarrierReached(B, 1, "strategy 1", (A, B)))
    assert {(a.task, a.barrier) for a in answers} == {(A, "barrier 1"), (B, "strategy 1")}
    assert "worker-0 at barrier 1, worker-1 at strategy 1" in answers[0].reason


def test_nothing_is_done_while_stopping():
    h = started(A)
    h.happen(StopRequested())
    assert h.happen(TaskExited(A, 1, 0)) == []
    assert h.phase(A) is Phase.STOPPED
