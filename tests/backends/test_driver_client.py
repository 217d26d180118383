"""The kernel's end of a driver process, with a real one."""

import socket

import pytest
from conftest import wait_until

from tfmagic.backends.remote.driver_client import DriverProcess
from tfmagic.backends.remote.messages import HostRequest, OpenHosts
from tfmagic.errors import LaunchError
from tfmagic.protocol.cluster_spec import TaskId

NOWHERE = "127.0.0.1:1"


def test_replies_that_came_at_once_are_all_read(tmp_path):
    driver = DriverProcess(NOWHERE)
    came = lambda: driver._control.sock.recv(1 << 16, socket.MSG_PEEK)  # noqa: E731
    task = TaskId("worker", 0)
    opening = OpenHosts(HostRequest(NOWHERE, "spread", 1, 0, {}), (task,), (), str(tmp_path), b"", 60, 10)
    try:
        with pytest.raises(LaunchError, match="nothing answers there"):
            driver.open(opening, lambda who: wait_until(lambda: b"nothing answers" in came(), 60))
    finally:
        driver.close()
