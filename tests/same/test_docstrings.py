"""The examples in the docstrings of installed packages, as programs by other authors.

Each runs in two forms: as a whole in a cell, and with its set-up lines in the notebook and its last expression
in a cell. `make test` runs a sample of SAMPLED by seed, `make chaos` (SAME=all) every one.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from comparing import find_differences, is_refused
from corpus import ALL, SEED, Cell, Program
from differences import EXAMPLES
from docstring_examples import MODULES, PREAMBLES

SAMPLE = 2  # programs of a package
SAMPLED = ("pandas", "numpy")  # TensorFlow: four chapters of tests/same/programs
_SEEDS = re.compile(r"seed\(")  # a seed belongs to a process: the notebook's is not the task's


def examples(package: str) -> list[tuple[str, list[str]]]:
    """Return the examples of a package, which a process of its own imports."""
    command = [sys.executable, Path(__file__).with_name("docstring_examples.py"), package]
    environ = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environ, check=True)
    found: list[tuple[str, list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def programs_of(package: str, name: str, statements: list[str]) -> list[Program]:
    """Return an example as a whole, and parted before its last expression."""
    whole = "\n".join([PREAMBLES[package], *statements])
    made = [Program(package, f"{name} as a whole", (Cell(whole),))]
    set_up = "\n".join([PREAMBLES[package], *statements[:-1]])
    if len(statements) > 1 and _is_expression(statements[-1]) and not _SEEDS.search(set_up):
        made.append(
            Program(package, f"{name} parted", (Cell(set_up, in_notebook=True), Cell(statements[-1])))
        )
    return made


def _is_expression(source: str) -> bool:
    try:
        return isinstance(ast.parse(source).body[-1], ast.Expr)
    except SyntaxError:
        return False


@pytest.mark.timeout(0 if ALL else 240)
@pytest.mark.parametrize(
    "package", [name if name in SAMPLED else pytest.param(name, marks=pytest.mark.soak) for name in MODULES]
)
def test_examples_behave_on_a_task_as_in_a_plain_kernel(package, pair):
    found = examples(package)
    random.Random(SEED).shuffle(found)
    programs = [program for name, lines in found for program in programs_of(package, name, lines)]
    programs = programs if ALL else programs[:SAMPLE]
    differences = [text for program in programs for text in _compare(program, pair)]
    assert not differences, f"{len(differences)} of {len(programs)} programs:\n" + "\n\n".join(differences)


def _compare(program: Program, pair) -> list[str]:
    """Return the differences, unless two runs of the plain kernel differ from each other, too."""
    bare, ours = pair.run(program)
    found = find_differences(bare, ours)
    if not found or program.name in EXAMPLES or is_refused(ours):
        return []
    again, ours = pair.run(program)
    found = find_differences(again, ours)
    if not found or find_differences(bare, again):
        return []
    source = "\n---\n".join(cell.source for cell in program.cells)
    return [f"{program.name}\n{source}\n" + "\n".join(f"{aspect}: {text}" for aspect, text in found.items())]
