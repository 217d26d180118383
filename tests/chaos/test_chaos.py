"""Random faults in real cells, from a seed: every fault is reported in time, and the cluster goes on.

A run has a few faults; `make chaos` runs hundreds (CHAOS_STEPS, CHAOS_SEED). Each step runs one cell and
injects one fault at a random moment. After each step:

- the call has returned or raised within the grace periods of the settings and ten seconds;
- it returned or raised what the fault explains, and nothing else;
- each task's lines are in its log without a gap, and complete if the task ended its cell and its log is below
  its limit. The third flood of a task reaches it: then the log has a notice, and the cluster is restarted;
- the cluster runs the next cell on all tasks, with the variables of the tasks that survived.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import psutil
import pytest
from conftest import ENDED_S, wait_until

import tfmagic
from tfmagic.errors import RemoteError, TaskDied, TaskTimeoutError, TfmagicError

STEPS = int(os.environ.get("CHAOS_STEPS", "10"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
LINES = 200
TIMEOUT_S = 8.0
GRACES_S = 1.0 + 0.5 + 0.5 + 0.8
BEYOND_S = 10.0
LOG_BYTES = 500_000_000  # two floods fit, the third does not
FLOOD_BLOCKS, BLOCK_BYTES = 200, 1_000_000


# ---- cells --------------------------------------------------------------------------------------


def with_barriers(step, ending):
    import time

    import tfmagic

    for number in range(200):
        print(f"step {step} line {number}")
        if number % 20 == 0:
            tfmagic.barrier()
        time.sleep(0.002)
    return ending()


def with_collectives(step, ending):
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def add():
        return strategy.reduce("sum", strategy.run(lambda: tf.ones(())), axis=None)

    for number in range(200):
        print(f"step {step} line {number}")
        if number % 4 == 0:
            add()
    return ending()


def alone(step, ending):
    import time

    for number in range(200):
        print(f"step {step} line {number}")
        time.sleep(0.002)
    return ending()


CELLS = (with_barriers, with_collectives, alone)


# ---- what a task itself does at the end of its cell -----------------------------------------------


def end_well():
    return 7


def return_what_cannot_travel():
    return (n for n in range(3))


def raise_what_cannot_travel():
    class Local(Exception):
        def __reduce__(self):
            raise TypeError("no")

    raise Local("from the task")


def use_up_memory():
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        return len(bytearray(1 << 34))
    finally:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def flood():
    import os

    import tfmagic

    if tfmagic.current_task().index == 1:
        block = (b"x" * 99 + b"\n") * (BLOCK_BYTES // 100)
        for _ in range(FLOOD_BLOCKS):
            os.write(2, block)
    return 7


def fork_daemons():
    import subprocess

    subprocess.Popen(["sleep", "600"], start_new_session=True)
    return 7


@dataclass(frozen=True)
class Fault:
    """A fault: the end of the cell, signals and interrupts from outside, and the errors that can follow."""

    name: str
    ending: object = end_well
    signal_number: int = 0
    interrupts: int = 0
    expected: tuple[type[BaseException], ...] = ()
    must_fail: bool = False


# a signal can come after the end of the cell: then the next cell reports the death
DEATHS = (TaskDied, threading.BrokenBarrierError, RemoteError)
FAULTS = (
    Fault("SIGKILL", signal_number=signal.SIGKILL, expected=DEATHS),
    Fault("SIGSEGV", signal_number=signal.SIGSEGV, expected=DEATHS),
    Fault("SIGSTOP", signal_number=signal.SIGSTOP, expected=(TaskTimeoutError,)),
    Fault("Ctrl-C", interrupts=1, expected=(KeyboardInterrupt,)),
    Fault("Ctrl-C twice", interrupts=2, expected=(KeyboardInterrupt, TaskDied)),
    Fault("a result that cannot travel", return_what_cannot_travel, expected=(TfmagicError,), must_fail=True),
    Fault("an error that cannot travel", raise_what_cannot_travel, expected=(RemoteError,), must_fail=True),
    Fault("no memory", use_up_memory, expected=(MemoryError,), must_fail=True),
    Fault("a flood", flood),
    Fault("a daemon", fork_daemons),
)


class Arena:
    """A cluster with faults, and the checks after each."""

    def __init__(self, cluster, rng):
        self.cluster, self.rng = cluster, rng
        self.processes: set[psutil.Process] = set()  # with their start times, since pids are reused
        self.starts: dict[str, int] = {}
        self.kept: dict[str, list[int]] = {task.name: [] for task in cluster.tasks}

    def log(self, task):
        return self.cluster.run_folder.log_path(task)

    def note_processes(self):
        for row in self.cluster.status():
            if row["pid"]:
                process = psutil.Process(row["pid"])
                self.processes |= {process, *process.children(recursive=True)}

    def strike(self, step, fault, cell):
        """Run one cell with one fault. Return a description and the error of the cell."""
        self.note_processes()
        self.starts = {task.name: self.log(task).stat().st_size for task in self.cluster.tasks}
        victim = self.rng.choice(self.cluster.tasks).name
        pid = next(row["pid"] for row in self.cluster.status() if row["task"] == victim)
        delay_s = self.rng.uniform(0, 0.8)
        over = threading.Event()
        striker = threading.Thread(target=self._strike_later, args=(fault, pid, delay_s, over))
        ending = fault.ending
        began = time.monotonic()
        striker.start()
        error = None
        try:
            self.cluster.run(cell, step, ending, timeout=TIMEOUT_S, view="quiet")
        except BaseException as raised:  # the raised error is checked below
            error = raised
        took_s = time.monotonic() - began
        over.set()
        striker.join()
        where = f"step {step}: {fault.name} on {victim} after {delay_s:.2f} s in {cell.__name__}"
        assert took_s < TIMEOUT_S + GRACES_S + BEYOND_S, f"{where}: came back after {took_s:.1f} s"
        assert not fault.must_fail or error is not None, f"{where}: no error was raised"
        allowed = error is None or isinstance(error, fault.expected) or _is_loss_of_peer(error, fault)
        if not allowed:
            raise AssertionError(f"{where}: {error!r}") from error
        if fault.signal_number in (signal.SIGKILL, signal.SIGSEGV):  # it can have come after the cell
            wait_until(lambda: pid not in {row["pid"] for row in self.cluster.status()})
        return where, error

    def _strike_later(self, fault, pid, delay_s, over):
        for _ in range(fault.interrupts or 1):
            over.wait(delay_s)
            if fault.interrupts and not over.is_set():
                self.cluster.interrupt()
            elif fault.signal_number and psutil.pid_exists(pid):
                os.kill(pid, fault.signal_number)

    def closed_logs(self):
        """Return the tasks whose log has reached its limit, so that later output is dropped."""
        at_limit = [task for task in self.cluster.tasks if self.log(task).stat().st_size >= LOG_BYTES]
        supervisor = self.cluster._latest.supervisor
        wait_until(lambda: supervisor.closed_logs >= set(at_limit))
        for task in at_limit:
            wait_until(lambda task=task: self._tail(task).count(b"this log reached its limit"))
        return set(at_limit)

    def _tail(self, task):
        with self.log(task).open("rb") as file:
            file.seek(self.starts[task.name])
            return file.read()[-1_000_000:]

    def begin_anew(self):
        """Restart the cluster with new logs, as the notice in a full log advises."""
        self.note_processes()
        self.cluster.stop()
        self.cluster.start()
        self.kept = {task.name: [] for task in self.cluster.tasks}

    def check_lines(self, step, where, error, closed):
        for task in self.cluster.tasks:
            with self.log(task).open("rb") as file:
                file.seek(self.starts[task.name])
                data = file.read()
            found = [int(n) for n in re.findall(rb"(?m)^step %d line (\d+)$" % step, data)]
            assert found == list(range(len(found))), f"{where}: {task} lost a line of {found}"
            is_whole = error is None and task not in closed
            assert not is_whole or len(found) == LINES, f"{where}: {task} has {len(found)} lines"

    def check_use(self, where):
        """Check that all tasks run the next cell, and that a process that survived has its variables."""
        alive_now = [row["task"] for row in self.cluster.status() if row["pid"]]
        if alive_now:
            self.cluster.faults.resume(*alive_now)
        wait_until(lambda: not any(row["state"] in ("starting", "ending") for row in self.cluster.status()))
        self.cluster.revive()

        def keep(pids_seen):
            import os

            global mine
            mine = [*globals().get("mine", []), os.getpid()]
            return os.getpid(), len(set(mine)), len(mine)

        results = self.cluster.run(keep, (), view="quiet", timeout=30)
        assert len(results) == len(self.cluster.tasks), where
        for name, (pid, processes, count) in results.items():
            assert processes == 1, where
            earlier = self.kept[name]
            expected = earlier.count(pid) + 1 if earlier and earlier[-1] == pid else 1
            assert count == expected, f"{where}: {name} has lost its variables"
            self.kept[name] = [*earlier, pid] if earlier and earlier[-1] == pid else [pid]


def _is_loss_of_peer(error, fault):
    """Return whether this is TensorFlow's error for a lost peer, which can come before tfmagic's own error.

    It can follow a death, an interrupt, or any fault that keeps a task too busy to answer for three seconds.
    """
    is_late = "eartbeat" in str(error)
    return bool(fault.signal_number or fault.interrupts or is_late) and type(error).__name__ in (
        "UnavailableError",
        "CancelledError",
        "AbortedError",
        "InternalError",
        "DeadlineExceededError",  # of a heartbeat, if the leader was stopped
    )


def _runs(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.timeout(60 + 40 * STEPS)
def test_every_fault_is_reported_and_the_cluster_goes_on():
    rng = random.Random(SEED)
    cluster = tfmagic.Cluster(workers=3, failure_grace_s=1.0, stall_s=2.0, max_log_bytes=LOG_BYTES)
    filled = 0
    with cluster:
        arena = Arena(cluster, rng)
        arena.check_use("before")
        plan = [fault for _ in range(STEPS // len(FAULTS) + 1) for fault in rng.sample(FAULTS, len(FAULTS))]
        for step, fault in enumerate(plan[:STEPS], 1):
            where, error = arena.strike(step, fault, rng.choice(CELLS))
            closed = arena.closed_logs()
            arena.check_lines(step, where, error, closed)
            arena.check_use(where)
            if closed:
                filled += 1
                arena.begin_anew()
        arena.note_processes()
    floods = sum(fault.ending is flood for fault in plan[:STEPS])
    assert filled == floods // 3
    wait_until(lambda: not [process for process in arena.processes if _runs(process)], ENDED_S)


KERNEL = """
import random, sys, threading, tfmagic
sys.path.insert(0, {tests!r})
from chaos.test_chaos import CELLS, end_well, fork_daemons
cluster = tfmagic.Cluster(workers=2).start()
print("ready", flush=True)
rng = random.Random({seed})
for step in range(1000):
    cluster.run(rng.choice(CELLS), step, rng.choice([end_well, fork_daemons]), view="quiet")
"""


@pytest.mark.soak  # at one moment: test_cleanup
@pytest.mark.parametrize("seed", range(SEED, SEED + max(STEPS // 12, 1)))
def test_a_kernel_that_is_killed_at_any_moment_leaves_nothing(seed):
    rng = random.Random(seed)
    mark = f"CHAOS_MARK_{os.getpid()}_{seed}"
    tests = os.path.dirname(os.path.dirname(__file__))
    process = subprocess.Popen(
        [sys.executable, "-c", KERNEL.format(tests=tests, seed=seed)],
        env={**os.environ, mark: "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if rng.random() < 0.7:  # otherwise kill it while it starts
            assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, 2))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    wait_until(lambda: not marked(mark), ENDED_S)


def marked(mark):
    """Return the pids of processes that have the mark in their environment."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if mark.encode() in file.read():
                        found.add(int(entry))
            except OSError:
                continue
    return found
