"""Clusters that outlive their kernel: a SIGKILLed kernel, and what the next one finds. Real Ray nodes, real kills."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from conftest import alive, program, wait_until
from kernels import Kernel as Notebook
from ray_nodes import RayNodes
from test_ray_failures import ENDED_S, is_agent

import tfmagic
from tfmagic.errors import ClusterSpecError
from tfmagic.runs import folder
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.kept import read_kept

_COUNT = """
import os, time
seen = 0
while not os.path.exists("{go}") or seen < 2000:
    print("line", seen, flush=True)
    seen += 1
    time.sleep(0.001)
seen
"""
_KERNEL = (
    f"COUNT = {_COUNT!r}"
    + """
import json, os, sys, time, tfmagic
from tfmagic.errors import TfmagicError
config = tfmagic.TFCluster.instance()
config.lease_s, config.suspect_s, config.failure_grace_s = 2, 2, 1

def count(go):
    exec(COUNT.replace("{go}", go), globals())

def meet(go, then=lambda what: what, what="met"):
    import os, time
    print("waits", flush=True)
    if tfmagic.current_task().index:
        while not os.path.exists(go):
            time.sleep(0.01)
    tfmagic.barrier()
    return then(what)

def start(keep, workers=2):
    global cluster
    cluster = tfmagic.Cluster(workers=workers, backend="ray", address=sys.argv[1], placement="strict-spread", keep=keep,
                              env={"SECRET": "of the user"}).start()
    return str(cluster.run_folder)

def attach(run):
    global cluster
    cluster = tfmagic.attach(run, view="quiet")

def collect():
    return [dict(results) for results in cluster.collect()]

def run(source):
    return dict(cluster.run(eval, source, view="quiet"))

def tasks():
    return {row["task"]: [row["state"], row["pid"]] for row in cluster.status()}

for line in sys.stdin:
    try:
        answer = eval(line)
    except Exception as error:
        answer = [type(error).__name__, str(error)]
    print(json.dumps(answer if isinstance(answer, (str, list, dict)) else None), flush=True)
"""
)


@pytest.fixture(scope="module")
def nodes(own_state_dir):
    """Two nodes with places for the module's run and one more."""
    with RayNodes() as made, made.driver_environment():
        made.start(cpus=2)
        made.add(cpus=2)
        yield made


class Kernel:
    """A program that is asked for the values of expressions; the context kills it."""

    def __init__(self, process):
        self._process, self.pid = process, process.pid

    def ask(self, expression):
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def attach(self, run):
        assert self.ask(f"attach({run!r})") is None

    def pids(self):
        return {pid for _, pid in self.ask("tasks()").values() if pid}


@contextlib.contextmanager
def kernel(nodes):
    with program(sys.executable, "-c", _KERNEL, nodes.address, stdin=subprocess.PIPE) as process:
        try:
            yield Kernel(process)
        finally:
            process.kill()


def agents_of(pids):
    """Return the agents of these tasks."""
    return {parent.pid for pid in pids for parent in psutil.Process(pid).parents() if is_agent(parent)}


def run_of(name):
    return RunFolder(folder.state_dir() / "runs" / name)


def log_of(name, task):
    path = run_of(name).folder / f"{task}.log"
    return path.read_text() if path.exists() else ""


_FREE = """
import sys, time, ray
ray.init(sys.argv[1], log_to_driver=False)
deadline = time.monotonic() + float(sys.argv[3])
while ray.available_resources().get("CPU", 0) != float(sys.argv[2]) and time.monotonic() < deadline:
    time.sleep(0.05)
print(ray.available_resources().get("CPU", 0))
"""


def free_cpus(nodes, expected):
    """Return the CPUs that Ray can give away; wait until they are as many as expected."""
    command = [sys.executable, "-c", _FREE, nodes.address, str(expected), str(ENDED_S)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(found.stdout.split()[-1])


@contextlib.contextmanager
def notebook(*options):
    made = Notebook("--TFCluster.warm=False", "--TFCluster.lease_s=2", *options)
    try:
        made.run("%load_ext tfmagic")
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def run(nodes):
    """Return the name of a run whose kernel was killed."""
    line = f"--workers 2 --backend ray --address {nodes.address} --placement strict-spread --env SECRET=of-the-user"
    with notebook() as first:
        shown = first.text(f"%%tfcluster {line} --keep 10m\npass")
        found = re.search(
            r"goes on for 10.* after this kernel has ended, as run (\S+):  %tfcluster attach \1", shown
        )
        assert found, shown
        os.kill(first.manager.provisioner.pid, signal.SIGKILL)
    return found[1]


def test_a_cell_goes_on_after_its_kernel_and_no_line_is_lost_or_doubled(nodes, run, tmp_path):
    name, go = run, tmp_path / "go"
    before = {task: log_of(name, task) for task in ("worker-0", "worker-1")}
    with notebook() as first:
        first.run(f"%tfcluster attach {name}")
        first.run(f"%%tfcluster --detach --out counted\n{_COUNT.format(go=str(go))}")
        wait_until(lambda: "line 50" in log_of(name, "worker-0").removeprefix(before["worker-0"]))
        os.kill(first.manager.provisioner.pid, signal.SIGKILL)
    kept = run_of(name).folder / "kept.json"
    assert read_kept(run_of(name).folder).keep_s == 600
    assert "of-the-user" not in kept.read_text() and nodes.token not in kept.read_text()
    told = subprocess.run([sys.executable, "-m", "tfmagic", "status"], capture_output=True, text=True)
    assert "cluster default: kept, 2 workers" in told.stdout, told.stdout
    assert f"%tfcluster attach {name}  takes them over" in told.stdout
    go.touch()
    with kernel(nodes) as second:
        second.attach(name)
        (results,) = second.ask("collect()")
        for task, printed in before.items():
            lines = re.findall(r"line (\d+)\n", log_of(name, task).removeprefix(printed))
            assert lines == [str(n) for n in range(results[task])] and results[task] >= 2000
        assert second.ask("cluster.pull('seen')['seen']") == results
        assert set(second.ask("dict(cluster.run(os.getenv, 'SECRET'))").values()) == {"of-the-user"}
        assert second.ask("collect()") == []


def test_the_notebook_of_a_restarted_kernel_goes_on_with_its_cell(nodes, run, tmp_path):
    with notebook() as first:
        shown = first.text(f"%tfcluster attach {run}")
        assert f"attached to cluster default, 2 workers, of run {run}" in shown, shown
        go = str(tmp_path / "go")
        cell = f"import os, tfmagic\nwhile not os.path.exists({go!r}): pass\nprint('came'); tfmagic.current_task().name"
        first.run(f"%%tfcluster --detach --out found\n{cell}")
        first.run("%%tfcluster --detach\nprint('queued')")
        first.manager.restart_kernel(now=False)
        first.client.stop_channels()
        first.connect()
        (tmp_path / "go").touch()
        first.run("%load_ext tfmagic")
        shown = first.text("%tfcluster attach")
        assert "cell [3] on worker-0, worker-1:  %tfcluster wait" in shown, shown
        assert "cell [4] waited for its turn and was never sent: run it again" in shown
        shown = first.text("%tfcluster wait")
        assert re.search("cell \\[3\\] done on worker-0, worker-1|no detached cell is left", shown), shown
        found = "{'worker-0': 'worker-0', 'worker-1': 'worker-1'}"
        assert first.text("print(dict(sorted(found.items())))").strip() == found
        assert log_of(run, "worker-1").count("came") == 1
        assert "which is not --keep 7200" in first.text("%%tfcluster --keep 2h\npass")


def test_a_barrier_opens_and_an_exception_is_raised_where_a_kernel_attaches(nodes, run, tmp_path):
    with kernel(nodes) as first:
        first.attach(run)
        first.ask(f"cluster.submit(meet, {str(tmp_path / 'go')!r}, int, 'no number')")
        wait_until(lambda: "waits" in log_of(run, "worker-0") and "waits" in log_of(run, "worker-1"))
    (tmp_path / "go").touch()
    with kernel(nodes) as second:
        second.attach(run)
        kind, text = second.ask("collect()")
        assert (kind, text.split(chr(10))[0]) == (
            "ValueError",
            "invalid literal for int() with base 10: 'no number'",
        )


def test_a_second_kernel_is_refused_while_the_first_lives_and_one_elsewhere_takes_over(nodes, run):
    with kernel(nodes) as first, kernel(nodes) as second:
        first.attach(run)
        kind, text = second.ask(f"attach({run!r})")
        assert kind == "TfmagicError" and f"the process {first.pid}, which lives" in text
        meta = run_of(run).folder / "run.json"
        meta.write_text(meta.read_text().replace(f'"pid": {first.pid}', '"pid": 1'))  # as of another machine
        second.attach(run)
        assert set(second.ask("run('6 * 7')").values()) == {42}
        kind, text = first.ask("run('6 * 7')")
        assert (
            kind == "TaskDied" and "another notebook has attached to this run; its tasks go on there" in text
        )
        first.ask("cluster.stop()")
        assert set(second.ask("run('6 * 8')").values()) == {48}
        status = json.loads((run_of(run).folder / "status.json").read_text())
        assert not status["ended"], "the run is that of the second one"


def test_what_died_while_no_kernel_was_attached_is_told_and_comes_back(nodes, run, tmp_path):
    seen = log_of(run, "worker-1").count("line 5\n")
    with kernel(nodes) as first:
        first.attach(run)
        first.ask(f"cluster.submit(count, {str(tmp_path / 'never')!r})")
        pids = first.ask("tasks()")
        wait_until(lambda: log_of(run, "worker-1").count("line 5\n") == seen + 1)
    os.kill(pids["worker-1"][1], signal.SIGKILL)
    with kernel(nodes) as second:
        second.attach(run)
        kind, text = second.ask("collect()")  # and worker-0 was interrupted
        assert kind == "TaskDied" and "worker-1 was ended by SIGKILL" in text
        assert second.ask("tasks()")["worker-1"][0] == "dead"
        assert second.ask("list(cluster.revive())") == ["worker-1"]
        (agent,) = agents_of([second.ask("tasks()")["worker-1"][1]])
        assert set(second.ask("run('6 * 7')").values()) == {42}
    os.kill(agent, signal.SIGKILL)
    with kernel(nodes) as third:
        third.attach(run)
        kind, text = third.ask("run('6 * 7')")
        assert (
            kind == "TaskDied"
            and "its host or the agent there was lost while no notebook was attached" in text
        )
        assert third.ask("list(cluster.revive())") == ["worker-1"]
        assert set(third.ask("run('6 * 7')").values()) == {42}


def test_a_stop_ends_everything_and_gives_the_places_back(nodes, run):
    with kernel(nodes) as first:
        name = first.ask("start('10m')")
    with kernel(nodes) as last:
        last.attach(name)
        tasks = last.pids()
        pids = {*tasks, *agents_of(tasks)}
        assert len(pids) == 4
        last.ask("cluster.stop()")
        wait_until(lambda: not alive(pids), ENDED_S)
        assert not (run_of(name).folder / "kept.json").exists()
        assert free_cpus(nodes, 2) == 2
        kind, text = last.ask(f"attach({name!r})")
        assert kind == "TfmagicError" and "or was stopped; only its logs are left" in text


def test_what_no_kernel_attaches_to_ends_after_its_time(nodes, run, tmp_path):
    with kernel(nodes) as first:
        name = first.ask("start('4s', 1)")
        first.ask(f"cluster.submit(count, {str(tmp_path / 'never')!r})")
        tasks = first.pids()
        pids = {*tasks, *agents_of(tasks)}
        assert len(pids) == 2
    assert alive(tasks) == tasks
    wait_until(lambda: not alive(pids), ENDED_S)
    assert free_cpus(nodes, 2) == 2
    with kernel(nodes) as second:
        kind, text = second.ask(f"attach({name!r})")
        assert kind == "LaunchError" and "lives there any more" in text


@pytest.mark.soak
def test_a_stop_ends_also_what_has_outlived_the_process_that_talks_to_ray(nodes, run):
    with kernel(nodes) as only:
        only.ask("start('10m', 1)")
        tasks = only.pids()
        pids = {*tasks, *agents_of(tasks)}
        (driver,) = only.ask("[row['pid'] for row in cluster.own_share() if row['process'] == 'ray']")
        os.kill(driver, signal.SIGKILL)
        wait_until(lambda: only.ask("tasks()")["worker-0"][0] == "dead")
        assert alive(pids) == pids
        only.ask("cluster.stop()")
        wait_until(lambda: not alive(pids), ENDED_S)
        assert free_cpus(nodes, 2) == 2


def test_a_process_of_this_machine_is_not_kept():
    with pytest.raises(
        ClusterSpecError, match="keep needs backend='ray': a process of this machine ends with its"
    ):
        tfmagic.Cluster(keep="2h")
    with pytest.raises(ClusterSpecError, match="'soon' is not a duration; write 30m, 2h or 1d"):
        tfmagic.Cluster(keep="soon", backend="ray")
