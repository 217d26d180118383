"""``each=True``: the body of a test runs on every task, in real pytest sessions of their own."""

import re
import sys

import pytest
from conftest import program

HANGS_S = 240
WORDS = ("-p", "no:cacheprovider", "-p", "tfmagic.pytest_plugin", "--strict-markers")

CONFTEST = """
import pytest


class Rate:
    def __init__(self, value):
        self.value = value


@pytest.fixture
def rate():
    return Rate(0.5)
"""

GOOD = """
import contextlib
import logging
import os
import threading
import unittest
import warnings

import pytest

import tfmagic

pytestmark = pytest.mark.tfcluster(workers=2, each=True, scope="module")
PYTEST = os.getpid()


@pytest.fixture
def pid_of_pytest():
    return os.getpid()


@pytest.fixture(autouse=True)
def set_by_a_fixture(monkeypatch):
    monkeypatch.setenv("SET_BY_A_FIXTURE", "yes")


def test_values_travel_and_tasks_meet(rate, pid_of_pytest, tmp_path):
    assert rate.value == 0.5 and os.getpid() != pid_of_pytest
    assert os.environ["SET_BY_A_FIXTURE"] == "yes"
    (tmp_path / tfmagic.current_task().name).touch()
    tfmagic.barrier()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["worker-0", "worker-1"]


@pytest.mark.parametrize("word", ["a", "b"])
@pytest.mark.parametrize("tfcluster", [1, {"workers": 1, "chief": True}], indirect=True, ids=["one", "two"])
def test_shapes(word, tmp_path):
    # PATH-0, PATH-1: pytest names the folder after the parameters
    (tmp_path.parent.parent / f"shape-{tfmagic.current_task().num_tasks}-{word}").touch()


@pytest.mark.parametrize(
    "context, value",
    [(pytest.raises(ZeroDivisionError), 0), (contextlib.nullcontext(), 2)],
)
def test_objects_of_pytest_as_parameters(context, value):
    with context:
        assert 1 / value == pytest.approx(1 / value)


class TestOfAClass:
    kept = []

    def setup_method(self):
        self.expected = PYTEST

    def test_with_self(self):
        assert self.expected != os.getpid() and self.kept == []


def test_fixtures_of_pytest_act_on_the_task(monkeypatch, caplog, capsys, recwarn):
    monkeypatch.setenv("SET_ON_TASK", "yes")
    monkeypatch.setattr(logging, "made_here", 1, raising=False)
    with caplog.at_level(logging.INFO, "mine"):
        logging.getLogger("mine").info("from %s", tfmagic.current_task().name)
    assert caplog.messages == [f"from {tfmagic.current_task().name}"]
    print("printed")
    with capsys.disabled():
        print("not captured")
    assert capsys.readouterr().out == "printed\\n"
    warnings.warn("recorded here", UserWarning)
    assert [str(warning.message) for warning in recwarn] == ["recorded here"]


def test_nothing_of_them_is_left_on_the_task():
    assert "SET_ON_TASK" not in os.environ and not hasattr(logging, "made_here")
    assert not [each for each in logging.getLogger().handlers if "pytest" in type(each).__module__]
    assert "pytest" not in type(__import__("sys").stdout).__module__


class OfMine(UserWarning):
    pass


def test_that_warns():
    warnings.warn("seen on all", OfMine)
    if tfmagic.current_task().index:
        warnings.warn("seen on one")


@pytest.mark.filterwarnings("ignore:not to be seen")
def test_filters_of_pytest_hold_there():
    warnings.warn("not to be seen")
    with pytest.warns(UserWarning, match="expected"):
        warnings.warn("expected")


def test_a_task_skips():
    if tfmagic.current_task().index:
        pytest.importorskip("no_such_module")
    tfmagic.barrier()


def test_a_task_expects_a_failure():
    if not tfmagic.current_task().index:
        pytest.xfail("not yet")


@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
def test_a_marked_failure():
    1 / tfmagic.current_task().index


class TestOfUnittest(unittest.TestCase):
    made = []

    @classmethod
    def setUpClass(cls):
        cls.made.append(os.getpid())

    def setUp(self):
        self.made.append(os.getpid())
        self.guard = threading.Lock()  # of each task

    def test_all_of_it_runs_on_the_tasks(self):
        self.assertEqual(self.made[-2:], [os.getpid()] * 2)
        self.assertEqual(tfmagic.current_task().type, "worker")
        self.assertFalse(self.guard.locked())

    def test_one_skips(self):
        if tfmagic.current_task().index:
            self.skipTest("not on this one")

    @unittest.expectedFailure
    def test_expected(self):
        self.fail("as expected")


@pytest.mark.tfcluster(workers=1, ps=1, chief=True, evaluator=True, each=True)
def test_every_task_is_one_of_them(tmp_path):
    (tmp_path / tfmagic.current_task().name).touch()
    tfmagic.barrier()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chief-0", "evaluator-0", "ps-0", "worker-0"]


@pytest.mark.tfcluster(workers=2)
def test_the_nearest_marker_has_no_each(tfcluster):
    assert os.getpid() == PYTEST and len(tfcluster.tasks) == 2
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """The folder and the lines of one session with all of these tests."""
    folder = tmp_path_factory.mktemp("each")
    for name, text in {"conftest": CONFTEST, "test_good": GOOD}.items():
        (folder / f"{name}.py").write_text(text)
    words = (*WORDS, "-v", "-rsx", "--tb=short", "--rootdir", folder, "--basetemp", folder / "temp", folder)
    with program(sys.executable, "-m", "pytest", *words, cwd=folder) as process:
        return folder, process.communicate(timeout=HANGS_S)[0]


def outcome(out, name):
    return re.search(rf"::{re.escape(name)} (\w+)", out)[1]


def test_bodies_run_on_every_task_with_their_arguments(session):
    folder, out = session
    assert re.search(r"\n=+ 15 passed, 2 skipped, 3 xfailed, 2 warnings in ", out), out[-3000:]
    shapes = {path.name for path in folder.rglob("shape-*")}
    assert shapes == {"shape-1-a", "shape-1-b", "shape-2-a", "shape-2-b"}
    assert "test_good.py::test_shapes[one-a] PASSED" in out


def test_test_cases_of_unittest_run_there_with_their_set_up(session):
    _, out = session
    assert outcome(out, "test_all_of_it_runs_on_the_tasks") == "PASSED"
    assert re.search(r"\nSKIPPED \[1\] test_good.py:\d+: not on this one \(on worker-1\)", out)
    assert re.search(r"::test_expected - .*unittest.expectedFailure \(on worker-0, worker-1\)", out)


def test_a_skip_or_xfail_names_its_task(session):
    _, out = session
    assert re.search(
        r"\nSKIPPED \[1\] test_good.py:\d+: could not import 'no_such_module'.*\(on worker-1\)", out
    )
    assert re.search(
        r"\nXFAIL test_good.py::test_a_task_expects_a_failure - (?:reason: )?not yet \(on worker-0\)", out
    )


def test_warnings_of_tasks_are_those_of_the_test(session):
    _, out = session
    summary = out.split(" warnings summary ")[1]
    assert re.search(r"test_good.py:\d+: OfMine: seen on all \(on worker-0, worker-1\)\n", summary)
    assert re.search(r"test_good.py:\d+: UserWarning: seen on one \(on worker-1\)\n", summary)
    assert (
        "recorded here" not in summary
        and "not to be seen" not in summary
        and "UserWarning: expected" not in summary
    )


def test_a_session_on_xdist_has_the_same_outcomes(pytester_of_each):
    result = pytester_of_each.runpytest_subprocess(
        *WORDS, "-n", "2", "-k", "travel or a_task_skips or warns", "-rs"
    )
    result.assert_outcomes(passed=2, skipped=1, warnings=2)
    result.stdout.fnmatch_lines(["*SKIPPED*no_such_module*(on worker-1)*"])


pytest_plugins = ["pytester"]


@pytest.fixture
def pytester_of_each(pytester):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_good=GOOD)
    return pytester
