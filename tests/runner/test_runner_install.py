"""`install`: TensorFlow's own helpers, test classes and test scripts use this runner.

That it imports nothing is checked by the script of `test_multi_process_runner`.
"""

import json
import os
import subprocess
import sys
import textwrap
import threading

import pytest
from conftest import wait_until
from test_testcases import ROOT
from test_testcases import SCRIPT as TEST_CASES

from tfmagic.multi_process_runner import (
    MultiProcessRunner,
    UnexpectedSubprocessExitError,
    create_cluster_spec,
    run,
)


def python(script, *arguments, cwd=None):
    done = subprocess.run(
        [sys.executable, *arguments, script], capture_output=True, text=True, timeout=280, cwd=cwd
    )
    return done.returncode, done.stdout, done.stderr


# a test class that a decorator has made, whose instances have a reducer of their own; a pool of TensorFlow's
# that runs tests by their names; a patch at the top of the file
TENSORFLOW_TEST = """\
import os
{head}
import dill
from absl.testing import parameterized
from tensorflow.python.distribute import combinations, multi_process_runner, multi_worker_test_base
from tensorflow.python.eager import test

PATCHED = ["at the top"]

def fn_of_the_script():
    return PATCHED

class OwnError(Exception):
    pass

class Point:
    def __init__(self, x):
        self.x = x

@combinations.generate(combinations.combine(required_gpus=0))
class MadeTest(test.TestCase, parameterized.TestCase):
    def helper(self):
        return os.getpid()

    def test_closes_over_a_made_class(self):
        def fn():
            return self.helper(), fn_of_the_script()

        spec = multi_worker_test_base.create_cluster_spec(num_workers=2)
        found = multi_process_runner.run(fn, spec).return_value
        self.assertLen({{os.getpid(), *(pid for pid, _ in found)}}, 3)
        self.assertEqual([more for _, more in found], [["at the top"]] * 2)

    def test_classes_of_the_script_come_back_as_themselves(self):
        def fail(point):
            assert type(point) is Point
            raise OwnError(point.x)

        spec = multi_worker_test_base.create_cluster_spec(num_workers=1)
        with self.assertRaisesRegex(OwnError, "7"):
            multi_process_runner.run(fail, spec, args=(Point(7),))
        (point,) = multi_process_runner.run(lambda: Point(8), spec).return_value
        self.assertIs(type(point), Point)
        self.assertEqual(point.x, 8)

@dill.register(MadeTest)
def _save(pickler, obj):
    def reconstruct(*args, **kwargs):
        return MadeTest()
    return pickler.save_reduce(reconstruct, (), obj=obj)

class ClusterTest(test.TestCase, parameterized.TestCase):
    def test_a_server_is_killed_and_started(self):
        cluster = multi_worker_test_base.create_multi_process_cluster(num_workers=2, num_ps=0)
        processes = cluster._mpr._processes
        self.assertEqual(sorted(processes), [("worker", 0), ("worker", 1)])
        old = processes["worker", 1].pid
        self.assertIsNone(processes["worker", 1].exitcode)
        cluster.kill_task("worker", 1)
        self.assertEqual(processes["worker", 1].exitcode, 0)
        self.assertTrue(processes["worker", 0].is_alive())
        cluster.start_task("worker", 1)
        self.assertNotIn(cluster._mpr._processes["worker", 1].pid, (old, None))
        self.assertTrue(type(cluster._mpr).__module__.startswith("tfmagic."))
        cluster.stop()

    @combinations.generate(combinations.combine(num_workers=2))
    def test_runs_on_each_worker(self):
        multi_process_runner.get_barrier().wait(60)
        self.assertFalse(combinations.in_main_process())

if __name__ == "__main__":
    multi_process_runner.test_main()
"""
INSTALL = "from tfmagic import multi_process_runner as ours; ours.install(); ours.install()"


@pytest.mark.soak  # the same file under pytest is a test of its own
def test_a_test_file_of_tensorflow_as_a_script(tmp_path):
    script = tmp_path / "made_test.py"
    script.write_text(TENSORFLOW_TEST.format(head=INSTALL))
    code, _, output = python(script)
    assert code == 0 and "Ran 6 tests" in output, output[-4000:]


LATE = f"""\
import tensorflow as tf
from tensorflow.python.distribute import combinations, multi_process_runner
from tensorflow.python.distribute.multi_process_runner import MultiProcessRunner
api = tf.__internal__.distribute.multi_process_runner
assert api.run is multi_process_runner.run and MultiProcessRunner.__module__.startswith("tensorflow.")
{INSTALL}
assert multi_process_runner is combinations.multi_process_runner is ours
assert MultiProcessRunner is ours.MultiProcessRunner and api.run is ours.run
assert tf.__internal__.distribute.multi_process_runner.get_barrier is ours.get_barrier
from tensorflow.python.distribute import multi_process_runner as again
assert again is ours
"""


def test_test_files_under_pytest_where_ours_is_installed_after_the_import_of_tensorflow(tmp_path):
    """`test_testcases` runs the second file as a script."""
    (tmp_path / "conftest.py").write_text(LATE)
    (tmp_path / "test_made.py").write_text(TENSORFLOW_TEST.format(head=""))
    (tmp_path / "script_test.py").write_text(TEST_CASES)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "test_made.py",
        "script_test.py",
    ]  # absl knows no options of pytest
    options = "-p no:cacheprovider --import-mode=importlib"
    environ = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}",
        "PYTEST_ADDOPTS": options,
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path, env=environ)
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout[-4000:]


def test_the_error_of_a_test_script_without_a_main_guard_names_the_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""\
        import unittest
        from tfmagic import multi_process_runner as mpr
        class Case(unittest.TestCase):
            pass
        mpr.run(print, mpr.create_cluster_spec())
    """)
    )
    code, _, output = python(script)
    assert code == 1 and 'Put what starts them under  if __name__ == "__main__":' in output.replace(
        "put", "Put"
    ), output[-3000:]


class PeerLost(RuntimeError):
    pass


def lose_a_peer(wait_for_peers, folder):
    """Run a task that dies and one that raises because of it, after the death was seen."""
    gate = folder / "seen"

    def fn():
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            os._exit(3)
        wait_until(gate.exists, 60)
        raise PeerLost("Socket closed")

    runner = MultiProcessRunner(fn, create_cluster_spec(num_workers=2), wait_for_peers=wait_for_peers)
    runner.start()

    def open_gate():
        process = runner._processes["worker", 1]
        process.join(60)
        assert process.exitcode == 3
        gate.touch()

    later = threading.Thread(target=open_gate)
    later.start()
    try:
        runner.join(timeout=60)
    finally:
        later.join(60)


def test_an_exception_of_a_peer_comes_before_the_exit_code_where_asked_for(tmp_path):
    with pytest.raises(PeerLost) as caught:
        lose_a_peer(True, tmp_path)
    assert "also on worker-1: exited with code 3" in "; ".join(caught.value.__notes__)
    assert set(caught.value.failures) == {"worker-0", "worker-1"}


def test_the_death_is_the_cause_by_default(tmp_path):
    with pytest.raises(UnexpectedSubprocessExitError, match="worker-1 exited with exit code 3"):
        lose_a_peer(None, tmp_path)


def test_a_process_can_be_joined_signalled_and_asked():
    runner = MultiProcessRunner(lambda: threading.Event().wait(), create_cluster_spec(num_workers=2))
    assert runner._processes == {}
    runner.start()
    first, second = runner._processes["worker", 0], runner._processes["worker", 1]
    assert first.pid == runner.get_process_id("worker", 0) != second.pid
    first.join(timeout=0.01)
    assert first.is_alive() and first.exitcode is None and first.name == "worker-0"
    first.kill()
    first.join(60)
    assert (first.exitcode, first.is_alive(), second.is_alive()) == (-9, False, True)
    second.terminate()
    second.join()
    assert second.exitcode == -15
    runner.join(timeout=60)


def test_a_line_of_five_megabytes_arrives_whole(capfd):
    def fn():
        print("a" * 5_000_000)
        print("after")

    result = run(fn, create_cluster_spec(num_workers=1), return_output=True)
    assert [len(line) for line in result.stdout] == [15 + 5_000_000 + 1, 15 + 6]
    assert set(result.stdout[0][15:-1]) == {"a"}
    shown = capfd.readouterr().out
    assert len(shown) == sum(map(len, result.stdout)) and shown.endswith("a\n" + result.stdout[1])
