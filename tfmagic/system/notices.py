"""Sentences of tfmagic itself before a cell runs: about its start, the machine, its variables."""

import contextlib
import sys
from typing import TextIO

_said: list[str] = []
_passing: list[str] = []


def begin() -> None:
    """Forget those of the last cell."""
    _said.clear()
    _passing.clear()


def say(text: str, *, is_error: bool = True) -> None:
    """Print a sentence, on the error stream or on standard output."""
    _said.append(text)
    if is_error:
        tell(text)
    else:
        _show(text, sys.stdout)


def tell(text: str) -> None:
    """Print text and a line end on the error stream."""
    _show(text.removesuffix("\n"), sys.stderr)


def _show(text: str, stream: TextIO | None, flush: bool = False) -> None:
    """Print text and a line end.

    A stream that takes nothing (a full disk, a pipe without a reader, a closed stream) raises nothing here: a
    sentence that is not shown must not end what it speaks of.
    """
    with contextlib.suppress(OSError, ValueError):
        print(text, file=stream, flush=flush)


def say_now(text: str) -> None:
    """Print a sentence that is true only now, or uninteresting when the cell has ended."""
    _passing.append(text)
    _show(text, sys.stdout, flush=True)


def have_passed() -> bool:
    """Check whether a sentence was printed that is no longer true."""
    return bool(_passing)


def said() -> tuple[str, ...]:
    """Return those that are still true."""
    return tuple(_said)
