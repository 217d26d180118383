"""Functions and test classes that travel to tasks: under pytest, and in a script with TensorFlow's test main."""

import os
import subprocess
import sys
import threading
import unittest
from pathlib import Path

import pytest

import tfmagic
from tfmagic.errors import CaptureError

ROOT = Path(tfmagic.__file__).parents[1]


class MyError(Exception):
    pass


def raise_mine():
    raise MyError("mine")


@pytest.fixture(scope="module")
def cluster_of_module():
    with tfmagic.Cluster(workers=1) as started:
        yield started


def test_an_exception_class_of_a_test_module_is_the_same_class_when_it_comes_back(cluster_of_module):
    with pytest.raises(MyError, match="mine"):
        cluster_of_module.run(raise_mine)


def fail_by_name(a, b):
    assert a == b


def test_an_assert_that_fails_on_a_task_shows_its_values(cluster_of_module, tmp_path):
    with pytest.raises(AssertionError, match="assert 1 == 2"):
        cluster_of_module.run(fail_by_name, 1, 2)

    def nested():
        assert tmp_path == 3

    with pytest.raises(AssertionError, match=r"assert PosixPath\('.*'\) == 3"):
        cluster_of_module.run(nested)


@pytest.mark.parametrize("fixture", ["request", "monkeypatch", "tmp_path_factory", "cluster_of_module"])
def test_objects_of_the_test_run_are_refused_with_a_reason(cluster_of_module, request, fixture):
    value = request.getfixturevalue(fixture)
    with pytest.raises(CaptureError, match="belongs to the (test run|process that started it) and stays"):
        cluster_of_module.run(lambda: value)


class TestWithoutABase:
    def test_self_of_a_plain_class_travels(self, cluster_of_module):
        self.number = 3
        assert cluster_of_module.run(lambda: self.number)["worker-0"] == 3


class UnittestTest(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _take_fixtures(self, cluster_of_module, request, tmp_path):
        self.cluster, self.request, self.folder = cluster_of_module, request, tmp_path

    def setUp(self):
        self.lock, self.stuck = threading.Thread(), (i for i in "ab")
        self.number, self.itself, self.bound = 3, self, self.helper
        self.addCleanup(self.lock.is_alive)

    def helper(self):
        return self.number

    def test_self_takes_along_what_can_be_pickled(self):
        def look():
            with self.subTest("sub"):
                self.assertEqual(self.bound(), 3)
            self.addCleanup(print)
            return self.folder, self.itself is self, self.id().rpartition(".")[2]

        name = "test_self_takes_along_what_can_be_pickled"
        assert self.cluster.run(look)["worker-0"] == (self.folder, True, name)

    def test_self_as_an_argument_and_a_bound_method(self):
        assert self.cluster.run(self.helper)["worker-0"] == 3
        assert self.cluster.run(lambda test: test.number, self)["worker-0"] == 3

    def test_reading_an_attribute_that_did_not_travel_names_the_reason(self):
        for name, why in [
            ("stuck", "generator"),
            ("request", "belongs to the test run"),
            ("cluster", "cluster"),
        ]:
            with self.assertRaisesRegex(
                AttributeError, f"no attribute '{name}' on a task: it did not travel.*{why}"
            ):
                self.cluster.run(lambda name=name: getattr(self, name))
        with self.assertRaisesRegex(AttributeError, "'UnittestTest' object has no attribute 'never'$"):
            self.cluster.run(lambda: self.never)

    def test_a_failed_assertion_comes_back_as_one(self):
        with self.assertRaisesRegex(AssertionError, "3 != 4"):
            self.cluster.run(lambda: self.assertEqual(self.number, 4))

    def test_a_skip_on_a_task_is_a_skip_here(self):
        with self.assertRaises(unittest.SkipTest):
            self.cluster.run(lambda: self.skipTest("not today"))


SCRIPT = """
import threading

import tensorflow as tf
from absl.testing import parameterized

import tfmagic

LOCK = threading.Thread()


def scale(x):
    return 2 * x


class MyError(Exception):
    pass


class ScriptTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.factor = 3
        self.dataset = tf.data.Dataset.from_generator(range, tf.int64, args=(3,))

    def times(self, x):
        return self.factor * scale(x)

    @parameterized.parameters(1, 2)
    def test_closure(self, x):
        self.assertFalse(LOCK.is_alive())

        def fn():
            self.assertEqual(self.times(x), 6 * x)
            self.assertAllClose(self.evaluate(tf.ones(2)), [1.0, 1.0])
            with self.assertRaisesRegex(AttributeError, "did not travel"):
                self.dataset
            with self.assertRaises(MyError):
                raise MyError
            if x == 2:
                raise MyError("from a task")

        with tfmagic.Cluster(workers=2) as cluster:
            if x == 1:
                cluster.run(fn)
                return
            with self.assertRaisesRegex(MyError, "from a task"):
                cluster.run(fn)


if __name__ == "__main__":
    tf.test.main()
"""


@pytest.mark.soak  # under pytest: test_runner_install; as a script with `test_main`: test_multi_process_runner
def test_a_test_case_of_tensorflow_and_absl_runs_as_a_script(tmp_path):
    """`test_runner_install` runs it under pytest."""
    script = tmp_path / "script_test.py"
    script.write_text(SCRIPT)
    environ = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        [sys.executable, str(script)], env=environ, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0 and "OK" in done.stderr, done.stdout + done.stderr
