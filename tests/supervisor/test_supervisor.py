"""Whose thread does what: a supervisor over a backend without processes, at the moments that matter."""

import ctypes
import itertools
import queue
import threading
import time

import pytest

from tfmagic.backends.fake import FakeBackend, return_at_once
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.protocol.events import CellRequested, CellReturned, LaunchRequested, TaskLost, TasksSlowed
from tfmagic.runs import folder
from tfmagic.supervisor.running_cell import RunningCell
from tfmagic.supervisor.state import Phase, Policy
from tfmagic.supervisor.supervisor import Supervisor
from tfmagic.system.usage import Usage

A, B = TaskId("worker", 0), TaskId("worker", 1)


def boot(task, attempt):
    return TaskBoot(task, attempt, "fake", (A, B), "", {}, "", (), "", A, 0, keras_fix=False)


def script(task, command):
    """What a task reports: cell 13 cannot be sent to it, and it never returns from cell 99."""
    if command == RunCell(13):
        raise RuntimeError("a bug")
    return [] if command == RunCell(99) else return_at_once(task, command)


@pytest.fixture
def supervisor(state_dir):
    run = folder.create_run(state_dir, "fake", {})
    policy = Policy(interrupt_grace_s=0.0, cancel_grace_s=0.0, abort_grace_s=0.0)
    made = Supervisor(FakeBackend(script), (A, B), lambda: policy, lambda: boot, run, 1 << 30)
    made.start()
    assert made.wait_for(lambda state: all(seen.host for seen in state.tasks.values()), 20)
    yield made
    made.close()


def run_cell(supervisor, number=1, **more):
    cell = RunningCell(CellRequested(number, dict.fromkeys((A, B), RunCell(number)), **more), {})
    supervisor.run_cell(cell)
    return cell


def test_a_cell_is_sent_to_its_tasks_and_ends_with_their_outcomes(supervisor):
    cell = run_cell(supervisor)
    assert cell.done.wait(20) and set(cell.outcome.outcomes) == {A, B}
    assert supervisor.backend.sent == [(A, RunCell(1)), (B, RunCell(1))]


def test_the_boots_of_processes_that_start_together_are_made_by_one_function(state_dir):
    made = []

    def boots():
        made.append([])
        return lambda task, attempt: made[-1].append((task, attempt)) or boot(task, attempt)

    run = folder.create_run(state_dir, "fake", {})
    supervisor = Supervisor(FakeBackend(script), (A, B), Policy, boots, run, 1 << 30)
    supervisor.start()
    supervisor.ask(LaunchRequested((B,)))
    supervisor.wait_for(lambda state: state.tasks[B].attempt == 2, 20)
    supervisor.close()
    assert made == [[(A, 1), (B, 1)], [(B, 2)]]


def test_the_loop_that_waits_is_woken_by_a_time_limit(supervisor):
    began = time.monotonic()
    cell = run_cell(supervisor, 99, timeout_s=0.05)
    assert cell.done.wait(20) and cell.outcome.timed_out
    assert time.monotonic() - began >= 0.05


def test_a_cell_that_cannot_be_sent_has_failed_and_the_next_one_runs(supervisor):
    cell = run_cell(supervisor, 13)
    assert cell.done.wait(20)
    assert {task: end.error.message for task, end in cell.outcome.outcomes.items()} == dict.fromkeys(
        (A, B), "a bug"
    )
    assert not any(end.bound for end in cell.outcome.outcomes.values())  # later cells bring its variables
    again = run_cell(supervisor, 14)
    assert again.done.wait(20) and set(again.outcome.outcomes) == {A, B}


def test_a_listener_that_raises_is_reported_once_and_the_others_hear_the_event(supervisor, capsys):
    heard = []
    for _ in range(2):
        supervisor.listen(lambda event, state: 1 / 0)
    supervisor.watch(lambda *decision: {}["nothing"])
    supervisor.listen(lambda event, state: heard.append(event))
    cells = [run_cell(supervisor, number) for number in (1, 2)]
    assert all(cell.done.wait(20) and cell.outcome for cell in cells)
    assert {event.cell for event in heard if isinstance(event, CellReturned)} == {1, 2}
    supervisor.close()
    shown = capsys.readouterr().err
    assert shown.count("ZeroDivisionError") == 1 and shown.count("KeyError: 'nothing'") == 1


def test_a_task_that_is_slowed_on_purpose_is_not_stopped_for_a_look(supervisor):
    supervisor.ask(TasksSlowed({A: 4.0}))
    assert supervisor.wait_for(lambda state: state.slowdowns, 20)
    samples = [supervisor._sample(task, Usage(cpu_s=1.5, paused=True)) for task in (A, B)]
    assert [(sample.cpu_s, sample.stopped) for sample in samples] == [(6.0, False), (1.5, True)]
    supervisor.ask(TasksSlowed({}))
    assert supervisor.wait_for(lambda state: not state.slowdowns, 20)


def test_costly_looks_are_rare_above_all_between_cells(state_dir):
    spent_s = 0.02

    def look_long():
        began = time.thread_time()
        while time.thread_time() < began + spent_s:
            pass
        return {}

    made = Supervisor(
        FakeBackend(), (A, B), Policy, lambda: boot, folder.create_run(state_dir, "fake", {}), 1 << 30
    )
    made._take_samples = look_long
    made._last_look -= 10  # so that one is due
    made._step()
    assert made._look_at() - made._last_look >= spent_s / 0.005 * 0.9
    made._cells[1] = RunningCell(CellRequested(1, {A: RunCell(1)}), {})
    assert spent_s / 0.03 * 0.9 <= made._look_at() - made._last_look < spent_s / 0.005 * 0.9


def test_a_launch_that_raises_is_a_lost_task_and_the_others_live_on(supervisor):
    supervisor.backend.launch = lambda boot: 1 / 0
    supervisor.ask(LaunchRequested((B,)))
    assert supervisor.wait_for(lambda state: state.tasks[B].phase is Phase.DEAD, 20)
    end = supervisor.state.tasks[B].end
    assert end == TaskLost(B, 2, "it could not be started: ZeroDivisionError: division by zero")
    cell = RunningCell(CellRequested(1, {A: RunCell(1)}), {})
    supervisor.run_cell(cell)
    assert cell.done.wait(20) and isinstance(cell.outcome.outcomes[A], CellReturned)


def test_no_thread_waits_for_a_loop_that_has_failed_also_if_its_backend_cannot_be_closed(supervisor, capsys):
    ended = threading.Event()
    supervisor.on_end(lambda: 1 / 0)
    supervisor.on_end(ended.set)
    cell = run_cell(supervisor, 99)
    supervisor.wait_for(lambda state: 99 in state.cells, 20)
    supervisor.backend.close = lambda: {}["nothing"]
    supervisor.policy = lambda: 1 / 0  # a bug of the loop's own
    supervisor.backend.wake()
    assert cell.done.wait(20) and cell.outcome is None and ended.wait(20)
    supervisor.thread.join(20)
    assert isinstance(supervisor.crashed, ZeroDivisionError) and supervisor.ended
    assert run_cell(supervisor, 14).done.wait(1)
    assert "KeyError: 'nothing'" in capsys.readouterr().err


def test_cells_of_many_threads_all_end(supervisor):
    cells = queue.SimpleQueue()

    def start(first):
        for number in range(first, first + 100):
            cells.put(run_cell(supervisor, number))

    threads = [threading.Thread(target=start, args=(1000 * n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    assert all(cells.get(timeout=20).done.wait(20) for _ in range(400))
    for thread in threads:
        thread.join()


class Injected(Exception):
    pass


def test_an_exception_that_comes_into_a_thread_that_waits_for_cells_ends_nothing_else(supervisor):
    met, numbers, is_over = [], itertools.count(100), threading.Event()

    def run_cells():
        while not is_over.is_set():
            try:
                assert run_cell(supervisor, next(numbers)).done.wait(20)
            except Injected as error:  # as of a signal handler, between any two instructions
                met.append(error)

    thread = threading.Thread(target=run_cells)
    thread.start()
    while len(met) < 30 and thread.is_alive():
        inject = ctypes.pythonapi.PyThreadState_SetAsyncExc
        inject(ctypes.c_ulong(thread.ident), ctypes.py_object(Injected))
        enough = supervisor.cells_ended + 20
        assert supervisor.wait_for(lambda state, enough=enough: supervisor.cells_ended >= enough, 20)
    is_over.set()
    thread.join(20)
    last = run_cell(supervisor, 10**6)
    assert last.done.wait(20) and set(last.outcome.outcomes) == {A, B} and not supervisor.ended
    assert not supervisor._cells


def test_a_cell_that_shows_as_sent_has_the_place_where_its_output_begins(supervisor):
    run_cell(supervisor, 99)
    supervisor.run.log_path(A).write_bytes(b"of the first\n")
    cell, seen = RunningCell(CellRequested(2, {A: RunCell(2)}), {A: 0}), []

    def look(*_):
        if 2 in supervisor.state.cells and supervisor.state.cells[2].sent:
            seen.append(cell.starts[A])

    supervisor.watch(look)  # called between the change of the state and its actions
    supervisor.run_cell(cell)
    assert supervisor.wait_for(lambda state: 2 in state.cells, 20)
    supervisor.backend.report(*(CellReturned(task, 1, 99, 0.0, 13) for task in (A, B)))
    assert cell.done.wait(20) and seen and set(seen) == {13}
