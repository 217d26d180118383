"""How long an event of a task waits for those of the others on its host."""

import pytest

from tfmagic.backends.remote.watched_tasks import Watched, gather_s, pace_s
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import TaskExited, TaskReady, TaskStarted

TASKS = [TaskId("worker", index) for index in range(50)]


@pytest.fixture
def tasks():
    found = [Watched(task, None) for task in TASKS]
    for watched in found:
        watched.begin(1)
    return found


def test_reports_of_tasks_that_start_are_collected_until_the_last_is_ready(tasks):
    assert (gather_s(tasks[:2]), gather_s(tasks), pace_s(tasks)) == (0.04, 1.0, 1.0)
    for watched in tasks:
        watched.note(TaskStarted(watched.task, 1, 5, False))
        assert gather_s(tasks) == 1.0
        watched.note(TaskReady(watched.task, 1, 5, "here"))
    assert (gather_s(tasks), pace_s(tasks)) == (0.0, 0.25)
    assert tasks[0].pid == 5


def test_the_end_of_a_task_that_starts_is_reported_at_once(tasks):
    ended = TaskExited(TASKS[3], 1, 1, 0, 0)
    tasks[3].note(ended)
    assert gather_s(tasks) == 1.0
    tasks[3].held.append((0, ended))
    assert gather_s(tasks) == 0.0


def test_a_cell_is_not_slower_while_other_tasks_start(tasks):
    tasks[0].cells = 1
    assert (gather_s(tasks[:2]), gather_s(tasks), pace_s(tasks[:2])) == (0.001, 0.02, 0.01)
