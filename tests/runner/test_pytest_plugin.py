"""The pytest plugin, in real pytest sessions of their own: few and rich, since each imports TensorFlow."""

import functools
import os
import re
import signal
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import alive, program, wait_until
from snippets import assert_shown, snippets

import tfmagic

pytest_plugins = ["pytester"]

ROOT = Path(tfmagic.__file__).parents[1]
HANGS_S = 240  # of an inner session: ended before the outer test is
FLAGS = ["-p", "no:cacheprovider", "--strict-markers", "-W", "error"]


def install_entry_point(folder):
    """Let sessions find the plugin by its entry point, as installed; return their PYTHONPATH."""
    installed = folder / "site" / "tfmagic_entry-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: tfmagic-entry\nVersion: 0\n")
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    lines = [f"{name} = {target}" for name, target in points.items()]
    files = [path.relative_to(ROOT) for path in sorted((ROOT / "tfmagic").rglob("*.py"))]
    (installed / "RECORD").write_text("".join(f"{file},,\n" for file in files))  # pytest rewrites them
    (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]))
    return os.pathsep.join([str(ROOT), str(installed.parent), os.environ["PYTHONPATH"]])


@pytest.fixture
def suite(pytester, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", install_entry_point(tmp_path))
    run = functools.partial(pytester.runpytest_subprocess, timeout=HANGS_S)
    monkeypatch.setattr(pytester, "runpytest_subprocess", run)
    return pytester


def pids_in(folder):
    return {int(pid) for file in Path(folder).glob("pids*") for pid in file.read_text().split()}


HELPERS = '''
import os
import pathlib

import pytest


def note_pid():
    """Record the process and its parent, for a check after the session."""
    with open(FOLDER / f"pids-{os.getpid()}", "a") as file:
        print(os.getpid(), os.getppid(), file=file)
    return os.getpid()


FOLDER = pathlib.Path(__file__).parent


@pytest.fixture
def note():
    return note_pid
'''

EVERYTHING = """
import contextlib
import os
import pathlib
import threading
import time
import unittest

import pytest

import tfmagic

FOLDER = pathlib.Path(__file__).parent


class Mine(Exception):
    pass


def raise_mine():
    raise Mine("from a task")


def test_by_default_two_workers_that_know_the_helpers_of_conftest(tfcluster, note):
    assert list(tfcluster.run(note)) == ["worker-0", "worker-1"]


def test_the_class_of_an_error_is_that_of_the_module(tfcluster):
    with pytest.raises(Mine, match="from a task"):
        tfcluster.run(raise_mine)


def test_that_is_skipped_by_a_task(tfcluster):
    def check():
        if tfmagic.current_task().index:
            pytest.importorskip("no_such_module")

    tfcluster.run(check)


@pytest.mark.tfcluster(workers=1)
class TestMarked:
    def test_a_class_is_marked(self, tfcluster):
        assert len(tfcluster.tasks) == 1

    @pytest.mark.tfcluster(2, chief=True, env={"MINE": "7"})
    def test_the_nearest_marker_wins(self, tfcluster):
        got = tfcluster.run(lambda: os.environ["MINE"])
        assert dict(got) == {"chief-0": "7", "worker-0": "7", "worker-1": "7"}


@pytest.mark.parametrize("tfcluster", [1, {"workers": 1, "ps": 1}], indirect=True, ids=["one", "ps"])
def test_a_parameter_of_the_fixture(tfcluster, request):
    assert len(tfcluster.tasks) == {"one": 1, "ps": 3}[request.node.callspec.id]


@pytest.mark.parametrize("n", [pytest.param(3, marks=pytest.mark.tfcluster(workers=3)), 2])
def test_a_marker_of_a_parameter(tfcluster, n):
    assert len(tfcluster.tasks) == n


def test_what_is_printed_is_captured_as_ever(tfcluster, capsys):
    tfcluster.run(print, "hello", on="worker-0")
    assert capsys.readouterr().out == "[worker-0]:    hello\\n"


def test_that_leaves_a_call_running(tfcluster, note):
    def hang(path):
        note()
        try:
            path.with_suffix(".begun").touch()
            time.sleep(1000)
        finally:
            path.touch()

    tfcluster.submit(hang, FOLDER / "interrupted", on="worker-0")
    tfcluster.submit(hang, FOLDER / "interrupted", on="worker-0")
    while not (FOLDER / "interrupted.begun").exists():
        time.sleep(0.01)


def test_that_it_was_interrupted():
    assert (FOLDER / "interrupted").exists()
    assert not [t for t in threading.enumerate() if t.name.startswith("tfmagic-call")]


def test_that_fails_on_a_task(tfcluster, tmp_path):
    print("printed by the test")

    def compare(a, b):
        print(f"line of {tfmagic.current_task().name}")
        assert (tmp_path, a) == (tmp_path, b)

    tfcluster.run(compare, 1, 2)


def test_that_prints_much_and_loses_a_task(tfcluster):
    def flood():
        for n in range(50_000):
            print("row", n)

    tfcluster.run(flood, view="quiet")
    tfcluster.kill("worker-1")
    raise ValueError("after the flood")


@pytest.fixture
def trained(tfcluster):
    tfcluster.run(print, "written in the set-up")
    raise OSError("the set-up broke")


def test_with_a_broken_set_up(trained):
    pass


class TestUnittest(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _take(self, tfcluster, monkeypatch):
        self.cluster, self.monkeypatch = tfcluster, monkeypatch

    def test_self_travels(self):
        self.number = 3
        self.cluster.run(lambda: self.assertEqual(self.number, 3))


shared = pytest.mark.tfcluster(scope="session")
pids = []


def all_reduce():
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    ones = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([2])))
    return float(strategy.experimental_local_results(ones)[0][0])


def litter():
    import __main__

    before = (hasattr(__main__, "litter"), os.environ.get("LITTER"), os.getcwd())
    __main__.litter, os.environ["LITTER"] = 1, "1"
    os.chdir("/")
    return before


@shared
class TestShared:
    def test_first(self, tfcluster, note):
        pids.append(dict(tfcluster.run(note)))
        tfcluster.push(pushed=1)
        assert all(before[:2] == (False, None) for before in tfcluster.run(litter).values())
        assert tfcluster.run(all_reduce).of("worker") == [2.0, 2.0]

    def test_the_same_processes_without_the_litter(self, tfcluster, note):
        assert tfcluster.run(note) == pids[0]
        assert all(before[:2] == (False, None) and before[2] != "/" for before in tfcluster.run(litter).values())
        assert tfcluster.run(all_reduce).of("worker") == [2.0, 2.0]
        with pytest.raises(NameError, match="pushed"):
            tfcluster.pull("pushed")

    def test_that_fails(self, tfcluster):
        tfcluster.run(print, "only in this test")
        raise KeyError("of a shared cluster")

    def test_new_processes_after_a_failure(self, tfcluster, note):
        pids.append(dict(tfcluster.run(note)))
        assert not set(pids[0].values()) & set(pids[1].values())
        tfcluster.kill("worker-1")
        with pytest.raises(tfmagic.TaskDied):
            tfcluster.run(note)

    def test_new_processes_after_a_death(self, tfcluster, note):
        pids.append(dict(tfcluster.run(note)))
        assert not set(pids[1].values()) & set(pids[2].values())
        tfcluster.faults.pause("worker-0")

    def test_new_processes_after_a_pause(self, tfcluster, note):
        pids.append(dict(tfcluster.run(note)))
        assert not set(pids[2].values()) & set(pids[3].values())
        tfcluster.submit(time.sleep, 1000)

    def test_new_processes_after_a_call_that_was_left(self, tfcluster, note):
        pids.append(dict(tfcluster.run(note)))
        assert not set(pids[3].values()) & set(pids[4].values())
        with contextlib.suppress(Mine):
            tfcluster.run(raise_mine)

    def test_the_same_processes_after_an_error_that_was_expected(self, tfcluster, note):
        assert tfcluster.run(note) == pids[4]


@pytest.mark.tfcluster(scope="module", workers=1)
@pytest.mark.parametrize("n", range(2))
def test_a_cluster_of_the_module(tfcluster, n, note):
    pids.append(dict(tfcluster.run(note)))
    assert n == 0 or pids[-1] == pids[-2]
"""


MISTAKES = """
import os

import pytest

@pytest.mark.tfcluster(workers="x")
def test_workers(tfcluster): pass

@pytest.mark.tfcluster(wokers=2)
def test_wokers(tfcluster): pass

@pytest.mark.tfcluster(2, workers=2)
def test_twice(tfcluster): pass

@pytest.mark.tfcluster(scope="sesion")
def test_scope(tfcluster): pass

@pytest.mark.parametrize("tfcluster", ["x"], indirect=True)
def test_parameter(tfcluster): pass

def test_beside_them(tfcluster): assert tfcluster.run(int)

def test_death(tfcluster): tfcluster.run(os._exit, 3)
"""


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """The folder and the lines of one session with everything, mistakes included."""
    folder = tmp_path_factory.mktemp("everything")
    files = {"conftest": HELPERS, "test_everything": EVERYTHING, "test_bad": MISTAKES}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "test_good.py").write_text("def test_good(): pass")
    environ = {**os.environ, "PYTHONPATH": install_entry_point(tmp_path_factory.mktemp("installed"))}
    words = (
        "--import-mode=importlib",
        "-v",
        "-rfEs",
        "-p",
        "tfmagic.pytest_plugin",
        "--rootdir",
        folder,
        folder,
    )
    with program(sys.executable, "-m", "pytest", *FLAGS, *words, cwd=folder, env=environ) as process:
        return folder, process.communicate(timeout=HANGS_S)[0]


def test_a_suite_with_everything(everything):
    folder, out = everything
    assert re.search(r"\n=+ 4 failed, 23 passed, 1 skipped, 6 errors in ", out), out[-2000:]
    assert re.search(
        r"\nSKIPPED \[1\] test_everything.py:\d+: could not import 'no_such_module'.*\n[A-Z=]", out
    )
    assert not alive(pids_in(folder))

    failed = section(out, "test_that_fails_on_a_task")
    assert re.search(r"E +AssertionError: assert \(PosixPath\(.*, 1\) == \(PosixPath\(.*, 2\)", failed)
    assert re.search(r"raised on worker-(\d) [^\n]*\nE +also on worker-(?!\1)\d\n", failed)
    assert re.search(r"Captured stdout call -+\nprinted by the test\n-+ Captured output of worker-0", failed)
    assert failed.count("\nline of worker-1\n") == 1 and "[worker-1]:" not in failed
    log = re.search(r"Captured output of worker-1 -+\nline of worker-1\n\(the whole log: (.*)\)", failed)[1]
    assert Path(log).read_text() == "line of worker-1\n"

    flooded = section(out, "test_that_prints_much_and_loses_a_task")
    assert flooded.count("\nrow ") == 200 and "\nrow 49999\n" in flooded
    assert re.search(r"\(about 476 KiB before these lines are left out\)\nrow 49900\n", flooded)
    assert "(worker-1 was killed by you (SIGKILL))" in flooded

    assert "written in the set-up" in section(out, "test_with_a_broken_set_up")
    shared = section(out, "TestShared.test_that_fails")
    assert shared.count("only in this test") == 3 and "note" not in shared  # the source, and each task

    runs = [path.name for path in Path(os.environ["TFMAGIC_STATE_DIR"], "runs").iterdir()]
    assert not [name for name in runs if "test_the_class_of_an_error" in name]


def section(out, name):
    """The report of one failure."""
    return re.split(rf"\n_+ (?:ERROR at setup of )?{re.escape(name)} _+\n", out)[1].split("\n____")[0]


LIMITS = """
import time

import pytest

import tfmagic


def meet():
    if tfmagic.current_task().index == 0:
        tfmagic.barrier()
    else:
        time.sleep(1000)


@pytest.mark.tfcluster(timeout_s=0.5)
def test_a_hang(tfcluster):
    tfcluster.run(meet)


@pytest.mark.timeout(1, func_only=True, method="signal")
def test_a_hang_that_pytest_timeout_ends(tfcluster, note):
    tfcluster.run(note)
    tfcluster.run(meet)


def test_the_setting_and_live_lines(tfcluster):
    assert tfcluster.setting("timeout_s") == 77
    local_of_the_test = [1, 2]

    def fail():
        local_of_the_task = [3, 4]
        print("a live line")
        raise ValueError(local_of_the_task)

    tfcluster.run(fail)
"""


def test_hangs_are_ended_and_lines_are_live_without_capture(suite):
    suite.makeconftest(HELPERS)
    suite.makepyfile(test_limits=LIMITS)
    flags = ["-s", "--showlocals", "-rA", "--junitxml=out.xml", "-o", "tfcluster_timeout=77"]
    result = suite.runpytest_subprocess(*FLAGS, *flags)
    result.assert_outcomes(failed=3)
    out = result.stdout.str()
    assert re.search(
        r"TaskTimeoutError: the call was not done within 0\.5 s; it was stopped on worker-0, worker-1", out
    )
    assert re.search(r"E +worker-1:\nE +File .*test_limits.py\", line 12 in meet", out)
    assert re.search(r"E +Failed: Timeout", out)
    # live, and in the source of the test and of its function
    assert out.count("a live line") == 4 and "\n[worker-1]:    a live line\n" in out
    assert re.search(r"local_of_the_test += \[1, 2\]", out) and re.search(
        r"local_of_the_task += \[3, 4\]", out
    )
    assert len(ElementTree.parse(suite.path / "out.xml").findall(".//failure")) == 3
    assert not alive(pids_in(suite.path))


XDIST = """
import os
import signal

import pytest

pytestmark = pytest.mark.tfcluster(scope="session")


def note_template():
    import psutil
    from tfmagic.backends import launcher_client

    (launcher,) = launcher_client.running()
    with open(FOLDER / f"template-{os.getpid()}", "w") as file:
        print(psutil.Process(launcher.process.pid).ppid(), file=file)


class TestA:
    @pytest.mark.parametrize("n", range(3))
    def test_n(self, tfcluster, note, n):
        tfcluster.run(note)
        note_template()


class TestB(TestA):
    pass


class TestC:
    def test_fails(self, tfcluster):
        tfcluster.run(print, "written on a task")
        raise ValueError

    def test_kills_pytest(self, tfcluster, note):
        tfcluster.run(note)
        note_template()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_xdist_workers_share_one_import_and_a_killed_one_leaves_no_task(suite):
    suite.makeconftest(HELPERS)
    suite.makepyfile(test_xdist="from conftest import FOLDER\n" + XDIST)
    result = suite.runpytest_subprocess(
        *FLAGS, "-n", "2", "--dist", "load", "--max-worker-restart=0"
    )  # xdist's loadscope breaks when a worker is killed; the test that kills one is the last
    result.assert_outcomes(passed=6, failed=2)
    out = result.stdout.str()
    assert re.search(r"Captured output of worker-1 -+\nwritten on a task\n", out)
    assert re.search(r"worker 'gw\d' crashed while running 'test_xdist.py::TestC::test_kills_pytest'", out)
    assert len(pids_in(suite.path)) >= 6  # a launcher and two tasks in each
    noted = [int(path.read_text()) for path in suite.path.glob("template-*")]
    assert len(noted) == 2 and len(set(noted)) == 1, "TensorFlow was imported once for both"
    wait_until(lambda: not alive(pids_in(suite.path) | set(noted)))


def test_ctrl_c_ends_pytest_and_every_task(suite):
    suite.makeconftest(HELPERS)
    suite.makepyfile(
        test_hang="""
        import time

        def test_hang(tfcluster, note):
            def hang():
                note()
                time.sleep(1000)
            tfcluster.run(hang)

        def test_never(tfcluster):
            pass
        """
    )
    with program(sys.executable, "-m", "pytest", *FLAGS) as process:
        wait_until(lambda: len(pids_in(suite.path)) == 3, 60)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt: the cell was interrupted" in out and "no tests ran" in out
    wait_until(lambda: not alive(pids_in(suite.path)))


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        ("workers", "workers is a number of tasks, not 'x'"),
        ("wokers", "Cluster() has no argument or setting wokers"),
        ("twice", "workers is given twice"),
        ("scope", "scope is one of function, class, module, session, not 'sesion'"),
    ],
)
def test_a_marker_that_makes_no_sense_is_an_error_of_its_test_alone(everything, test, problem):
    _, out = everything
    assert f"::test_{test}: the cluster of its marker tfcluster cannot be made: {problem}\n" in out
    assert re.search(r"test_bad\.py::test_beside_them PASSED", out)


def test_the_error_of_a_dead_task_names_what_the_test_can_do(everything):
    _, out = everything
    assert re.search(r"Go on with:  tfcluster\.revive\(\)   \(or tfcluster\.restart\('worker-.*'\)\)", out)
    assert "%tfcluster" not in out


def test_a_parameter_that_makes_no_sense_is_an_error_of_its_test(everything):
    problem = "a parameter is a number of workers, or a dict of arguments, not 'x'"
    assert re.search(rf"::test_parameter\[x\]: .*: {problem}", everything[1])


LIGHT = """
import sys

import psutil

HEAVY = {"tensorflow", "keras", "dill", "numpy", "IPython", "psutil", "traitlets"} - {"psutil"}


def pytest_unconfigure(config):
    loaded = HEAVY & {name.partition(".")[0] for name in sys.modules}
    print("loaded:", sorted(loaded), "children:", len(psutil.Process().children()))
"""


@pytest.mark.parametrize(
    "how", [[], pytest.param(["-p", "tfmagic.pytest_plugin"], marks=pytest.mark.soak), ["-p", "tfmagic"]]
)
def test_a_suite_without_clusters_loads_nothing_however_the_plugin_is_loaded(suite, how):
    suite.makeconftest(LIGHT)
    suite.makepyfile("def test_plain(): pass")
    result = suite.runpytest_subprocess(*FLAGS, *how)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["loaded: [[]] children: 0"])
    result = suite.runpytest_subprocess(*FLAGS, *how, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.tfcluster(workers=2, *"])


def test_a_collection_alone_starts_no_launcher(suite):
    suite.makeconftest(LIGHT + 'pytest_plugins = ["tfmagic.pytest_plugin"]\n')
    suite.makepyfile("def test_with_one(tfcluster): pass")
    result = suite.runpytest_subprocess(*FLAGS, "--collect-only")
    result.stdout.fnmatch_lines(["*1 test collected*", "loaded: *children: 0"])
    assert "tensorflow" not in result.stdout.str()


def test_a_time_limit_that_is_no_number_is_refused(suite):
    result = suite.runpytest_subprocess(*FLAGS, "-o", "tfcluster_timeout=soon")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*tfcluster_timeout is a number of seconds, 0 or more, not 'soon'"])


FAILURES = """
import threading

import pytest


@pytest.mark.tfcluster(workers=1, scope="class")
class TestFailures:
    def test_on_the_task(self, tfcluster):
        tfcluster.run(lambda: 1 / 0)

    def test_later(self, tfcluster):
        tfcluster.submit(lambda: 1 / 0).result()

    def test_no_such_task(self, tfcluster):
        tfcluster.run(print, on="worker-9")

    def test_no_function(self, tfcluster):
        tfcluster.run(5)

    def test_no_such_name(self, tfcluster):
        tfcluster.pull("nothing")

    def test_cannot_travel(self, tfcluster):
        tfcluster.push(lock=threading.Lock())
"""


def test_a_failure_shows_no_frame_of_tfmagic_unless_tfmagic_has_failed(suite):
    suite.makepyfile(FAILURES)
    ours = re.compile(rf"^{re.escape(str(ROOT))}/tfmagic/\S+:\d+: ", re.MULTILINE)
    found = suite.runpytest_subprocess(*FLAGS, "--tb=short")
    found.assert_outcomes(failed=6)
    assert not ours.search(found.stdout.str())
    suite.makepyfile(
        "from tfmagic.clusters import cluster\nfrom tfmagic.protocol import cluster_spec\n"
        "def test_a_mistake_of_ours(): cluster_spec.select(3.5, 4)\n"
    )
    found = suite.runpytest_subprocess(*FLAGS, "--tb=short")
    found.assert_outcomes(failed=1)
    assert ours.search(found.stdout.str())


REPORTED = """
import tfmagic


def test_that_fails(tfcluster):
    def fail():
        if tfmagic.current_task().index == 1:
            print("loss: nan")
            raise ValueError("no number")

    tfcluster.run(fail)
"""


def test_every_example_of_the_guides_runs(suite):
    examples = [s.code for s in snippets("docs/testing.md", "python")]
    of_runner = [s.code for s in snippets("docs/multi_process_runner.md", "python")]
    (install,) = [code for code in of_runner if "install()" in code]
    (settings,) = snippets("docs/testing.md", "toml")
    (report,) = snippets("docs/testing.md", "text")
    (suite.path / "pyproject.toml").write_text(settings.code)
    suite.makeconftest(install)
    others = "\n".join(code for code in of_runner if code is not install)
    suite.makepyfile(test_reported=REPORTED, test_with_the_runner=others)
    suite.makepyfile(**{f"test_example_{n}": example for n, example in enumerate(examples)})
    result = suite.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers", "-W", "error")
    tests = "".join(examples).count("def test_") + 4 + others.count("def test_")  # 4 more by parameters
    assert result.parseoutcomes() == {"passed": tests, "failed": 1}
    assert_shown(report, result.stdout.str())
