"""The doctor counts the room on real Ray nodes, and refuses what a start would refuse."""

import os
import subprocess
import sys

import pytest
from conftest import wait_until
from doctoring import case
from ray_nodes import RayNodes

import tfmagic
from tfmagic.backends.remote.messages import HostRequest
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.features.doctor import ray_cluster


@pytest.fixture(scope="module")
def nodes():
    with RayNodes() as made, pytest.MonkeyPatch.context() as patched:
        made.start(cpus=2)
        made.add(cpus=1, resources={"rack": 1})
        for name, value in made.driver_variables().items():
            patched.setenv(name, value)
        patched.delenv("RAY_AUTH_MODE")  # as for a user who has a token only
        yield made


def rooms(nodes, workers, running=False, **asked):
    settings = TaskSettings(hosts=HostRequest(nodes.address, **asked))
    found = list(ray_cluster.ray(case(task_settings=settings, workers=workers, running=running)))
    listed, room = found[-2:]
    assert listed.what.startswith("Ray has 2 nodes\n")
    return listed.what, room


def test_room_is_told_for_the_shape_that_is_asked(nodes):
    listed, room = rooms(nodes, 3)
    first, second = listed.splitlines()[1:]
    assert first.startswith("    127.0.0.2: 2 CPU, ") and first.endswith("of memory; free: 2 CPU")
    assert second.startswith("    127.0.0.3: 1 CPU, 1 rack, ") and second.endswith("free: 1 CPU, 1 rack")
    assert not room.refused_by_start
    assert room.what.startswith(
        "room for 3 tasks: 3 such tasks fit now, 3 when all is free (each needs 1 CPU"
    )
    for workers, asked, fit in (
        (4, {}, 3),
        (2, {"cpus": 2}, 1),
        (3, {"placement": "strict-spread"}, 2),
        (2, {"resources": {"rack": 1}}, 1),
        (1, {"gpus": 1}, 0),
    ):
        _, room = rooms(nodes, workers, **asked)
        assert room.refused_by_start and f"{fit} when all is free" in room.what, (workers, asked)


def test_what_others_use_leaves_less_room_and_the_command_fails_as_a_start_would(nodes):
    with tfmagic.Cluster(workers=2, backend="ray", address=nodes.address):
        wait_until(lambda: "1 such tasks fit now, 3 when all is free" in rooms(nodes, 3)[1].what, 60)
        _, room = rooms(nodes, 3)
        assert room.refused_by_start and "a start waits 120 s" in room.advice
        assert not rooms(nodes, 2, running=True)[1].refused_by_start
        words = [sys.executable, "-m", "tfmagic", "doctor", "--backend", "ray", "--address", nodes.address]
        for workers, code in (("1", 0), ("2", 1)):
            done = subprocess.run(
                [*words, "--workers", workers], capture_output=True, text=True, env=os.environ
            )
            assert f"room for {workers} tasks" in done.stdout
            assert done.returncode == code, done.stdout
