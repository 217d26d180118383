"""The examples in the docstrings of installed packages: programs that nobody here wrote.

Each runs in two forms: as a whole in a cell; and with its set-up lines in the notebook and its last expression
in a cell. `make test` runs a sample by seed, `make chaos` (SAME=all) every one.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from comparing import find_differences, is_refused
from corpus import Cell, Program
from differences import EXAMPLES
from docstring_examples import MODULES, PREAMBLES

ALL = os.environ.get("SAME") == "all"
SEED = int(os.environ.get("SAME_SEED", "1"))
SAMPLE = 16  # programs of a package; each is a quarter of a second on an idle machine
SAMPLE_S = 15.0  # on a busy machine less is compared
AT_LEAST = 4
_SEEDS = re.compile(r"seed\(")  # of a process: the notebook's is not the task's


@functools.cache
def examples(package: str) -> list[tuple[str, list[str]]]:
    """The package's examples, in an order by seed."""
    command = [sys.executable, Path(__file__).with_name("docstring_examples.py"), package]
    environ = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environ, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    random.Random(SEED).shuffle(found)
    return found


def programs_of(package: str, name: str, statements: list[str]) -> list[Program]:
    """An example as a whole, and parted before its last expression."""
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
@pytest.mark.parametrize("package", MODULES)
def test_examples_do_on_a_task_what_they_do_without_us(package, pair_of_module):
    programs = [program for name, lines in examples(package) for program in programs_of(package, name, lines)]
    told: list[str] = []
    compared = 0
    began = time.monotonic()
    for program in programs if ALL else programs[:SAMPLE]:
        if not ALL and compared >= AT_LEAST and time.monotonic() - began > SAMPLE_S:
            break
        compared += 1
        told += _compare(program, pair_of_module)
    assert not told, f"{len(told)} of {compared} programs:\n" + "\n\n".join(told)


def _compare(program: Program, pair_of_module) -> list[str]:
    """What differs, if the same program does not differ from itself, too."""
    bare, ours = pair_of_module.run(program)
    found = find_differences(bare, ours)
    if not found or program.name in EXAMPLES or is_refused(ours):
        return []
    again, ours = pair_of_module.run(program)
    found = find_differences(again, ours)
    if not found or find_differences(bare, again):
        return []
    source = "\n---\n".join(cell.source for cell in program.cells)
    return [f"{program.name}\n{source}\n" + "\n".join(f"{aspect}: {text}" for aspect, text in found.items())]
