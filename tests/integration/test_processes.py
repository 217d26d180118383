"""Processes: none outlives its kernel, however it ends; a broken launcher is told, not swallowed."""

import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest
from conftest import ENDED_S, alive, wait_until

KERNEL = """
import subprocess, sys, tfmagic
from tfmagic.backends import launching
cluster = tfmagic.Cluster(workers=2).start()

def spawn():
    import os, subprocess
    child = subprocess.Popen(["sleep", "1000"])
    daemon = subprocess.Popen(["setsid", "--fork", "sleep", "1001"])
    daemon.wait()
    return os.getpid(), child.pid

if __name__ == "__main__":
    pids = [pid for pair in cluster.run(spawn).values() for pid in pair]
    launcher = launching._launchers[0].process.pid
    print(launcher, *pids, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def kernel(tmp_path):
    """A Python process that runs a cluster whose tasks have children and daemons."""
    script = tmp_path / "kernel.py"
    script.write_text(
        KERNEL.replace("cluster = tfmagic", "cluster = None\nif __name__ == '__main__':\n  cluster = tfmagic")
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    launcher, *tasks = map(int, process.stdout.readline().split())
    everyone = {launcher, *tasks} | {child.pid for child in psutil.Process(launcher).children(recursive=True)}
    assert any("1001" in psutil.Process(pid).cmdline() for pid in everyone), "the daemons are watched too"
    yield process, launcher, everyone
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_killed_kernel_leaves_nothing_for_a_second(kernel):
    process, _, everyone = kernel
    process.kill()
    wait_until(lambda: not alive(everyone), ENDED_S)


def test_a_kernel_that_ends_leaves_nothing(kernel):
    process, _, everyone = kernel
    process.stdin.close()
    assert process.wait(10) == 0
    wait_until(lambda: not alive(everyone), ENDED_S)


def test_a_terminated_kernel_leaves_nothing(kernel):
    process, _, everyone = kernel
    process.terminate()
    process.wait(10)
    wait_until(lambda: not alive(everyone), ENDED_S)


def test_a_killed_launcher_takes_its_tasks_along(kernel):
    process, launcher, everyone = kernel
    daemons = {p for p in everyone if "1001" in psutil.Process(p).cmdline()}
    os.kill(launcher, signal.SIGKILL)
    wait_until(lambda: not alive(everyone - daemons), ENDED_S)
    for pid in daemons:  # in sessions of their own, and their keeper is gone
        os.kill(pid, signal.SIGKILL)


def run_script(code, **env):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ImportError('broken build of TensorFlow')", "broken build of TensorFlow"),
        ("import os; os.abort()", "SIGABRT"),
    ],
)
def test_an_import_error_of_tensorflow_is_told(tmp_path, body, said):
    (tmp_path / "tensorflow.py").write_text(body)
    done = run_script(
        """
        import tfmagic
        try:
            tfmagic.Cluster(workers=2).start()
        except tfmagic.LaunchError as error:
            print("LaunchError:", error)
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert "LaunchError:" in done.stdout and said in done.stdout, done.stdout + done.stderr


def test_the_users_multiprocessing_is_left_alone():
    done = run_script(
        """
        import multiprocessing, sys, tfmagic
        before = multiprocessing.get_start_method(allow_none=True)
        with tfmagic.Cluster(workers=1) as cluster:
            cluster.run(int)
        print(before, multiprocessing.get_start_method(allow_none=True), "tensorflow" in sys.modules)
        """
    )
    assert done.stdout.split() == ["None", "None", "False"], done.stderr


def test_a_fork_of_the_kernel_does_not_end_the_cluster(tmp_path):
    done = run_script(
        """
        import os, tfmagic
        with tfmagic.Cluster(workers=1) as cluster:
            if os.fork() == 0:
                raise SystemExit(0)
            os.wait()
            print(cluster.run(int).of("worker"))
        """
    )
    assert done.stdout.strip() == "[0]", done.stderr
