"""`--nice` on real processes: what the tasks have, what lines say, and what a user without the right is told."""

import os
import re
import subprocess
import sys
import textwrap

import psutil
import pytest
from conftest import wait_until
from IPython.core.error import UsageError
from ordinary_user import as_ordinary_user

import tfmagic


def priorities(cluster):
    """Return the priorities of all threads of the tasks' processes."""
    pids = [row["pid"] for row in cluster.status()]
    threads = [int(thread) for pid in pids for thread in os.listdir(f"/proc/{pid}/task")]
    assert len(threads) > len(pids)
    own = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
    assert own == {psutil.Process(pid).nice() for pid in pids}
    return own


def test_each_process_of_a_task_has_it_also_a_new_one():
    mine = psutil.Process().nice()
    with tfmagic.Cluster(workers=2, nice=5, auto_restart=1) as cluster:
        assert priorities(cluster) == {5}
        cluster.kill("worker-1")  # which auto_restart brings back
        wait_until(lambda: cluster.status()[1]["state"] == "ready" and cluster.attempts()["worker-1"] == 2)
        cluster.restart("worker-0")
        assert cluster.attempts() == {"worker-0": 2, "worker-1": 2}
        assert priorities(cluster) == {5}
        found = cluster.run(lambda: os.getpriority(os.PRIO_PROCESS, 0))
        assert set(found.values()) == {5}
    assert psutil.Process().nice() == mine


def test_lines_of_a_notebook_keep_it_compare_it_and_export_it(notebook, tmp_path):
    notebook.run("%%tfcluster --workers 2 --nice 5\n1 + 1")
    assert priorities(notebook.cluster()) == {5}
    notebook.run("%%tfcluster --nice 5\n2")
    with pytest.raises(UsageError, match=r"which is not --nice 7.*%tfcluster restart --nice 7"):
        notebook.run("%%tfcluster --nice 7\n2")
    notebook.run("%tfcluster restart --keras 3")
    assert priorities(notebook.cluster()) == {5}
    notebook.run("%tfcluster restart --nice 7")
    assert priorities(notebook.cluster()) == {7}
    notebook.run("%%tfcluster --nice 7\nprint(3)")
    notebook.run(f"%tfcluster export {tmp_path / 'program'}")
    text = (tmp_path / "program" / "rayjob.yaml").read_text()
    assert "tfmagic run --backend ray --workers 2 --nice 7 --placement" in text
    notebook.run("%tfcluster stop")
    with pytest.raises(UsageError, match=r"%tfcluster start --workers 2 .*--nice 7"):
        notebook.run("%tfcluster push x")


def run_without_rights(code):
    code = "import os\n" + textwrap.dedent(code)
    done = subprocess.run(
        as_ordinary_user(sys.executable, "-c", code), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FORBIDDEN = (
    r"--nice -5 needs the right CAP_SYS_NICE, or a limit of 25 \(ulimit -e, RLIMIT_NICE\); use 0 to 19"
)


def test_a_user_without_the_right_is_told_before_anything_is_started():
    out = run_without_rights(
        """
        import psutil, tfmagic
        cluster = tfmagic.Cluster(workers=1, nice=-5, warm=False)
        try:
            cluster.start()
        except tfmagic.LaunchError as error:
            print(error, psutil.Process().children(), psutil.Process().nice())
        """
    )
    assert re.search(rf"nothing was started: the priority {FORBIDDEN}.* \[\] 0$", out.strip()), out


def test_the_doctor_says_so_as_well():
    code = "from tfmagic.frontends.cli import main; raise SystemExit(main(['doctor', '--nice', '-5']) != 1)"
    assert re.search(
        rf"an option of the tasks is forbidden here.*{FORBIDDEN}", run_without_rights(code), re.S
    )


def test_a_process_that_must_not_obey_says_why():
    """As a task does whose launcher, or whose host, has fewer rights than the kernel."""
    out = run_without_rights(
        """
        from tfmagic.system.process_options import ProcessOptions, find_problem, obey
        try:
            obey(ProcessOptions(nice=-5))
        except PermissionError as error:
            print(error, str(error) == find_problem(ProcessOptions(nice=-5)), find_problem(ProcessOptions(nice=3)) == "")
        """
    )
    assert re.search(rf"{FORBIDDEN}.* True True$", out.strip()), out


WITH_A_SLOW_LAUNCHER = """
import psutil, tfmagic
tfmagic.Cluster(workers=1).start().stop()
for process in psutil.Process().children(recursive=True):
    process.nice(10)
cluster = tfmagic.Cluster(workers=1, nice=5)
try:
    cluster.start()
except tfmagic.LaunchError as error:
    print(error.args[0].splitlines()[0], cluster.running)
"""


def test_a_task_that_must_not_obey_ends_and_says_why():
    words = ["setpriv", "--bounding-set=-sys_nice", sys.executable, "-c", WITH_A_SLOW_LAUNCHER]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    why = "PermissionError: the priority --nice 5 needs the right CAP_SYS_NICE, or a limit of 15"
    assert re.search(rf"^worker-0 .*{why} .*; use 10 to 19.* False$", done.stdout.strip()), done.stdout
    assert "most likely the cell" not in done.stdout


ON_RAY = """
import os, psutil, tfmagic
from ray_nodes import RayNodes
with RayNodes() as nodes:
    nodes.start(cpus=2)
    with nodes.driver_environment():
        for nice in (-5, 5):
            cluster = tfmagic.Cluster(workers=1, backend="ray", address=nodes.address, nice=nice)
            try:
                with cluster:
                    print([psutil.Process(row["pid"]).nice() for row in cluster.status()])
            except tfmagic.LaunchError as error:
                print(error.args[0].splitlines()[0])
"""


def test_a_host_of_ray_without_the_right_says_so_and_starts_nothing():
    words = ["setpriv", "--bounding-set=-sys_nice", sys.executable, "-c", ON_RAY]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(words, capture_output=True, text=True, env=environ, timeout=300)
    assert done.returncode == 0, done.stderr
    refused, obeyed = done.stdout.splitlines()[-2:]
    assert re.search(rf"^worker-0 did not start: PermissionError: on 127\.0\.0\.2 .*{FORBIDDEN}", refused), (
        refused
    )
    assert obeyed == "[5]"
