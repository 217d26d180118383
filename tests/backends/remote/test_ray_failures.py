"""What dies on a Ray cluster: tasks, agents, nodes, the head, the driver process, the notebook. Real SIGKILLs.

The nodes are `ray start` on this machine, so each process of a "host" can be looked at.
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from conftest import alive, program, wait_until
from ray_nodes import FAST_DETECTION, RayNodes
from test_recovery import all_reduce, values

import tfmagic
from tfmagic.errors import LaunchError, TaskDied

libc = ctypes.CDLL(None)
SEEN_S = 5.0  # measured 0.02 s; a busy machine must not fail the test
LOST_S = 60.0  # measured 2 to 4 s
ENDED_S = 30.0
_HEAD_LOST = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}  # Ray ends what has no head after 60 s


@pytest.fixture(scope="module")
def nodes():
    """A head without tasks, and two nodes of 2 CPUs."""
    with RayNodes(settings={**FAST_DETECTION, **_HEAD_LOST}) as made:
        made.start(cpus=0)
        made.add(cpus=2, count=2)
        yield made


@pytest.fixture
def ray_variables(nodes, monkeypatch):
    """Let this process start drivers."""
    for name, value in {**_HEAD_LOST, **nodes.driver_variables()}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def workers(nodes, ray_variables):
    """Return two workers, one on each node."""
    with tfmagic.Cluster(
        workers=2,
        backend="ray",
        address=nodes.address,
        placement="strict-spread",
        failure_grace_s=1,
        suspect_s=2,
        lease_s=5,
    ) as cluster:
        yield cluster


def row(cluster, task):
    (found,) = (found for found in cluster.status() if found["task"] == task)
    return found


def on_host(nodes, cluster, task):
    """Return the node of a task, the agent there, and the processes below it."""
    (node,) = (node for node in nodes.nodes if node.address == row(cluster, task)["host"])
    (agent,) = agents_of(node)
    return node, agent, {child.pid for child in agent.children(recursive=True)}


def agents_of(node):
    raylet = psutil.Process(node.pid_of("raylet"))
    return [child for child in raylet.children() if is_agent(child)]


def is_agent(process):
    return process.name().startswith("ray::RayAgent")


def wait_for_state(cluster, task, state, timeout_s):
    """Return how long it took, in seconds."""
    began = time.monotonic()
    wait_until(lambda: row(cluster, task)["state"] == state, timeout_s)
    return time.monotonic() - began


def leave_a_process():
    """Start a process that outlives its task, unless somebody ends it."""
    import subprocess

    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid


def test_a_killed_task_is_seen_at_once_and_revived_by_the_same_agent(nodes, workers):
    _, agent, _ = on_host(nodes, workers, "worker-1")
    os.kill(row(workers, "worker-1")["pid"], signal.SIGKILL)
    assert wait_for_state(workers, "worker-1", "dead", SEEN_S) < SEEN_S
    with pytest.raises(TaskDied, match="worker-1 was ended by SIGKILL"):
        workers.run(lambda: None, view="quiet")
    assert workers.revive() == ("worker-1",)
    assert on_host(nodes, workers, "worker-1")[1].pid == agent.pid


def test_the_tasks_of_a_killed_agent_end_with_all_they_started_and_come_back(nodes, workers):
    workers.run(all_reduce, 1, view="quiet")
    left = workers.run(leave_a_process, on="worker-1", view="quiet")["worker-1"]
    node, agent, below = on_host(nodes, workers, "worker-1")
    assert {left, row(workers, "worker-1")["pid"]} <= below
    agent.kill()
    wait_for_state(workers, "worker-1", "dead", SEEN_S)  # measured 0.02 s
    wait_until(lambda: not alive(below), ENDED_S)  # measured 0.1 s
    with pytest.raises(TaskDied, match=f"its agent on {node.address} is lost: Ray says: .* process has died"):
        workers.run(lambda: None, view="quiet")
    assert workers.revive() == ("worker-1",)
    assert on_host(nodes, workers, "worker-1")[1].pid != agent.pid
    results = workers.run(all_reduce, 2, view="quiet")
    assert results == {"worker-0": (4.0, [1, 2]), "worker-1": (4.0, [2])}


def test_a_task_of_a_lost_node_goes_on_on_one_that_was_added_and_all_meet_there(nodes, workers):
    node, _, below = on_host(nodes, workers, "worker-1")
    before = workers.spec.addresses
    added = nodes.add(cpus=2)
    nodes.kill_raylet(node)
    wait_for_state(workers, "worker-1", "dead", LOST_S)  # measured 1.7 s
    wait_until(lambda: not alive(below), ENDED_S)
    with pytest.raises(TaskDied, match=f"its host {node.address} is lost: Ray says: .* its node has died"):
        workers.run(lambda: None, view="quiet")
    assert workers.revive() == ("worker-1",)
    assert row(workers, "worker-1")["host"] == added.address
    assert not set(before.values()) & set(workers.spec.addresses.values())
    assert values(workers.run(all_reduce, 1, view="quiet"), 0) == {"worker-0": 2.0, "worker-1": 2.0}


@pytest.mark.soak  # it waits for a time limit
def test_a_task_of_a_lost_node_without_room_elsewhere_is_told_so_and_starts_when_a_node_joins(nodes, workers):
    workers.stop()  # its places are free
    with tfmagic.Cluster(
        workers=2, backend="ray", address=nodes.address, placement="strict-spread", start_timeout_s=60
    ) as cluster:
        node, _, _ = on_host(nodes, cluster, "worker-1")
        nodes.kill_raylet(node)
        wait_for_state(cluster, "worker-1", "dead", LOST_S)
        words = r"worker-1 did not start: Ray did not have room .* strict-spread \(a host for each\)"
        with pytest.raises(LaunchError, match=words):
            cluster.revive()
        assert set(cluster.run(lambda: 7, on="worker-0", view="quiet").values()) == {7}
        added = nodes.add(cpus=2)
        assert cluster.revive() == ("worker-1",)
        assert row(cluster, "worker-1")["host"] == added.address


def test_all_tasks_end_with_a_killed_driver_process_and_restart_finds_a_new_one(nodes, workers):
    pids = set()
    for task in ("worker-0", "worker-1"):
        _, agent, below = on_host(nodes, workers, task)
        pids |= {agent.pid, *below}
    driver = own_pid(workers)
    os.kill(driver, signal.SIGKILL)
    for task in ("worker-0", "worker-1"):
        wait_for_state(workers, task, "dead", SEEN_S)  # measured 0.07 s
    wait_until(lambda: not alive(pids), ENDED_S)  # measured 0.2 s
    with pytest.raises(TaskDied, match="the process that talks to Ray ended with SIGKILL"):
        workers.run(lambda: None, view="quiet")
    workers.restart()
    assert workers.run(lambda: 1, view="quiet") == {"worker-0": 1, "worker-1": 1}
    assert own_pid(workers) != driver


def own_pid(cluster):
    """Return the pid of the process that talks to Ray."""
    (pid,) = (row["pid"] for row in cluster.own_share() if row["process"] == "ray")
    return pid


_KERNEL = """
import sys, tfmagic
with tfmagic.Cluster(workers=1, backend="ray", address=sys.argv[1]) as cluster:
    cluster.run(lambda: None, view="quiet")
    print(*(row["pid"] for row in cluster.own_share() if row["process"] == "ray"), *(row["pid"] for row in cluster.status()), flush=True)
    sys.stdin.read()
"""


def test_nothing_is_left_of_a_killed_notebook(nodes, ray_variables):
    with program(sys.executable, "-c", _KERNEL, nodes.address, stdin=subprocess.PIPE) as kernel:
        driver, *tasks = map(int, kernel.stdout.readline().split())
        agents = {
            parent.pid for task in tasks for parent in psutil.Process(task).parents() if is_agent(parent)
        }
        assert agents
        kernel.kill()
    wait_until(lambda: not alive([driver, *tasks, *agents]), ENDED_S)  # measured 0.1 s


def test_a_stopped_driver_process_goes_on_and_a_frame_of_it_that_is_damaged_costs_the_tasks(workers):
    driver = psutil.Process(own_pid(workers))
    driver.suspend()
    assert workers.run(lambda: 1, view="quiet") == {"worker-0": 1, "worker-1": 1}

    reports = int(re.search(r"ray_driver\.main\(\d+, (\d+)", " ".join(driver.cmdline()))[1])
    theirs = take_file(driver.pid, reports)
    os.write(theirs, b"\xc1" * 64)
    os.close(theirs)
    with pytest.raises(TaskDied, match="the process that talks to Ray sent what cannot be read"):
        workers.run(lambda: None, view="quiet")
    wait_until(lambda: not driver.is_running(), ENDED_S)


def take_file(pid, fd):
    """Return a file of another process (`pidfd_getfd`, Linux 5.6)."""
    pidfd = os.pidfd_open(pid)
    try:
        return libc.syscall(438, pidfd, fd, 0)
    finally:
        os.close(pidfd)


@pytest.mark.soak
def test_a_host_that_no_one_asks_ends_its_tasks_when_its_lease_runs_out(nodes, workers):
    pids = {task["pid"] for task in workers.status()}
    driver = own_pid(workers)
    os.kill(driver, signal.SIGSTOP)
    try:
        wait_until(lambda: not alive(pids), ENDED_S)
    finally:
        os.kill(driver, signal.SIGCONT)
    for task in ("worker-0", "worker-1"):
        wait_for_state(workers, task, "dead", LOST_S)
    words = r"its agent on .* had heard nothing of this notebook for 5 s \(lease_s\).*Cluster\(lease_s=10\)"
    with pytest.raises(TaskDied, match=words):
        workers.run(lambda: None, view="quiet")
    assert set(workers.revive()) == {"worker-0", "worker-1"}


@pytest.mark.soak
def test_a_notebook_outlives_the_head_and_is_told_of_its_tasks(nodes, workers):
    pids = {task["pid"] for task in workers.status()}
    workers.run(time.sleep, 3, view="quiet")
    assert not any(task.silent_host for task in workers.state.tasks.values())
    nodes.kill_head()
    for task in ("worker-0", "worker-1"):
        wait_for_state(workers, task, "dead", LOST_S)
    wait_until(lambda: not alive(pids), ENDED_S)
    with pytest.raises(TaskDied, match=r"talks to Ray ended: Ray's head at .* does not answer any more"):
        workers.run(lambda: None, view="quiet")
    with pytest.raises(LaunchError, match="nothing answers there"):
        workers.restart()
