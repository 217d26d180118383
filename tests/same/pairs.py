"""The two sides that run the programs. Each is started by the first program that needs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sides import Behaviour

Compare = Callable[..., dict[str, str]]


class Pair:
    """Both sides. A side that fails in a program is closed and started again for the next program."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._sides: list[Any] = [None, None]

    def run(self, program: Any) -> tuple[Behaviour, Behaviour]:
        """Run a program on both sides."""
        from sides import BareSide, TaskSide

        found = []
        for place, kind in enumerate((BareSide, TaskSide)):
            if self._sides[place] is None:
                folder = self._folder / "folder" / kind.__name__ / "cwd"
                folder.mkdir(parents=True, exist_ok=True)
                self._sides[place] = kind(folder)
            try:
                found.append(self._sides[place].run(program))
            except BaseException:
                side, self._sides[place] = self._sides[place], None
                side.close()
                raise
        return found[0], found[1]

    def close(self) -> None:
        for side in self._sides:
            if side is not None:
                side.close()
