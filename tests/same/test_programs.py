"""The programs of all chapters behave the same in a plain kernel and on a task of a cluster."""

from __future__ import annotations

import pytest
from checking import check
from corpus import read_sample

CHAPTERS = (
    *("language_expressions", "language_statements", "language_definitions", "library", "ipython"),
    *("data", "notebook", "tensorflow_basics", "tensorflow_data", "tensorflow_keras", "notebook_tensorflow"),
)


@pytest.mark.parametrize("program", read_sample(*CHAPTERS), ids=lambda program: program.name)
def test_a_program_behaves_on_a_task_as_in_a_plain_kernel(program, pair):
    check(program, pair)


@pytest.mark.parametrize(
    "program", read_sample(*CHAPTERS, share=0.01, listed=False), ids=lambda program: program.name
)
def test_a_program_behaves_the_second_time_as_in_a_plain_kernel(program, pair):
    check(program.again, pair)
