"""The page of ``tfmagic course``, and its options."""

import argparse

from tfmagic.frontends.cli.pages import Page


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the folder, which is made")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--with-outputs", action="store_true", help="for reading: cells show the output of a run"
    )
    kinds.add_argument(
        "--format",
        choices=("nbgrader", "otter", "slides"),
        help="for a class: assignments that are graded, or slides",
    )


PAGES = {
    "course": Page(
        "copy the course into a folder",
        "[--with-outputs | --format nbgrader|otter|slides] DIR",
        """\
The course has fourteen lessons as notebooks, of 25 to 40 minutes each: what a task is,
collectives, sharding, parameter servers, failures, hangs, and the way to real machines.
They ask you to predict what a cell does; so the copies have no output until you run them.
Each has exercises with checks and hints. It needs JupyterLab: pip install "tfmagic[lab]".
Nothing that is in the folder is replaced.

With --format the lessons become assignments of a class, without solutions: each check
gives a point. For nbgrader they are in DIR/source, with a configuration; for otter-grader
each has a folder with its tests. DIR-solved has the right answers, for the teacher.
--format slides makes slides of them, which show an output one key press after its code.""",
        (
            ("course clusters", "make the folder clusters with the lessons"),
            ("course class --format nbgrader", "make assignments for nbgrader"),
        ),
        (("0", "the lessons are there"), ("1", "they could not be copied"), ("2", "bad usage")),
        _add,
        everywhere=True,
    ),
}
