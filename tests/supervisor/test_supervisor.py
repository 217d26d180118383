"""Whose thread does what: a supervisor over a backend without processes, at the moments that matter."""

import queue
import threading
import time

import pytest

from tfmagic.backends.fake import FakeBackend, return_at_once
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.protocol.events import CellRequested
from tfmagic.runs import folder
from tfmagic.supervisor.state import Policy
from tfmagic.supervisor.supervisor import RunningCell, Supervisor

A, B = TaskId("worker", 0), TaskId("worker", 1)


def boot(task, attempt):
    return TaskBoot(task, attempt, "fake", (A, B), "", {}, "", (), "", A, 0, keras_fix=False)


def script(task, command):
    """What a task reports: it fails over cell 13, and never returns from cell 99."""
    if command == RunCell(13):
        raise RuntimeError("a bug")
    return [] if command == RunCell(99) else return_at_once(task, command)


@pytest.fixture
def supervisor(state_dir):
    run = folder.create_run(state_dir, "fake", {})
    policy = Policy(interrupt_grace_s=0.0, cancel_grace_s=0.0, abort_grace_s=0.0)
    made = Supervisor(FakeBackend(script), (A, B), lambda: policy, boot, run, 1 << 30)
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


def test_the_loop_that_waits_is_woken_by_a_time_limit(supervisor):
    began = time.monotonic()
    cell = run_cell(supervisor, 99, timeout_s=0.05)
    assert cell.done.wait(20) and cell.outcome.timed_out
    assert time.monotonic() - began >= 0.05


def test_a_bug_while_a_cell_is_started_ends_the_cluster_and_leaves_no_thread_waiting(supervisor):
    cell = run_cell(supervisor, 13)
    assert cell.done.wait(20) and cell.outcome is None
    supervisor.thread.join(20)
    assert "a bug" in str(supervisor.crashed) and supervisor.ended
    assert run_cell(supervisor, 14).done.wait(1)


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
