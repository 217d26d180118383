"""Each private part of TensorFlow and Keras can be gone: a line says what that costs, and tasks start."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from broken_patches import places
from packaging.requirements import Requirement

from tfmagic.task.tensorflow import patches

SUPPORT = Path(__file__).parents[1] / "support"
ROWS = [row for row in patches.TABLE.rows.values() if "tf_keras" not in row.only]  # one Keras in a process

# TensorFlow is imported once, and each row is broken in a fork.
PROGRAM = f"""
import json, os, sys
sys.path.insert(0, {str(SUPPORT)!r})
import tensorflow as tf
tf.keras.Sequential
from broken_patches import break_row
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import TaskBoot
from tfmagic.task import shell
from tfmagic.task.tensorflow import patches
shell.make_shell()
me = TaskId("worker", 0)
boot = TaskBoot(me, 0, "", (me,), "", {{}}, "/", (), "/", me, 3000, True)

def start():
    lines = patches.install_all(boot, meet=None, folder="/nowhere")
    value = shell.CellRunner(print, None).run_source("1 + 1", "<cell>", False, 1)
    return lines, value

for name in [None, *json.loads(sys.argv[1])]:
    read, write = os.pipe()
    if os.fork() == 0:
        if name is not None:
            break_row(patches.TABLE.rows[name])
        os.write(write, json.dumps([name, *start()]).encode())
        os._exit(0)
    assert os.wait()[1] == 0, name
    os.close(write)
    print(os.read(read, 1 << 16).decode(), flush=True)
"""


@pytest.fixture(scope="module")
def started():
    """Return the lines and the value of a cell where a row is broken, by its name; None: none is."""
    command = [sys.executable, "-c", PROGRAM, json.dumps([row.name for row in ROWS])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {name: (lines, value) for name, lines, value in results}


def is_tried(row):
    wanted = Requirement(row.versions_tried)
    try:
        return wanted.specifier.contains(version(wanted.name), prereleases=True)
    except PackageNotFoundError:  # a nightly of another name
        return False


def test_all_rows_fit_the_versions_that_were_tried(started):
    lines, value = started[None]
    print(*lines, sep="\n")  # with other versions
    assert value == 2
    tried = [row.name for row in ROWS if is_tried(row)]
    assert not [line for line in lines if line.startswith(tuple(tried))]
    project = tomllib.loads((SUPPORT.parents[1] / "pyproject.toml").read_text())["project"]
    assert {row.versions_tried for row in ROWS} <= set(project["dependencies"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_task_starts_without_a_row_and_says_what_that_costs(started, row):
    lines, value = started[row.name]
    assert value == 2
    (line,) = (line for line in lines if line.startswith(f"{row.name} is left out ("))
    assert line.endswith(row.without_it)
    affected = {other.name for other in ROWS if places(other) & places(row)} | {row.name}
    while more := {other.name for other in ROWS if affected & set(other.needs)} - affected:
        affected |= more
    assert {line.partition(" is left out")[0] for line in lines} <= affected


def test_a_cluster_starts_without_any_row_and_the_doctor_knows(notebook, tmp_path):
    """But that of forks, whose fallback is a fresh interpreter: tests/backends/test_processes.py."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import runpy, sys\nrunpy.run_path({str(SUPPORT / 'lean' / 'sitecustomize.py')!r})\n"
        f"sys.path.insert(0, {str(SUPPORT)!r})\nimport broken_patches\nbroken_patches.break_all_rows()\n"
    )
    notebook.run(f"%tfcluster start --workers 1 --env PYTHONPATH={tmp_path}")
    notebook.run("%%tfcluster --out r\n1 + 1")
    assert dict(notebook.ns["r"]) == {"worker-0": 2}
    cluster = notebook.cluster()
    assert not cluster.status()[0]["not_forked"]
    log = cluster.run_folder.log_path(cluster.tasks[0]).read_text()
    for row in ROWS:
        is_named = f"tfmagic: {row.name} is left out (" in log
        assert is_named == (row.name != patches.FORKS), row.name
    with pytest.raises(KeyboardInterrupt):
        notebook.shell.run_cell_magic("tfcluster", "", "raise KeyboardInterrupt")
    notebook.run("%%tfcluster --profile --out r\nimport tensorflow as tf\n6 * 7")
    assert notebook.ns["r"]["worker-0"] == 42
    assert "is not as tfmagic knows it" in notebook.ns["r"].profile.problems["worker-0"]
    found = notebook.run("%tfcluster doctor")
    assert f"Keras: {len(ROWS) - 1} of {len(patches.TABLE.rows)} are not as expected" in found
    assert all(row.without_it in found for row in ROWS if row.name != patches.FORKS)
