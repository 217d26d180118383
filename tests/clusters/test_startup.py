"""When a start has ended: histories of the states that its thread sees."""

import pytest

from tfmagic.clusters.launch.startup import Start
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.supervisor.state import ClusterState, Phase, TaskState

A, B = TaskId("worker", 0), TaskId("worker", 1)
COMING, READY, DEAD = Phase.STARTING, Phase.READY, Phase.DEAD


def state_of(first, second):
    return ClusterState({A: TaskState(*first), B: TaskState(*second)})


@pytest.mark.parametrize(
    ("old", "states", "settled"),
    [
        ({A: 0, B: 0}, [((COMING, 1), (COMING, 1)), ((READY, 1), (COMING, 1)), ((READY, 1), (READY, 1))], 2),
        ({A: 0, B: 0}, [((COMING, 1), (READY, 1)), ((Phase.RUNNING, 1), (READY, 1))], 1),
        ({A: 0, B: 0}, [((READY, 1), (COMING, 1)), ((DEAD, 1), (COMING, 1))], 1),
        ({A: 0, B: 0}, [((READY, 1), (COMING, 1)), ((COMING, 2), (READY, 1)), ((READY, 2), (READY, 1))], 2),
        ({A: 1, B: 1}, [((DEAD, 1), (READY, 1)), ((DEAD, 1), (READY, 2)), ((READY, 2), (READY, 2))], 2),
        ({B: 1}, [((DEAD, 3), (COMING, 2)), ((DEAD, 3), (READY, 2))], 1),
        ({}, [((DEAD, 3), (COMING, 2))], 0),
    ],
)
def test_a_start_ends_when_all_are_ready_or_one_has_died(old, states, settled):
    start = Start(None, old, 60)
    for number, seen in enumerate(states):
        now = state_of(*seen)
        assert [start._is_settled(now) for _ in range(2)] == [number == settled] * 2
