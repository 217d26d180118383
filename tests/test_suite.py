"""`scripts/suite.py`, which `make test` calls: the runs, and their summaries."""

import ast
import builtins
import copyreg
import importlib.util
import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import order
import pytest
import times

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "suite.py"


@pytest.fixture(scope="module")
def suite():
    spec = importlib.util.spec_from_file_location("suite", SCRIPT)
    module = sys.modules["suite"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["suite"]


def run(*words):
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True)
    print(done.stdout, done.stderr)  # for the report of a test that fails
    return done.returncode, [line for line in done.stdout.splitlines() if line.startswith("=== ")]


def test_each_interpreter_has_its_line_at_the_end():
    code, lines = run("--also", "/no/such/python", "-n", "0", "tests/protocol/test_cluster_spec.py")
    version = ".".join(map(str, sys.version_info[:3]))
    assert code == 0
    assert lines[-2].startswith(f"=== Python {version} ({sys.executable}), whole suite: passed: ")
    assert " passed in " in lines[-2] and " s of CPU; TEST_SEED=" in lines[-2] and "failed" not in lines[-2]
    assert lines[-1] == "=== /no/such/python is not there, so that no other Python was tried"


def test_a_run_without_a_test_has_failed():
    code, lines = run("-n", "0", "tests/protocol/test_cluster_spec.py", "-k", "no_such_test")
    assert code == 5 and "whole suite: FAILED (5): 0 passed" in lines[-1]


FAILS_ONCE = """
import pathlib

def test_one():
    seen = pathlib.Path({folder!r}, "seen")
    first = not seen.exists()
    seen.touch()
    assert not first

def test_two():
    pass
"""


def test_a_test_that_fails_once_fails_the_run_and_is_named_at_the_end(tmp_path):
    script = tmp_path / "test_once.py"
    script.write_text(FAILS_ONCE.format(folder=str(tmp_path)))
    code, lines = run("-c", os.devnull, "--rootdir", tmp_path, "-n", "1", script)
    assert code == 1 and len(lines) == 2
    assert "whole suite: FAILED (1): 1 passed, 1 failed in " in lines[1]
    assert lines[1].endswith("; failed: test_one")


ORDER = """
import pathlib
import pytest

@pytest.mark.parametrize("number", range(20))
def test_it(number):
    with open(pathlib.Path(__file__).with_name("seen"), "a") as file:
        print(number, file=file)
"""


def test_the_order_is_drawn_from_the_seed(tmp_path, monkeypatch):
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_order.py").write_text(ORDER)
    arrange = f"import sys; sys.path.insert(0, {str(SCRIPT.parents[1] / 'tests' / 'support')!r})\n"
    arrange += "from order import arrange\ndef pytest_collection_modifyitems(items): arrange(items)\n"
    (folder / "conftest.py").write_text(arrange)
    orders = []
    for seed in ("1", "2", "1", None):
        monkeypatch.delenv("TEST_SEED", raising=False)
        if seed:
            monkeypatch.setenv("TEST_SEED", seed)
        code, lines = run("-c", os.devnull, "--rootdir", tmp_path, "-n", "0", folder / "test_order.py")
        assert code == 0 and (not seed or f"TEST_SEED={seed} repeats the order" in lines[-1])
        orders.append((folder / "seen").read_text().split())
        (folder / "seen").unlink()
    assert orders[0] == orders[2] != orders[1]
    assert sorted(map(int, orders[0])) == sorted(map(int, orders[3])) == list(range(20))


def test_the_last_lines_say_where_the_time_went(suite):
    cpu = {f"tests/a/test_{n}.py tasks": float(n) for n in range(12)} | {"tests/b/test_b.py browsers": 90.0}
    noted = {"tests/a/test_1.py": [3, 7.4], "other sessions": [1, 2.0]}
    kinds, files, imports, quarantine = suite.times_of({"cpu": cpu, "wall": {}, "imports": noted})
    assert kinds == "CPU seconds by what tests start: browsers 90, tasks 66"
    assert files.startswith("CPU seconds of the first 10 files: b/test_b.py 90, a/test_11.py 11, ")
    assert files.count(",") == 9
    assert imports == "CPU seconds of 4 imports of TensorFlow: all 9, a/test_1.py 7, other sessions 2"
    assert quarantine.startswith("in quarantine: ")


BURNS = """
import subprocess, sys, time

def burn():
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass

def test_here():
    burn()

def test_below():
    code = "import time\\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_the_time_of_pytest_itself_is_apart_from_that_of_other_processes(tmp_path):
    (tmp_path / "test_burns.py").write_text(BURNS)
    plugin = f"import sys; sys.path.insert(0, {str(SCRIPT.parents[1] / 'tests' / 'support')!r})\n"
    plugin += (
        "from times import Times\ndef pytest_configure(config): config.pluginmanager.register(Times('out'))\n"
    )
    (tmp_path / "conftest.py").write_text(plugin)
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", tmp_path, tmp_path]
    subprocess.run(command, cwd=tmp_path, check=True)
    cpu = json.loads((tmp_path / "out").read_text())["cpu"]
    assert list(cpu) == ["test_burns.py pytest itself", "test_burns.py other processes"]
    assert all(seconds > 0.2 for seconds in cpu.values())


def test_imports_of_tensorflow_are_noted_for_the_file_that_starts_the_process(tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    )
    folders = [str(ROOT / "tests" / "support" / "lean"), str(tmp_path)]
    given = {"PYTHONPATH": os.pathsep.join(folders), "TEST_TIMES": str(tmp_path / "out")}
    for test in (
        "tests/a/test_a.py::test_it (call)",
        "tests/a/test_a.py::test_two (call)",
        "test_x.py::test_y",
    ):
        environ = {**os.environ, **given, "PYTEST_CURRENT_TEST": test}
        for beginning in ("", "import gc; gc.disable(); "):  # as a launcher
            code = f"{beginning}import tensorflow, gc; assert gc.isenabled() == {not beginning}"
            subprocess.run([sys.executable, "-c", code], env=environ, check=True)
    found = times.imports_of(tmp_path / "out.imports")
    assert {file: count for file, (count, _) in found.items()} == {
        "tests/a/test_a.py": 4,
        "other sessions": 2,
    }
    assert all(seconds >= 0.2 * count for count, seconds in found.values())
    assert times.imports_of(tmp_path / "no such file") == {}


def test_durations_are_noted_anew_only_where_they_are_far_off(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "SUPPORT", tmp_path)
    path = tmp_path / "durations.json"
    path.write_text('{"a": 500, "b": 500}')
    suite.keep_durations({"a": 40.0, "b": 60.0})
    assert path.read_text() == '{"a": 500, "b": 500}'
    suite.keep_durations({"a": 10.0, "b": 60.0, "c": 0.001})
    assert json.loads(path.read_text()) == {"a": 143, "b": 857}


def test_what_a_test_leaves_changed_fails_it_and_is_put_back():
    import process_wide

    handler, level = signal.getsignal(signal.SIGUSR2), logging.root.level
    with pytest.raises(AssertionError, match=r"sys\.path, level of root") as caught, process_wide.restored():
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        sys.path.append("/no/such/folder")
        logging.root.setLevel(level + 1)
    assert f"signal {signal.SIGUSR2}" in str(caught.value)
    assert signal.getsignal(signal.SIGUSR2) is handler and logging.root.level == level
    assert "/no/such/folder" not in sys.path
    with process_wide.restored():
        pass


def test_an_entry_of_a_table_that_a_test_replaces_or_removes_is_named_and_put_back():
    import process_wide

    reduce, dumped = copyreg.dispatch_table[re.Pattern], builtins.len
    with (
        pytest.raises(AssertionError, match=r"builtins\.len, copyreg\.<class 're\.Pattern'>$"),
        process_wide.restored(),
    ):
        del copyreg.dispatch_table[re.Pattern]
        builtins.len = lambda values: dumped(values)
        copyreg.dispatch_table[Path] = str  # an import adds entries
    assert copyreg.dispatch_table[re.Pattern] is reduce and builtins.len is dumped
    del copyreg.dispatch_table[Path]


SHARED = {
    "pair": "a pair of kernels",
    "commands": "tfmagic commands",
    "kernel": "a kernel",
    "shared_kernel": "a kernel",
    "lessons": "the lessons",
}


def asked_for(function):
    """Return the fixtures that a test or a fixture of a file asks for."""
    decorators = " ".join(map(ast.unparse, function.decorator_list))
    names = {argument.arg for argument in function.args.args if f"'{argument.arg}" not in decorators}
    return names if function.name.startswith("test_") or "fixture" in decorators else set()


def test_the_files_that_share_a_kernel_or_another_process_are_in_one_group():
    """Otherwise each process of pytest-xdist starts one, which imports TensorFlow."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        found = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        own = {function.name for function in found if function.name not in asked_for(function)}
        shared = {name for function in found for name in asked_for(function) if name in SHARED} - own
        groups = {SHARED[name] for name in shared}
        assert not groups or order._group(str(path.relative_to(ROOT))) in groups, path


def test_failures_errors_and_skipped_tests_are_counted(suite):
    report = '<testsuites><testsuite tests="9" failures="2" errors="1" skipped="3" time="61.4"/></testsuites>'
    assert suite.counts_of(report) == "3 passed, 2 failed, 1 errors, 3 skipped in 61 s"


def test_an_interpreter_of_the_same_version_is_not_tried_again(suite):
    result = suite.passes_on_another(sys.executable, [], 1)
    assert result.exit_code == 0 and "no other Python was tried" in result.lines[0]


def test_all_files_of_the_quick_part_are_there(suite):
    assert [path for path in suite.QUICK if not (suite.ROOT / path).exists()] == []
