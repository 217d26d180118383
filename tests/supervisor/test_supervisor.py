"""Whose thread does what: a supervisor over a backend without processes, at the moments that matter."""

import contextlib
import queue
import threading
import time

import pytest
from conftest import wait_until

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import RunCell
from tfmagic.protocol.events import CellRequested, CellReturned, TaskExited, TaskReady, TaskStarted
from tfmagic.runs import folder
from tfmagic.supervisor.state import SIGKILL, Policy
from tfmagic.supervisor.supervisor import Supervisor

A, B = TaskId("worker", 0), TaskId("worker", 1)


class Scripted:
    """Tasks that are ready at once, return from every cell that they are `answering`, and die of SIGKILL."""

    def __init__(self):
        self.events, self.senders, self.answering = queue.SimpleQueue(), [], True
        self.resting = threading.Event()

    def launch(self, boot):
        self.events.put(TaskStarted(boot, 1, 0, False))
        self.events.put(TaskReady(boot, 1, 0, "nowhere"))

    def send(self, task, command):
        self.senders.append(threading.current_thread())
        if command == RunCell(13):
            raise RuntimeError("a bug")
        if self.answering and isinstance(command, RunCell):
            self.events.put(CellReturned(task, 1, command.cell, 0.0, 0))

    def signal(self, task, number):
        if number == SIGKILL:
            self.events.put(TaskExited(task, 1, -9))

    def poll(self, timeout_s, resting=None):
        with resting:
            self.resting.set()
            with contextlib.suppress(queue.Empty):
                found = self.events.get(timeout=timeout_s)
                return [] if found is None else [found]
        return []

    def wake(self):
        self.events.put(None)

    def own_pids(self):
        return {}

    def close(self):
        self.wake()


@pytest.fixture
def supervisor(state_dir):
    run = folder.create_run(state_dir, "scripted", {})
    policy = Policy(interrupt_grace_s=0.0, cancel_grace_s=0.0, abort_grace_s=0.0)
    made = Supervisor(Scripted(), (A, B), lambda: policy, lambda task, attempt: task, run, 1 << 30)
    made.start()
    assert made.wait_for(lambda state: all(seen.host for seen in state.tasks.values()), 20)
    yield made
    made.close()


def request(number=1, **more):
    return CellRequested(number, dict.fromkeys((A, B), RunCell(number)), **more)


def test_who_starts_a_cell_sends_it_while_the_loop_rests(supervisor):
    supervisor.backend.resting.wait(20)
    wait_until(lambda: not supervisor._turn.locked())
    cell = supervisor.run_cell(request(), at_once=True)
    assert supervisor.backend.senders == [threading.current_thread()] * 2
    assert cell.done.wait(20) and set(cell.outcome.outcomes) == {A, B}


def test_else_the_loop_does(supervisor):
    assert supervisor.run_cell(request()).done.wait(20)
    with supervisor._turn:  # as while it decides
        cell = supervisor.run_cell(request(2), at_once=True)
    assert cell.done.wait(20) and set(supervisor.backend.senders) == {supervisor.thread}


def test_the_loop_that_rests_is_woken_where_a_time_limit_comes_before_its_end(supervisor):
    supervisor.backend.answering = False
    wait_until(lambda: not supervisor._turn.locked())
    began = time.monotonic()
    cell = supervisor.run_cell(request(timeout_s=0.05), at_once=True)
    assert cell.done.wait(20) and cell.outcome.timed_out
    assert time.monotonic() - began >= 0.05


def test_a_bug_while_a_cell_is_started_ends_the_cluster_and_leaves_nobody_waiting(supervisor):
    wait_until(lambda: not supervisor._turn.locked())
    cell = supervisor.run_cell(request(13), at_once=True)
    assert cell.done.wait(20) and cell.outcome is None
    supervisor.thread.join(20)
    assert "a bug" in str(supervisor.crashed) and supervisor.ended
    assert supervisor.run_cell(request(14), at_once=True).done.wait(1)


def test_cells_of_many_threads_all_end(supervisor):
    cells = queue.SimpleQueue()

    def start(first):
        for number in range(first, first + 100):
            cells.put(supervisor.run_cell(request(number), at_once=True))

    threads = [threading.Thread(target=start, args=(1000 * n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    assert all(cells.get(timeout=20).done.wait(20) for _ in range(400))
    for thread in threads:
        thread.join()
