"""`scripts/suite.py`, which `make test` calls: the runs, and their summaries."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "suite.py"


@pytest.fixture(scope="module")
def suite():
    spec = importlib.util.spec_from_file_location("suite", SCRIPT)
    module = sys.modules["suite"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["suite"]


def run(*words):
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True)
    return done.returncode, [line for line in done.stdout.splitlines() if line.startswith("=== ")]


def test_each_interpreter_has_its_line_at_the_end():
    code, lines = run("--also", "/no/such/python", "-n", "0", "tests/protocol/test_cluster_spec.py")
    version = ".".join(map(str, sys.version_info[:3]))
    assert code == 0
    assert lines[-2].startswith(f"=== Python {version} ({sys.executable}), whole suite: passed: ")
    assert " passed in " in lines[-2] and "failed" not in lines[-2]
    assert lines[-1] == "=== /no/such/python is not there, so that no other Python was tried"


def test_a_run_without_a_test_has_failed():
    code, lines = run("-n", "0", "tests/protocol/test_cluster_spec.py", "-k", "no_such_test")
    assert code == 5 and "whole suite: FAILED (5): 0 passed" in lines[-1]


SECOND = """
import pathlib

def test_one():
    seen = pathlib.Path({folder!r}, "seen")
    first = not seen.exists()
    seen.touch()
    assert not first

def test_two():
    pass

def test_three():
    assert {good}
"""


@pytest.mark.parametrize("good", [True, False])
def test_a_failed_test_is_tried_once_more_alone_and_named_at_the_end(tmp_path, good):
    script = tmp_path / "test_second.py"
    script.write_text(SECOND.format(folder=str(tmp_path), good=good))
    code, lines = run("-c", os.devnull, "--rootdir", tmp_path, "-n", "1", script)
    assert lines[1] == f"=== test_one{'' if good else ', test_three'}: once more, alone"
    if good:
        assert code == 0 and lines[-1].endswith("; test_one PASSED at the second try, alone")
        assert "whole suite: passed: 2 passed, 1 failed in " in lines[-1]
    else:
        assert code == 1 and "whole suite: FAILED (1): 1 passed, 2 failed in " in lines[-1]
        assert lines[-1].endswith("; test_one, test_three failed at the second try, alone")


def test_many_failed_tests_are_not_tried_again(tmp_path):
    script = tmp_path / "test_all.py"
    script.write_text(
        "import pytest\n@pytest.mark.parametrize('i', range(4))\ndef test_it(i): assert False\n"
    )
    code, lines = run("-c", os.devnull, "--rootdir", tmp_path, "-n", "0", script)
    assert code == 1 and len(lines) == 2 and "0 passed, 4 failed in " in lines[-1]


def test_failures_errors_and_skipped_tests_are_counted(suite):
    report = '<testsuites><testsuite tests="9" failures="2" errors="1" skipped="3" time="61.4"/></testsuites>'
    assert suite.counts_of(report) == "3 passed, 2 failed, 1 errors, 3 skipped in 61 s"


def test_an_interpreter_of_the_same_version_is_not_tried_again(suite):
    result = suite.passes_on_another(sys.executable, [])
    assert result.exit_code == 0 and "no other Python was tried" in result.line


def test_all_files_of_the_quick_part_are_there(suite):
    assert [path for path in suite.QUICK if not (suite.ROOT / path).exists()] == []
