"""The lessons as assignments: the real nbgrader and otter-grader count no answer as nothing, and right ones in full.

Both are installed beside the packages of our environment by `scripts/beside`.
"""

import csv
import json
import os
import shlex
import subprocess
from pathlib import Path

import nbformat
import pytest
from snippets import snippets

from tfmagic import course
from tfmagic.frontends.cli import main

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv-beside" / "class" / "bin"
COMMANDS = [line for s in snippets("docs/teaching.md", "bash") for line in s.code.splitlines()]
LESSONS = [path.stem for path in course.lesson_files()]
REPLACED = (
    "\nfor name in ('check', 'find_fault'):\n    setattr(tfmagic.course, name, lambda *words, **more: '')"
)


def call(folder, command, **names):
    """Run the command of the page for teachers that begins so, with other names in it."""
    (line,) = [line for line in COMMANDS if line.startswith(command)]
    for name, other in names.items():
        assert name in line
        line = line.replace(name, other)
    words = shlex.split(line, comments=True)
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    search = os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])  # the checks of this checkout
    environ = {**os.environ, "PATH": path, "PYTHONPATH": search}
    done = subprocess.run(
        [BIN / words[0], *words[1:]], cwd=folder, env=environ, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


def submit(path, target, *, solved=None, more=""):
    """Hand a notebook in: as it is, with the answers of a solved one, or with more code at its beginning."""
    notebook = nbformat.read(path, as_version=4)
    if solved is not None:
        answers = nbformat.read(solved, as_version=4).cells
        right = {n: c.source for c in answers if (n := c.metadata.get("tfmagic", {}).get("exercise"))}
        for cell in notebook.cells:
            if number := cell.metadata.get("tfmagic", {}).get("exercise"):
                cell.source = right.pop(number)
        assert not right
    (setup,) = [cell for cell in notebook.cells if "set-up" in cell.metadata.get("tags", ())]
    setup.source += more
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)


def grade_with_nbgrader(folder, lesson, more_students=()):
    """Return the points of no answer, of right answers and of further students, and the most that there are."""
    assert main(["course", "--format", "nbgrader", str(folder)]) == 0
    call(folder, "nbgrader generate_assignment", **{"04-sharding": lesson})
    released = folder / "release" / lesson / f"{lesson}.ipynb"
    text = released.read_text()
    assert "Solution of" not in text and "HIDDEN" not in text and "was it replaced" not in text
    students = {
        "open": {},
        "right": {"solved": folder.with_name(f"{folder.name}-solved") / released.name},
        **dict(more_students),
    }
    for student, how in students.items():
        submit(released, folder / "submitted" / student / lesson / released.name, **how)
    call(folder, "nbgrader autograde", **{"04-sharding": lesson})
    call(folder, "nbgrader export")
    with open(folder / "grades.csv") as file:
        rows = list(csv.DictReader(file))
    (most,) = {float(row["max_score"]) for row in rows}
    return {row["student_id"]: float(row["score"]) for row in rows}, most


def grade_with_otter(folder, lesson):
    """Return the points of no answer and of right answers, and the most that there are."""
    assert main(["course", "--format", "otter", str(folder)]) == 0
    place, found, most = folder / lesson, {}, set()
    assert "Solution of" not in (place / f"{lesson}.ipynb").read_text()
    call(place, "otter generate")
    for student, solved in (
        ("open", None),
        ("right", folder.with_name(f"{folder.name}-solved") / f"{lesson}.ipynb"),
    ):
        submitted = place / student / f"{lesson}.ipynb"
        submit(place / submitted.name, submitted, solved=solved)
        call(place, "otter run", SUBMISSION=f"{student}/{lesson}")
        tests = json.loads((place / "results.json").read_text())["tests"]
        counted = [test for test in tests if test.get("max_score")]
        found[student] = sum(test["score"] for test in counted)
        most.add(sum(test["max_score"] for test in counted))
    (all_points,) = most
    return found, all_points


@pytest.mark.timeout(600)  # at load 8; it takes two minutes otherwise
def test_nbgrader_counts_right_answers_and_no_check_that_was_replaced(tmp_path):
    points, most = grade_with_nbgrader(
        tmp_path / "class", "02-tf-config", {"cheat": {"more": REPLACED}}.items()
    )
    assert points == {"open": 0, "right": most, "cheat": 0} and most == 3


@pytest.mark.timeout(600)
def test_otter_counts_right_answers(tmp_path):
    points, most = grade_with_otter(tmp_path / "class", "01-first-cluster")
    assert points == {"open": 0, "right": most} and most == 3


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lesson", [name for name in LESSONS if name != "02-tf-config"])
def test_nbgrader_counts_the_right_answers_of_each_lesson(tmp_path, lesson):
    points, most = grade_with_nbgrader(tmp_path / "class", lesson)
    assert points == {"open": 0, "right": most} and most >= 2


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lesson", LESSONS[1:])
def test_otter_counts_the_right_answers_of_each_lesson(tmp_path, lesson):
    points, most = grade_with_otter(tmp_path / "class", lesson)
    assert points == {"open": 0, "right": most} and most >= 2
