"""Scripts on a cluster: what they find, how a run ends, and what is left of it. Real processes and signals."""

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import threading

import msgspec
import psutil
import pytest
from conftest import ENDED_S, alive, kill_at_once, wait_until

from tfmagic.frontends.cli.signals import Signals
from tfmagic.runs import schemas

RUN_S = 120.0  # an import of TensorFlow on a busy machine, and a training


class Output:
    """What a command has written to the files of its folder."""

    def __init__(self, folder):
        self.folder = folder
        self.out_path, self.err_path = folder / "out.txt", folder / "err.txt"

    @property
    def out(self):
        return self.out_path.read_text("utf-8", "replace")

    @property
    def err(self):
        return self.err_path.read_text("utf-8", "replace")

    def lines(self, task):
        """Return the lines that a task has printed, those of its error stream last."""
        head = f"[{task}]:".ljust(14) + " "
        return [line[15:] for line in (self.out + self.err).splitlines() if line.startswith(head)]


class Runner(Output):
    """``python -m tfmagic ...`` in a process, with its output in files, so that no pipe fills up."""

    def __init__(self, folder, words, **more):
        super().__init__(folder)
        environ = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TFMAGIC_STATE_DIR": str(folder / "state"),
            **more,
        }
        with self.out_path.open("wb") as out, self.err_path.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tfmagic", *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environ,
                cwd=folder,
            )

    def wait(self):
        return self.process.wait(RUN_S)

    def below(self):
        return {child.pid for child in psutil.Process(self.process.pid).children(recursive=True)}


class Served(Output):
    """The same in the process that runs commands one after the other; the next one begins when this has ended."""

    def __init__(self, commands, folder, words):
        super().__init__(folder)
        self.commands, self.has_ended = commands, False
        commands.start(folder, words, TFMAGIC_STATE_DIR=str(folder / "state"))

    def wait(self):
        code = self.commands.wait()
        self.has_ended = True
        return code

    def send_signal(self, number):
        self.commands.process.send_signal(number)


@pytest.fixture
def tool(tmp_path):
    """Start a command in a folder of the test's own; what it leaves is ended, and fails the test."""
    started = []

    def start(*words, **more):
        folder = tmp_path / f"command-{len(started)}"
        folder.mkdir()
        (folder / "state").symlink_to(state)
        started.append(Runner(folder, words, **more))
        return started[-1]

    state = tmp_path / "state"
    state.mkdir()
    yield start
    for runner in started:
        if runner.process.poll() is None:
            runner.process.kill()
            runner.process.wait()


@pytest.fixture
def serve(commands, tmp_path):
    """Run a command in a process that has a launcher already: for what a run does, not for how it begins and ends."""

    def start(*words, folder=None):
        folder = folder or tmp_path / f"served-{len(started)}"
        (folder / "state").mkdir(parents=True)
        started.append(Served(commands, folder, words))
        return started[-1]

    started = []
    yield start
    if not all(run.has_ended for run in started):
        commands.close()


@pytest.fixture
def script(tmp_path):
    """Write a script; its path."""

    def write(code, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
        return path

    return write


TRAINING = """
    import argparse, logging, multiprocessing, os, pickle, sys
    import neighbour
    import numpy as np
    import tensorflow as tf

    class Config:
        pass

    def double(x):
        return 2 * x

    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--workers", type=int)
        parser.add_argument("--epochs", type=int)
        parser.add_argument("rest", nargs="*")
        args = parser.parse_args()
        assert args.workers == 7 and args.rest == ["--workers", "9"], sys.argv
        assert sys.argv[0] == os.environ["TYPED"], sys.argv
        assert type(pickle.loads(pickle.dumps(Config()))) is Config and Config.__module__ == "__main__"
        assert os.path.samefile(__file__, sys.argv[0]) and sys.path[0] == os.path.dirname(__file__)
        assert neighbour.HERE == 1
        try:
            get_ipython()
        except NameError:
            pass
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        if strategy.cluster_resolver.task_id == 1:  # its process imports TensorFlow again
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert pool.map(double, [1, 2]) == [2, 4]
        x = np.arange(64, dtype="float32").reshape(-1, 1) / 64
        data = tf.data.Dataset.from_tensor_slices((x, 2 * x)).batch(16)
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        losses = model.fit(data, epochs=args.epochs, verbose=0).history["loss"]
        assert len(losses) == args.epochs and losses[-1] < losses[0]
        print("trained on", strategy.num_replicas_in_sync, "loss %.6f" % losses[-1])
        return 0

    if __name__ == "__main__":
        sys.exit(main())
"""


def test_a_script_trains_as_python_would_run_it_and_its_logs_can_be_kept(tool, script, tmp_path):
    path = script(TRAINING)
    script("HERE = 1", "neighbour.py")
    words = ("run", "--env", f"TYPED={path}", "--log-dir", tmp_path / "kept", path)
    run = tool(*words, "--workers", 7, "--epochs", 3, "--", "--workers", 9)
    assert run.wait() == 0, run.out + run.err
    (first,) = [line for line in run.lines("worker-0") if line.startswith("trained")]
    (second,) = [line for line in run.lines("worker-1") if line.startswith("trained")]
    assert first == second and first.startswith("trained on 2")
    assert all(line.startswith("[worker-") for line in run.err.splitlines()), "warnings of TensorFlow"
    assert first in (tmp_path / "kept" / "worker-0.log").read_text()
    logs = tool("logs", "script", "worker-1", "--grep", "^trained")
    assert logs.wait() == 0 and logs.out == f"[worker-1]:    {second}\n"


def test_a_module_runs_with_absl_and_what_its_main_returns_is_the_exit_code(serve, script, tmp_path):
    script("", "package/__init__.py")
    script(
        """
        from absl import app, flags
        from . import part
        flags.DEFINE_integer("code", 0, "")
        def main(argv):
            print("main", argv[1:], __spec__.name, part.__name__)
            return flags.FLAGS.code
        if __name__ == "__main__":
            app.run(main)
        """,
        "package/train.py",
    )
    script("", "package/part.py")
    run = serve("run", "--workers", 1, "-m", "package.train", "--code=3", "x", folder=tmp_path)
    assert run.wait() == 3, run.err
    assert run.lines("worker-0") == ["main ['x'] package.train package.part"]
    assert "worker-0 failed: it exited with code 3" in run.err


def test_the_task_that_failed_first_is_named_with_its_line_and_no_task_waits_for_it(serve, script):
    path = script(
        """
        import tensorflow as tf
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        index = strategy.cluster_resolver.task_id

        @tf.function
        def meet():
            def step():
                return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))
            return strategy.run(step)

        def load():
            raise OSError("no such batch")  # line 13

        meet()
        if index == 1:
            load()
        meet()
        """
    )
    run = serve("run", path)
    assert run.wait() == 1
    assert f"worker-1 failed first: it raised OSError: no such batch, at {path}, line 13, in load" in run.err
    traceback = run.err.partition("Traceback")[2].partition("tfmagic:")[0]
    assert "load()" in traceback and "tfmagic" not in traceback
    assert re.search(r"tfmagic: (also on|ended the others:) worker-0", run.err), run.err
    assert "OSError: no such batch" in run.lines("worker-1")


def streams_by_task(run):
    """Return, for each worker, its lines on standard output and those on standard error, without its name."""
    return [
        [
            [line.removeprefix(head) for line in text.splitlines() if line.startswith(head)]
            for text in (run.out, run.err)
        ]
        for head in ("[worker-0]:    ", "[worker-1]:    ")
    ]


def test_what_tasks_write_to_the_error_stream_goes_there_and_lines_stay_whole(serve, script):
    path = script(
        """
        import sys, tfmagic
        me = tfmagic.current_task().name
        for n in range(2000):
            print(n, end=" ")
            print("error", n, file=sys.stderr)
            print("out")
        print("no end", end="")
        print("no end of errors", end="", file=sys.stderr)
        """
    )
    run = serve("run", path)
    assert run.wait() == 0
    for out, err in streams_by_task(run):
        assert out == [*(f"{n} out" for n in range(2000)), "no end"]
        assert err == [*(f"error {n}" for n in range(2000)), "no end of errors"]


def test_a_task_held_up_in_a_write_to_the_error_stream_moves_no_text_to_the_other_one(serve, script):
    path = script(
        """
        import sys, threading

        is_over = []
        threading.Thread(target=lambda: [None for _ in iter(lambda: bool(is_over), True)]).start()
        sys.setswitchinterval(0.3)  # so long the thread keeps the interpreter, after each system call of ours
        for n in range(4):
            print(n, end=" ")
            print("error", n, file=sys.stderr)
            print("out")
        is_over.append(True)
        """
    )
    run = serve("run", path)
    assert run.wait() == 0
    for out, err in streams_by_task(run):
        assert out == [f"{n} out" for n in range(4)]
        assert err == [f"error {n}" for n in range(4)]


def test_the_last_line_of_a_run_is_its_outcome_for_programs(serve, script):
    path = script(
        "import os, tfmagic\nif tfmagic.current_task().index:\n    raise OSError('no such batch')\n"
    )
    run = serve("run", "--json", path)
    assert run.wait() == 1
    found = msgspec.json.decode(run.out.splitlines()[-1], type=schemas.RunReport)
    assert (found.outcome, found.exit_code) == ("failed", 1) and found.run
    (error,) = found.errors
    assert (error.task, error.type, error.message, error.root) == (
        "worker-1",
        "OSError",
        "no such batch",
        True,
    )
    assert error.place == f"{path}, line 3" and error.log.endswith("worker-1.log")
    missing = serve("run", "--json", "nothing.py")
    assert missing.wait() == 2
    found = msgspec.json.decode(missing.out, type=schemas.RunReport)
    assert found.outcome == "not started" and "nothing.py" in found.message


def test_a_script_is_advised_what_helps_in_a_shell(serve, script):
    path = script(
        """
        import tensorflow as tf
        from tfmagic.system.advice import Step
        print("to go on:", Step("revive"))
        tf.constant(1)
        tf.config.set_visible_devices([])
        """
    )
    run = serve("run", "--workers", 1, path)
    assert run.wait() == 1
    assert "to go on: another run" in run.lines("worker-0")
    assert "yet: put it first in the script, before the strategy." in run.err


def test_an_exit_code_a_signal_and_an_end_in_good_order(serve, script):
    """Exit functions and non-daemon threads run to their end; a crash shows its line."""
    path = script(
        """
        import atexit, os, signal, sys, threading, time
        how, task = sys.argv[1], os.environ["TF_CONFIG"].rpartition('"index": ')[2][0]
        atexit.register(print, "at the end")
        if task == "1":
            def late():
                threading.main_thread().join()
                print("a thread")
            threading.Thread(target=late).start()
            if how == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)  # line 11
            sys.exit(7)
        time.sleep(1000)
        """
    )
    ends = serve("run", "--grace", "0.1", path, "code")
    assert ends.wait() == 7
    assert ends.lines("worker-1") == ["a thread", "at the end"]
    assert "worker-1 failed first: it exited with code 7" in ends.err
    assert "ended the others: worker-0" in ends.err and ends.err.endswith("exit code 7\n")
    crash = serve("run", "--quiet", path, "crash")
    assert crash.wait() == 128 + signal.SIGSEGV
    assert "it was ended by SIGSEGV" in crash.err and f"at {path}, line 11" in crash.err
    assert "worker-0" not in crash.out


def test_a_run_that_takes_too_long_is_ended_and_shows_its_stacks(serve, script):
    path = script("import time\ndef wait():\n    time.sleep(1000)\nwait()\n")
    run = serve("run", "--timeout", "0.5", path)
    assert run.wait() == 124
    assert "was not done after 0.5 s (--timeout)" in run.err
    assert f'File "{path}", line 3 in wait' in run.err and "worker-0, worker-1:" in run.err


STUBBORN = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("saved")))
    print("ready")
    while True:
        try:
            time.sleep(1000)
        except KeyboardInterrupt:
            print("not now")
            if "obey" in sys.argv:
                raise
"""


def test_ctrl_c_is_for_the_scripts_and_a_second_one_kills_them(serve, script):
    path = script(STUBBORN)
    obedient = serve("run", path, "obey")
    wait_until(lambda: obedient.out.count("ready") == 2, RUN_S)
    obedient.send_signal(signal.SIGINT)
    assert obedient.wait() == 130
    assert obedient.lines("worker-1")[:2] == ["ready", "not now"]
    assert "KeyboardInterrupt" in obedient.lines("worker-1") and "the run was interrupted" in obedient.err
    stubborn = serve("run", path)
    wait_until(lambda: stubborn.out.count("ready") == 2, RUN_S)
    stubborn.send_signal(signal.SIGINT)
    wait_until(lambda: stubborn.out.count("not now") == 2, RUN_S)
    stubborn.send_signal(signal.SIGINT)
    assert stubborn.wait() == 130


SAVING = """
    import pathlib, signal, sys, time
    import tfmagic
    folder, me = pathlib.Path(sys.argv[1]), tfmagic.current_task().name
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        (folder / f"ready-{me}").touch()  # a signal can come from here on
        while True:
            print("step")
            time.sleep(0.05)
    except KeyboardInterrupt:
        for part in range(5):  # a save takes its time, and several looks of the runner
            print("part", part)
            time.sleep(0.1)
        (folder / f"saved-{me}").touch()
"""


def _redirect(folder, out, err):
    """Let a served command write into these files; see `Commands.start`."""
    for name, target in (("out.txt", out), ("err.txt", err)):
        if target is not None:
            (folder / name).symlink_to(target)


def test_tasks_save_after_ctrl_c_though_it_has_ended_the_reader_of_their_output(serve, script, tmp_path):
    """As with ``tfmagic run train.py 2>&1 | tee log``: Ctrl-C goes to both."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    _redirect(tmp_path, pipe, pipe)
    run = serve("run", script(SAVING), tmp_path, folder=tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, RUN_S)
    os.close(reader)
    run.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert len(list(tmp_path.glob("saved-*"))) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_the_first_signal_after_the_end_of_the_reader_costs_no_checkpoint(serve, script, tmp_path, number):
    """As with ``tfmagic run train.py | tee log``, where tee ends a little earlier; a second signal kills."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    _redirect(tmp_path, tmp_path / "pipe", None)
    run = serve("run", script(SAVING), tmp_path, folder=tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, RUN_S)
    os.close(reader)
    wait_until(lambda: "SIGPIPE: the tasks get SIGTERM" in run.err, RUN_S)
    run.send_signal(number)
    assert run.wait() == 128 + signal.SIGPIPE
    assert len(list(tmp_path.glob("saved-*"))) == 2 and "the tasks end already; they have" in run.err


def test_tasks_save_when_the_terminal_goes_away(serve, script, tmp_path):
    """The shell and the kernel each send SIGHUP, and what is printed then has no place."""
    _redirect(tmp_path, None, "/dev/full")
    run = serve("run", script(SAVING), tmp_path, folder=tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, RUN_S)
    run.send_signal(signal.SIGHUP)
    wait_until(lambda: "part 0" in run.out, RUN_S)
    run.send_signal(signal.SIGHUP)
    assert run.wait() == 128 + signal.SIGHUP
    assert len(list(tmp_path.glob("saved-*"))) == 2


def test_only_a_signal_that_asks_again_kills():
    """nohup has SIGHUP ignored; systemd ends a session with SIGTERM and SIGHUP at once."""
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            for number in (signal.SIGHUP, signal.SIGTERM):
                os.kill(os.getpid(), number)
            assert signals.received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, former)
    hup, term = signal.SIGHUP, signal.SIGTERM
    for received, kills in (
        ((hup, hup), False),
        ((hup, term), False),
        ((term, hup), False),
        ((hup, term, term), True),
        ((term, hup, term), True),
        ((signal.SIGINT, signal.SIGINT), True),
    ):
        signals = Signals()
        signals.received = list(received)
        assert signals.is_echo(received[-1], len(received)) is not kills, received


def test_a_message_that_cannot_be_shown_does_not_end_the_run(serve, script, tmp_path):
    path = script(
        """
        import pathlib, sys
        mark = pathlib.Path(sys.argv[1], "mark")
        if mark.exists():
            sys.exit()
        mark.touch()
        sys.exit(5)
        """
    )
    _redirect(tmp_path, "/dev/full", "/dev/full")
    run = serve("run", "--workers", 1, "--auto-restart", 2, path, tmp_path, folder=tmp_path)
    assert run.wait() == 0


PREEMPTED = """
    import sys
    import tensorflow as tf
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        steps = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)  # so that all are at one step
    folder = f"{sys.argv[1]}/{strategy.cluster_resolver.task_id}"
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(steps=steps), folder, max_to_keep=1)
    handler = tf.distribute.experimental.PreemptionCheckpointHandler(
        strategy.cluster_resolver,
        manager,
        termination_config=tf.distribute.experimental.TerminationConfig(
            exit_fn=lambda: sys.exit(42), grace_period=0
        ),
    )

    @tf.function
    def step():
        strategy.run(lambda: steps.assign_add(1.0))

    print("ready")
    while True:
        handler.run(step)
"""


def test_sigterm_is_passed_on_so_that_the_scripts_can_save(serve, script, tmp_path):
    own = serve("run", script(STUBBORN))
    wait_until(lambda: own.out.count("ready") == 2, RUN_S)
    own.send_signal(signal.SIGTERM)
    assert own.wait() == 143
    assert own.lines("worker-0") == own.lines("worker-1") == ["ready", "saved"]
    handler = serve("run", script(PREEMPTED, "preempted.py"), tmp_path)
    wait_until(lambda: handler.out.count("ready") == 2, RUN_S)
    handler.send_signal(signal.SIGTERM)
    assert handler.wait() == 143
    assert "Traceback" not in handler.out
    assert (tmp_path / "0" / "ckpt-1.index").exists() and (tmp_path / "1" / "ckpt-1.index").exists()


SERVERS = """
    import sys
    import tensorflow as tf
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        server.join()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function
    def step():
        total.assign_add(1.0)

    for _ in range(5):
        coordinator.schedule(step)
    coordinator.join()
    print("total", total.numpy(), total.device)
"""


def test_parameter_servers_that_the_script_starts_end_with_the_chief(serve, script):
    run = serve("run", "--workers", 2, "--ps", 1, script(SERVERS))
    assert run.wait() == 0, run.out + run.err
    assert any(line.startswith("total 5.0 /job:ps") for line in run.lines("chief-0"))
    assert run.err == ""


SERVERS_OF_TENSORFLOW_1 = """
    import json, os
    import tensorflow as tf
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    config = json.loads(os.environ["TF_CONFIG"])
    kind, index = config["task"]["type"], config["task"]["index"]
    jobs = {job: config["cluster"][job] for job in ("ps", "worker")}
    server = v1.train.Server(jobs, job_name="ps" if kind == "ps" else "worker", task_index=index)
    if kind == "ps":
        server.join()
    with v1.device(v1.train.replica_device_setter(cluster=jobs)):
        total = v1.get_variable("total", [], initializer=v1.zeros_initializer())
        add = v1.assign_add(total, 1.0)
    with v1.train.MonitoredTrainingSession(master=server.target, is_chief=index == 0) as session:
        print(kind, "total", session.run(add) > 0, list(config["cluster"]), flush=True)
"""


def test_a_script_whose_chief_is_the_first_worker_runs_without_a_chief(serve, script):
    run = serve("run", "--workers", 1, "--ps", 1, "--no-chief", script(SERVERS_OF_TENSORFLOW_1))
    assert run.wait() == 0, run.out + run.err
    assert run.lines("worker-0")[-1] == "worker total True ['worker', 'ps']"
    assert "chief" not in run.out + run.err
    run = serve("run", "--workers", 1, "--ps", 1, script(SERVERS_OF_TENSORFLOW_1))
    assert run.wait() != 0
    assert "Could not start gRPC server" in run.err and "needs --no-chief" in run.err, run.err


def test_who_ends_comes_back_and_the_others_with_it(serve, script, tmp_path):
    path = script(
        """
        import os, pathlib, sys, time
        import tfmagic
        me = tfmagic.current_task().name
        mark = pathlib.Path(sys.argv[1], me)
        first = not mark.exists()
        mark.touch()
        print("first" if first else "again", flush=True)
        if first:
            time.sleep(1000) if me == "worker-0" else os._exit(5)
        tfmagic.barrier(60)
        """
    )
    run = serve("run", "--auto-restart", 2, path, tmp_path)
    assert run.wait() == 0, run.out + run.err
    assert run.lines("worker-1") == ["first", "again"] and run.lines("worker-0")[-1] == "again"
    assert "worker-1 exited with code 5: new processes for worker-0, worker-1 (restart 1 of 2)" in run.err


SLEEPING = "import subprocess, time\nsubprocess.Popen(['setsid', 'sleep', '1000'])\nprint('ready')\ntime.sleep(1000)\n"


def test_a_running_script_is_seen_followed_and_gone_when_its_runner_is_killed(tool, script):
    run = tool("run", script(SLEEPING, "sleeper.py"))
    wait_until(lambda: run.out.count("ready") == 2, RUN_S)
    follow = tool("logs", "sleeper", "--follow", "--tail", 1)
    wait_until(lambda: follow.out.count("ready") == 2, RUN_S)
    status = tool("status", "--json")
    assert status.wait() == 0
    (seen,) = json.loads(status.out)
    assert (seen["state"], seen["pid"], seen["cluster"]) == ("running", run.process.pid, "sleeper")
    assert [task["task"] for task in seen["tasks"]] == ["worker-0", "worker-1"]
    assert {task["pid"] for task in seen["tasks"]} <= run.below()
    table = tool("status")
    assert table.wait() == 0
    assert "cluster sleeper: running, 2 workers" in table.out and "127.0.0.1:" in table.out
    below = run.below()
    assert len(below) >= 4  # reaper, launcher, tasks
    run.process.kill()
    run.wait()
    wait_until(lambda: not alive(below), ENDED_S)
    assert follow.wait() == 0  # the run has ended
    died = tool("status", "--all")
    assert died.wait() == 0 and "cluster sleeper: died" in died.out
    listed = tool("logs", "--list")
    assert listed.wait() == 0 and re.search(r"-sleeper-\d+  died, 2 workers", listed.out)


def test_what_a_killed_runner_and_its_guards_have_left_is_reaped(tool, script):
    run = tool("run", "--workers", 1, script(SLEEPING))
    wait_until(lambda: "ready" in run.out, RUN_S)
    reaper, launcher = _guards(run.process.pid)
    below = run.below() - {reaper, launcher}
    kill_at_once(launcher, reaper, run.process.pid)
    run.wait()
    left = wait_until(lambda: alive(below) if not alive({reaper, launcher}) else None)
    dry = tool("reap", "--dry-run")
    assert dry.wait() == 1
    (sleeper,) = alive(left)  # in a session of its own, so that no signal has reached it
    assert f"would end a process that a task has started (pid {sleeper}) of run " in dry.out
    reap = tool("reap")
    assert reap.wait() == 0 and f"ended a process that a task has started (pid {sleeper})" in reap.out
    assert not alive(left)
    again = tool("reap")
    assert again.wait() == 0 and again.out.startswith("no process of a kernel that is gone")


def _guards(pid):
    (reaper,) = [p.pid for p in psutil.Process(pid).children() if "reaper" in " ".join(p.cmdline())]
    (launcher,) = [p.pid for p in psutil.Process(reaper).children()]
    return reaper, launcher


def test_a_closed_pipe_ends_the_run_quietly_and_tasks_can_save(tool, script, tmp_path):
    command = [sys.executable, "-m", "tfmagic", "run", str(script(SAVING)), str(tmp_path)]
    with (tmp_path / "err.txt").open("wb") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err)
    reader = threading.Timer(RUN_S, process.kill)
    reader.start()
    wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, RUN_S)
    assert process.stdout.readline().endswith(b" step\n")
    process.stdout.close()
    assert process.wait(RUN_S) == 128 + signal.SIGPIPE
    reader.cancel()
    reader.join()
    text = (tmp_path / "err.txt").read_text()
    assert "Traceback" not in text and "the reader of the output has closed it" in text
    assert len(list(tmp_path.glob("saved-*"))) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("together", [False, True])
def test_a_reader_that_does_not_read_holds_up_no_stop(script, tmp_path, together, number):
    """As ``tfmagic run train.py 2>&1 | less`` with a stopped pager."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(reading, "rb") as output, (tmp_path / "err.txt").open("wb") as err:
        talkative = SAVING.replace('print("step")', 'print("step" * 5000)')
        command = [
            sys.executable,
            "-m",
            "tfmagic",
            "run",
            "--json",
            "--term-grace",
            "5",
            str(script(talkative)),
            str(tmp_path),
        ]
        process = subprocess.Popen(command, stdout=writing, stderr=writing if together else err)
        try:
            wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, RUN_S)
            wait_until(
                lambda: struct.unpack("i", fcntl.ioctl(reading, termios.FIONREAD, b"1234")) == (4096,), RUN_S
            )
            process.send_signal(number)
            assert process.wait(RUN_S) == 128 + number
        finally:
            process.kill()
            process.wait()
            os.close(writing)
        assert output.read(8) == b"[worker-"
    assert len(list(tmp_path.glob("saved-*"))) == 2
    text = (tmp_path / "err.txt").read_text()
    assert together or ("or until the next signal" in text and "the run was" in text), text


def test_nothing_is_started_for_a_cluster_or_a_script_that_cannot_be(serve, script):
    broken = script("x = (\n", "broken.py")
    for words, code, said in (
        (("run", "nowhere.py"), 2, "can't open file 'nowhere.py'"),
        (("run", "-m", "nowhere"), 2, "No module named nowhere"),
        (("run", broken), 1, "SyntaxError: '(' was never closed"),
        (("run", "--workers", 0, broken), 1, "SyntaxError"),
        (("run", "--workers", 0, script("")), 2, "at least one chief or worker"),
        (("run", "--workers", 0, "--no-chief", script("")), 2, "at least one chief or worker"),
        (("run", "--chief", "--no-chief", script("")), 2, "contradict each other"),
        (("run", "--workers", 20_000, script("")), 125, "nothing was started"),
        (
            ("run", script(""), "--workers", 20_000, "x"),
            125,
            f"; write:  python -m tfmagic run --workers 20000 {script('')} x\n",
        ),
    ):
        run = serve(*words)
        assert run.wait() == code, run.err
        assert said in run.err
        assert not list((run.folder / "state").glob("runs/*"))
