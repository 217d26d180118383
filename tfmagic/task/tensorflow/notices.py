"""Lines that a task prints about a repair, and hints on training that differs from one process.

A line on a repair comes once in a process; a hint once in a cell, since the program of a later cell can
differ for the same reason. A hint is no output: a task sends it to the kernel, at once, so that it is seen
before a long training ends. A child process that the user's code has forked has no way to the kernel, nor has
a program that tfmagic has not started: they print it.
"""

import os
from collections.abc import Callable

from tfmagic.protocol.commands import RunCell
from tfmagic.system.advice import Step
from tfmagic.task.cell_parts import CellPart

_SWITCH = "; --no-keras-fix switches it off"

_printed: set[str] = set()
_given: dict[str, str] = {}  # the advice of each hint of this cell, by name
_send: Callable[[str, str], object] | None = None
_is_task = True


class Notices(CellPart):
    """Lets each hint be given again in each cell.

    Args:
        send: Called with the name and the advice of a hint, by any thread.
    """

    def __init__(self, send: Callable[[str, str], object]):
        global _send
        pid = os.getpid()

        def give(name: str, advice: str) -> None:
            (send if os.getpid() == pid else _print)(name, advice)

        _send = give

    def begin(self, cell: RunCell) -> None:
        """Forget the hints of the cell before."""
        _given.clear()


def print_once(notice: str, **words: object) -> None:
    """Print a notice with these words, once in this process."""
    if notice not in _printed:
        _printed.add(notice)
        print(notice.format(**words), flush=True)


def print_repair(notice: str, switch: str = _SWITCH, **words: object) -> None:
    """Print what a repair does, once in this process; on a task dimmed, with what switches it off."""
    print_once(f"\x1b[2m{notice}{switch}\x1b[0m" if _is_task else notice, **words)


def be_outside_tasks() -> None:
    """Print repairs as in a program that tfmagic has not started: it has no option, often no terminal."""
    global _is_task
    _is_task = False


def hint_once(name: str, advice: str, **words: object) -> None:
    """Give a hint with these words, once in this cell; `explain` knows its name."""
    if name not in _given:
        _given[name] = advice.format(**words) if words else advice
        (_send or _print)(name, _given[name])


def _print(name: str, advice: str) -> None:
    print(f"tfmagic: hint: {advice} ({Step('explain', name)})", flush=True)


def given() -> dict[str, str]:
    """Return the advice of each hint that this cell has given so far, by name."""
    return dict(_given)


def forget() -> None:
    """Let each notice be printed again: another program begins."""
    _printed.clear()
