"""Lines that run only on tasks are measured: under coverage.py alone, and under pytest-cov, with xdist."""

import json
import os
import subprocess
import sys

import pytest

WORDS = ("-p", "no:cacheprovider", "-p", "tfmagic.pytest_plugin", "-q")
ALONE = ("coverage", "run", "--source=.", "-m", "pytest", *WORDS)

STEPS = """
import tfmagic


def step(n):
    if tfmagic.current_task().index:
        return n + 1
    return n


def at_the_end():
    found = 5
    return found


def never():
    return 7
"""

TESTS = """
import os

import pytest
import steps

import tfmagic


def test_a_call(tfcluster):
    assert dict(tfcluster.run(steps.step, 1)) == {"worker-0": 1, "worker-1": 2}


@pytest.mark.tfcluster(workers=2, each=True)
def test_a_body():
    assert steps.at_the_end() == 5


@pytest.mark.xfail(raises=tfmagic.TaskDied, strict=True)
def test_tasks_that_die_lose_one_call(tfcluster):
    tfcluster.run(steps.step, 1)
    tfcluster.run(os._exit, 3)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Run a Python program beside the tests; return it."""
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "test_steps.py").write_text(TESTS)
    monkeypatch.delenv("COVERAGE_PROCESS_START", raising=False)  # of a session that is measured itself

    def run(*words):
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def missed(program, folder):
    """Return the lines without a run, by file, and the branches."""
    program("coverage", "json", "-o", "found.json")
    found = json.loads((folder / "found.json").read_text())["files"]
    return {name: (each["missing_lines"], each.get("missing_branches")) for name, each in found.items()}


def test_coverage_run_has_the_lines_of_tasks(program, tmp_path):
    assert "CoverageWarning" not in program(*ALONE)
    assert missed(program, tmp_path) == {"steps.py": ([17], None), "test_steps.py": ([], None)}
    assert [name for name in os.listdir(tmp_path) if name.startswith(".coverage")] == [".coverage"]


def test_branches_are_measured_where_asked(program, tmp_path):
    program(*ALONE[:2], "--branch", *ALONE[2:], "-k", "call")
    assert missed(program, tmp_path)["steps.py"] == ([12, 13, 17], [])


def test_pytest_cov_has_them_under_xdist_by_test(program, tmp_path):
    out = program("pytest", *WORDS, "-n", "2", "--cov=.", "--cov-context=test")
    assert "CoverageWarning" not in out
    assert missed(program, tmp_path)["steps.py"] == ([17], None)
    import coverage

    data = coverage.CoverageData(str(tmp_path / ".coverage"))
    data.read()
    contexts = data.contexts_by_lineno(str(tmp_path / "steps.py"))
    assert (
        "test_steps.py::test_a_body|run" in contexts[12] and "test_steps.py::test_a_call|run" in contexts[7]
    )


def test_a_session_that_starts_coverage_in_each_process_has_them_too(program, tmp_path):
    (tmp_path / ".coveragerc").write_text("[run]\npatch = subprocess\nsource = .\nparallel = true\n")
    program("coverage", "run", "-m", "pytest", *WORDS)
    program("coverage", "combine")
    assert missed(program, tmp_path)["steps.py"] == ([17], None)
