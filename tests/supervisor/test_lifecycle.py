"""Histories: events and clock ticks in, actions and outcome out. No process, no sleep."""

import pytest
from histories import (
    A,
    B,
    C,
    D,
    History,
    abort,
    answer,
    at_line,
    cancel,
    commands_of,
    end,
    interrupt,
    raised,
    reached,
    returned,
    started,
)
from msgspec import structs

from tfmagic.protocol.commands import AbortCollectives, BreakBarrier, CancelOps, InterruptCell, RunCell
from tfmagic.protocol.events import (
    CellReturned,
    InterruptPressed,
    LaunchRequested,
    StopRequested,
    TaskExited,
    TaskReady,
    TaskStarted,
)
from tfmagic.supervisor import lifecycle, stall_sentences
from tfmagic.supervisor.barriers import describe_waits, forget_task
from tfmagic.supervisor.state import (
    SIGKILL,
    SIGUSR1,
    FinishCell,
    Launch,
    Phase,
    Policy,
    Send,
    Signal,
    are_needed,
)


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
    assert not h.state.cells[1].outcomes
    (sent,) = h.happen(TaskReady(A, 2, 101, "host"))
    assert isinstance(sent, Send)


def test_a_task_may_be_ready_before_its_launcher_says_that_it_started():
    h = History(A)
    h.happen(TaskReady(A, 1, 100, "host"))
    assert h.state.tasks[A].pid == 100  # who waited until it is ready may ask for it
    h.happen(TaskStarted(A, 1, 100, False))
    assert h.phase(A) is Phase.READY


def test_events_of_an_earlier_attempt_change_nothing():
    h = started(A)
    h.happen(LaunchRequested((A,)))
    h.happen(TaskExited(A, 1, -9))
    before = h.state
    h.happen(TaskReady(A, 1, 1, "host"), returned(A, attempt=1), TaskExited(A, 1, 0))
    assert h.state == before


def test_a_restart_lets_a_process_end_and_launches_again_when_it_has():
    h = started(A, B)
    assert h.happen(LaunchRequested((A,)), now=10) == [end(A)]
    assert h.tick(10.9) == [] and h.wake_at == 11
    assert h.happen(TaskExited(A, 1, 0)) == [Launch(A, 2)]
    assert h.phase(B) is Phase.READY and h.tick(12) == []


def test_a_process_that_does_not_end_by_itself_is_killed():
    h = started(A)
    h.happen(LaunchRequested((A,)), now=10)
    assert h.tick(11) == [Signal(A, SIGKILL)] and h.tick(12) == []
    assert h.happen(TaskExited(A, 1, -9)) == [Launch(A, 2)]


def test_a_restart_kills_a_process_that_runs_a_cell():
    h = started(A)
    h.run(A)
    assert h.happen(LaunchRequested((A,))) == [Signal(A, SIGKILL)]


def test_a_dead_task_stays_dead_without_a_policy():
    h = started(A, B)
    assert h.happen(TaskExited(A, 1, -11)) == []
    assert h.phase(A) is Phase.DEAD


def test_auto_restart_counts():
    h = started(A, policy=Policy(auto_restart=1))
    assert h.happen(TaskExited(A, 1, 1)) == [] and h.wake_at == 0.1
    assert h.tick(0.1) == [Launch(A, 2)]
    h.happen(TaskStarted(A, 2, 101, False), TaskReady(A, 2, 101, "host"))
    assert h.happen(TaskExited(A, 2, 1)) == []
    assert h.phase(A) is Phase.DEAD


def test_a_task_that_dies_while_starting_is_not_started_for_ever():
    h = History(A, policy=Policy(auto_restart=5))
    assert h.happen(TaskExited(A, 1, 1)) == []


def test_a_failure_gives_the_others_their_grace_then_escalates():
    h = started(A, B, policy=Policy(3, 0.5, 0.5, 0.8))
    h.run(A, B, now=10)
    assert h.happen(raised(A), now=11) == [abort(B, "worker-0 raised ValueError", 1, when_stuck=True)]
    assert h.wake_at == 14
    assert h.tick(13.9) == []
    assert h.tick(14) == [interrupt(B, 1)]
    assert h.wake_at == 14.5
    assert h.tick(14.5) == [cancel(B, 1)]
    assert h.tick(15) == [abort(B, "tfmagic released this task: worker-0 failed", 1)]
    assert h.tick(15.6) == [Signal(B, SIGUSR1, 1)]
    assert h.tick(15.8) == [Signal(B, SIGKILL)]
    assert h.wake_at is None
    actions = h.happen(TaskExited(B, 1, -9))
    assert {type(a) for a in actions} == {FinishCell, Launch}
    (finish,) = [a for a in actions if isinstance(a, FinishCell)]
    assert finish.cell.replaced == (B,)


def test_the_grace_counts_from_the_failure_itself_not_from_its_arrival():
    h = started(A, B, policy=Policy(3))
    h.run(A, B, now=10)
    h.happen(raised(A, at=11), now=12.5)
    assert h.wake_at == 14


def test_a_task_that_only_may_wait_for_a_failed_one_is_not_told_twice():
    h = started(A, B, C)
    h.run(A, B, C, now=0)
    assert [type(a.command) for a in h.happen(raised(A), now=1)] == [AbortCollectives] * 2
    assert h.happen(raised(B), now=1.1) == []
    aborts = h.happen(TaskExited(B, 1, -9), now=1.2)
    assert aborts == []  # it had raised already: its end breaks nothing that this cell needs


def test_a_death_after_a_failure_aborts_at_once():
    h = started(A, B, C)
    h.run(A, B, C, now=0)
    h.happen(raised(A), now=1)
    assert h.happen(TaskExited(B, 1, -9), now=1.2) == [abort(C, "worker-1 died", 1)]


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
    assert "worker-1 died" in aborts[0].command.message
    assert h.tick(1.1) == []


def pressed(policy=Policy(3, 0.5, 0.5, 0.8), **how):  # noqa: B008 - it is frozen
    """A history in which one press has reached A, but not B."""
    h = started(A, B, policy=policy)
    h.run(A, B, now=0, **how)
    assert h.happen(InterruptPressed(), now=1) == [interrupt(A, 1), interrupt(B, 1)]
    h.happen(raised(A, "KeyboardInterrupt", interrupted=True))
    return h


def test_a_second_interrupt_skips_the_waits():
    h = pressed()
    assert [type(a.command) for a in h.happen(InterruptPressed(), now=1.1)] == [CancelOps, AbortCollectives]
    assert h.wake_at == pytest.approx(1.7)
    assert h.tick(1.71) == [Signal(B, SIGUSR1, 1)]
    assert h.tick(1.91) == [Signal(B, SIGKILL)]


def test_one_interrupt_kills_nothing_and_explains_what_a_second_one_does():
    h = pressed()
    assert stall_sentences.explain_interrupt(h.state.cells[1]) == ""
    assert [type(a.command) for a in h.tick(2.0)] == [CancelOps, AbortCollectives]
    assert h.wake_at is None and h.tick(10_000) == []
    assert stall_sentences.explain_interrupt(h.state.cells[1]).startswith(
        "worker-1 did not stop yet: in native code"
    )
    assert h.happen(InterruptPressed(), now=10_001) == [Signal(B, SIGUSR1, 1)]
    assert stall_sentences.explain_interrupt(h.state.cells[1]) == ""
    assert h.tick(10_001.1) == []
    assert h.tick(10_001.21) == [Signal(B, SIGKILL)]


def test_a_second_interrupt_reaches_code_that_caught_the_first_before_a_kill():
    h = pressed()
    h.happen(structs.replace(at_line(B, 3), caught=True), now=1.2)
    h.tick(2.0)
    told = stall_sentences.explain_interrupt(h.state.cells[1])
    assert "code that catches KeyboardInterrupt, or at work on its end" in told
    assert "interrupts it once more, and then kills it" in told and "native" not in told
    assert h.happen(InterruptPressed(), now=10) == [interrupt(B, 1)]
    assert [type(a.command) for a in h.tick(11)] == [CancelOps, AbortCollectives]
    assert h.tick(11.61) == [Signal(B, SIGUSR1, 1)] and h.tick(11.81) == [Signal(B, SIGKILL)]


def test_a_third_interrupt_waits_no_longer():
    h = pressed()
    h.happen(structs.replace(at_line(B, 3), caught=True), now=1.2)
    h.tick(2.0)
    h.happen(InterruptPressed(), now=10)
    h.happen(InterruptPressed(), now=10.1)
    h.tick(10.71)
    assert h.tick(10.95) == [Signal(B, SIGKILL)]


@pytest.mark.parametrize("why", ["it insists", "its time is over", "it had failed"])
def test_one_interrupt_of_a_cell_that_has_to_end_kills_what_is_left(why):
    h = started(A, B, policy=Policy(3, 0.5, 0.5, 0.8))
    h.run(A, B, now=0, timeout_s=2.5 if why == "its time is over" else None)
    if why == "it had failed":
        h.happen(raised(A), now=0.5)
    h.happen(InterruptPressed(insists=why == "it insists"), now=1)
    for now in (2.0, 2.61, 2.81):
        h.tick(now)
    assert h.actions[-1] == Signal(B, SIGKILL)


def test_a_task_that_makes_progress_on_its_way_out_gets_more_time_but_not_for_ever():
    h = started(A, B, policy=Policy(3, 0.5, 0.5, 0.8))
    h.run(A, B, now=10)
    h.happen(raised(A), now=11)
    h.tick(14)
    h.happen(at_line(B, 3), now=15.3)  # the last gentle stages are taken
    assert h.tick(16.2) == []
    assert h.wake_at == pytest.approx(16.3)
    for half_seconds in range(33, 41):
        assert h.happen(at_line(B, half_seconds), now=half_seconds / 2) == []
    assert h.wake_at == pytest.approx(20.6)
    assert h.happen(at_line(B, 41), now=20.61) == [Signal(B, SIGUSR1, 1)]
    assert h.tick(20.82) == [Signal(B, SIGKILL)]


def test_a_first_strategy_of_a_cell_that_is_interrupted_starts_on_no_task():
    h = started(A, B)
    h.run(A, B, now=0)
    h.happen(reached(A, "first strategy 1", (A, B)))
    why = "the cell is being interrupted"
    assert answer(A, "first strategy 1", why) in h.happen(InterruptPressed((B,)), now=1)
    assert h.happen(reached(B, "first strategy 1", (A, B)), now=1.01) == [answer(B, "first strategy 1", why)]


def test_one_task_can_be_interrupted_and_the_others_get_their_grace():
    h = started(A, B, policy=Policy(3, 0.5, 0.5, 0.8))
    h.run(A, B, now=0)
    assert h.happen(InterruptPressed((B,)), now=1) == [interrupt(B, 1)]
    assert h.tick(1.5) == [cancel(B, 1)]
    h.happen(raised(B, "KeyboardInterrupt", interrupted=True), now=1.6)
    assert h.tick(4.5) == []
    assert h.tick(4.6) == [interrupt(A, 1)]


def test_an_interrupt_of_all_includes_those_that_were_not_interrupted_yet():
    h = started(A, B)
    h.run(A, B, now=0)
    h.happen(InterruptPressed((B,)), now=1)
    assert interrupt(A, 1) in h.happen(InterruptPressed(), now=1.1)


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
    assert sent(h.actions) == []


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
    assert h.tick(5) == [Signal(B, SIGUSR1, 1)]
    assert h.wake_at == 5.2
    assert h.tick(5.2) == [interrupt(B, 1)]
    assert h.tick(6.7) == [cancel(B, 1), abort(B, "tfmagic released this task: the time limit has passed", 1)]
    assert h.state.cells[1].timed_out


def test_a_barrier_opens_when_everybody_is_there():
    h = started(A, B)
    h.run(A, B)
    assert h.happen(reached(A, "barrier 1", (A, B))) == []
    assert set(h.happen(reached(B, "barrier 1", (A, B)))) == {
        answer(A, "barrier 1", place=0),
        answer(B, "barrier 1", place=1),
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
    h.happen(reached(A, "barrier 1", (A, B)))
    answers = [a for a in h.happen(end) if commands_of(a, BreakBarrier)]
    assert len(answers) == 1 and answers[0].task == A
    assert "worker-1" in answers[0].command.reason and why in answers[0].command.reason


def test_a_barrier_that_was_given_up_does_not_open():
    h = started(A, B)
    h.run(A, B)
    h.happen(reached(A, "barrier 1", (A, B)))
    h.happen(raised(A, "KeyboardInterrupt", interrupted=True))
    (broken,) = [a for a in h.happen(reached(B, "barrier 1", (A, B))) if commands_of(a, BreakBarrier)]
    assert broken.task == B and "worker-0 raised KeyboardInterrupt" in broken.command.reason


def test_a_task_waits_at_one_barrier_at_a_time():
    h = started(A, B)
    h.run(A, B)
    h.happen(reached(A, "barrier 1", (A, B)))
    h.happen(reached(A, "barrier 2", (A, B)))
    assert set(h.state.barriers) == {(1, "barrier 2")}


def test_a_task_that_waits_nowhere_costs_nothing_at_the_barriers_of_others():
    h = started(A, B)
    h.run(A, B)
    h.happen(reached(A, "barrier 1", (A, B)))
    assert forget_task(h.state, B) is h.state


def test_a_barrier_breaks_in_every_waiter_when_its_time_is_up_and_names_who_is_missing():
    h = started(A, B, C)
    h.run(A, B, C, now=0)
    h.happen(reached(A, "barrier 1", (A, B, C), 5.0), now=1)
    assert h.wake_at == 6
    assert h.happen(reached(B, "barrier 1", (A, B, C)), now=2) == []
    reason = "worker-2 did not come within 5 s"
    assert set(h.tick(6)) == {answer(A, "barrier 1", reason), answer(B, "barrier 1", reason)}
    assert h.wake_at is None


def test_a_barrier_with_a_task_that_does_not_run_the_cell_breaks():
    h = started(A, B)
    h.run(A)
    (answer,) = h.happen(reached(A, "strategy 1", (A, B)))
    assert "does not run this cell" in answer.command.reason


def test_tasks_that_wait_at_different_barriers_are_told_so():
    h = started(A, B)
    h.run(A, B)
    assert h.happen(reached(A, "barrier 1", (A, B))) == []
    answers = h.happen(reached(B, "strategy 1", (A, B)))
    assert {(a.task, a.command.barrier) for a in answers} == {(A, "barrier 1"), (B, "strategy 1")}
    assert "worker-0 at barrier 1, worker-1 at strategy 1" in answers[0].command.reason


def test_a_stop_lets_those_end_that_run_nothing_and_kills_the_others():
    h = History(A, B, C)
    h.happen(TaskReady(A, 1, 101, "host"), TaskReady(B, 1, 102, "host"))
    h.run(B)
    assert h.happen(StopRequested(), now=10) == [end(A), Signal(B, SIGKILL), Signal(C, SIGKILL)]
    assert h.happen(TaskExited(B, 1, -9), TaskExited(C, 1, -9)) == []
    assert h.phase(B) is Phase.STOPPED and not lifecycle.is_over(h.state, 10.5)
    assert h.happen(TaskExited(A, 1, 0)) == [] and lifecycle.is_over(h.state, 10.5)


def test_a_stop_waits_for_nobody_for_ever():
    h = started(A)
    h.happen(StopRequested(), now=10)
    h.happen(StopRequested(), now=10.5)
    assert h.wake_at == 11 and not lifecycle.is_over(h.state, 10.9) and lifecycle.is_over(h.state, 11)


# ---- several cells under way ----------------------------------------------------------------------


def sent(actions):
    """(task, cell) of every cell that was sent."""
    return [(a.task, a.command.cell) for a in actions if commands_of(a, RunCell)]


def finished(actions):
    """The cells that finished, by number."""
    return {a.cell.number: a.cell for a in actions if isinstance(a, FinishCell)}


def test_two_cells_on_disjoint_tasks_run_at_once_and_each_ends_by_itself():
    h = started(A, B)
    assert sent(h.run(A, cell=1)) == [(A, 1)]
    assert sent(h.run(B, cell=2)) == [(B, 2)]
    assert list(h.state.cells) == [1, 2]
    (finish,) = h.happen(returned(B, cell=2))
    assert finish.cell.number == 2 and set(finish.cell.outcomes) == {B}
    assert list(h.state.cells) == [1]
    assert set(finished(h.happen(returned(A, cell=1)))) == {1}
    assert h.state.cells == {}


def test_cells_on_the_same_task_are_sent_in_the_order_of_request_whatever_their_numbers():
    h = started(A)
    assert sent(h.run(A, cell=7)) == [(A, 7)]
    assert h.run(A, cell=9) == h.run(A, cell=8) == []
    actions = h.happen(returned(A, cell=7))
    assert set(finished(actions)) == {7} and sent(actions) == [(A, 9)]
    assert h.phase(A) is Phase.RUNNING
    assert sent(h.happen(returned(A, cell=9))) == [(A, 8)]
    assert set(finished(h.happen(returned(A, cell=8)))) == {8}


def test_a_queued_cell_is_sent_as_soon_as_its_own_tasks_are_free():
    h = started(A, B)
    h.run(A, B, cell=1)
    assert h.run(A, cell=2) == []
    assert sent(h.happen(returned(A, cell=1))) == [(A, 2)]  # the first cell still runs on B
    assert list(h.state.cells) == [1, 2]
    assert set(finished(h.happen(returned(A, cell=2)))) == {2}
    assert set(finished(h.happen(returned(B, cell=1)))) == {1}


def test_a_later_cell_does_not_overtake_a_queued_one_on_a_task_that_both_need():
    h = started(A, B, C)
    assert sent(h.run(A, B, cell=1)) == [(A, 1), (B, 1)]
    assert h.run(B, C, cell=2) == []
    assert h.run(C, cell=3) == []
    assert h.happen(returned(A, cell=1)) == []
    assert sent(h.happen(returned(B, cell=1))) == [(B, 2), (C, 2)]
    assert h.happen(returned(B, cell=2)) == []
    actions = h.happen(returned(C, cell=2))
    assert set(finished(actions)) == {2} and sent(actions) == [(C, 3)]


def test_which_tasks_are_needed():
    h = started(A, B, C, D)
    h.run(A, B, cell=1)
    h.run(B, C, cell=2)
    assert [task for task in (A, B, C, D) if are_needed(h.state, (task,))] == [A, B, C], "also by who queues"
    h.happen(returned(A, cell=1))
    assert not are_needed(h.state, (A, D)) and are_needed(h.state, (A, B))


def test_a_press_on_one_cell_leaves_the_other_alone():
    h = started(A, B, policy=Policy(3, 0.5, 0.5, 0.8))
    h.run(A, cell=1, now=0)
    h.run(B, cell=2)
    assert h.happen(InterruptPressed(cell=2), now=1) == [interrupt(B, 2)]
    assert h.tick(1.5) == [cancel(B, 2)]
    assert (h.state.cells[1].presses, h.state.cells[2].presses) == (0, 1)
    h.happen(InterruptPressed(cell=1), now=1.6)  # the first for that cell: it skips no stages
    assert h.state.cells[1].presses == 1
    assert h.actions[-1] == interrupt(A, 1)


def test_a_press_without_a_number_is_for_every_cell():
    h = started(A, B)
    h.run(A, cell=1)
    h.run(B, cell=2)
    h.run(A, B, cell=3)
    actions = h.happen(InterruptPressed(), now=1)
    assert set(finished(actions)) == {3}
    assert [a for a in actions if commands_of(a, InterruptCell)] == [interrupt(A, 1), interrupt(B, 2)]


def test_a_press_that_names_a_task_is_for_the_cell_that_it_runs_now():
    h = started(A, B)
    h.run(A, B, cell=1)
    h.happen(returned(A, cell=1))
    h.run(A, cell=2)
    assert h.happen(InterruptPressed((A,)), now=1) == [interrupt(A, 2)]
    assert h.state.cells[1].presses == 0
    assert h.happen(InterruptPressed((A,), cell=1), now=1.1) == []


def test_a_press_on_a_queued_cell_finishes_it_unsent_and_lets_the_next_one_pass():
    h = started(A, B)
    h.run(A, cell=1)
    h.run(A, B, cell=2)
    assert h.run(B, cell=3) == []
    actions = h.happen(InterruptPressed(cell=2))
    assert finished(actions)[2].waiting_for == (A, B) and sent(actions) == [(B, 3)]
    assert list(h.state.cells) == [1, 3]
    assert h.state.cells[1].presses == 0
    assert set(finished(h.happen(returned(A, cell=1)))) == {1}
    assert not [a for a in h.actions if commands_of(a, RunCell) and a.command.cell == 2]


def test_a_press_on_a_cell_that_has_finished_changes_nothing():
    h = started(A, B)
    h.run(A, cell=1)
    h.run(B, cell=2)
    h.happen(returned(A, cell=1))
    before = h.state
    assert h.happen(InterruptPressed(cell=1)) == []
    assert h.state == before


def test_the_death_of_a_task_ends_its_cell_and_those_queued_on_it_but_no_other():
    h = started(A, B)
    h.run(A, cell=1)
    h.run(B, cell=2)
    h.run(A, cell=3)
    end = TaskExited(A, 1, -11)
    ended = finished(h.happen(end))
    assert {number: cell.outcomes for number, cell in ended.items()} == {1: {A: end}, 3: {A: end}}
    assert list(h.state.cells) == [2] and not h.state.cells[2].outcomes
    assert h.tick(100) == []


def test_a_queued_cell_that_meets_a_dead_task_still_runs_on_the_others_and_frees_them():
    h = started(A, B)
    h.run(A, B, cell=1, keep_going=True)
    h.run(A, B, cell=2)
    assert h.happen(TaskExited(A, 1, -11)) == []  # the first cell goes on on B
    actions = h.happen(returned(B, cell=1), now=1)
    assert set(finished(actions)) == {1} and sent(actions) == [(B, 2)]
    assert abort(B, "worker-0 died", 2) in actions
    assert set(h.state.cells[2].outcomes) == {A}


def test_a_death_after_its_part_is_no_outcome_of_the_cell_that_runs_elsewhere():
    h = started(A, B)
    h.run(A, B, cell=1)
    h.happen(returned(A, cell=1))
    h.run(A, cell=2)
    assert set(finished(h.happen(TaskExited(A, 1, -9), now=1))) == {2}
    assert isinstance(h.state.cells[1].outcomes[A], CellReturned)
    assert h.tick(100) == []


def test_a_queued_cell_waits_for_the_new_process_of_a_task_that_was_replaced():
    h = started(A)
    h.run(A, cell=1)
    h.run(A, cell=2)
    assert h.happen(LaunchRequested((A,))) == [Signal(A, SIGKILL)]
    actions = h.happen(TaskExited(A, 1, -9))
    assert actions[0] == Launch(A, 2) and set(finished(actions)) == {1} and not sent(actions)
    assert sent(h.happen(TaskReady(A, 2, 101, "host"))) == [(A, 2)]


def test_a_failure_gives_grace_to_its_own_cell_only():
    h = started(A, B, C, policy=Policy(3, 0.5, 0.5, 0.8))
    h.run(A, B, cell=1, now=10)
    h.run(C, cell=2)
    aborts = h.happen(raised(A, cell=1), now=11)
    assert aborts == [abort(B, "worker-0 raised ValueError", 1, when_stuck=True)]
    assert h.tick(14) == [interrupt(B, 1)]
    assert {a.task for t in (14.5, 15, 15.6, 15.8) for a in h.tick(t)} == {B}
    assert h.state.cells[2].failed_at is None and h.state.cells[2].escalation is None


def test_two_cells_are_each_on_their_own_stage():
    h = started(A, B, policy=Policy(3, 0.5, 0.5, 0.8))
    h.run(A, cell=1, now=0)
    h.run(B, cell=2)
    h.happen(InterruptPressed(cell=1), now=1)
    assert h.happen(InterruptPressed(cell=2), now=1.2) == [interrupt(B, 2)]
    assert h.wake_at == 1.5
    assert h.tick(1.5) == [cancel(A, 1)]
    assert h.wake_at == 1.7
    assert h.tick(1.7) == [cancel(B, 2)]


def test_keep_going_is_for_its_own_cell():
    h = started(A, B, C, policy=Policy(3))
    h.run(A, B, cell=1, keep_going=True, now=0)
    assert h.run(A, C, cell=2) == []
    assert sent(h.happen(raised(A, cell=1), now=1)) == [(A, 2), (C, 2)]
    assert h.tick(100) == []
    assert h.happen(raised(A, cell=2), now=101) == [
        abort(C, "worker-0 raised ValueError", 2, when_stuck=True)
    ]
    assert h.tick(104)[0] == interrupt(C, 2)
    assert not [a for a in h.actions if commands_of(a, AbortCollectives | InterruptCell) and a.task == B]
    assert set(finished(h.happen(returned(B, cell=1)))) == {1}


def test_the_time_limit_of_a_queued_cell_counts_from_when_it_was_sent():
    h = started(A, B)
    h.run(A, cell=1, now=0, timeout_s=50)
    h.run(B, cell=2, now=1, timeout_s=30)
    h.run(A, cell=3, now=2, timeout_s=5)
    assert h.wake_at == 31
    assert h.tick(20) == []
    assert sent(h.happen(returned(A, cell=1), now=25)) == [(A, 3)]
    assert h.state.cells[3].started == 25
    assert h.wake_at == 30
    assert h.tick(30) == [Signal(A, SIGUSR1, 3)]
    assert h.tick(30.2) == [interrupt(A, 3)]
    assert not h.state.cells[2].timed_out
    assert Signal(B, SIGUSR1, 2) in h.tick(31)


def test_a_cell_whose_tasks_do_not_start_in_its_time_is_given_up():
    h = History(A)
    h.run(A, now=3, timeout_s=5)
    assert h.wake_at == 8
    (finish,) = h.tick(8)
    assert isinstance(finish, FinishCell) and finish.cell.timed_out and not finish.cell.outcomes


def test_the_time_limit_of_a_cell_that_waits_for_a_start_counts_from_its_request():
    h = History(A)
    h.run(A, now=3, timeout_s=5)
    h.happen(TaskReady(A, 1, 100, "host"), now=6)
    assert h.state.cells[1].started == 3 and h.wake_at == 8


def test_equal_barrier_names_in_two_cells_do_not_meet():
    h = started(A, B, C, D)
    h.run(A, B, cell=1)
    h.run(C, D, cell=2)
    assert h.happen(reached(A, "barrier 1", (A, B), cell=1)) == []
    assert h.happen(reached(C, "barrier 1", (C, D), cell=2)) == []
    assert set(h.happen(reached(D, "barrier 1", (C, D), cell=2))) == {
        answer(C, "barrier 1"),
        answer(D, "barrier 1", place=1),
    }
    assert set(h.state.barriers) == {(1, "barrier 1")}
    assert set(h.happen(reached(B, "barrier 1", (A, B), cell=1))) == {
        answer(A, "barrier 1"),
        answer(B, "barrier 1", place=1),
    }


def test_a_barrier_with_a_task_of_another_cell_breaks():
    h = started(A, B)
    h.run(A, cell=1)
    h.run(B, cell=2)
    (answer,) = h.happen(reached(A, "first strategy 1", (A, B), cell=1))
    assert answer.task == A and "worker-1 does not run this cell" in answer.command.reason
    (answer,) = h.happen(reached(B, "first strategy 1", (A, B), cell=2))
    assert answer.task == B and "worker-0 does not run this cell" in answer.command.reason


def test_tasks_of_two_cells_that_wait_at_different_barriers_are_no_deadlock():
    h = started(A, B, C, D)
    h.run(A, B, cell=1)
    h.run(C, D, cell=2)
    assert h.happen(reached(A, "barrier 1", (A, B), cell=1)) == []
    assert h.happen(reached(C, "barrier 3", (C, D), cell=2)) == []
    answers = h.happen(reached(B, "barrier 2", (A, B), cell=1))
    assert {(a.task, a.command.barrier) for a in answers} == {(A, "barrier 1"), (B, "barrier 2")}
    assert "worker-2" not in answers[0].command.reason
    assert set(h.state.barriers) == {(2, "barrier 3")}


def test_a_thread_that_waits_at_a_barrier_after_its_cell_is_told_so():
    h = started(A, B)
    h.run(A, B, cell=1)
    h.happen(returned(A, cell=1), returned(B, cell=1))
    (answer,) = h.happen(reached(A, "barrier 1", (A, B), cell=1))
    assert answer.task == A and "worker-1 has ended the cell" in answer.command.reason


def test_where_a_task_waits_can_be_told():
    h = started(A, B)
    h.run(A, B)
    h.happen(reached(A, "barrier 1", (A, B)))
    assert describe_waits(h.state) == {A: ("barrier 1", "for worker-1 at barrier 1")}
