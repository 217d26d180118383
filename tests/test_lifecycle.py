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
from tfmagic.lifecycle import (
    SIGINT,
    SIGKILL,
    SIGUSR1,
    Abort,
    AnswerBarrier,
    FinishCell,
    Launch,
    Phase,
    Policy,
    Send,
    Signal,
    apply,
    decide,
    new_state,
)
from tfmagic.spec import TaskId

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


def raised(task, kind="ValueError", interrupted=False, attempt=1):
    return CellRaised(task, attempt, 1, 0.1, 0, PackedError(kind, "bad", "", None, task.name), interrupted)


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
    h = started(A, B, policy=Policy(3, 0.5, 0.5))
    h.run(A, B, now=10)
    assert h.happen(raised(A), now=11) == []
    assert h.wake_at == 14
    assert h.tick(13.9) == []
    assert h.tick(14) == [Signal(B, SIGINT)]
    assert h.wake_at == 14.5
    (abort,) = h.tick(14.5)
    assert isinstance(abort, Abort) and abort.task == B
    assert h.tick(15) == [Signal(B, SIGKILL)]
    actions = h.happen(TaskExited(B, 1, -9))
    assert actions == [FinishCell(h.state.cell)] or actions[0] == Launch(B, 2)
    assert {type(a) for a in actions} == {FinishCell, Launch}


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


def test_the_first_interrupt_is_sigint_and_the_second_kills():
    h = started(A, B)
    h.run(A, B, now=0)
    assert h.happen(InterruptPressed(), now=1) == [Signal(A, SIGINT), Signal(B, SIGINT)]
    h.happen(raised(A, "KeyboardInterrupt", interrupted=True))
    assert Signal(B, SIGKILL) in h.happen(InterruptPressed(), now=1.1)


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
    assert h.tick(5) == [Signal(B, SIGUSR1), Signal(B, SIGINT)]
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
