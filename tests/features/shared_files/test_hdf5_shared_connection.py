"""The ways of rows to the writer process: order, memory, waits, interrupts."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import wait_until
from hdf5_files import contents, writer_pid
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfmagic.hdf5 import SharedWriter


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "out.h5")


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(sizes=st.lists(st.integers(0, 3_000_000), min_size=1, max_size=12))
def test_rows_of_any_size_keep_their_order_on_every_way(tmp_path, sizes):
    """Through the socket, through the buffer, which is filled again, and beside it."""
    path = str(tmp_path / "any.h5")
    first = np.cumsum([0, *sizes])
    with SharedWriter(path) as writer:
        for start, size in zip(first, sizes, strict=False):
            writer.append("x", np.arange(start, start + size))
    assert np.array_equal(contents(path)["x"], np.arange(first[-1]))


def test_rows_that_fit_only_at_the_begin_of_the_buffer_do_not_wait_for_ever(path):
    with SharedWriter(path) as writer:
        for size in (1_200_000, 1_300_000, 1_990_000, 10, 1_990_000):
            writer.append("x", np.full(size, size))
            writer.flush()
    assert len(contents(path)["x"]) == 1_200_000 + 1_300_000 + 2 * 1_990_000 + 10


def test_an_append_that_is_larger_than_the_buffer_is_one_piece(path):
    big = np.arange(5_000_000)
    with SharedWriter(path) as writer:
        writer.append("x", big[:10])
        writer.append("x", big)
        writer.append("x", big[:10])
    assert np.array_equal(contents(path)["x"], [*range(10), *big, *range(10)])


def test_threads_of_a_task_append_each_in_its_order(path):
    with SharedWriter(path) as writer:

        def work(number):
            for i in range(50):
                writer.append("x", np.full(1000, 100 * number + i))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = contents(path)["x"].reshape(-1, 1000)
    assert (rows == rows[:, :1]).all() and len(rows) == 150
    for number in range(3):
        own = [row for row in rows[:, 0] if row // 100 == number]
        assert own == [100 * number + i for i in range(50)]


def test_a_slow_disk_keeps_the_task_back_with_bounded_memory(path):
    writer = SharedWriter(path)
    writer.append("x", np.zeros(1))
    pid = writer_pid()
    os.kill(pid, signal.SIGSTOP)
    appended = []

    def work():
        for number in range(40):
            writer.append("x", np.full(1 << 17, number, float))  # 1 MiB
            appended.append(number)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: len(appended) >= 14)
    thread.join(0.3)
    assert thread.is_alive() and len(appended) <= 16  # a buffer full
    os.kill(pid, signal.SIGCONT)
    thread.join(60)
    writer.close()
    assert len(contents(path)["x"]) == 1 + 40 * (1 << 17)


INTERRUPTED = """
import random, signal, sys
import numpy as np
from tfmagic.hdf5 import SharedWriter

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
chance = random.Random(0)
sizes = [1, 500, 5000, 300_000, 900_000, 3_000_000]
with SharedWriter(sys.argv[1]) as writer:
    acknowledged = interrupts = 0
    for step in range(300):
        rows = np.full(chance.choice(sizes) if step % 5 == 0 else chance.choice(sizes[:3]), step)
        try:
            if step % 3 == 0:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 5e-4))
            writer.append("x", rows)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupts += 1
            continue
        print(step, len(rows))
        acknowledged += 1
assert interrupts > 6 and acknowledged > 150, (interrupts, acknowledged)
"""


def test_appends_after_interrupted_ones_neither_wait_for_ever_nor_lose_rows(path):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, path], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    counts = np.bincount(contents(path)["x"], minlength=1000)
    for line in done.stdout.splitlines():
        step, size = map(int, line.split())
        assert counts[step] == size
    assert (np.diff(contents(path)["x"]) >= 0).all()


def test_a_writer_that_is_silent_for_long_is_named(path, capfd, monkeypatch):
    monkeypatch.setattr("tfmagic.features.shared_files.connection._SILENCE_S", 0.2)
    with SharedWriter(path) as writer:
        pid = writer_pid()
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (pid, signal.SIGCONT)).start()
        writer.append("x", 1)
    assert f"waiting for the process that writes {path} (pid {pid})" in capfd.readouterr().err
