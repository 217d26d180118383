"""The corpus: plain files of small programs, `programs/CHAPTER.py`.

    # %% a title                 begin a program; this cell runs on the task
    # %% (notebook) a title      begin a program; this cell runs in the notebook
    # %%                         the next cell of the same program, on the task
    # %% (notebook)              the next cell of the same program, in the notebook
    # %% (evaluator)             the next cell of the same program, on the evaluator

Without tfmagic, all cells run in one session.

`make test` runs a sample of each chapter, by seed (SAME_SEED); `make chaos` (SAME=all) runs every program.
"""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass
from pathlib import Path

from differences import DEFECTS, MEANT

ALL = os.environ.get("SAME") == "all"
SEED = int(os.environ.get("SAME_SEED", "1"))

_FOLDER = Path(__file__).parent / "programs"
_CELL = re.compile(r"^# %%[ ]*(?:\((notebook|evaluator)\))?[ ]*(.*)$")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a program, and the process in which it runs with tfmagic.

    Attributes:
        otherwise: What the plain kernel runs instead, if it is given.
    """

    source: str
    in_notebook: bool = False
    on_evaluator: bool = False
    otherwise: str | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A program; its name is `CHAPTER: TITLE`."""

    chapter: str
    title: str
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        return f"{self.chapter}: {self.title}"

    @property
    def uses_notebook(self) -> bool:
        return any(cell.in_notebook for cell in self.cells)

    @property
    def again(self) -> Program:
        """The program twice in one session: the second time, all that it makes is made again.

        In between, the task gets a new process if the notebook makes a part: what the task itself has assigned would
        win over the notebook's.
        """
        restart = Cell("%%capture\n%tfcluster restart", in_notebook=True, otherwise="pass")
        between = (restart,) if self.uses_notebook else ()
        return Program(self.chapter, self.title, (*self.cells, *between, *self.cells))


def read_chapters(*chapters: str) -> list[Program]:
    """Read the programs of these chapters, in their order.

    Raises:
        ValueError: Two programs have the same title.
    """
    found = [program for chapter in chapters for program in _read(chapter)]
    names = [program.name for program in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"programs with the same title: {twice}")
    return found


def read_sample(*chapters: str, share: float = 0.07, listed: bool = True) -> list[Program]:
    """Return every program listed in `differences.py` and a share of the others, by seed; or all programs.

    Args:
        listed: Whether the sample has those that are listed.
    """
    programs = read_chapters(*chapters)
    if ALL:
        return programs
    chosen: set[str] = set()
    for chapter in chapters:
        rest = [p.name for p in programs if p.chapter == chapter and p.name not in {*MEANT, *DEFECTS}]
        chosen |= set(random.Random(f"{SEED} {chapter}").sample(rest, max(1, round(share * len(rest)))))
    return [p for p in programs if p.name in chosen or (listed and p.name in {*MEANT, *DEFECTS})]


def _read(chapter: str) -> list[Program]:
    programs: list[tuple[str, list[tuple[str, list[str]]]]] = []
    for line in (_FOLDER / f"{chapter}.py").read_text("utf-8").splitlines():
        if found := _CELL.match(line):
            place, title = found[1] or "", found[2].strip()
            if title:
                programs.append((title, []))
            programs[-1][1].append((place, []))
        elif programs:  # the description of the chapter stands before the first cell
            programs[-1][1][-1][1].append(line)
    return [
        Program(chapter, title, tuple(_cell(place, lines) for place, lines in cells))
        for title, cells in programs
    ]


def _cell(place: str, lines: list[str]) -> Cell:
    return Cell("\n".join(lines).strip("\n"), place == "notebook", place == "evaluator")
