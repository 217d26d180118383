"""Sentences of tfmagic itself before a cell runs: about its start, the machine, its variables."""

import sys

_said: list[tuple[str, bool]] = []


def begin() -> None:
    """Forget those of the last cell."""
    _said.clear()


def say(text: str, *, is_error: bool = True) -> None:
    """Print a sentence, on the error stream or on standard output."""
    _said.append((text, is_error))
    print(text, file=sys.stderr if is_error else sys.stdout)


def repeat() -> None:
    """Print them again, after the output of the cell was removed."""
    for text, is_error in _said:
        print(text, file=sys.stderr if is_error else sys.stdout)
