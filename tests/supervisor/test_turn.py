"""The thread that waits for a cell runs the loop while one short cell follows another."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.supervisor.test_supervisor import A, B, supervisor  # noqa: F401  # a fixture
from tfmagic.protocol.commands import RunCell
from tfmagic.protocol.events import CellRequested, CellReturned, TasksSlowed
from tfmagic.supervisor import turn
from tfmagic.supervisor.running_cell import RunningCell


@pytest.fixture
def loop(supervisor, monkeypatch):  # noqa: F811
    """A supervisor whose own thread rests until it is needed, after a cell was waited for."""
    monkeypatch.setattr(turn, "REST_S", 60.0)
    supervisor.heard_by = []
    supervisor.listen(lambda event, state: supervisor.heard_by.append(threading.get_ident()), {CellReturned})
    yield supervisor


def wait_for_cell(loop, number):
    """Run a cell and wait for it, as `waiting.wait` does; return the threads that have taken its outcomes."""
    loop.heard_by.clear()
    cell = RunningCell(CellRequested(number, dict.fromkeys((A, B), RunCell(number))), {})
    loop.run_cell(cell, waits=True)
    while not loop.wait_cell(cell, 20):
        pass
    assert cell.outcome and set(cell.outcome.outcomes) == {A, B}
    return set(loop.heard_by)


@pytest.fixture
def caller():
    """Another thread than the main one, in which pytest's time limit can raise by a signal."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result(60)


def rest(loop):
    """Let the own thread rest: it does so when a cell ends for which a thread waits."""
    loop._may_rest = True
    loop.ask(TasksSlowed({}))
    while not loop._turn.is_resting:
        threading.Event().wait(0.001)


def test_the_thread_that_waits_does_the_work_of_the_cells_that_follow(loop, caller):
    rest(loop)
    me = caller(threading.get_ident)
    assert [caller(wait_for_cell, loop, number) for number in range(20, 40)] == [{me}] * 20


def test_an_event_of_another_thread_is_handled_at_once_while_the_own_thread_rests(loop, caller):
    rest(loop)
    loop.ask(TasksSlowed({A: 2.0}))
    assert loop.wait_for(lambda state: state.slowdowns, 20)
    assert caller(wait_for_cell, loop, 2) == {loop.thread.ident}


def test_a_cell_that_nobody_waits_for_is_run_by_the_own_thread(loop):
    rest(loop)
    cell = RunningCell(CellRequested(2, {A: RunCell(2)}), {})
    loop.run_cell(cell)
    assert cell.done.wait(20) and loop.heard_by[-1] == loop.thread.ident


def test_a_signal_handler_that_can_raise_keeps_the_main_thread_out_of_the_loop(loop):
    before = signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
    try:
        rest(loop)
        assert wait_for_cell(loop, 2) == {loop.thread.ident}
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_defect_that_a_waiting_thread_meets_ends_the_loop_and_its_cells(loop, caller):
    rest(loop)
    loop.policy = lambda: 1 / 0
    cell = RunningCell(CellRequested(2, {A: RunCell(2)}), {})
    with pytest.raises(ZeroDivisionError):
        caller(loop.run_cell, cell, True)
    loop.thread.join(20)
    assert cell.done.is_set() and isinstance(loop.crashed, ZeroDivisionError)


def test_a_cell_that_lasts_is_the_own_threads_again(loop, caller, monkeypatch):
    rest(loop)
    monkeypatch.setattr(turn, "REST_S", 0.2)
    cell = RunningCell(CellRequested(99, {A: RunCell(99)}), {})  # it never returns

    def wait():
        loop.run_cell(cell, waits=True)
        return loop.wait_cell(cell, 600)

    loop.ask(TasksSlowed({}))
    rest(loop)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        while loop._turn.is_resting:
            threading.Event().wait(0.001)
        loop.close()
        assert waiting.result(20), "the own thread has ended it, as a thread that runs the loop could not"
