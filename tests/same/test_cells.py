"""Cells and definitions of the notebook: the same program in a plain kernel and on a task of a cluster."""

from __future__ import annotations

import pytest
from checking import check
from corpus import read_chapters

CHAPTERS = ("language_expressions", "language_statements", "language_definitions", "library", "ipython")
CHAPTERS += ("data", "notebook")


@pytest.mark.parametrize("program", read_chapters(*CHAPTERS), ids=lambda program: program.name)
def test_a_program_does_on_a_task_what_it_does_without_us(program, pair_of_module):
    check(program, pair_of_module)
