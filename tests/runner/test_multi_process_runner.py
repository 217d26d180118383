"""The multi-process runner: TensorFlow's own tests (2.21) by their names, and the deliberate differences."""

import ctypes
import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

import pytest
from absl import logging
from absl.testing import parameterized
from conftest import alive, program, wait_until

import tfmagic
from tfmagic import multi_process_runner
from tfmagic.multi_process_runner import (
    MultiProcessPoolRunner,
    MultiProcessRunner,
    SubprocessTimeoutError,
    UnexpectedSubprocessExitError,
    create_cluster_spec,
    get_barrier,
    run,
)


@pytest.fixture(autouse=True)
def shut_down_pools():
    yield
    while pools:
        pools.pop().shutdown()
    _global_pool.shutdown()


pools = []


def new_pool(*args, **kwargs):
    """Return a pool that is shut down after the test."""
    pools.append(MultiProcessPoolRunner(*args, **kwargs))
    return pools[-1]


def task_type():
    return json.loads(os.environ["TF_CONFIG"])["task"]["type"]


def task_id():
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def fn_that_errors():
    raise ValueError("This is an error.")


def fn_that_does_nothing():
    pass


def fn_that_returns_pid():
    return os.getpid()


def hang():
    time.sleep(10000)


V = None


def fn_that_sets_global(value):
    global V
    old, V = V, value
    return old


class Gate:
    """A file that one process makes and others wait for."""

    def __init__(self, folder, name="gate"):
        self.path = Path(folder) / name

    def open(self):
        self.path.touch()

    def wait(self):
        wait_until(self.path.exists, 60)


# ---- TensorFlow's tests, by their names ----------------------------------------------------------


def test_multi_process_runner():
    result = run(task_type, create_cluster_spec(num_workers=2, num_ps=3, has_eval=True))
    assert result.return_value == ["worker", "worker", "ps", "ps", "ps", "evaluator"]


def test_multi_process_runner_error_propagates_from_subprocesses():
    runner = MultiProcessRunner(fn_that_errors, create_cluster_spec(num_workers=1, num_ps=1), max_run_time=60)
    runner.start()
    with pytest.raises(ValueError, match="This is an error."):
        runner.join()


def test_multi_process_runner_queue_emptied_between_runs():
    spec = create_cluster_spec(num_workers=2)
    assert run(lambda: "dummy_data", spec).return_value == ["dummy_data"] * 2
    again = run(fn_that_does_nothing, spec)
    assert again.return_value == [] and again.by_task == {"worker-0": None, "worker-1": None}


def test_multi_process_runner_args_passed_correctly():
    def fn(*args, **kwargs):
        return args, kwargs

    result = run(fn, create_cluster_spec(num_workers=1), args=("a", "b"), kwargs={"c_k": "c_v"})
    assert result.return_value == [(("a", "b"), {"c_k": "c_v"})]


def test_stdout_captured(capfd):
    def fn():
        print("This is something printed.", flush=True)
        return "This is returned data."

    result = run(fn, create_cluster_spec(num_workers=2), return_output=True)
    lines = [f"[worker-{i}]:    This is something printed.\n" for i in range(2)]
    assert sorted(result.stdout) == lines and result.return_value == ["This is returned data."] * 2
    assert sorted(capfd.readouterr().out.splitlines(keepends=True)) == lines


def test_termination(tmp_path):
    begun, over = Gate(tmp_path, "begun"), Gate(tmp_path, "over")

    def fn():
        print(f"index {task_id()} begins", flush=True)
        if task_id() == 0:
            begun.open()
        over.wait()
        print(f"index {task_id()} ends", flush=True)

    runner = MultiProcessRunner(fn, create_cluster_spec(num_workers=2), return_output=True)
    runner.start()
    begun.wait()
    runner.terminate("worker", 0)
    over.open()
    lines = runner.join().stdout
    assert sorted(lines) == [
        "[worker-0]:    index 0 begins\n",
        "[worker-1]:    index 1 begins\n",
        "[worker-1]:    index 1 ends\n",
    ]


def test_termination_and_start_single_process(tmp_path):
    begun, over = Gate(tmp_path, "begun"), Gate(tmp_path, "over")

    def fn():
        print("begins", flush=True)
        if task_id() == 0:
            begun.open()
        over.wait()
        print("ends", flush=True)

    runner = MultiProcessRunner(fn, create_cluster_spec(num_workers=2), return_output=True)
    runner.start()
    begun.wait()
    runner.terminate("worker", 0)
    assert runner.get_process_exit_code("worker", 0) == -signal.SIGKILL
    runner.start_single_process("worker", 0)
    over.open()
    lines = runner.join().stdout
    assert lines.count("[worker-0]:    begins\n") == 2 and lines.count("[worker-0]:    ends\n") == 1
    assert lines.count("[worker-1]:    begins\n") == 1 and lines.count("[worker-1]:    ends\n") == 1


def test_the_exit_code_is_known_when_terminate_returns(tmp_path):
    begun, over = Gate(tmp_path, "begun"), Gate(tmp_path, "over")

    def fn():
        begun.open()
        over.wait()

    runner = MultiProcessRunner(fn, create_cluster_spec(num_workers=1))
    runner.start()
    begun.wait()
    # between the new state and what is done about it; a thread that waits looks each 0.5 s
    runner._one_shot.cluster.supervisor.watch(lambda *decision: time.sleep(0.8))
    runner.terminate("worker", 0)
    assert runner.get_process_exit_code("worker", 0) == -signal.SIGKILL
    runner.join()


def test_streaming():
    def fn():
        for i in range(3):
            logging.info("(logging) %s-%d, i: %d", task_type(), task_id(), i)
            print(f"(print) {task_type()}-{task_id()}, i: {i}", flush=True)

    spec = create_cluster_spec(has_chief=True, num_workers=2, num_ps=2, has_eval=True)
    runner = MultiProcessRunner(fn, spec, return_output=True)
    runner._dependence_on_chief = False
    runner.start()
    runner.start_single_process("worker", 2)
    runner.start_single_process("ps", 2)
    lines = runner.join().stdout
    tasks = ["chief-0", "worker-0", "worker-1", "worker-2", "ps-0", "ps-1", "ps-2", "evaluator-0"]
    for task in tasks:
        own = [line.removeprefix(f"[{task}]:".ljust(15)) for line in lines if line.startswith(f"[{task}]:")]
        assert [line for line in own if line.startswith("(print)")] == [
            f"(print) {task}, i: {i}\n" for i in range(3)
        ]
        assert [line.partition("] ")[2] for line in own if "(logging)" in line] == [
            f"(logging) {task}, i: {i}\n" for i in range(3)
        ]
    assert not [line for line in lines if "-3" in line.partition("]")[0]]


def test_start_in_process_as(tmp_path):
    begun = Gate(tmp_path)
    pids = []

    def fn():
        pids.append(os.getpid())
        logging.info("%s-%d runs", task_type(), task_id())
        if task_type() == "chief":
            begun.wait()
        else:
            begun.open()

    runner = MultiProcessRunner(fn, create_cluster_spec(has_chief=True, num_workers=1), return_output=True)
    later = threading.Thread(target=lambda: (begun.wait(), runner.start_single_process("evaluator", 0)))
    later.start()
    runner.start_in_process_as(as_task_type="chief", as_task_id=0)
    later.join()
    lines = runner.join().stdout
    assert pids == [os.getpid()] and "TF_CONFIG" not in os.environ
    assert any("worker-0 runs" in line for line in lines)
    assert any("evaluator-0 runs" in line for line in lines)


def test_terminate_all_does_not_ignore_error():
    runner = MultiProcessRunner(fn_that_errors, create_cluster_spec(num_workers=2), return_output=True)
    runner.start()
    wait_until(lambda: not runner.process_exists("worker", 0) and not runner.process_exists("worker", 1), 60)
    runner.terminate_all()
    with pytest.raises(ValueError, match="This is an error."):
        runner.join()


def test_barrier():
    def fn():
        return get_barrier().parties, get_barrier().wait(), get_barrier().wait(timeout=60)

    result = run(fn, create_cluster_spec(has_chief=True, num_workers=1))
    parties, first, second = zip(*result.return_value, strict=True)
    assert set(parties) == {2} and set(first) == {0, 1} and set(second) == {0, 1}


def test_barrier_called_in_main_process():
    with pytest.raises(ValueError, match="in the main process"):
        get_barrier()


def test_stdout_available_when_timeout(tmp_path):
    begun = Gate(tmp_path)

    def fn():
        logging.info("something printed")
        begun.open()
        hang()

    runner = MultiProcessRunner(fn, create_cluster_spec(num_workers=1), return_output=True)
    runner.start()
    begun.wait()
    with pytest.raises(SubprocessTimeoutError, match=r"(?s)set to 1s.*It was: worker-0.*in hang") as caught:
        runner.join(timeout=1)
    runner.terminate_all()
    lines = caught.value.mpr_result.stdout
    assert any("something printed" in line for line in lines)
    assert any("in hang" in line for line in lines), "the stack where it was"


def test_seg_fault_raises_error():
    def fn():
        ctypes.string_at(0)

    with pytest.raises(UnexpectedSubprocessExitError, match="worker-0 exited with exit code -11") as caught:
        run(fn, create_cluster_spec(num_workers=1), return_output=True)
    assert any("Segmentation fault" in line for line in caught.value.mpr_result.stdout)


def test_seg_fault_in_chief_raises_error():
    def fn():
        if task_type() == "worker":
            hang()
        ctypes.string_at(0)

    with pytest.raises(UnexpectedSubprocessExitError, match="chief-0 exited with exit code -11") as caught:
        run(fn, create_cluster_spec(num_workers=1, has_chief=True), return_output=True)
    assert any("Segmentation fault" in line for line in caught.value.mpr_result.stdout)


def test_exit_code_is_reported_by_chief_subprocess():
    def fn():
        if task_type() == "worker":
            hang()
        sys.exit(20)

    runner = MultiProcessRunner(fn, create_cluster_spec(has_chief=True, num_workers=1))
    runner.start()
    with pytest.raises(UnexpectedSubprocessExitError, match="Subprocess chief-0 exited with exit code 20"):
        runner.join()
    assert runner.get_process_exit_code("chief", 0) == 20


def test_exit_code_is_reported_by_subprocess():
    runner = MultiProcessRunner(lambda: sys.exit(10), create_cluster_spec(num_workers=1))
    runner.start()
    with pytest.raises(UnexpectedSubprocessExitError, match="Subprocess worker-0 exited with exit code 10"):
        runner.join()


def test_auto_restart():
    def fn(counter):
        counter.value += 1
        if counter.value == 1:
            raise ValueError

    counter = multi_process_runner.manager().Value(int, 0)
    runner = MultiProcessRunner(fn, create_cluster_spec(num_workers=1), args=(counter,), auto_restart=True)
    runner.start()
    runner.join()
    assert counter.value == 2


def test_auto_restart_and_timeout():
    def fn():
        logging.info("Running")
        raise ValueError

    spec = create_cluster_spec(num_workers=1)
    runner = MultiProcessRunner(fn, spec, auto_restart=True, return_output=True)
    runner.start()
    with pytest.raises(ValueError) as caught:
        runner.join(timeout=5)
    assert sum("Running" in line for line in caught.value.mpr_result.stdout) > 1


def test_auto_restart_and_chief():
    def fn():
        if task_type() != "chief":
            raise ValueError

    spec = create_cluster_spec(has_chief=True, num_workers=1)
    runner = MultiProcessRunner(fn, spec, auto_restart=True)
    runner.start()
    with pytest.raises(ValueError):
        runner.join(timeout=60)


def test_auto_restart_failure_immediate_after_restart(tmp_path):
    over = Gate(tmp_path)
    runner = MultiProcessRunner(over.wait, create_cluster_spec(num_workers=2), auto_restart=True)
    runner.start()
    pid = runner.get_process_id("worker", 1)
    runner.terminate("worker", 1)
    wait_until(lambda: runner.get_process_id("worker", 1) not in (pid, None))
    runner.terminate("worker", 0)
    over.open()
    runner.join(timeout=60)


def test_auto_restart_terminate(tmp_path):
    begun = Gate(tmp_path)

    def fn(counter):
        counter.value += 1
        if counter.value == 1:
            begun.open()
            hang()

    counter = multi_process_runner.manager().Value(int, 0)
    runner = MultiProcessRunner(fn, create_cluster_spec(num_workers=1), args=(counter,), auto_restart=True)
    runner.start()
    begun.wait()
    runner.terminate("worker", 0)
    runner.join(timeout=60)
    assert counter.value == 2


def test_error_reporting_overrides_timeout_reporting():
    def fn():
        if task_id() == 1:
            hang()
        raise ValueError("Worker 0 errored")

    runner = MultiProcessRunner(fn, create_cluster_spec(num_workers=2))
    runner.start()
    with pytest.raises(ValueError, match="Worker 0 errored"):
        runner.join(timeout=20)


def test_process_exists():
    runner = MultiProcessRunner(hang, create_cluster_spec(num_workers=1))
    runner.start()
    assert runner.process_exists("worker", 0) and runner.get_process_exit_code("worker", 0) is None
    runner.terminate("worker", 0)
    assert not runner.process_exists("worker", 0)
    runner.join(timeout=20)


def test_timeout_none(tmp_path):
    over = Gate(tmp_path)

    def fn():
        over.wait()
        raise ValueError("Worker 0 errored")

    runner = MultiProcessRunner(fn, create_cluster_spec(num_workers=1))
    runner.start()
    over.open()
    with pytest.raises(ValueError, match="Worker 0 errored"):
        runner.join(timeout=None)


def test_same_process_across_runs():
    pool = new_pool(create_cluster_spec(num_workers=2))
    pids = pool.run(fn_that_returns_pid)
    assert len(set(pids)) == 2
    for _ in range(3):
        assert pool.run(fn_that_returns_pid) == pids


def test_exceptions_in_sub_process():
    pool = new_pool(create_cluster_spec(num_workers=2))
    pids = pool.run(fn_that_returns_pid)
    with pytest.raises(ValueError, match="This is an error."):
        pool.run(fn_that_errors)
    assert pool.run(fn_that_returns_pid) == pids


def test_tf_config():
    pool = new_pool(create_cluster_spec(has_chief=True, num_workers=2))
    assert pool.run(task_type) == ["chief", "worker", "worker"]


def test_initializer():
    spec = create_cluster_spec(num_workers=2)
    pool = new_pool(spec, initializer=lambda: fn_that_sets_global(1))
    assert pool.run(fn_that_sets_global, args=(2,)) == [1, 1]


_global_pool = MultiProcessPoolRunner({"worker": ["localhost:1", "localhost:2"]})  # nothing listens there


def test_global_pool():
    _global_pool.run(fn_that_does_nothing)


def test_nested_pool():
    """A process that runs a pool imports TensorFlow once more, so only one does."""

    def fn():
        return os.getpid(), *_global_pool.run(fn_that_returns_pid)

    (pids,) = MultiProcessPoolRunner(create_cluster_spec(num_workers=1)).run(fn)
    assert len({os.getpid(), *pids}) == 4


SCRIPT = """\
import os, sys, unittest
is_task = "tensorflow" in sys.modules
from tfmagic import multi_process_runner as mpr
mpr.install()
assert ("tensorflow" in sys.modules) is is_task
from tensorflow.python.distribute import combinations, multi_process_runner
from tensorflow.python.eager import context, test
assert multi_process_runner is combinations.multi_process_runner is mpr

{fake}

class CaseOfScript(test.TestCase):
    def test_not_share_gpu(self):
        spec = mpr.create_cluster_spec(has_chief=True, num_workers=1)
        runner = mpr.MultiProcessRunner(lambda: os.getenv("CUDA_VISIBLE_DEVICES"), spec, share_gpu=False)
        runner.start()
        self.assertEqual(runner.join().return_value, ["0,2", "1,3"])
        runner = mpr.MultiProcessRunner(lambda: os.getenv("CUDA_VISIBLE_DEVICES", "all"), spec)
        runner.start()
        self.assertEqual(runner.join().return_value, ["all", "all"])

    @unittest.expectedFailure
    def test_exception_in_main_process(self):
        mpr.MultiProcessPoolRunner(mpr.create_cluster_spec(num_workers=1)).run(os.getpid)
        raise ValueError("failure")

    def test_of_a_mode(self):
        def fn():
            self.assertEqual(1, 1)
            return context.executing_eagerly()

        spec = mpr.create_cluster_spec(num_workers=1)
        with context.graph_mode():
            self.assertEqual(mpr.run(fn, spec).return_value, [False])
        self.assertEqual(mpr.run(fn, spec).return_value, [True])

if __name__ == "__main__":
    mpr.test_main()
"""
FAKE = """\
def four_gpus(self, kind=None):  # stands for a machine that has them
    return ["gpu"] * 4 if kind == "GPU" else []
context.Context.list_physical_devices = four_gpus
"""


def test_not_share_gpu_a_script_with_a_test_main_and_an_install_that_imports_nothing(tmp_path):
    script = tmp_path / "case.py"
    script.write_text(SCRIPT.format(fake=FAKE))
    environ = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=250, env=environ)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Ran 4 tests" in done.stderr and "OK (skipped=1, expected failures=1)" in done.stderr


# ---- deliberate differences ----------------------------------------------------------------------


def test_the_names_and_parameters_are_those_of_tensorflow():
    """Read from its source: importing it would import TensorFlow into the process of all tests."""
    import ast
    import importlib.util

    spec = importlib.util.find_spec("tensorflow")
    source = Path(spec.submodule_search_locations[0], "python", "distribute", "multi_process_runner.py")
    theirs = ast.parse(source.read_text())
    classes = {node.name: node for node in theirs.body if isinstance(node, ast.ClassDef)}
    functions = [(multi_process_runner, node) for node in theirs.body if isinstance(node, ast.FunctionDef)]
    for name in ("MultiProcessRunner", "MultiProcessPoolRunner"):
        members = [node for node in classes[name].body if isinstance(node, ast.FunctionDef)]
        functions += [(getattr(multi_process_runner, name), node) for node in members]
    public = [(owner, f) for owner, f in functions if not f.name.startswith("_") or f.name == "__init__"]
    assert len(public) >= 19
    for owner, function in public:
        ours = dict(inspect.signature(getattr(owner, function.name)).parameters)
        more = ours.pop("wait_for_peers", None)  # the last one
        assert (more is not None) == (function.name == "__init__" and owner is MultiProcessRunner)
        expected = [argument.arg for argument in function.args.args]
        assert list(ours) == expected, function.name
        defaults = [ast.unparse(default) for default in function.args.defaults]
        found = [repr(p.default) for p in ours.values() if p.default is not p.empty]
        assert found == [d.replace("_DEFAULT_TIMEOUT_SEC", "200") for d in defaults], function.name
    for name in ("SubprocessTimeoutError", "UnexpectedSubprocessExitError", "NotInitializedError"):
        assert issubclass(getattr(multi_process_runner, name), RuntimeError)


def test_a_signal_death_is_an_error_and_says_which_one():
    def fn():
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL if task_id() else 0)

    with pytest.raises(UnexpectedSubprocessExitError, match="worker-1 exited with exit code -9") as caught:
        run(fn, create_cluster_spec(num_workers=2))
    assert "last words" in str(caught.value) and "SIGKILL" in str(caught.value)
    assert caught.value.mpr_result.by_task == {"worker-0": None}


def test_an_error_is_raised_at_once_although_peers_hang(tmp_path):
    failed = tmp_path / "failed"

    def fn():
        if task_id() == 0:
            failed.write_text(str(time.time()))
            raise ValueError("Worker 0 errored")
        hang()

    runner = MultiProcessRunner(fn, create_cluster_spec(num_workers=3))
    runner.start()
    pids = [runner.get_process_id("worker", i) for i in range(3)]
    with pytest.raises(ValueError, match="Worker 0 errored") as caught:
        runner.join(timeout=200)
    assert time.time() - float(failed.read_text()) < 20  # about 1.1 s; its own time limit is far off
    assert any("raised on worker-0" in note for note in caught.value.__notes__)
    assert not alive(pids)


def test_a_chief_that_is_done_ends_the_others():
    def fn():
        if task_type() != "chief":
            hang()
        return "done"

    result = run(fn, create_cluster_spec(has_chief=True, num_workers=2))
    assert result.by_task == {"chief-0": "done"}


def test_max_run_time_ends_everything_without_an_alarm_signal():
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    runner = MultiProcessRunner(hang, create_cluster_spec(num_workers=2), max_run_time=0.5)
    runner.start()
    assert signal.getsignal(signal.SIGALRM) is handler  # of pytest's own time limit, if it is set
    left = signal.getitimer(signal.ITIMER_REAL)[0]
    assert left == timer[0] == 0 or left > 10
    result = runner.join(timeout=100)
    assert result.return_value == [] and result.by_task == {}


def test_the_root_cause_is_raised_and_the_others_are_notes():
    def fn():
        if task_id() == 1:
            raise KeyError("the cause")
        get_barrier().wait()

    with pytest.raises(KeyError, match="the cause") as caught:
        run(fn, create_cluster_spec(num_workers=3))
    notes = "; ".join(caught.value.__notes__)
    assert "raised on worker-1" in notes and "also on worker-0" in notes and "BrokenBarrierError" in notes


def test_a_restarted_task_comes_to_the_barrier_of_the_others(tmp_path):
    def fn():
        if task_id() == 1 and not (tmp_path / "was here").exists():
            (tmp_path / "was here").touch()
            os._exit(3)
        return get_barrier().wait()

    runner = MultiProcessRunner(fn, create_cluster_spec(num_workers=2), auto_restart=True)
    runner.start()
    assert sorted(runner.join(timeout=60).return_value) == [0, 1]


def test_the_task_in_this_process_meets_the_others():
    met = []

    def fn():
        place = get_barrier().wait(60)
        met.append(tfmagic.current_task().name)
        return place

    runner = MultiProcessRunner(fn, create_cluster_spec(has_chief=True, num_workers=1))
    runner.start_in_process_as("chief", 0)
    assert len(runner.join(timeout=60).return_value) == 1 and met == ["chief-0"]
    with pytest.raises(ValueError):
        get_barrier()


def test_a_single_process_may_have_its_own_function_and_cluster_spec():
    spec = create_cluster_spec(num_workers=1)
    runner = MultiProcessRunner(hang, spec, rpc_layer="grpc", grpc_fail_fast=True)

    def fn(factor, *, more):
        return json.loads(os.environ["TF_CONFIG"]), os.environ["GRPC_FAIL_FAST"], factor + more

    other = {"worker": ["localhost:1", "localhost:2"]}
    runner.start_single_process("worker", 1, cluster_spec=other, fn=fn, args=(1,), kwargs={"more": 2})
    config, fail_fast, total = runner.join(timeout=60).by_task["worker-1"]
    assert config == {"cluster": other, "task": {"type": "worker", "index": 1}, "rpc_layer": "grpc"}
    assert (fail_fast, total) == ("True", 3)


def test_misuse_is_an_error():
    spec = create_cluster_spec(num_workers=1)
    with pytest.raises(ValueError, match="at most one chief.*has 2 chiefs"):
        MultiProcessRunner(hang, {"chief": ["a:1", "b:1"]})
    with pytest.raises(ValueError, match="not a callable"):
        MultiProcessRunner("hang", spec)
    with pytest.raises(ValueError, match="names no task"):
        MultiProcessRunner(hang, {"worker": []})
    runner = MultiProcessRunner(fn_that_does_nothing, spec)
    with pytest.raises(ValueError, match="call start"):
        runner.join()
    with pytest.raises(KeyError):
        runner.process_exists("worker", 0)
    assert runner.get_process_id("worker", 0) is None
    runner.start()
    with pytest.raises(ValueError, match="already started"):
        runner.start()
    with pytest.raises(ValueError, match="worker-7 does not exist"):
        runner.terminate("worker", 7)
    with pytest.raises(ValueError, match="must be an integer"):
        runner.join(timeout=1.5)
    runner.join()
    with pytest.raises(ValueError, match="joined twice"):
        runner.join()
    with pytest.raises(ValueError, match="cannot start new processes"):
        runner.start_single_process("worker", 0)


def test_an_error_names_an_argument_or_result_that_cannot_travel():
    with pytest.raises(tfmagic.CaptureError, match="cannot travel"):
        run(print, create_cluster_spec(), args=((i for i in "ab"),))
    with pytest.raises(tfmagic.CaptureError, match="what worker-0 returned cannot travel: generator"):
        run(lambda: (i for i in "ab"), create_cluster_spec())


def test_a_call_that_cannot_travel_leaves_the_others_alone(tmp_path):
    over = Gate(tmp_path)
    runner = MultiProcessRunner(over.wait, create_cluster_spec(num_workers=1))
    runner.start()
    with pytest.raises(tfmagic.CaptureError, match="cannot travel"):
        runner.start_single_process("worker", 1, fn=print, args=((i for i in "ab"),))
    assert runner.process_exists("worker", 0)
    over.open()
    assert runner.join().by_task == {"worker-0": None}


def test_single_processes_that_two_threads_start_are_one_run():
    runner = MultiProcessRunner(task_id, create_cluster_spec(num_workers=2))
    meet = threading.Barrier(2)

    def start(index):
        meet.wait(20)
        runner.start_single_process("worker", index)

    threads = [threading.Thread(target=start, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runner.join().return_value == [0, 1]


def test_terminate_all_ends_what_waits_to_be_started_again(tmp_path):
    runner = MultiProcessRunner(fn_that_errors, create_cluster_spec(num_workers=1), auto_restart=True)
    runner.start()
    pid = runner.get_process_id("worker", 0)
    wait_until(lambda: runner.get_process_id("worker", 0) not in (pid, None), 60)
    runner.terminate_all()
    with pytest.raises(ValueError, match="This is an error."):
        runner.join(timeout=None)


def test_the_time_limit_of_cells_does_not_apply_to_processes(monkeypatch, tmp_path):
    config = tfmagic.TFCluster.instance()
    monkeypatch.setattr(config, "timeout_s", 0.2)
    over = Gate(tmp_path)
    runner = MultiProcessRunner(over.wait, create_cluster_spec(num_workers=1))
    runner.start()
    with pytest.raises(SubprocessTimeoutError):
        runner.join(timeout=2)


def test_a_crash_of_the_supervisor_is_raised():
    runner = MultiProcessRunner(hang, create_cluster_spec(num_workers=1))
    runner.start()

    def fail(timeout_s):
        raise OSError("no space")

    runner._one_shot.cluster.supervisor.backend.wait = fail
    runner._one_shot.signal(tuple(runner._one_shot.known), signal.SIGKILL)
    with pytest.raises(OSError, match="no space"):
        runner.join(timeout=60)


def test_a_thread_that_outlives_its_function_still_meets_the_others():
    def fn():
        def meet():
            time.sleep(0.3)
            print(get_barrier().wait(30), flush=True)

        threading.Thread(target=meet).start()

    result = run(fn, create_cluster_spec(num_workers=2), return_output=True)
    assert sorted(line[15:] for line in result.stdout) == ["0\n", "1\n"]


def test_errors_and_results_can_be_pickled():
    result = multi_process_runner.MultiProcessRunnerResult([1], ["x\n"], {"worker-0": 1, "worker-1": None})
    assert pickle.loads(pickle.dumps(result)).by_task == result.by_task
    value, lines = result
    assert (value, lines) == ([1], ["x\n"]) == (result.return_value, result.stdout)
    error = pickle.loads(pickle.dumps(SubprocessTimeoutError("late", result)))
    assert str(error) == "late" and error.mpr_result.by_task == result.by_task


def test_a_million_lines_arrive_and_none_is_lost():
    def fn():
        for i in range(100_000):
            print(i)
        print("unfinished", end="")

    result = run(fn, create_cluster_spec(num_workers=2), return_output=True)
    expected = [*map(str, range(100_000)), "unfinished"]
    for task in ("worker-0", "worker-1"):
        own = [line[15:-1] for line in result.stdout if line.startswith(f"[{task}]")]
        assert own == expected


def test_threads_and_exit_handlers_of_a_process_are_waited_for(tmp_path):
    def fn():
        import atexit

        atexit.register((tmp_path / "at exit").touch)
        threading.Timer(0.2, (tmp_path / "thread").touch).start()

    run(fn, create_cluster_spec(num_workers=1))
    assert (tmp_path / "at exit").exists() and (tmp_path / "thread").exists()


def test_a_pool_raises_a_death_and_then_starts_a_new_process():
    pool = new_pool(create_cluster_spec(num_workers=2), initializer=lambda: fn_that_sets_global(5))
    pids = pool.run(fn_that_returns_pid)

    def die():
        if task_id() == 1:
            os._exit(4)

    with pytest.raises(UnexpectedSubprocessExitError, match="worker-1 exited with exit code 4") as caught:
        pool.run(die)
    assert str(caught.value).endswith("The next call starts a new process.")
    assert "revive" not in str(caught.value)  # a pool has no such method
    first, second = pool.run(fn_that_returns_pid)
    assert first == pids[0] and second != pids[1]
    assert pool.run(fn_that_sets_global, args=(5,)) == [5, 5]


def test_a_pool_raises_a_failure_although_a_peer_hangs():
    pool = new_pool(create_cluster_spec(num_workers=2))

    def fn():
        if task_id() == 0:
            raise ValueError("Worker 0 errored")
        hang()

    with pytest.raises(ValueError, match="Worker 0 errored"):
        pool.run(fn)
    assert pool.run(lambda timeout, on: [timeout, on], kwargs={"timeout": 1, "on": 2}) == [[1, 2]] * 2


def test_a_pool_sets_up_a_process_that_had_to_be_killed():
    spec = create_cluster_spec(num_workers=2)
    pool = new_pool(spec, initializer=lambda: fn_that_sets_global(5))

    def fn():
        if task_id() == 1:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            ctypes.CDLL(None).sleep(1000)
        raise ValueError("Worker 0 errored")

    with pytest.raises(ValueError, match="Worker 0 errored"):
        pool.run(fn)
    assert pool.run(fn_that_sets_global, args=(5,)) == [5, 5]


def test_a_pool_streams_has_barriers_and_keeps_state(capfd):
    pool = new_pool(create_cluster_spec(num_workers=2))

    def fn():
        print("a line")
        return get_barrier().wait(60)

    assert sorted(pool.run(fn)) == [0, 1]
    assert sorted(capfd.readouterr().out.splitlines()) == ["[worker-0]:    a line", "[worker-1]:    a line"]
    assert pool.run(fn_that_sets_global, args=(1,)) == [] and pool.run(fn_that_sets_global, args=(2,)) == [
        1,
        1,
    ]


class TestOfAClass(parameterized.TestCase, unittest.TestCase):
    """Functions that close over the test, as TensorFlow's tests have them."""

    def _index(self):
        return task_id()

    @parameterized.parameters(1, 2)
    def test_a_closure_over_the_test(self, workers):
        self.handle = open(os.devnull)  # noqa: SIM115  # cannot travel
        self.addCleanup(self.handle.close)

        def fn():
            self.assertLess(self._index(), workers)
            return self._index()

        result = run(fn, create_cluster_spec(num_workers=workers))
        self.assertEqual(result.return_value, list(range(workers)))

    def test_an_assertion_that_fails_in_a_process(self):
        def fn():
            self.assertEqual(self._index(), 7)

        with self.assertRaisesRegex(AssertionError, "0 != 7"):
            run(fn, create_cluster_spec(num_workers=1))


AT_EXIT = """\
import os, sys, threading, time
from tfmagic import multi_process_runner as mpr

def fn(gate):
    while not os.path.exists(gate):
        time.sleep(0.01)
    open(gate + ".seen", "w").close()

def frames(of):
    frame = sys._current_frames()[of]
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back

def report(waiting, runner):
    while mpr.MultiProcessRunner.join.__code__ not in frames(waiting):
        time.sleep(0.005)
    print(runner.get_process_id("worker", 0), flush=True)

def join_until_ctrl_c():
    runner = mpr.MultiProcessRunner(lambda: time.sleep(1000), mpr.create_cluster_spec())
    runner.start()
    threading.Thread(target=report, args=[threading.get_ident(), runner]).start()
    try:
        runner.join()
    except KeyboardInterrupt:
        print("interrupted", runner.process_exists("worker", 0), flush=True)

if "join" in sys.argv:
    join_until_ctrl_c()
for gate in ("daemon", "other"):
    path = os.path.join(sys.argv[1], gate)
    runner = mpr.MultiProcessRunner(fn, mpr.create_cluster_spec(), args=(path,), daemon=gate == "daemon")
    runner.start()
    print(runner.get_process_id("worker", 0), flush=True)
"""


def test_ctrl_c_ends_a_join_and_the_end_of_a_script_ends_daemons_and_waits_for_others(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(AT_EXIT)
    with program(sys.executable, script, tmp_path, "join", stderr=subprocess.PIPE) as process:
        joined = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted False\n"
        wait_until(lambda: not alive([joined]))
        pids = [int(process.stdout.readline()) for _ in range(2)]
        assert "waiting for worker-0 to end" in process.stderr.readline()
        (tmp_path / "other").touch()
        assert process.wait(60) == 0
    assert (tmp_path / "other.seen").exists()
    wait_until(lambda: not alive(pids))


@pytest.mark.soak  # what ends the processes then is the launcher: test_cleanup
def test_a_killed_script_leaves_no_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(AT_EXIT)
    with program(sys.executable, script, tmp_path) as process:
        pids = [int(process.stdout.readline()) for _ in range(2)]
        process.kill()
    wait_until(lambda: not alive(pids))


def test_a_manager_is_shared_and_started_once():
    first = multi_process_runner.manager()
    assert multi_process_runner.manager() is first
    queue, event = first.Queue(), first.Event()

    def fn(queue, event):
        queue.put(task_id())
        event.set()

    run(fn, create_cluster_spec(num_workers=2), args=(queue, event))
    assert {queue.get(timeout=5), queue.get(timeout=5)} == {0, 1} and event.is_set()


def test_test_main_does_nothing_where_there_is_nothing_to_test():
    multi_process_runner.test_main()
    assert multi_process_runner.is_oss() is False


def test_in_a_notebook(kernel):
    kernel.run("""if True:
        from tfmagic import multi_process_runner as mpr
        base = 40
        def fn(more):
            print("from the notebook")
            return base + more
    """)
    output = kernel.text("print(mpr.run(fn, mpr.create_cluster_spec(num_workers=2), args=(2,)).return_value)")
    lines = output.splitlines()
    assert lines[-1] == "[42, 42]"
    assert sorted(lines[:-1]) == [f"[worker-{i}]:    from the notebook" for i in range(2)]
    assert not [content for kind, content in kernel.run("mpr.test_main()") if kind == "error"]


FLAGS_SCRIPT = """\
from absl import app, flags
from tfmagic import multi_process_runner as mpr

flags.DEFINE_integer("size", 3, "")
flags.DEFINE_list("names", "a,b", "")
FLAGS = flags.FLAGS

def fn():
    return FLAGS.size, FLAGS.names, flags.FLAGS.size

def wait(began, never):
    began.set()
    never.wait()

def main(argv):
    print(mpr.run(fn, mpr.create_cluster_spec(num_workers=1)).return_value, argv[1:])
    began, never = mpr.manager().Event(), mpr.manager().Event()
    runner = mpr.MultiProcessRunner(wait, mpr.create_cluster_spec(num_workers=2), args=(began, never))
    runner.start()
    began.wait()
    print("the end", flush=True)

if __name__ == "__main__":
    app.run(main)
"""


def test_flags_of_a_script_travel_and_its_end_ends_what_waits_for_an_event(tmp_path):
    """TensorFlow's own tests leave a cluster of servers behind."""
    script = tmp_path / "script.py"
    script.write_text(FLAGS_SCRIPT)
    done = subprocess.run(
        [sys.executable, script, "--size", "7", "x"], capture_output=True, text=True, timeout=100
    )
    first, rest = done.stdout.split("\n", 1)
    assert first == "[(7, ['a', 'b'], 7)] ['x']", done.stderr[-2000:]
    assert done.returncode == 0 and rest.startswith("the end\n")
