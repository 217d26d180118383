"""Large values between notebook and tasks leave nothing behind; a lack of descriptors is reported."""

import os
import subprocess
import sys
import textwrap

import pytest

LIMITED = """
    import resource

    import tfmagic

    MOST = 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST, MOST))


    def ones(count):
        import numpy as np

        return np.ones(count)


    def remember(value):
        global kept
        kept = value


    def recall():
        return kept


    def open_files():
        import os

        return len(os.listdir("/proc/self/fd"))


    def fill():
        held = []
        try:
            while True:
                held.append(open("/dev/null"))
        except OSError:
            return held
"""


TRANSFERS = """\
import os
import time

def memory_files():
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("memfd:tfmagic" in os.readlink(link) for link in links if os.path.islink(link))

def come_back_to(before, files):
    end = time.monotonic() + 20  # what is on its way is still open
    while (found := (open_files(), memory_files())) != (before, files):
        assert time.monotonic() < end, (found, before, files)

with tfmagic.Cluster(workers=2) as cluster:
    cluster.run(ones, 20_000)
    before, files = open_files(), memory_files()
    on_task = cluster.run(open_files)
    for _ in range(MOST):
        cluster.run(ones, 20_000)  # 160 kB from each
        cluster.push(x=bytearray(200_000))
    for _ in range(5):
        cluster.run(ones, 2_000_000)  # of this size a value is mapped
    come_back_to(before, files)
    held = [cluster.run(ones, 20_000) for _ in range(MOST)]
    come_back_to(before, files)
    end = time.monotonic() + 20  # tasks keep a file of a large value for some seconds
    while cluster.run(open_files) != on_task:
        assert time.monotonic() < end
    print("fine")
"""
EXHAUSTED = """\
with tfmagic.Cluster(workers=2) as cluster:
    cluster.run(remember, 7)
    held = fill()
    assert list(cluster.run(recall).values()) == [7, 7]
    try:
        cluster.run(ones, 20_000)
    except tfmagic.CaptureError as error:
        print(error)
    cluster.kill("worker-1")
    try:
        cluster.restart("worker-1")
    except tfmagic.LaunchError as error:
        print(error)
    held.clear()
    assert cluster.run(recall, on="worker-0") == {"worker-0": 7}
    cluster.restart("worker-1")
    assert cluster.run(ones, 20_000)["worker-1"].sum() == 20_000
    print("fine")
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """What a process with few descriptors prints; one for both tests, since it imports TensorFlow."""
    script = tmp_path_factory.mktemp("limited") / "script.py"
    main = textwrap.indent(TRANSFERS + EXHAUSTED, "    ")
    script.write_text(textwrap.dedent(LIMITED) + "\n\nif __name__ == '__main__':\n" + main)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=240, env=os.environ
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_transfers_leave_no_descriptor_and_no_shared_memory_behind(lines):
    assert lines[0] == "fine"


def test_too_many_open_files_are_reported_and_no_variable_is_lost(lines):
    _, received, started, fine = lines
    assert "too many open files" in received and "ulimit -n" in received
    assert "worker-1" in started and "Too many open files" in started
    assert fine == "fine"
