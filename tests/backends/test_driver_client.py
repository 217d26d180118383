"""The kernel's end of a driver process, with a real one."""

import os
import signal
import socket
import warnings

import pytest
from conftest import wait_until

from tfmagic.backends.remote.driver_client import DriverProcess
from tfmagic.backends.remote.messages import AgentSetup, HostRequest, OpenHosts
from tfmagic.errors import LaunchError
from tfmagic.protocol.cluster_spec import TaskId

NOWHERE = "127.0.0.1:1"


def test_replies_that_came_at_once_are_all_read(tmp_path):
    driver = DriverProcess(NOWHERE)
    came = lambda: driver._control.sock.recv(1 << 16, socket.MSG_PEEK)  # noqa: E731
    task = TaskId("worker", 0)
    opening = OpenHosts(
        HostRequest(NOWHERE, "spread", 1, 0, {}), (task,), (), str(tmp_path), AgentSetup("", ""), 60, 10
    )
    try:
        with pytest.raises(LaunchError, match="nothing answers there"):
            driver.open(opening, lambda who: wait_until(lambda: b"nothing answers" in came(), 60))
    finally:
        driver.close()


def test_an_end_by_want_of_shared_memory_is_told_as_one():
    driver = DriverProcess(NOWHERE)
    try:
        driver.process.send_signal(signal.SIGBUS)
        assert driver.how_it_ended().startswith(" with SIGBUS: /dev/shm of this machine is full")
    finally:
        driver.close()


def test_a_fork_of_the_kernel_keeps_no_driver_alive():
    driver = DriverProcess(NOWHERE)
    waits, release = os.pipe()
    with warnings.catch_warnings(action="ignore"):  # a notebook with threads can fork, too
        child = os.fork()
    if child == 0:
        os.close(release)
        os.read(waits, 1)
        os._exit(0)
    try:
        driver._control.close()  # as the system does when the kernel dies
        driver.reports.close()
        assert driver.process.wait(60) == 0
    finally:
        os.close(release)
        os.close(waits)
        os.waitpid(child, 0)
        driver.process.kill()
        os.close(driver._noise)
