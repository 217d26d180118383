"""The pictures of the lessons: drawn from what the lessons say, and never older than the script that draws them."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import nbformat
import pytest

from tfmagic import course

FOLDER = course.lesson_files()[0].parent
_SPEC = importlib.util.spec_from_file_location(
    "course_pictures", Path(__file__).parents[3] / "scripts" / "course_pictures.py"
)
pictures = sys.modules.setdefault(_SPEC.name, importlib.util.module_from_spec(_SPEC))
_SPEC.loader.exec_module(pictures)
LESSONS = {path.name[:2]: nbformat.read(path, as_version=4) for path in course.lesson_files()}


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_the_one_that_its_script_draws(name):
    assert (FOLDER / f"{name}.svg").read_text("utf-8") == pictures.PICTURES[name]().svg + "\n", (
        "run python scripts/course_pictures.py"
    )


def test_each_picture_is_in_a_lesson_with_a_text_for_those_who_do_not_see_it():
    shown = {}
    for notebook in LESSONS.values():
        for cell in notebook.cells:
            shown |= {name: alt for alt, name in re.findall(r"!\[([^\]]*)\]\((\w+)\.svg\)", cell.source)}
    assert shown.keys() == pictures.PICTURES.keys() == {path.stem for path in FOLDER.glob("*.svg")}
    assert all(len(alt) > 100 and alt.endswith(".") for alt in shown.values())


def recorded(lesson, source):
    """Return what a task printed in the saved lesson, for each task: the value of the cell that ends so."""
    (cell,) = [c for c in LESSONS[lesson].cells if c.cell_type == "code" and c.source.endswith(source)]
    text = "".join(o.get("data", {}).get("text/plain", "") or o.get("text", "") for o in cell.outputs)
    return [ast.literal_eval(value) for value in re.findall(r"^\[worker-\d\]: +(\[.*\])$", text, re.M)]


@pytest.mark.parametrize(
    ("policy", "source"),
    [
        ("DATA", "\n\n\nbatches_of(numbers.batch(4))"),
        ("OFF", "batches_of(numbers.batch(4).with_options(options))"),
        ("FILE", "batches_of(files.interleave(tf.data.TFRecordDataset).map(tf.strings.to_number).batch(4))"),
    ],
)
def test_the_rows_of_the_picture_are_those_that_the_lesson_has_seen(policy, source):
    used = [sorted(row for batch in batches for row in batch) for batches in recorded("04", source)]
    assert used == pictures.POLICIES[policy][1]


def test_the_ring_ends_with_all_sums_on_all_workers_and_sends_what_the_formula_says():
    for tasks in (2, 3, 5):
        start = [[10**task * (part + 1) for part in range(tasks)] for task in range(tasks)]
        steps = pictures.ring_steps(start)
        assert steps[-1][0] == [[sum(column) for column in zip(*start, strict=True)]] * tasks
        sent_by_each = sum(len(arrived) for _, arrived in steps) / tasks / tasks
        assert sent_by_each == pytest.approx(2 * (tasks - 1) / tasks)
