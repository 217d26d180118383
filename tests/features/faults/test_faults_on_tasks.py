"""The fault lab on real tasks: crashes, hangs, slowness, floods, preemption, chaos."""

import threading
import time

import psutil
import pytest
from conftest import wait_until
from IPython.core.error import UsageError

from tfmagic.errors import TaskDied, TfmagicError
from tfmagic.protocol.events import StopRequested

WORK = """
import time
began, used = time.monotonic(), time.process_time()
while time.process_time() - used < 0.2:
    pass
time.monotonic() - began
"""


@pytest.fixture
def two(notebook):
    notebook.run("%tfcluster start --workers 2")
    return notebook


def test_a_crash_on_purpose_is_told_as_one(two):
    told = two.run("%tfcluster kill worker-1 --signal SEGV")
    assert "cluster default: sent SIGSEGV to worker-1; worker-1 ended; %tfcluster revive" in told
    assert two.cluster().status()[1]["state"] == "dead"
    with pytest.raises(TaskDied, match=r"worker-1 was killed by you \(SIGSEGV\)"):
        two.run("%%tfcluster --view quiet\n1")
    assert "worker-1 came back" in two.run("%tfcluster revive")
    two.run("%tfcluster kill worker-0 worker-1")
    assert [row["state"] for row in two.cluster().status()] == ["dead", "dead"]


def test_a_task_that_was_preempted_can_be_revived_at_once(two):
    for _ in range(5):
        two.run("%tfcluster preempt worker-1")
        assert "worker-1 came back" in two.run("%tfcluster revive")


def test_a_preempted_task_that_saves_first_is_named_by_revive(two):
    two.run(
        "%%tfcluster --on worker-1\nimport signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\nkept = 1"
    )
    told = two.run("%tfcluster preempt worker-1")
    assert "sent SIGTERM to worker-1; worker-1 did not end by it, and can save and go on" in told
    told = two.run("%tfcluster revive")
    assert "no task is dead yet; worker-1 caught the signal to end" in told
    two.run("%%tfcluster --on worker-1 --out r\nkept")
    assert two.ns["r"]["worker-1"] == 1


def test_start_says_which_tasks_of_a_cluster_are_dead(two):
    two.run("%tfcluster kill worker-1")
    told = two.run("%tfcluster start")
    assert "runs: worker-0; dead: worker-1. Bring them back with  %tfcluster revive" in told
    two.run("%tfcluster kill worker-0")
    assert "has no task that runs; dead: worker-0, worker-1." in two.run("%tfcluster start")
    assert "worker-0, worker-1 came back" in two.run("%tfcluster revive")
    assert "runs: worker-0, worker-1\n" in two.run("%tfcluster start")


def test_a_fault_can_come_while_a_cell_runs(two):
    assert "in 0.5 s: kill worker-1" in two.run("%tfcluster kill worker-1 --after 0.5")
    with pytest.raises(TaskDied, match="worker-1 was killed by you"):
        two.run("%%tfcluster --view quiet\nimport time\ntime.sleep(30)")


def test_a_slowed_task_does_less_in_the_same_time_and_is_not_stalled(two):
    told = two.run("%tfcluster slow worker-1 5")
    assert "made worker-1 5 times slower; %tfcluster slow worker-1 1 ends that" in told
    two.run(f"%%tfcluster --view quiet --detach --out took\n{WORK}")
    words: set[str] = set()
    cluster = two.cluster()
    wait_until(lambda: words.add(cluster.status()[1]["doing"]) or cluster.status()[1]["state"] == "ready")
    two.run("%tfcluster wait")
    assert two.ns["took"]["worker-1"] > 0.5 and "stalled" not in words  # 0.2 s of CPU time; 1 s without noise
    assert "5 times slower on purpose" in cluster.status()[1]["note"]
    assert "worker-1 at full speed again" in two.run("%tfcluster slow worker-1 1")
    wait_until(lambda: "slower" not in cluster.status()[1]["note"])
    found = [(event.task, event.text) for event in cluster.timeline(whole=True).timeline.events]
    assert [text for task, text in found if task == "worker-1"] == ["slow: 5 times slower"]


def test_a_flood_costs_nothing_but_its_bytes(two):
    told = two.run("%tfcluster flood worker-1 20MB")
    assert "worker-1: 20,000,000 bytes (19 MiB) on the way to the error stream" in told
    two.run("%%tfcluster --view quiet --out r\n6 * 7")
    assert two.ns["r"].of("worker") == [42, 42]
    log = two.cluster().run_folder.log_path(two.cluster().tasks[1])
    wait_until(lambda: log.stat().st_size >= 20_000_000)
    assert log.stat().st_size < 20_001_000


def test_a_preempted_task_makes_all_save_at_one_step(two, tmp_path):
    two.ns["folder"] = str(tmp_path)
    two.run("%tfcluster preempt worker-1 --after 4")
    two.run(
        "%%tfcluster --view quiet --out r --timeout 60\\n".replace("\\n", "\n")
        + """
import tensorflow as tf, os, tfmagic
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    total = tf.Variable(0.0)
step_number = tf.Variable(0)
left = []
checkpoint = tf.train.Checkpoint(total=total, step=step_number)
class Left(Exception): pass
def leave():
    raise Left
handler = tf.distribute.experimental.PreemptionCheckpointHandler(
    tf.distribute.cluster_resolver.TFConfigClusterResolver(), checkpoint, folder,
    tf.distribute.experimental.TerminationConfig(exit_fn=leave),
)
@tf.function
def step():
    strategy.run(lambda: total.assign_add(tf.distribute.get_replica_context().all_reduce("sum", 1.0)))
def train():
    import time
    step()
    step_number.assign_add(1)
    time.sleep(0.02)
try:
    while True:
        handler.run(train)
except Left:
    pass
int(step_number)
"""
    )
    steps = set(two.ns["r"].values())
    assert len(steps) == 1 and steps.pop() > 0
    assert [
        path for path in tmp_path.iterdir() if path.suffix == ".index"
    ]  # the chief's; others' are temporary


def test_chaos_comes_and_goes_and_the_cluster_works_afterwards(two):
    said = two.run("%tfcluster chaos --seed 3 --seconds 3 --every 0.3 --faults pause,slow,flood,interrupt")
    assert "chaos with seed 3" in said and said.count(" s: ") >= 3
    began = time.monotonic()
    while time.monotonic() - began < 3:
        try:
            two.run("%%tfcluster --view quiet\nimport tfmagic\nfor _ in range(20): tfmagic.barrier()")
        except KeyboardInterrupt:
            continue
    two.run("%tfcluster chaos --stop")
    two.run("%%tfcluster --view quiet --out r\n1")
    assert len(two.ns["r"]) == 2


def test_chaos_leaves_no_task_stopped_when_it_is_ended(two):
    two.run("%tfcluster chaos --seed 1 --seconds 60 --every 0.05 --faults pause,slow")
    two.run("%tfcluster chaos --stop")
    two.run("%%tfcluster --view quiet --timeout 20 --out r\n1")
    assert len(two.ns["r"]) == 2


def test_a_stopped_task_dies_with_its_cluster(two):
    two.run("%tfcluster pause worker-0")
    pids = [row["pid"] for row in two.cluster().status()]
    two.run("%tfcluster stop")
    import psutil

    wait_until(lambda: not any(map(psutil.pid_exists, pids)))


def test_faults_of_tasks_that_are_not_there_are_refused(two):
    for line in ("kill worker-7", "pause chief", "slow ps-0 3", "flood x 1", "preempt worker-9"):
        with pytest.raises(UsageError, match="worker-0, worker-1|no task|has no"):
            two.run(f"%tfcluster {line}")
    with pytest.raises(UsageError, match="there is no fault typo"):
        two.run("%tfcluster chaos --faults typo")
    with pytest.raises(UsageError, match="1 to 100 times slower, not 0.5 times"):
        two.run("%tfcluster slow worker-0 0.5")


def test_a_fault_of_several_tasks_hits_those_that_have_a_process(two):
    two.run("%tfcluster kill worker-0")
    told = two.run("%tfcluster pause all")
    assert "paused worker-1 (SIGSTOP); %tfcluster resume worker-1 continues; worker-0 had no process" in told
    assert psutil.Process(two.cluster().status()[1]["pid"]).status() == psutil.STATUS_STOPPED
    told = two.run("%tfcluster kill all")
    assert "sent SIGKILL to worker-1; worker-1 ended;" in told and "; worker-0 had no process" in told
    assert [row["state"] for row in two.cluster().status()] == ["dead", "dead"]
    with pytest.raises(TfmagicError, match="worker-0, worker-1 have no process; .*tfcluster.revive"):
        two.run("%tfcluster kill all")


def test_a_plan_that_is_ended_undoes_what_it_has_done_and_nothing_else(two):
    cluster = two.cluster()
    cluster.faults.pause("worker-0")
    cluster.faults.later(0.0, "pause", ["worker-1"])
    cluster.faults.later(60.0, "pause", ["worker-0"])
    pids = {row["task"]: row["pid"] for row in cluster.status()}

    def states():
        return [psutil.Process(pid).status() for pid in pids.values()]

    wait_until(lambda: states() == [psutil.STATUS_STOPPED] * 2)
    cluster.faults.calm()  # what has happened is over: the plan with worker-1 had ended
    assert states()[0] == psutil.STATUS_STOPPED
    cluster.faults.resume("all")
    wait_until(lambda: psutil.STATUS_STOPPED not in states())


def test_no_thread_of_the_lab_outlives_its_cluster(two):
    two.run("%tfcluster slow all 3")
    two.run("%tfcluster kill worker-1 --after 600")
    two.cluster()._latest.supervisor.ask(StopRequested())  # as the button of a panel
    wait_until(lambda: not two.cluster().running)
    wait_until(lambda: not [t for t in threading.enumerate() if "throttle" in t.name])
    two.run("%tfcluster start --workers 2")
    assert not [t for t in threading.enumerate() if "chaos" in t.name]
