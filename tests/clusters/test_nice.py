"""`--nice` on real processes: what the tasks have, what lines say, and what a user without the right is told.

All priorities are relative to that of pytest, which can run under ``nice`` itself (up to 12: `LOW` and `LOWER` are
different, and at most 19).
"""

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

MINE = os.getpriority(os.PRIO_PROCESS, 0)
HIGH, LOW, LOWER = MINE - 5, MINE + 5, MINE + 7  # HIGH needs a right


def priorities(cluster):
    """Return the priorities of all threads of the tasks' processes."""
    pids = [row["pid"] for row in cluster.status()]
    threads = [int(thread) for pid in pids for thread in os.listdir(f"/proc/{pid}/task")]
    assert len(threads) > len(pids)
    own = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
    assert own == {psutil.Process(pid).nice() for pid in pids}
    return own


def test_each_process_of_a_task_has_it_also_a_new_one():
    with tfmagic.Cluster(workers=2, nice=LOW, auto_restart=1) as cluster:
        assert priorities(cluster) == {LOW}
        cluster.kill("worker-1")  # which auto_restart brings back
        wait_until(lambda: cluster.status()[1]["state"] == "ready" and cluster.attempts()["worker-1"] == 2)
        cluster.restart("worker-0")
        assert cluster.attempts() == {"worker-0": 2, "worker-1": 2}
        assert priorities(cluster) == {LOW}
        found = cluster.run(lambda: os.getpriority(os.PRIO_PROCESS, 0))
        assert set(found.values()) == {LOW}
    assert psutil.Process().nice() == MINE


def test_lines_of_a_notebook_keep_it_compare_it_and_export_it(notebook, tmp_path):
    notebook.run(f"%%tfcluster --workers 2 --nice {LOW}\n1 + 1")
    assert priorities(notebook.cluster()) == {LOW}
    notebook.run(f"%%tfcluster --nice {LOW}\n2")
    with pytest.raises(UsageError, match=f"which is not --nice {LOWER}.*%tfcluster restart --nice {LOWER}"):
        notebook.run(f"%%tfcluster --nice {LOWER}\n2")
    notebook.run("%tfcluster restart --keras 3")
    assert priorities(notebook.cluster()) == {LOW}
    notebook.run(f"%tfcluster restart --nice {LOWER}")
    assert priorities(notebook.cluster()) == {LOWER}
    notebook.run(f"%%tfcluster --nice {LOWER}\nprint(3)")
    notebook.run(f"%tfcluster export {tmp_path / 'program'}")
    text = (tmp_path / "program" / "rayjob.yaml").read_text()
    assert f"tfmagic run --backend ray --workers 2 --nice {LOWER} --placement" in text
    notebook.run("%tfcluster stop")
    with pytest.raises(UsageError, match=f"%tfcluster start --workers 2 .*--nice {LOWER}"):
        notebook.run("%tfcluster push x")


def run_without_rights(code):
    code = "import os\n" + textwrap.dedent(code)
    done = subprocess.run(
        as_ordinary_user(sys.executable, "-c", code), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FORBIDDEN = (
    rf"--nice {HIGH} needs the right CAP_SYS_NICE, or a limit of {20 - HIGH} \(ulimit -e, RLIMIT_NICE\); "
    f"use {MINE} to 19"
)


def test_a_user_without_the_right_is_told_before_anything_is_started():
    out = run_without_rights(
        f"""
        import psutil, tfmagic
        cluster = tfmagic.Cluster(workers=1, nice={HIGH}, warm=False)
        try:
            cluster.start()
        except tfmagic.LaunchError as error:
            print(error, psutil.Process().children(), psutil.Process().nice())
        """
    )
    assert re.search(rf"nothing was started: the priority {FORBIDDEN}.* \[\] {MINE}$", out.strip()), out


def test_the_doctor_says_so_as_well():
    code = (
        f"from tfmagic.frontends.cli import main; raise SystemExit(main(['doctor', '--nice', '{HIGH}']) != 1)"
    )
    assert re.search(
        rf"an option of the tasks is forbidden here.*{FORBIDDEN}", run_without_rights(code), re.S
    )


def test_a_process_that_must_not_obey_says_why():
    """As a task does whose launcher, or whose host, has fewer rights than the kernel."""
    out = run_without_rights(
        f"""
        from tfmagic.system.process_options import ProcessOptions, find_problem, obey
        high = ProcessOptions(nice={HIGH})
        try:
            obey(high)
        except PermissionError as error:
            print(error, str(error) == find_problem(high), find_problem(ProcessOptions(nice={LOW})) == "")
        """
    )
    assert re.search(rf"{FORBIDDEN}.* True True$", out.strip()), out


WITH_A_SLOW_LAUNCHER = f"""
import psutil, tfmagic
tfmagic.Cluster(workers=1).start().stop()
for process in psutil.Process().children(recursive=True):
    process.nice({LOWER})
cluster = tfmagic.Cluster(workers=1, nice={LOW})
try:
    cluster.start()
except tfmagic.LaunchError as error:
    print(error.args[0].splitlines()[0], cluster.running)
"""


def test_a_task_that_must_not_obey_ends_and_says_why():
    words = ["setpriv", "--bounding-set=-sys_nice", sys.executable, "-c", WITH_A_SLOW_LAUNCHER]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    why = f"PermissionError: the priority --nice {LOW} needs the right CAP_SYS_NICE, or a limit of {20 - LOW}"
    assert re.search(rf"^worker-0 .*{why} .*; use {LOWER} to 19.* False$", done.stdout.strip()), done.stdout
    assert "most likely the cell" not in done.stdout


ON_RAY = f"""
import os, psutil, tfmagic
from ray_nodes import RayNodes
with RayNodes() as nodes:
    nodes.start(cpus=2)
    with nodes.driver_environment():
        for nice in ({HIGH}, {LOW}):
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
    assert obeyed == f"[{LOW}]"
