"""What must differ on a task, each with its reason. An entry that no longer differs fails its test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """The aspects of a program that differ, and why that is right."""

    aspects: frozenset[str]
    reason: str


def _because(reason: str, *aspects: str) -> Difference:
    return Difference(frozenset(aspects), reason)


_SEMICOLON = _because("--out takes the value also where a semicolon hides it", "value")
_EXIT = _because("sys.exit ends no task; the error says so and what to use", "error")
_BEFORE_ANYTHING = "a cell with a syntax error starts nothing; IPython runs the statements above it"
_STOP_ITERATION = _because(
    "a notebook awaits the cell, and no coroutine may raise StopIteration: it is the cause of another",
    "error",
)

MEANT: dict[str, Difference] = {
    "language_expressions: a semicolon hides the value": _SEMICOLON,
    "language_statements: StopIteration of a cell": _STOP_ITERATION,
    "language_statements: sys.exit with a number": _EXIT,
    "language_statements: sys.exit with zero": _EXIT,
    "language_statements: sys.exit with a message": _EXIT,
    "language_statements: raise SystemExit": _EXIT,
    "library: argparse and sys.argv in a cell": _EXIT,
    "tensorflow_data: an iterator over several cells": _STOP_ITERATION,
    "tensorflow_data: out of a data set by next": _STOP_ITERATION,
}

# Found and not mended yet: what is wrong. Whoever mends it takes the entry out: one that no longer differs fails.
DEFECTS: dict[str, str] = {}

# Docstring examples that must differ, by the name of the program.
EXAMPLES: dict[str, str] = {}
