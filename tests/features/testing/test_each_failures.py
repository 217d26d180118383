"""How a test ends that fails, or cannot run, with ``each=True``: in a real pytest session of its own."""

import re
import sys

import pytest
from conftest import program
from test_each_task import CONFTEST as RATE
from test_each_task import HANGS_S, WORDS

CONFTEST = f"""{RATE}
import threading


@pytest.fixture
def guard():
    return threading.Lock()
"""

BAD = """
import os
import pathlib
import time
import unittest
import warnings

import pytest
from hypothesis import given, strategies

import tfmagic

pytestmark = pytest.mark.tfcluster(workers=2, each=True)
index = tfmagic.current_task().index if "TF_CONFIG" in os.environ else None
BEGAN = pathlib.Path(__file__).parent / "began"
if os.environ.get("NEVER") and index == 1:  # this task never imports this module
    while True:
        time.sleep(0.1)


def test_values_of_an_assert(rate):
    print("line of", tfmagic.current_task().name)
    assert rate.value + tfmagic.current_task().index == 0.5


def test_a_comparison():
    index = tfmagic.current_task().index
    assert {"loss": 1, "step": index} == {"loss": 1, "step": 0}


def test_all_fail_alike():
    raise ValueError("alike")


def test_a_failure_counts_more_than_a_skip():
    if tfmagic.current_task().index:
        pytest.skip("no reason")
    raise KeyError("a failure")


def test_death():
    if tfmagic.current_task().index:
        os._exit(3)
    tfmagic.barrier()


@pytest.mark.tfcluster(workers=2, each=True, env={"NEVER": "1"}, timeout_s=2)
def test_no_task_begins_before_all_are_ready():
    BEGAN.touch()


@pytest.mark.filterwarnings("error")
def test_a_warning_is_an_error():
    warnings.warn("as an error")


def test_guard(guard):
    pass


class TestSelf:
    def setup_method(self):
        self.stream = open(os.devnull)

    def teardown_method(self):
        self.stream.close()

    def test_stream(self):
        pass


def test_request(request):
    pass


def test_capfd(capfd):
    pass


def test_cluster(tfcluster):
    pass


async def test_async():
    pass


class OfUnittest(unittest.TestCase):
    def setup_method(self, method):
        pass

    def test_with_set_up_of_pytest(self):
        pass


class Failing(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(tfmagic.current_task().index, 0)

    @unittest.expectedFailure
    def test_unexpected(self):
        pass


@given(strategies.integers())
def test_given(n):
    pass


@pytest.mark.tfcluster(each=2)
def test_each_2():
    pass


def test_that_returns():
    return 5
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """The folder and the lines of one session with all of these tests."""
    folder = tmp_path_factory.mktemp("each")
    for name, text in {"conftest": CONFTEST, "test_bad": BAD}.items():
        (folder / f"{name}.py").write_text(text)
    words = (*WORDS, "--tb=short", "--rootdir", folder, folder)
    with program(sys.executable, "-m", "pytest", *words, cwd=folder) as process:
        return folder, process.communicate(timeout=HANGS_S)[0]


def section(out, name):
    """Return the report of one failure."""
    return re.split(rf"\n_+ (?:ERROR at setup of )?{re.escape(name)} _+\n", out)[1].split("\n____")[0]


def test_the_failure_is_that_of_the_task_with_the_values(session):
    _, out = session
    failed = section(out, "test_values_of_an_assert")
    assert re.search(r"test_bad.py:\d+: in test_values_of_an_assert\n +assert rate.value", failed)
    assert re.search(r"E +AssertionError: assert \(0.5 \+ 1\) == 0.5", failed)
    assert re.search(r"E +raised on worker-1 \(pid", failed)
    assert re.search(r"- Failure on worker-1 -+\n\(the same as above\)\n", failed)
    assert "Failure on worker-0" not in failed and "tfmagic/" not in failed
    assert re.search(r"- Captured output of worker-0 -+\nline of worker-0\n", failed)


def test_a_comparison_says_what_differs(session):
    _, out = session
    lines = [line.removeprefix("E").strip() for line in section(out, "test_a_comparison").splitlines()]
    start = lines.index("Differing items:")
    assert lines[start + 1] == "{'step': 1} != {'step': 0}" and "Common items:" not in lines
    assert "Omitting 1 identical items, use -vv to show" in lines


def test_each_failing_task_has_a_section(session):
    _, out = session
    alike = section(out, "test_all_fail_alike")
    same = re.findall(r"- Failure on (worker-\d) -+\n\(the same as above\)", alike)
    assert sorted(same) == ["worker-0", "worker-1"]
    both = section(out, "test_a_failure_counts_more_than_a_skip")
    assert "E   KeyError: 'a failure'" in both and "During handling" not in both
    assert re.search(r"- Failure on worker-1 -+\nTraceback (?:.*\n)+?.*Skipped: no reason", both)


def test_a_death_is_shown_at_the_test(session):
    _, out = session
    died = section(out, "test_death")
    assert re.search(r"test_bad.py:\d+: in test_death\n", died) and "entries are hidden" not in died
    assert "TaskDied: worker-1 exited with code 3." in died
    assert re.search(
        r"- Failure on worker-0 -+\nTraceback(?:.*\n)+?.*BrokenBarrierError: .*worker-1 died", died
    )


def test_no_task_begins_before_all_are_ready(session):
    folder, out = session
    late = section(out, "test_no_task_begins_before_all_are_ready")
    assert "TaskTimeoutError: the call was not done within 2 s" in late
    assert "Before that, worker-0 waits at the start of test_no_task_begins_before_all_are_ready" in late
    assert not (folder / "began").exists()


@pytest.mark.parametrize(
    "name, problem",
    [
        (
            "test_guard",
            r"guard \(lock\) cannot travel to the tasks: a lock holds .* make such a thing in the test",
        ),
        ("TestSelf.test_stream", r"self\.stream \(TextIOWrapper\) cannot travel to the tasks: "),
        ("test_request", r"its argument request acts in pytest's process alone.*; take what you need"),
        ("test_capfd", r"its argument capfd acts in pytest's process alone.*; use capsys"),
        ("test_cluster", r"there is no cluster to be used there; leave the argument out"),
        ("test_given", r"hypothesis would draw other examples on each task; let the test use"),
        ("test_async", r"an async function is not supported there; use def"),
        ("OfUnittest.test_with_set_up_of_pytest", r"setup_method .* would not run there; call them setUp"),
    ],
)
def test_what_cannot_run_there_is_refused_with_the_reason(session, name, problem):
    _, out = session
    report = section(out, name)
    is_named = re.search(
        rf"^{name.rpartition('.')[2]} has each=True, so its body runs on the tasks: ", report
    )
    assert is_named and re.search(problem, report), report
    assert "Traceback" not in report and "entries are hidden" not in report


def test_each_is_true_or_false(session):
    _, out = session
    assert "cluster of its marker tfcluster cannot be made: each is True or False, not 2" in out


def test_a_test_case_of_unittest_fails_at_its_own_line(session):
    _, out = session
    failed = section(out, "Failing.test_equal")
    assert re.search(r"test_bad.py:\d+: in test_equal", failed) and "AssertionError: 1 != 0" in failed
    assert "unittest/" not in failed and "tfmagic/" not in failed
    assert "Unexpected success" in section(out, "Failing.test_unexpected")


def test_a_filter_of_pytest_makes_a_warning_an_error_and_a_value_is_warned_of(session):
    _, out = session
    assert "UserWarning: as an error" in section(out, "test_a_warning_is_an_error")
    assert re.search(r"test_bad.py:\d+: PytestReturnNotNoneWarning: .*test_that_returns returned int", out)
