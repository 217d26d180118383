"""Lines that a task prints about a repair, and hints on training that differs from one process.

A line on a repair comes once in a process; a hint once in a cell, since the program of a later cell can
differ for the same reason.
"""

from tfmagic.protocol.commands import RunCell
from tfmagic.system.advice import Step
from tfmagic.task.cell_parts import CellPart

_SWITCH = "; --no-keras-fix switches it off"

_printed: set[str] = set()
_hinted: set[str] = set()
_is_task = True


class Notices(CellPart):
    """Lets each hint be printed again in each cell."""

    def begin(self, cell: RunCell) -> None:
        """Forget the hints of the cell before."""
        _hinted.clear()


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


def print_hint(name: str, advice: str) -> None:
    """Print a hint, whose name `explain` knows."""
    _hinted.add(name)
    print(f"tfmagic: hint: {advice} ({Step('explain', name)})", flush=True)


def hint_once(name: str, advice: str, **words: object) -> None:
    """Print a hint with these words, once in this cell."""
    if not was_printed(name):
        print_hint(name, advice.format(**words))


def was_printed(name: str) -> bool:
    """Check whether this cell has printed a hint."""
    return name in _hinted


def forget() -> None:
    """Let each notice be printed again: another program begins."""
    _printed.clear()
