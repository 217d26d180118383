"""Real hangs of real tasks: one sentence names who waits for which task. Slow cells are not reported."""

import contextlib
import io
import os
import signal
import threading
import time

import pytest
from conftest import wait_until

from tfmagic.errors import TaskTimeoutError

STEP = """
import tensorflow as tf, time, tfmagic
me = tfmagic.current_task().index
strategy = tf.distribute.MultiWorkerMirroredStrategy()
def reduce():
    return tf.distribute.get_replica_context().all_reduce("sum", tf.ones(3))
def gather():
    return tf.distribute.get_replica_context().all_gather(tf.ones([3]), axis=0)
step = tf.function(lambda: strategy.run(reduce))
other = tf.function(lambda: strategy.run(gather))
step(), other()
"""


class Watched(io.StringIO):
    """Standard output that does something once, when a text has been written."""

    def __init__(self, expected, act):
        super().__init__()
        self.expected, self.act = expected, act

    def write(self, text):
        written = super().write(text)
        if self.act and self.expected in self.getvalue():
            act, self.act = self.act, None
            threading.Thread(target=act).start()
        return written


@pytest.fixture
def hang(notebook):
    """Run a cell that hangs, check that these words are shown, and interrupt it then."""
    notebook.run("%config TFCluster.stall_s = 1.5")
    notebook.run("%tfcluster start --workers 3")

    def run(body, expected):
        out = Watched(expected, notebook.cluster().interrupt)
        with contextlib.redirect_stdout(out), pytest.raises((KeyboardInterrupt, TaskTimeoutError)):
            notebook.shell.run_cell_magic("tfcluster", "--view text --timeout 20", body)
        assert expected in out.getvalue()

    yield run
    notebook.run("%config TFCluster.stall_s = 10.0")


@pytest.fixture
def detached(notebook):
    """Runs a cell in the background; gives the rows of its tasks by name."""
    notebook.run("%config TFCluster.stall_s = 1.0")
    notebook.run("%tfcluster start --workers 2")

    def run(body, options=""):
        notebook.run(f"%%tfcluster --view quiet --detach {options}\n{body}")
        cluster = notebook.cluster()
        return lambda: {row["task"]: row for row in cluster.status()}

    yield run
    notebook.run("%config TFCluster.stall_s = 10.0")


def test_the_others_wait_in_a_collective_for_one_that_sleeps(hang):
    hang(
        STEP + "if me == 1:\n    time.sleep(60)\nstep()",
        "tfmagic: worker-0 and worker-2 wait in all_reduce (cell line 15); worker-1 is in time.sleep (line 14)",
    )


def test_tasks_at_different_places_wait_for_ever_and_both_are_named(hang):
    hang(
        STEP + "if me == 1:\n    tfmagic.barrier()\nelse:\n    step()",
        "tfmagic: worker-0 and worker-2 wait in all_reduce (cell line 16); worker-1 waits at barrier 1 (line 14); "
        "all wait: no task can come",
    )


def test_one_that_left_early_will_not_come(hang):
    hang(
        STEP + "for _ in tf.data.Dataset.range(2 - (me == 1)):\n    step()",
        "worker-0 and worker-2 wait in all_reduce (cell line 14); worker-1 has ended the cell (perhaps its data "
        "ended first: give each task as many batches, with take or repeat)",
    )


DIFFER = """
numbers = iter(tf.data.Dataset.range(9))
@tf.function
def differ(one_more):
    next(numbers)
    if one_more: strategy.run(reduce)
    return strategy.run(reduce)
"""


def test_steps_that_take_different_branches_wait_for_ever_though_they_read_data_too(hang):
    hang(
        STEP + DIFFER + "differ(tf.constant(me == 1))",
        "tfmagic: worker-0, worker-1 and worker-2 wait in differ (cell line 20); all wait, and no data set is seen "
        "to read or compute: probably no task can come",
    )


@pytest.mark.soak  # in a tf.function: above
def test_an_eager_collective_is_known_too(hang):
    hang(
        STEP + "if me == 1:\n    time.sleep(60)\nstrategy.run(reduce)",
        "worker-0 and worker-2 wait in all_reduce (cell line 15); worker-1 is in time.sleep (line 14)",
    )


def test_peers_that_do_not_make_the_strategy_are_named(hang):
    hang(
        "import tensorflow as tf, time, tfmagic\n"
        "if tfmagic.current_task().index == 1:\n    time.sleep(60)\n"
        "tf.distribute.MultiWorkerMirroredStrategy()",
        "worker-0 and worker-2 wait for the others to make their strategy (cell line 5); "
        "worker-1 is in time.sleep (line 4)",
    )


def test_a_barrier_names_those_that_are_missing(hang):
    hang(
        "import time, tfmagic\nif tfmagic.current_task().index == 2:\n    time.sleep(60)\ntfmagic.barrier()",
        "worker-0 and worker-1 wait at barrier 1 (cell line 5); worker-2 is in time.sleep (line 4)",
    )


def test_a_paused_task_is_reported_at_once(detached, notebook):
    rows = detached("while True: pass")
    wait_until(lambda: rows()["worker-1"]["line"] == 2)
    told = notebook.run("%tfcluster pause worker-1")
    assert "paused worker-1 (SIGSTOP); %tfcluster resume worker-1 continues" in told
    wait_until(lambda: rows()["worker-1"]["doing"] == "stalled")
    assert "SIGSTOP" in rows()["worker-1"]["note"] and rows()["worker-0"]["doing"] == "running"
    assert "worker-1: no answer; its process is stopped" in notebook.run("%tfcluster stacks")
    assert "continued worker-1 (SIGCONT)" in notebook.run("%tfcluster resume worker-1")
    wait_until(lambda: rows()["worker-1"]["doing"] == "running")
    assert rows()["worker-1"]["stalls"] == 1
    notebook.cluster().interrupt()


@pytest.mark.parametrize(
    ("body", "doing", "note"),
    [
        (
            "import tensorflow as tf, time\n"
            "slow = lambda x: tf.py_function(lambda y: (time.sleep(60), y)[1], [x], tf.int64)\n"
            "for x in tf.data.Dataset.range(3).map(slow): pass",
            "waiting",
            "for its data set",
        ),
        (
            "import tensorflow as tf, time\n"
            "slow = lambda x: tf.py_function(lambda y: (time.sleep(60), y)[1], [x], tf.int64)\n"
            "numbers = iter(tf.data.Dataset.range(3).map(slow))\n"
            "tf.function(lambda: next(numbers))()",
            "waiting",
            "for its data set",
        ),
        ("import queue\nqueue.Queue().get()", "stalled", "in queue.Queue().get"),
        ("import os\nos.system('sleep 60')", "stalled", "in os.system"),
        ("import ctypes\nctypes.PyDLL(None).sleep(30)", "stalled", "no sign of progress"),
    ],
)
def test_what_a_task_is_in_is_named(detached, notebook, body, doing, note):
    rows = detached(body, "--on worker-0")
    wait_until(lambda: rows()["worker-0"]["note"] == note and rows()["worker-0"]["doing"] == doing)
    notebook.run("%tfcluster restart worker-0")  # the quickest way out of native code


SLOW_DATA = """
import threading
go = threading.Event()
numbers = iter(tf.data.Dataset.range(9).map(lambda x: tf.py_function(lambda y: (go.wait(), y)[1], [x], tf.int64)))
try:
    differ(tf.constant(False))
finally:
    go.set()
"""


def test_a_step_of_which_the_data_set_is_slow_waits_for_its_data(detached, notebook):
    rows = detached(STEP + DIFFER + SLOW_DATA)
    wait_until(lambda: {row["note"] for row in rows().values()} == {"for its data set"}, 40)
    assert {row["doing"] for row in rows().values()} == {"waiting"} and not notebook.cluster().news()
    notebook.cluster().interrupt()


GOES_ON = """
import tensorflow as tf, time, tfmagic
me = tfmagic.current_task().index
if me == 0:
    for i in range(10**9): i * i
if me == 1:
    x = tf.random.normal([6000, 6000])
    for _ in range(9): x = x @ x / 100.0
if me == 2:
    for i in range(40):
        time.sleep(0.1)
        print(i)
if me == 3:
    for i in range(60):
        time.sleep(0.05)
        x = i
        time.sleep(0.05)
"""


def test_no_false_alarm_for_what_goes_on(notebook, detached):
    notebook.run("%tfcluster restart --workers 4")
    rows = detached(GOES_ON)
    words: set[str] = set()
    began = time.monotonic()
    while time.monotonic() - began < 3.5:  # for as long as three alarms would take
        words |= {row["doing"] for row in rows().values()}
        time.sleep(0.01)
    assert "stalled" not in words and "running" in words
    notebook.cluster().interrupt()


def _count_notes(cluster, note):
    return [row["note"] for row in cluster.status()].count(note)


def test_stacks_say_what_tasks_wait_for_and_group_equal_ones(notebook):
    notebook.run("%tfcluster start --workers 3")
    notebook.run("%%tfcluster --view quiet --detach\n" + STEP + "if me == 1:\n    time.sleep(60)\nstep()")
    cluster = notebook.cluster()
    wait_until(lambda: cluster.news() or _count_notes(cluster, "in all_reduce for worker-1") == 2, 40)
    assert _count_notes(cluster, "in all_reduce for worker-1") == 2, (cluster.news(), cluster.status())
    said = notebook.run("%tfcluster stacks")
    assert "worker-0, worker-2:\n  waits in all_reduce: a collective" in said
    assert "line 15" in said and "worker-1:\n" in said and "line 14" in said
    table = notebook.run("%tfcluster status")
    assert "waiting at line 15: in all_reduce for worker-1" in table and "launcher" in table
    cluster.interrupt()


def test_a_dead_server_of_a_waiting_coordinator_is_reported(notebook):
    notebook.run("%config TFCluster.stall_s = 1.0")
    notebook.run("%tfcluster start --workers 1 --ps 1")
    notebook.run(
        "%%tfcluster --view quiet --detach\n"
        "import tensorflow as tf\n"
        "strategy = tf.distribute.ParameterServerStrategy("
        "tf.distribute.cluster_resolver.TFConfigClusterResolver())\n"
        "coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)\n"
        "@tf.function\n"
        "def step():\n"
        "    while tf.constant(True): tf.random.normal([9])\n"
        "coordinator.schedule(step)\n"
        "coordinator.join()"
    )
    cluster = notebook.cluster()
    wait_until(lambda: cluster.status()[0]["note"] == "in coordinator.join", 40)
    os.kill(cluster.status()[1]["pid"], signal.SIGKILL)
    wait_until(lambda: "worker-0 has no process (it was ended by SIGKILL" in cluster.news(), 20)
    notebook.run("%config TFCluster.stall_s = 10.0")
    cluster.interrupt()
