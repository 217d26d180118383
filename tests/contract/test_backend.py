"""Tests that every backend must pass. Add a new backend to BACKENDS first."""

import os
import signal
import sys
import time

import psutil
import pytest
from process_backend import ProcessBackend

import tfmagic
from tfmagic.backends.launcher_client import Flavour
from tfmagic.backends.local import LocalBackend
from tfmagic.backends.remote.backend import RemoteBackend
from tfmagic.backends.remote.messages import AgentSetup, HostRequest
from tfmagic.clusters.launch import open_backend
from tfmagic.protocol.cluster_spec import ClusterShape, ClusterSpec, TaskId
from tfmagic.protocol.commands import RunCell, TaskBoot
from tfmagic.protocol.events import CellRaised, CellReturned, TaskExited, TaskReady, TaskStarted
from tfmagic.runs import folder

TASK = TaskId("worker", 0)


def open_local(run, request):
    return LocalBackend(Flavour(), run)


def open_ray(run, request):
    nodes = request.getfixturevalue("ray_nodes")
    setup = AgentSetup(str(run.folder), "contract")
    with nodes.driver_environment():
        return RemoteBackend(HostRequest(nodes.address), setup, run, (TASK,), (), 120, 10)


BACKENDS = {"local": open_local, "ray": open_ray, "process": lambda run, _: ProcessBackend(run)}
SLOW = ("process",)  # each process imports TensorFlow; the last test has its main cases


class Driver:
    """A backend that the test polls itself, instead of a supervisor."""

    def __init__(self, backend, run):
        self.backend, self.run, self.seen = backend, run, []
        shape = ClusterShape(workers=1)
        self.spec = ClusterSpec(shape, backend.allocate(shape.tasks))

    def launch(self, attempt=1):
        boot = TaskBoot(
            task=TASK,
            attempt=attempt,
            cluster="contract",
            shape_tasks=(TASK,),
            tf_config=self.spec.tf_config(TASK),
            environ=dict(os.environ) if self.backend.runs_here else {},
            cwd=os.getcwd(),
            sys_path=tuple(sys.path),
            stacks_path=str(self.run.stacks_path(TASK)),
            leader=TASK,
            heartbeat_ms=3000,
            keras_fix=True,
        )
        self.backend.launch(boot)

    def poll(self, timeout_s):
        self.backend.wait(timeout_s)
        return self.backend.take_events()

    def wait_for(self, kind, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for event in self.poll(deadline - time.monotonic()):
                self.seen.append(event)
            found = [event for event in self.seen if isinstance(event, kind)]
            if found:
                return found[-1]
        raise TimeoutError(self.seen)


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.soak] * (name in SLOW)) for name in BACKENDS])
def driver(request, state_dir):
    run = folder.create_run(state_dir, "contract", {})
    backend = BACKENDS[request.param](run, request)
    yield Driver(backend, run)
    backend.close()


def test_a_launched_task_starts_becomes_ready_and_runs_cells(driver):
    driver.launch()
    assert driver.wait_for(TaskStarted).pid > 0
    assert driver.wait_for(TaskReady).task == TASK
    driver.backend.send(TASK, RunCell(cell=1, source="print('hi')", filename="<c>", tasks=(TASK,)))
    returned = driver.wait_for(CellReturned)
    assert returned.cell == 1
    assert driver.run.log_path(TASK).read_bytes()[: returned.log_end].endswith(b"hi\n")


def test_commands_sent_before_the_task_is_ready_are_kept(driver):
    driver.launch()
    for number in range(1, 6):
        driver.backend.send(TASK, RunCell(cell=number, source="1/0", filename="<c>", tasks=(TASK,)))
    while len([e for e in driver.seen if isinstance(e, CellRaised)]) < 5:
        driver.wait_for(CellRaised)
        driver.seen += driver.poll(0.1)
    assert [e.cell for e in driver.seen if isinstance(e, CellRaised)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_launch_ends_with_exactly_one_exit_as_its_last_event(driver, number):
    driver.launch()
    driver.wait_for(TaskReady)
    driver.backend.signal(TASK, number)
    assert driver.wait_for(TaskExited).exit_code == -number
    assert driver.poll(0.05) == []
    assert [type(e) for e in driver.seen].count(TaskExited) == 1
    assert isinstance(driver.seen[-1], TaskExited)


def test_an_exit_has_the_end_of_the_log_of_its_process(driver):
    """Also when a relaunched process appends to the same log."""
    for attempt in (1, 2):
        driver.launch(attempt)
        driver.wait_for(TaskReady)
        driver.backend.send(
            TASK, RunCell(cell=attempt, source=f"print('of process', {attempt})", tasks=(TASK,))
        )
        end = driver.wait_for(CellReturned).log_end
        driver.backend.signal(TASK, signal.SIGKILL)
        assert driver.wait_for(TaskExited).log_end == end == driver.run.log_path(TASK).stat().st_size
        driver.seen.clear()
    assert driver.run.log_path(TASK).read_text() == "of process 1\nof process 2\n"


def test_a_signal_that_comes_before_the_process_is_not_lost(driver):
    driver.launch()
    driver.backend.signal(TASK, signal.SIGKILL)
    assert driver.wait_for(TaskExited).exit_code == -signal.SIGKILL


def test_a_task_keeps_its_address_over_a_relaunch(driver):
    import socket

    for attempt in (1, 2):
        driver.launch(attempt)
        assert driver.wait_for(TaskReady).attempt == attempt
        with pytest.raises(OSError), socket.socket() as other:  # the port stays reserved
            host, port = driver.spec.addresses[TASK].split(":")
            other.bind((host, int(port)))
        driver.backend.signal(TASK, signal.SIGKILL)
        driver.wait_for(TaskExited)
        driver.seen.clear()


def test_sending_to_a_task_that_has_ended_does_nothing(driver):
    driver.launch()
    driver.wait_for(TaskReady)
    driver.backend.signal(TASK, signal.SIGKILL)
    driver.wait_for(TaskExited)
    driver.backend.send(TASK, RunCell(cell=1, source="1"))
    driver.backend.signal(TASK, signal.SIGINT)
    assert driver.poll(0.05) == []


def test_wake_ends_a_poll(driver):
    driver.backend.wake()
    began = time.monotonic()
    driver.poll(60)
    assert time.monotonic() - began < 30


def test_a_cluster_runs_on_the_backend_of_the_guide(monkeypatch):
    monkeypatch.setattr(open_backend, "LocalBackend", lambda flavour, run, hosts: ProcessBackend(run))
    with tfmagic.Cluster(workers=2) as cluster:

        def trained():
            import tensorflow as tf

            strategy = tf.distribute.MultiWorkerMirroredStrategy()
            one = strategy.run(lambda: tf.constant(1.0))
            return float(strategy.reduce("sum", one, axis=None)), os.getpid()

        first = cluster.run(trained)
        assert [total for total, _ in first.values()] == [2.0, 2.0]
        with pytest.raises(ZeroDivisionError):
            cluster.run(lambda: 1 / 0)
        with pytest.raises(tfmagic.TaskDied, match="SIGKILL"):
            cluster.run(os.kill, first["worker-1"][1], signal.SIGKILL, on="worker-1")
        cluster.restart("worker-1")
        again = cluster.run(os.getpid)
        assert again["worker-0"] == first["worker-0"][1] != again["worker-1"]
        pids = [*(pid for _, pid in first.values()), again["worker-1"]]
    assert not any(map(psutil.pid_exists, pids))
