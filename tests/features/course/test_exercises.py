"""How checks and hints speak, and how the lessons are copied."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import textwrap

import nbformat
import numpy as np
import pytest
from snippets import snippets

from tfmagic import course
from tfmagic.errors import TfmagicError
from tfmagic.features.course import classroom
from tfmagic.features.course.exercises import EXERCISES, Answers, NotYet, find, result_of
from tfmagic.features.course.lessons import read as read_lesson
from tfmagic.frontends.cli import main


@pytest.mark.parametrize("number", ["9", "1.99", "99.1", "a.b", ""])
def test_an_exercise_that_does_not_exist_is_named(number):
    with pytest.raises(TfmagicError, match="no exercise"):
        course.find_fault(number, {})


def test_what_is_missing_or_of_another_kind_is_said():
    answers = Answers({"a": ..., "b": "text", "c": {"worker-0": 1}})
    for read, says in (
        (lambda: answers.number("x"), "no variable `x`"),
        (lambda: answers.number("a"), "still the `...`"),
        (lambda: answers.number("b"), "should be a number, and is of type str"),
        (lambda: answers.results("c"), "not by hand"),
    ):
        with pytest.raises(NotYet) as fault:
            read()
        assert says in str(fault.value)


class Results(dict):
    """As `--out` binds them."""

    seconds = 0


def test_results_are_numbers_or_it_is_said_whose_are_not():
    answers = Answers({"a": Results({"worker-0": np.array([2.0]), "worker-1": np.float32(3)})})
    assert answers.numbers("a", "worker-0", "worker-1") == {"worker-0": 2.0, "worker-1": 3.0}
    with pytest.raises(NotYet, match="on worker-1 the last line of the cell is still"):
        Answers({"a": Results({"worker-0": 1, "worker-1": ...})}).numbers("a")
    for value in ("2", [2], np.zeros(2), np.array("x"), 2j):
        with pytest.raises(NotYet, match="worker-1 should return a number"):
            Answers({"a": Results({"worker-0": 1, "worker-1": value})}).numbers("a")


def test_what_a_function_of_an_answer_raises_is_said():
    assert result_of(max, 1, 2) == 2
    with pytest.raises(NotYet, match="called with 1, 0, it raises ZeroDivisionError: "):
        result_of(lambda a, b: a // b, 1, 0)


def test_hints_come_one_after_the_other(capsys):
    count = len(find("1.2").hints)
    for _ in range(count + 1):
        course.hint("1.2")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"hint 1 of {count}: ") and lines[count] == lines[0]


def test_without_a_notebook_a_check_says_where_it_works():
    code = "import tfmagic; tfmagic.course.check('1.1')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "TfmagicError: the exercises are checked in a notebook" in done.stderr


PLAIN = [
    (number, answers)
    for path in course.lesson_files()
    for number, answers in classroom.wrong_answers(read_lesson(path)).items()
    if answers
]


@pytest.mark.parametrize(("number", "answers"), PLAIN, ids=[number for number, _ in PLAIN])
def test_wrong_answers_in_plain_python_are_found(number, answers):
    faults = set()
    for answer in answers:
        found = {}
        exec(answer, found)
        faults.add(course.find_fault(number, found))
    assert "" not in faults and len(faults) > 1, faults
    assert not [fault for fault in faults if fault.startswith("there is no variable")], faults
    if number == "2.3":  # each mistake in a sentence of its own
        assert {"one worker runs on alpha and one on beta.", "the first of the two is for worker-0."} < faults


def test_verdicts_are_raised_on_request_and_exported(tmp_path):
    (of_the_page,) = [snippet.code for snippet in snippets("docs/teaching.md", "python")]
    code = f"""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config
    import tfmagic.course
    shell = InteractiveShell.instance(config=Config({{"HistoryManager": {{"enabled": False}}}}))
    for answer in ("...", "lambda rows, batch: 0", "lambda rows, batch: min(rows) // batch"):
        shell.run_cell("steps = " + answer)
        try:
            exec({of_the_page!r})
        except AssertionError as error:
            print(type(error).__name__, error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=tmp_path
    )
    open_, wrong, right = done.stdout.splitlines()
    assert open_.startswith("NotYet 4.2: not yet: `steps` is still") and "returns 0" in wrong, done.stderr
    assert right == "✔ 4.2: right."
    exported = json.loads((tmp_path / "results.json").read_text())
    assert exported == {"4.2": {"right": True, "fault": "", "checks": 3}}


def test_what_an_earlier_try_has_left_is_not_the_answer(capsys):
    """In a real shell, whose variables the check reads."""
    code = """
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config
    import tfmagic
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_cell("def steps(rows, batch): return min(row // batch for row in rows)")
    tfmagic.course.check("4.2")
    shell.run_cell("steps = undefined")
    tfmagic.course.check("4.2")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert "✔ 4.2: right." in done.stdout, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("✘ 4.2: not yet: the cell before this check raised NameError; what it checks"), (
        last
    )


def test_a_second_check_after_a_failed_try_says_the_same():
    """Checks and hints are cells as well, and come between the failed try and the check."""
    code = """
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config
    import tfmagic
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    right, check = "def steps(rows, batch): return min(rows) // batch", "import tfmagic; tfmagic.course.check('4.2')"
    raising, hint = check.replace("')", "', raises=True)"), check.replace("check", "hint")
    for cell in (right, check, "steps = undefined", check, check, hint, check, raising, raising, right, check, right, raising):
        print("ran", flush=True)
        shell.run_cell(cell, store_history=True)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    said = [("✔" in part, "raised NameError" in part) for part in done.stdout.split("ran\n")[1:]]
    right, stale, silent = (True, False), (False, True), (False, False)
    assert said == [
        *(silent, right, silent, stale, stale, silent, stale, stale, stale, silent, right, silent, right)
    ], done.stdout


def test_copies_have_outputs_only_on_request(tmp_path):
    for words, has_outputs in (([], False), (["--with-outputs"], True)):
        assert main(["course", *words, str(tmp_path / str(has_outputs))]) == 0
        for path in (tmp_path / str(has_outputs)).glob("*.ipynb"):
            notebook = nbformat.read(path, as_version=4)
            nbformat.validate(notebook)
            code = [cell for cell in notebook.cells if cell.cell_type == "code"]
            assert any(cell.outputs for cell in code) == has_outputs
            assert any(cell.execution_count for cell in code) == has_outputs


def test_the_lessons_are_copied_and_replace_nothing(tmp_path, capsys):
    assert main(["course", str(tmp_path / "new")]) == 0
    copied = sorted(path.name for path in (tmp_path / "new").iterdir())
    pictures = sorted(path.name for path in course.lesson_files()[0].parent.glob("*.svg"))
    assert copied == sorted([*(path.name for path in course.lesson_files()), "glossary.md", *pictures])
    assert "jupyter lab" in capsys.readouterr().out
    assert main(["course", str(tmp_path / "new")]) == 1
    assert "already" in capsys.readouterr().err
    assert main(["course", str(tmp_path / "of mine")]) == 0
    assert f"jupyter lab '{tmp_path}/of mine/01-first-cluster.ipynb'" in capsys.readouterr().out
    assert main(["course", str(tmp_path / "new" / "life.svg")]) == 1
    assert "life.svg cannot be written (File exists); choose another folder" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["nbgrader", "otter"])
def test_a_class_is_made_once_and_has_no_solutions(tmp_path, capsys, kind):
    folder = tmp_path / "class"
    assert main(["course", "--format", kind, str(folder)]) == 0
    handed_out = sorted(folder.rglob("*.ipynb"))
    made = [*handed_out, *sorted((tmp_path / "class-solved").rglob("*.ipynb"))]
    assert len(made) == 2 * len(handed_out)
    assert {path.name for path in handed_out} == {path.name for path in course.lesson_files()}
    for path in made:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        is_open = path in handed_out
        for name in re.findall(r"\]\((\w+\.svg)\)", str(notebook)):
            assert (path.parent / name).exists(), f"{path.name}: {name}"
        assert bool(classroom.solutions(notebook)) != is_open
        assert not is_open or "folded" not in str(notebook), "it has no folded solution"
        numbers = [cell.metadata[kind] for cell in notebook.cells if kind in cell.metadata]
        assert (2 <= len(numbers) <= 3) == is_open
        assert ("timeout_s = " in str(notebook)) == is_open
    assert main(["course", "--format", kind, str(folder)]) == 1
    assert "exists" in capsys.readouterr().err
    shutil.rmtree(folder)
    assert main(["course", "--format", kind, str(folder)]) == 1
    assert "class-solved" in capsys.readouterr().err and not folder.exists()
    with pytest.raises(SystemExit):
        main(["course", "--with-outputs", "--format", kind, str(tmp_path / "other")])


def test_every_exercise_has_hints_that_end_as_sentences():
    for path in course.lesson_files():
        find(f"{int(path.name[:2])}.1")
    for exercise in EXERCISES.values():
        assert exercise.hints and all(hint.endswith(".") for hint in exercise.hints), exercise.number


def write_records(path, numbers):
    records = (str(number).encode() for number in numbers)
    path.write_bytes(b"".join(struct.pack("<Q4x", len(text)) + text + bytes(4) for text in records))


def test_values_without_files_of_their_own_are_not_taken_for_an_answer(tmp_path):
    """Files of an earlier try are there; the values of the new one were computed without any."""
    for index in range(2):
        write_records(
            tmp_path / f"squares-{index:05}-of-00002.tfrecord", [n * n for n in range(index, 20, 2)]
        )
    sums = [sum(n * n for n in range(index, 20, 2)) for index in range(2)]
    first, second = (Results({"worker-0": sums[0], "worker-1": sums[1]}) for _ in range(2))
    for _ in range(2):
        assert course.find_fault("4.3", {"sums": first, "folder": str(tmp_path)}) == ""
    for _ in range(2):
        assert "earlier try" in course.find_fault("4.3", {"sums": second, "folder": str(tmp_path)})
    os.utime(tmp_path / "squares-00000-of-00002.tfrecord")
    assert course.find_fault("4.3", {"sums": second, "folder": str(tmp_path)}) == ""


def write_checkpoint(folder, value):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.index").write_bytes(b"")
    (folder / "state.data-00000-of-00001").write_bytes(struct.pack("<100f", *[value] * 100))


def test_what_an_earlier_try_has_saved_is_seen(tmp_path):
    paths = {"worker-0": str(tmp_path / "exercise" / "state"), "worker-1": str(tmp_path / "gone" / "state")}
    first, second = Results(paths), Results(paths)
    write_checkpoint(tmp_path / "exercise", 1.0)
    assert course.find_fault("7.2", {"written": first, "folder": tmp_path}) == ""
    assert "earlier try" in course.find_fault("7.2", {"written": second, "folder": tmp_path})
    write_checkpoint(tmp_path / "exercise", 1.0)
    assert course.find_fault("7.2", {"written": second, "folder": tmp_path}) == ""
    write_checkpoint(tmp_path / "other", 2.0)  # of worker-1
    for _ in range(2):
        assert "of worker-1 have stayed" in course.find_fault("7.2", {"written": second, "folder": tmp_path})
    write_checkpoint(tmp_path / "exercise", 1.0)
    assert course.find_fault("7.2", {"written": Results(paths), "folder": tmp_path}) == "", "it was said"
