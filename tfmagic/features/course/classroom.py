"""The lessons as assignments of a class: without solutions, with checks that a grader counts.

    nbgrader   source/NAME/NAME.ipynb: each check is a graded cell, which raises; nbgrader_config.py
    otter      NAME/NAME.ipynb and NAME/tests/NUMBER.py, which reads what the check has said
    both       FOLDER-solved/NAME.ipynb: the right answers, for the teacher, outside of where submissions run

Hidden tests read the answer again, and give wrong answers and an empty notebook to the check: one that takes
them was replaced by the student.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfmagic.features.course.lessons import copy_beside, lesson_files, read, without_outputs, write
from tfmagic.features.course.slides import make_slides
from tfmagic.system.version import VERSION

_CODE = re.compile(r"```python\n(.*)\n```", re.S)
_CHECK = re.compile(r'tfmagic\.course\.check\("(\d+\.\d)"\)')
_TIMEOUT_S = 25  # below the 30 s after which nbgrader interrupts a cell
_FOLDED = "; the folded line below each check has a solution"  # of lesson 1, for those who learn alone
_HIDDEN = """\
assert not tfmagic.course.find_fault("{number}", {namespace}), "the answer is wrong: was its check replaced?"
for answer in {wrong!r}:
    found = {{}}
    exec(answer, found)
    assert tfmagic.course.find_fault("{number}", found), "the check takes a wrong answer: was it replaced?"
"""
_OTTER_TEST = """\
from otter.test_files import test_case

OK_FORMAT = False

name = "{number}"
points = 1


@test_case()
def is_right(env):
    import tfmagic

    said = tfmagic.course.results().get("{number}", {{"fault": "its check was not run"}})
    assert not said["fault"], said["fault"]
{hidden}"""
_NBGRADER_CONFIG = """\
c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "clusters"
c.Execute.timeout = 120  # a cluster starts in the first cell; a hang ends after {timeout_s} s by itself
"""

Notebook = dict[str, Any]


def make_nbgrader(folder: Path) -> str:
    """Make a course of nbgrader in a folder; return what to do next.

    Raises:
        FileExistsError: There is one already.
        OSError: The folder cannot be written.
    """
    solved = _make_folder_of_answers(folder)
    (folder / "source").mkdir(parents=True)
    for path in lesson_files():
        place = folder / "source" / path.stem
        place.mkdir()
        write(place / path.name, _assignment(path, _graded_cell))
        copy_beside(place, [path])
    (folder / "nbgrader_config.py").write_text(_NBGRADER_CONFIG.format(timeout_s=_TIMEOUT_S))
    _write_solved(solved)
    return (
        f"{folder} is a course of nbgrader. In this folder, for each lesson:\n\n"
        f"    nbgrader generate_assignment {lesson_files()[0].stem}\n"
    )


def make_otter(folder: Path) -> str:
    """Make assignments of otter-grader in a folder; return what to do next. Raises as `make_nbgrader`."""
    solved = _make_folder_of_answers(folder)
    folder.mkdir()
    for path in lesson_files():
        place = folder / path.stem
        (place / "tests").mkdir(parents=True)
        write(place / path.name, _assignment(path, _tested_cell))
        copy_beside(place, [path])
        (place / "requirements.txt").write_text(f"tfmagic[lab]=={VERSION}\n")
        for number, wrong in wrong_answers(read(path)).items():
            hidden = _HIDDEN.format(number=number, namespace="env", wrong=["", *wrong])
            indented = "".join(f"    {line}\n" for line in hidden.splitlines())
            test = _OTTER_TEST.format(number=number, hidden=indented)
            (place / "tests" / f"{number}.py").write_text(test, "utf-8")
    _write_solved(solved)
    return (
        f"{folder} has a folder for each lesson: give its notebook to the class, and in the folder make the "
        "grader:\n\n    otter generate -t tests --no-environment\n"
    )


MAKERS: Mapping[str, Callable[[Path], str]] = {
    "nbgrader": make_nbgrader,
    "otter": make_otter,
    "slides": make_slides,
}


def solutions(notebook: Notebook) -> dict[str, str]:
    """Return the solution of each exercise."""
    found = {}
    for cell in notebook["cells"]:
        if number := _ours(cell).get("solution"):
            match = _CODE.search("".join(cell["source"]))
            assert match is not None, f"{number} has a solution"
            found[number] = match[1]
    return found


def wrong_answers(notebook: Notebook) -> dict[str, list[str]]:
    """Return wrong answers of each exercise that are plain Python; none of the others."""
    known = [_ours(cell) for cell in notebook["cells"]]
    return {ours["solution"]: ours.get("wrong", []) for ours in known if "solution" in ours}


def _ours(cell: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = cell.get("metadata", {}).get("tfmagic", {})
    return found


def _assignment(path: Path, grade: Callable[[Notebook, str, list[str]], None]) -> Notebook:
    """Return a lesson without outputs and solutions.

    Args:
        grade: Turns the cell of a check into one that counts, given its number and wrong answers.
    """
    notebook = without_outputs(read(path))
    wrong = wrong_answers(notebook)
    notebook["cells"] = [cell for cell in notebook["cells"] if "solution" not in _ours(cell)]
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"]).replace(_FOLDED, "")
        if "set-up" in cell["metadata"].get("tags", ()):
            cell["source"] = "".join(cell["source"]) + f"\n%config TFCluster.timeout_s = {_TIMEOUT_S}"
        elif match := _CHECK.fullmatch("".join(cell["source"])):
            grade(cell, match[1], ["", *wrong[match[1]]])
    return notebook


def _graded_cell(cell: Notebook, number: str, wrong: list[str]) -> None:
    hidden = _HIDDEN.format(number=number, namespace="globals()", wrong=wrong)
    cell["source"] = (
        f'tfmagic.course.check("{number}", raises=True)\n### BEGIN HIDDEN TESTS\n{hidden}### END HIDDEN TESTS'
    )
    cell["metadata"]["nbgrader"] = {
        "grade": True,
        "grade_id": f"exercise-{number.replace('.', '-')}",
        "locked": True,
        "points": 1,
        "schema_version": 3,
        "solution": False,
        "task": False,
    }


def _tested_cell(cell: Notebook, number: str, wrong: list[str]) -> None:
    cell["metadata"]["otter"] = {"tests": [number]}


def _make_folder_of_answers(folder: Path) -> Path:
    """Make the folder of the right answers beside that of a class, which must be new."""
    solved = folder.absolute().with_name(f"{folder.absolute().name}-solved")
    for path in (folder, solved):
        if path.exists():
            raise FileExistsError(f"{path} exists; choose another folder")
    solved.mkdir(parents=True)
    return solved


def _write_solved(solved: Path) -> None:
    """Write each lesson with the right answers in its cells."""
    copy_beside(solved, lesson_files())
    for path in lesson_files():
        notebook = without_outputs(read(path))
        right = solutions(notebook)
        for cell in notebook["cells"]:
            if number := _ours(cell).get("exercise"):
                cell["source"] = right[number]
        write(solved / path.name, notebook)
