"""Programs that are drawn from a seed train on two workers what one process trains, or a hint says why not.

TRAINING_SEED is the seed of the first program, TRAINING_PROGRAMS how many there are. A failure prints its seed
and the program: ``TRAINING_SEED=17 TRAINING_PROGRAMS=1 pytest -m soak tests/training/test_drawn_programs.py`` runs
that one again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
from test_table import differs, differs_in_history, one_process
from training_generator import drawn
from training_programs import train
from training_rows import ROWS

import tfmagic

FIRST = int(os.environ.get("TRAINING_SEED", "1"))
COUNT = int(os.environ.get("TRAINING_PROGRAMS", "20"))
DIFFERS = {row.named for row in ROWS.values() if row.verdict == "hinted"}
REFUSED = "explain empty-part)"  # an eager layer that takes no batch without rows
HINT = re.compile(r"explain ([\w-]+)\)")
DIGITS, OF_BFLOAT16 = 3, 1  # a function such as the sign of a gradient makes more of the last digits


@pytest.fixture(scope="module")
def cluster_of_module() -> Iterator[tfmagic.Cluster]:
    with tfmagic.Cluster(workers=2, name="generated") as cluster:
        yield cluster


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_a_generated_program_trains_what_one_process_trains_or_says_why_not(seed, cluster_of_module):
    program = drawn(seed)
    print(f"TRAINING_SEED={seed} TRAINING_PROGRAMS=1\n{program.source()}")
    try:
        alone = one_process(cluster_of_module, program)
        results = cluster_of_module.run(train, program, False, timeout=60, view="quiet")
    except BaseException as error:
        cluster_of_module.restart()  # tasks can wait for each other
        if REFUSED in "".join(getattr(error, "__notes__", [])):
            return
        raise
    first, second = results.values()
    digits = OF_BFLOAT16 if "bfloat16" in program.model else DIGITS
    if not DIFFERS & set(HINT.findall(first.printed)):
        assert differs(first.weights, second.weights, digits) is None
        assert differs(alone["weights"], first.weights, digits) is None
        assert differs_in_history(alone, first, digits) is None
