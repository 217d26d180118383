"""Clean-up: after any process is killed, nothing that the tasks have started stays.

Each test has a kernel of its own, whose tasks have done what is hard to clean up: see STRAYS. Afterwards the
test searches for descendants of the kernel, processes with the test's mark in their environment, listeners on
the cluster's ports, and new names in /dev/shm.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import warnings

import psutil
import pytest
from conftest import ENDED_S, alive, kill_at_once, lend_kernel, wait_until

import tfmagic
from tfmagic.runs import folder as runs
from tfmagic.runs import kernels, orphans
from tfmagic.system import process_identity

STRAYS = '''
def stray(folder):
    """A child, a daemon, double forks with and without exec, a stubborn shell, and shared memory by two owners."""
    import multiprocessing.shared_memory, os, signal, subprocess, sys, tempfile, time
    import tensorflow as tf
    from joblib.externals.loky.backend import resource_tracker

    tf.distribute.MultiWorkerMirroredStrategy()
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["setsid", "--fork", "sleep", "1001"]).wait()
    subprocess.Popen([sys.executable, "-c", "import os, time\\nif os.fork() == 0:\\n os.setsid()\\n if os.fork() == 0: time.sleep(1002)"]).wait()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open(os.path.join(folder, f"{os.getpid()}.pid"), "w").close()
            time.sleep(1003)
        os._exit(0)
    stubborn = "trap '' HUP TERM INT; while :; do sleep 0.3; done"
    subprocess.Popen(["setsid", "--fork", "sh", "-c", stubborn]).wait()
    segment = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20)
    globals()["kept"] = segment
    open(os.path.join(folder, f"{segment.name}.segment"), "w").close()
    kept, gone = (tempfile.mkdtemp(dir="/dev/shm") for _ in range(2))
    for made in (kept, gone):
        resource_tracker.register(made, "folder")
    open(os.path.join(folder, f"{os.path.basename(kept)}.segment"), "w").close()
    resource_tracker.maybe_unlink(gone, "folder")
    while os.path.exists(gone):  # the tracker has begun
        time.sleep(0.005)
    while len([name for name in os.listdir(folder) if name.endswith(".pid")]) < 2:
        time.sleep(0.005)
    return os.getpid()
'''

KERNEL = (
    STRAYS
    + """
if __name__ == "__main__":
    import json, sys, tfmagic
    from tfmagic.backends import launcher_client, templates
    if sys.argv[2] != "0":
        templates.join(int(sys.argv[2]), 600, must_announce=False)
    cluster = tfmagic.Cluster(workers=2).start()
    cluster.run(stray, sys.argv[1], view="quiet")
    ports = [int(address.partition(":")[2]) for address in cluster.spec.addresses.values()]
    (launcher,) = launcher_client.running()
    kind = "template" if isinstance(launcher.process, templates.PidfdProcess) else "own"
    made = {"ports": ports, "run": str(cluster.run_folder.folder), "mark": launcher.mark, "kind": kind}
    print(json.dumps({**made, **launcher.own_pids()}), flush=True)
    for line in sys.stdin:
        if line == "stop\\n":
            cluster.stop()
        else:
            cluster = tfmagic.Cluster(workers=2).start()
            cluster.run(stray, sys.argv[1], view="quiet")
        print(line, end="", flush=True)
"""
)


class Watched:
    """All processes, ports and files that a kernel has made."""

    def __init__(self, kernel, folder, *, mark, ports, run, reaper, launcher, kind):
        self.kernel, self.mark, self.ports, self.run = kernel, mark, ports, run
        self.reaper, self.launcher, self.kind = reaper, launcher, kind
        self.segments = [path.with_suffix("").name for path in folder.glob("*.segment")]
        assert len(self.segments) == 4 and set(self.segments) <= set(os.listdir("/dev/shm"))
        double_forked = {int(path.stem) for path in folder.glob("*.pid")}
        assert len(double_forked) == 2
        wait_until(lambda: double_forked <= self.look())  # when their parents have ended
        self.below = self.look()
        assert len(self.below) >= 4 + 2 * 6 and len(self.marked()) >= 2 * 4

    def look(self):
        return {child.pid for child in psutil.Process(self.reaper).children(recursive=True)} | {self.reaper}

    def marked(self):
        """Return the living processes that carry the mark, except the kernel."""
        found = set()
        for pid in psutil.pids():
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if self.mark.encode() in file.read():
                        found.add(pid)
            except OSError:
                pass
        return alive(found) - {self.kernel.pid}

    def remains(self):
        listening = {
            c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr
        }
        segments = set(self.segments) & set(os.listdir("/dev/shm"))
        return alive(self.below) | self.marked() | (listening & set(self.ports)) | segments


@pytest.fixture(scope="module")
def owner():
    """A process with which templates end."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@pytest.fixture(params=["own", "template"])
def kernel(request, owner, tmp_path):
    """A process that runs a cluster with strays, with a launcher of its own or one that a template has forked."""
    with started_kernel(tmp_path, owner.pid if request.param == "template" else 0) as started:
        assert started[1].kind == request.param
        yield started


@contextlib.contextmanager
def started_kernel(tmp_path, owner=0):
    """Start such a process, and end what it leaves; `owner` owns the template that it asks."""
    script = tmp_path / "kernel.py"
    script.write_text(KERNEL)
    command = [sys.executable, str(script), str(tmp_path), str(owner)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        watched = None
        try:
            said = json.loads(process.stdout.readline())
            watched = Watched(psutil.Process(process.pid), tmp_path, **said)
            yield process, watched
        finally:
            process.kill()
            for pid in alive(watched.below) | watched.marked() if watched else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def kill(*pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


SOAK = pytest.mark.soak


# launcher and reaper do the same when one of them is gone, whether the kernel lives or not
@pytest.mark.parametrize(
    "who",
    [
        "kernel",
        pytest.param("kernel and launcher", marks=SOAK),
        pytest.param("kernel and reaper", marks=SOAK),
    ],
)
def test_a_killed_kernel_leaves_nothing(kernel, who):
    process, watched = kernel
    victims = {"launcher": watched.launcher, "reaper": watched.reaper}
    kill(*(pid for name, pid in victims.items() if name in who), process.pid)
    wait_until(lambda: not watched.remains(), ENDED_S)


@pytest.mark.parametrize(
    "stopped",
    [
        pytest.param(["reaper"], marks=SOAK),
        pytest.param(["launcher"], marks=SOAK),
        ["reaper", "launcher"],
    ],
    ids=" and ".join,
)
def test_stopped_helpers_do_not_outlive_a_killed_kernel(kernel, stopped):
    process, watched = kernel
    for name in stopped:
        psutil.Process(getattr(watched, name)).suspend()
    kill(process.pid)
    wait_until(lambda: not watched.remains(), ENDED_S)


@pytest.mark.parametrize("who", [pytest.param("launcher", marks=SOAK), "reaper", "launcher and reaper"])
def test_killed_helpers_leave_nothing_while_the_kernel_lives(kernel, who):
    process, watched = kernel
    kill(*(getattr(watched, name) for name in who.split(" and ")))
    wait_until(lambda: not watched.remains(), ENDED_S)
    assert process.poll() is None


@SOAK  # a Python program ends at SIGTERM as at SIGKILL: none of its code runs
def test_a_terminated_kernel_leaves_nothing(kernel):
    process, watched = kernel
    process.terminate()
    wait_until(lambda: not watched.remains(), ENDED_S)


def test_a_cluster_that_stops_leaves_nothing_and_neither_does_a_kernel_that_ends(kernel):
    process, watched = kernel
    for word in ("stop", "start"):
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{word}\n"
        if word == "stop":
            wait_until(lambda: watched.remains() <= {watched.reaper, watched.launcher}, ENDED_S)
            assert alive([watched.launcher]), "it waits for the next cluster"
    watched.below = watched.look()
    assert len(watched.below) >= 4 + 2 * 6
    process.stdin.close()
    assert process.wait(20) == 0
    wait_until(lambda: not watched.remains(), ENDED_S)


def test_a_fork_of_the_kernel_keeps_nothing_of_a_stopped_cluster_alive():
    def start_daemon():
        return subprocess.Popen(["setsid", "sleep", "1000"]).pid

    with tfmagic.Cluster(workers=1) as cluster:
        (daemon,) = cluster.run(start_daemon, view="quiet").values()
        waits, release = os.pipe()
        with warnings.catch_warnings(action="ignore"):  # a notebook with threads can fork, too
            child = os.fork()
        if child == 0:
            os.close(release)
            os.read(waits, 1)
            os._exit(0)
    try:
        wait_until(lambda: not alive({daemon}), ENDED_S)
    finally:
        os.close(release)
        os.close(waits)
        os.waitpid(child, 0)


def test_what_outlives_even_the_reaper_is_found_and_ended_at_the_next_start(kernel, state_dir):
    process, watched = kernel
    run = os.path.basename(watched.run)
    assert not [left for left in orphans.find(state_dir) if left.run == run], "its kernel lives"
    assert not [left for left in orphans.reap(state_dir) if left.run == run]
    bystander = subprocess.Popen(["sleep", "1001"])  # by name it looks the same
    try:
        kill_at_once(watched.launcher, watched.reaper, process.pid)
        process.wait()
        wait_until(lambda: not alive([process.pid, watched.reaper, watched.launcher]), ENDED_S)

        def found():
            return {left.process.pid for left in orphans.find(state_dir) if left.run == run}

        # a resource tracker that ends with its task has given its memory back, and the mark with it, and still runs
        wait_until(lambda: found() >= alive(watched.below), ENDED_S)
        assert len(found()) >= 2 * 3, "the daemons of two tasks"
        ended = orphans.reap(state_dir)
        assert {left.process.pid for left in ended} & watched.below
        wait_until(lambda: not watched.remains(), ENDED_S)
        assert bystander.poll() is None
        assert orphans.find(state_dir) == [] == orphans.reap(state_dir)
    finally:
        bystander.kill()
        bystander.wait()


def compute_in_processes(gate):
    """Let joblib share an array with two processes, which begin and do not end."""
    import time

    import numpy as np
    from joblib import Parallel, delayed

    def begin(values, item):
        with open(gate, "a") as file:
            file.write(f"{item}")
        time.sleep(1000)

    Parallel(n_jobs=2)(delayed(begin)(np.zeros(500_000), item) for item in range(2))


@pytest.mark.parametrize("end", [lambda cluster: cluster.kill("worker-0"), lambda cluster: cluster.stop()])
def test_memory_that_joblib_shares_is_given_back_when_its_task_ends(tmp_path, end):
    gate, before = tmp_path / "gate", set(os.listdir("/dev/shm"))
    with tfmagic.Cluster(workers=1) as cluster:
        cluster.submit(compute_in_processes, str(gate))
        wait_until(lambda: gate.exists() and len(gate.read_text()) == 2)
        made = {name for name in os.listdir("/dev/shm") if "joblib_memmapping" in name or "loky" in name}
        assert len(made - before) >= 2
        end(cluster)
        wait_until(lambda: not made & set(os.listdir("/dev/shm")) - before, ENDED_S)


@contextlib.contextmanager
def noted_in(folder):
    """Make a run whose kernel is gone, with a process of ours in its notes; yield the run and the process."""
    ended = subprocess.Popen(["true"])
    gone = process_identity.identify(ended.pid)
    ended.wait()
    run = runs.create_run(folder, "c", gone.as_json())
    process = subprocess.Popen(["sleep", "1000"])
    yield run, process_identity.identify(process.pid)
    process.kill()
    process.wait()


@pytest.fixture
def noted(tmp_path):
    with noted_in(tmp_path) as made:
        yield made


def test_the_next_cluster_ends_what_the_last_kernel_left(state_dir):
    with noted_in(state_dir) as (run, process):
        orphans.note_process(run, "worker-0", process, "")
        with tfmagic.Cluster(workers=1):
            wait_until(lambda: not process.alive, ENDED_S)


def test_a_recycled_pid_is_never_touched(noted, tmp_path):
    run, process = noted
    earlier = process_identity.Identity(process.pid, process.start - 1, process.boot)
    orphans.note_process(run, "worker-0", earlier, "")
    assert orphans.find(tmp_path) == [] == orphans.reap(tmp_path)
    assert process.alive and not earlier.kill()


def test_a_pid_of_another_boot_is_never_touched(noted, tmp_path):
    run, process = noted
    orphans.note_process(
        run, "worker-0", process_identity.Identity(process.pid, process.start, "another"), ""
    )
    assert orphans.find(tmp_path) == [] == orphans.reap(tmp_path)
    assert process.alive


def test_the_same_process_is_ended_and_reported(noted, tmp_path):
    run, process = noted
    orphans.note_process(run, "worker-0", process, "")
    with (run.folder / "processes.jsonl").open("a") as file:
        file.write('{"role": "cut sho')
    expected = [orphans.Leftover(str(run), "worker-0", process)]
    assert orphans.find(tmp_path) == expected and process.alive, "find changes nothing"
    assert orphans.reap(tmp_path) == expected
    wait_until(lambda: not process.alive, ENDED_S)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a process of another user")
def test_another_users_process_is_never_touched(tmp_path, noted):
    run, _ = noted
    other = subprocess.Popen(["sleep", "1000"], user=65534, env={orphans.MARK: "m"})
    try:
        orphans.note_process(run, "worker-0", process_identity.identify(other.pid), "m")
        assert orphans.find(tmp_path) == [] == orphans.reap(tmp_path)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_notes_of_another_user_are_not_believed(noted, tmp_path):
    run, process = noted
    orphans.note_process(run, "worker-0", process, "")
    os.chown(run.folder / "processes.jsonl", 65534, -1)
    assert orphans.find(tmp_path) == [] == orphans.reap(tmp_path)
    assert process.alive


def test_a_run_is_pruned_although_its_kernels_pid_was_given_away(noted, tmp_path):
    run, process = noted
    earlier = process_identity.Identity(process.pid, process.start - 1, process.boot)
    path = run.folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **earlier.as_json()}))
    kernels.prune_runs(tmp_path, 7, 0)
    assert not run.folder.exists()


def test_a_run_whose_kernel_lives_is_never_pruned(noted, tmp_path):
    run, process = noted
    path = run.folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **process.as_json()}))
    kernels.prune_runs(tmp_path, 7, 0)
    assert run.folder.exists()


DAEMONS = (
    "%%tfcluster\nimport os, subprocess\nsubprocess.Popen(['sleep', '1000'])\n"
    "subprocess.Popen(['setsid', '--fork', 'sleep', '1001']).wait()\n"
)


def below(pid):
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


@pytest.fixture
def kernel_of_jupyter(kept_kernels):
    """A kernel with two workers that have started daemons."""
    with lend_kernel(kept_kernels) as lent:
        lent.run("%tfcluster start --workers 2")
        lent.run(DAEMONS)
        yield lent


def test_an_interrupted_run_all_leaves_the_tasks_and_nothing_that_its_cell_waited_for(kernel_of_jupyter):
    kernel = kernel_of_jupyter
    pid = kernel.manager.provisioner.process.pid
    before = below(pid)
    kernel.run("%%tfcluster\nkept = 1")
    running = kernel.start(
        "%%tfcluster --view text\nimport subprocess\nprint('BEGUN')\nsubprocess.run(['sleep', '1002'])"
    )
    queued = [kernel.start("open('never', 'w')"), kernel.start("%%tfcluster\nopen('never', 'w')")]
    kernel.outputs(running, until=lambda o: "BEGUN" in o[1].get("text", ""))
    wait_until(lambda: len(below(pid) - before) == 2)
    kernel.manager.interrupt_kernel()
    for message in queued:
        assert kernel.reply(message)["status"] in ("aborted", "error")
    assert not os.path.exists("never")
    wait_until(lambda: not below(pid) - before, ENDED_S)
    assert "kept is 1" in kernel.text("%%tfcluster\nprint('kept is', kept)"), "the tasks stay"


def test_a_restarted_kernel_leaves_nothing_of_its_tasks_daemons(kernel_of_jupyter):
    kernel = kernel_of_jupyter
    old = below(kernel.manager.provisioner.process.pid)
    assert len(old) >= 2 + 2 * 3
    kernel.manager.restart_kernel(now=False)
    wait_until(lambda: not alive(old), ENDED_S)


@SOAK  # ipykernel ends a kernel whose server has gone; a kernel that ends: above
def test_a_killed_jupyter_server_takes_kernel_tasks_and_daemons_along(tmp_path):
    from jupyter_server_process import JupyterServerProcess

    own = "--TFCluster.keep_warm_s=0"  # with a template: tests/backends/test_templates.py
    with JupyterServerProcess(tmp_path, own) as server, server.client(server.start_kernel()) as run:
        for cell in ("%load_ext tfmagic", "%tfcluster start --workers 2", DAEMONS):
            run(cell)
        everyone = below(server.process.pid)
        assert len(everyone) >= 3 + 2 * 3, "kernel, reaper, launcher and two tasks with two each"
        server.process.kill()
        wait_until(lambda: not alive(everyone), 1 + ENDED_S)  # the kernel looks once a second
