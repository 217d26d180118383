"""The hosts of the tests: see `tests/support/network_hosts.py`."""

import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from conftest import program, wait_until
from network_hosts import NetworkHosts, _pids_in, address_of

_SERVER = """\
import socket
server = socket.create_server(("0.0.0.0", 5000))
print("listens", flush=True)
while True:
    connection = server.accept()[0]
    while connection.recv(1 << 20):
        pass
    connection.send(b"x")
"""
_SEND = """\
import socket, sys, time
begun = time.monotonic()
with socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[3])) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
print(time.monotonic() - begun)
"""


@pytest.fixture(scope="module")
def hosts():
    with NetworkHosts(2) as made:
        server = made.popen(0, [sys.executable, "-c", _SERVER], stdout=subprocess.PIPE)
        assert server.stdout.readline() == b"listens\n"
        yield made
    server.stdout.close()
    assert server.wait() == -signal.SIGKILL


def seconds_to_send(hosts, size, timeout_s=20):
    """Return how long host 1 needs to send to host 0; None if that does not end in time."""
    words = [sys.executable, "-c", _SEND, address_of(0), str(size), str(timeout_s)]
    with hosts.popen(1, words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, err = process.communicate()
    assert out or "TimeoutError" in err, err
    return float(out) if out else None


def test_hosts_reach_each_other_and_nothing_else(hosts):
    assert seconds_to_send(hosts, 10)
    ours = [
        a.address for found in psutil.net_if_addrs().values() for a in found if a.family == socket.AF_INET
    ]
    assert not any(address.startswith("10.77.") for address in ours)
    code = (
        "import errno, socket, sys; print(socket.socket().connect_ex((sys.argv[1], 9)) == errno.ENETUNREACH)"
    )
    for address in ["192.0.2.1", *(address for address in ours if not address.startswith("127."))]:
        with hosts.popen(0, [sys.executable, "-c", code, address], stdout=subprocess.PIPE) as process:
            assert process.communicate()[0] == b"True\n"


def test_a_host_that_is_cut_off_gets_nothing_until_it_is_joined(hosts):
    hosts.cut(1)
    assert seconds_to_send(hosts, 10, 0.5) is None
    hosts.join(1)
    assert seconds_to_send(hosts, 10)


def test_a_limit_is_kept_and_ends(hosts):
    hosts.limit(1, 40_000_000)
    assert 0.9 * 2 < seconds_to_send(hosts, 10_000_000) < 15
    hosts.limit(1, 0)
    assert seconds_to_send(hosts, 10_000_000) < 0.9 * 2


def test_each_host_has_its_own_shared_memory(hosts, tmp_path):
    written = hosts.popen(
        0, ["sh", "-c", "echo here > /dev/shm/only-there; pwd"], cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert written.communicate()[0].decode().strip() == str(tmp_path)
    seen = hosts.popen(1, ["cat", "/dev/shm/only-there"], stderr=subprocess.DEVNULL)
    assert seen.wait() != 0 and not os.path.exists("/dev/shm/only-there")


def test_nothing_is_left_of_the_hosts_of_a_process_that_was_killed(tmp_path):
    code = """\
import os, signal, sys
from network_hosts import NetworkHosts
hosts = NetworkHosts(1)
sleeper = hosts.popen(0, ["sh", "-c", "setsid sleep 1000 & echo started; wait"], stdout=-1)
assert sleeper.stdout.readline() == b"started\\n"
print(os.stat(f"/proc/{sleeper.pid}/ns/net").st_ino, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    paths = os.pathsep.join(path for path in sys.path if path)
    with program(sys.executable, "-c", code, env={**os.environ, "PYTHONPATH": paths}) as process:
        namespace = int(process.stdout.read())
    wait_until(lambda: not _pids_in([namespace]))
