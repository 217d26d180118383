"""Counting the tasks for which an engine's nodes have room, without an engine."""

import pytest

from tfmagic.backends.remote.messages import HostRequest
from tfmagic.backends.remote.room import Node, Wanted

FOUR, EIGHT_AND_GPU = {"CPU": 4.0, "memory": 1e9}, {"CPU": 8.0, "GPU": 1.0, "node:10.0.0.1": 1.0}


@pytest.mark.parametrize(
    ("request_", "tasks", "gpu_tasks", "fitting"),
    [
        (HostRequest(), 3, 0, 12),
        (HostRequest(cpus=3), 3, 0, 3),
        (HostRequest(cpus=0), 3, 0, 12_000),
        (HostRequest(placement="strict-spread"), 3, 0, 2),
        (HostRequest(gpus=1), 3, 3, 1),
        (HostRequest(gpus=1), 3, 1, 12),
        (HostRequest(gpus=1), 3, 2, 2),  # the task without a GPU, and one with
        (HostRequest(gpus=0.5), 3, 2, 12),
        (HostRequest(resources={"rack": 1}), 3, 0, 0),
    ],
)
def test_tasks_are_counted_with_what_each_needs(request_, tasks, gpu_tasks, fitting):
    wanted = Wanted(request_, tasks, gpu_tasks)
    assert wanted.fitting([FOUR, EIGHT_AND_GPU]) == fitting
    nodes = [Node("10.0.0.1", FOUR), Node("10.0.0.2", EIGHT_AND_GPU)]
    told = wanted.never_fits(nodes)
    assert bool(told) == (fitting < tasks)
    if told:
        assert f"can hold {fitting} of {tasks} tasks: each needs " in told
        assert told.endswith("Its nodes have 10.0.0.1: 4 CPU; 10.0.0.2: 8 CPU, 1 GPU")


def test_three_tenths_are_three_times_one_tenth():
    assert Wanted(HostRequest(resources={"rack": 0.1}, cpus=0), 3, 0).fitting([{"rack": 0.3}]) == 3
