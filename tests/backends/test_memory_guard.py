"""The agent's guard of memory ends the largest task before Ray would end the agent."""

import subprocess
import sys
import threading

import psutil
import pytest
from conftest import wait_until

from tfmagic.backends.remote import memory_guard
from tfmagic.backends.remote.memory_guard import MemoryRule, rule_of
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.system import memory

SMALL, LARGE = TaskId("worker", 0), TaskId("worker", 1)
HOLD = "import sys; held = b'x' * int(sys.argv[1]); print(flush=True); input()"


@pytest.mark.parametrize(
    ("environ", "rule"),
    [
        ({}, MemoryRule(0.95, -1)),
        ({"RAY_memory_usage_threshold": "0.8"}, MemoryRule(0.8, -1)),
        ({"RAY_memory_usage_threshold": "often"}, MemoryRule(0.95, -1)),
        ({"RAY_min_memory_free_bytes": "1000"}, MemoryRule(0.95, 1000)),
        ({"RAY_memory_monitor_refresh_ms": "0"}, None),
    ],
)
def test_the_rule_is_that_of_rays_node(environ, rule):
    assert rule_of(environ) == rule


def test_the_later_of_both_limits_counts():
    assert MemoryRule(0.95).limit(1000) == 950
    assert MemoryRule(0.95, 10).limit(1000) == 990
    assert MemoryRule(0.95, 100).limit(1000) == 950


@pytest.fixture
def held():
    """Return two processes: one holds 10 MB, one in a child of its 100 MB."""
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}, sys.argv[1]])"
    words = [[HOLD, "10000000"], [nested, "100000000"]]
    started = [
        subprocess.Popen([sys.executable, "-c", *each], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for each in words
    ]
    for process in started:
        process.stdout.readline()
    yield started
    for process in started:
        process.communicate(b"\n")


def test_the_largest_task_ends_where_memory_is_nearly_used_up_and_no_other(held, monkeypatch):
    small, large = held
    used, over = [300_000_000], threading.Event()
    monkeypatch.setattr(memory, "limit_bytes", lambda: 1_000_000_000)
    monkeypatch.setattr(memory, "free_bytes", lambda: 1_000_000_000 - used[0])
    monkeypatch.setattr(memory_guard, "_FREED_S", 60.0)  # one end is enough here
    ended = []

    def end(*task):
        ended.append(task)
        used[0] = 300_000_000

    pids = {SMALL: small.pid, LARGE: large.pid}
    words = (MemoryRule(0.4), "10.0.0.1", lambda: pids, end, over.wait)
    thread = threading.Thread(target=memory_guard.watch, args=words)
    thread.start()
    try:
        assert not over.wait(1.5) and not ended  # 300 MB of 400 MB
        used[0] = 390_000_000
        wait_until(lambda: ended, 20)
    finally:
        over.set()
        thread.join()
    ((task, pid, reason),) = ended
    assert (task, pid) == (LARGE, large.pid)
    assert "10.0.0.1 had 372 MiB of 954 MiB" in reason and "worker-1 had the most" in reason


def test_no_task_ends_where_others_use_the_memory(held, monkeypatch):
    small, _ = held
    monkeypatch.setattr(memory, "limit_bytes", lambda: 1_000_000_000)
    monkeypatch.setattr(memory, "free_bytes", lambda: 10_000_000)
    looks = iter([False, False, True])
    assert psutil.Process(small.pid).memory_info().rss < 100_000_000
    memory_guard.watch(
        MemoryRule(), "10.0.0.1", lambda: {SMALL: small.pid}, pytest.fail, lambda _: next(looks)
    )
