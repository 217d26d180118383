"""Lines that a task prints about a repair, and hints on training that differs from one process.

Each comes once in a cell: the program of another cell can differ for the same reason.
"""

from tfmagic.protocol.commands import RunCell
from tfmagic.system.advice import Step
from tfmagic.task.cell_parts import CellPart

_printed: set[str] = set()


class Notices(CellPart):
    """Lets each notice and hint be printed again in each cell."""

    def begin(self, cell: RunCell) -> None:
        """Forget what was printed."""
        _printed.clear()


def print_once(notice: str, **words: object) -> None:
    """Print a notice with these words, once in this cell."""
    if notice not in _printed:
        _printed.add(notice)
        print(notice.format(**words), flush=True)


def print_hint(name: str, advice: str) -> None:
    """Print a hint, whose name `explain` knows."""
    _printed.add(name)
    print(f"tfmagic: hint: {advice} ({Step('explain', name)})", flush=True)


def hint_once(name: str, advice: str, **words: object) -> None:
    """Print a hint with these words, once in this cell."""
    if not was_printed(name):
        print_hint(name, advice.format(**words))


def was_printed(name: str) -> bool:
    """Check whether this cell has printed a hint."""
    return name in _printed
