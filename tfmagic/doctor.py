"""What of this environment will get in the way, each finding with the line that mends it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tfmagic import runs
from tfmagic.awaiting import can_await
from tfmagic.errors import LaunchError

_LIVE_BUTTONS = (7, 4)  # the first ipykernel that handles a page's messages while a cell is awaited


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was looked at.

    Attributes:
        what: What was looked at, and what it is.
        advice: What is wrong with it and the line that mends it; "" where nothing is.
    """

    what: str
    advice: str = ""


def examine(shell: Any, state_dir: str = "") -> list[Finding]:
    """Everything, in the order in which one meets it."""
    checks: tuple[Callable[[], Finding], ...] = (
        lambda: _python(),
        lambda: _package("tensorflow", (2, 16), "pip install -U tensorflow"),
        lambda: _front_end(shell),
        lambda: _state_folder(state_dir),
    )
    return [check() for check in checks]


def _python() -> Finding:
    return Finding(f"Python {sys.version.split()[0]}")


def _package(name: str, least: tuple[int, int], mend: str) -> Finding:
    found = _version(name)
    if found is None:
        return Finding(f"{name} is missing", mend)
    if found[:2] < least:
        wanted = ".".join(map(str, least))
        return Finding(f"{name} {'.'.join(map(str, found))}", f"tfmagic needs {wanted} or newer:  {mend}")
    return Finding(f"{name} {version(name)}")


def _front_end(shell: Any) -> Finding:
    """Whether the buttons of a panel work while a cell runs."""
    if not hasattr(shell, "kernel"):
        return Finding("a terminal: output is prefixed text; panels are for notebooks")
    found = _version("ipykernel")
    what = f"ipykernel {'.'.join(map(str, found or ('?',)))}"
    if found is not None and found[:2] < _LIVE_BUTTONS:
        return Finding(
            what,
            "the buttons of a panel work only after the cell; everything else is the same:  "
            'pip install -U "ipykernel>=7.4"',
        )
    if not can_await(shell):
        return Finding(what, "cells are not awaited, so that buttons wait for their end:  %autoawait asyncio")
    return Finding(f"{what}: buttons work while a cell runs")


def _state_folder(configured: str) -> Finding:
    base = runs.state_dir(configured)
    try:
        runs.check_writable(base)
    except LaunchError as error:
        return Finding(f"state folder {base}", str(error))
    return Finding(f"state folder {base}")


def _version(name: str) -> tuple[int, ...] | None:
    try:
        parts = version(name).split(".")
    except PackageNotFoundError:
        return None
    return tuple(int(part) for part in parts if part.isdigit())
