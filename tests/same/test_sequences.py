"""After any sequence of changes in the notebook, a task has the same values as the notebook.

`make test` tries two sequences; `make chaos` (SAME=all) as many as SAME_SEQUENCES says.
"""

from __future__ import annotations

import os

import pytest
from changes import SEQUENCES, cells_of
from comparing import find_differences
from corpus import ALL, Program
from hypothesis import HealthCheck, Phase, given, settings

BOUNDS = settings(
    max_examples=int(os.environ.get("SAME_SEQUENCES", "300" if ALL else "2")),
    derandomize=not ALL,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, *([Phase.shrink] if ALL else [])],
)


@pytest.mark.timeout(0 if ALL else 240)
def test_a_task_agrees_with_the_notebook_after_each_change(pair):
    numbers = iter(range(10**6))

    @BOUNDS
    @given(SEQUENCES)
    def hold(sequence):
        program = Program("generated", "a sequence", cells_of(next(numbers), sequence))
        bare, ours = pair.run(program)
        found = find_differences(bare, ours)
        found.pop("names", None)  # the task has those that it was sent
        assert not found, _show(program, bare, ours)

    hold()


def _show(program, bare, ours):
    """Return the cells up to the first difference, without the definitions and the looks, and the difference."""
    text = []
    for cell, one, other in zip(program.cells, bare.cells, ours.cells, strict=True):
        if cell is not program.cells[0] and not cell.source.startswith("try: print"):
            text.append(cell.source)
        if (one.printed, one.error) != (other.printed, other.error):
            lines = zip(one.printed.splitlines(), other.printed.splitlines(), strict=False)
            text += [f"without tfmagic: {a}\non a task:       {b}" for a, b in lines if a != b]
            text += [f"{one.error}\n{other.error}"] if one.error != other.error else []
            break
    return "\n\n".join(text)
