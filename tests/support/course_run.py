"""Run a lesson of the course as a learner does: each exercise with wrong answers first, then with its solution."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import nbformat
from kernels import Kernel
from lessons import Lessons
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from tfmagic.features.course.classroom import solutions, wrong_answers

_COLOUR = re.compile(r"\x1b\[[\d;]*m")


@dataclass
class CourseRun:
    """A lesson after its run.

    Attributes:
        said: What the check of each exercise said of the empty cell, of each wrong answer, and of the solution.
    """

    notebook: NotebookNode
    said: dict[str, list[str]] = field(default_factory=dict)

    def shown(self, source: str) -> str:
        """Return the text that the one cell with this beginning shows, its error included."""
        (cell,) = [c for c in self.notebook.cells if c.cell_type == "code" and c.source.startswith(source)]
        return _text(cell)

    def after(self, words: str, place: int = 0) -> str:
        """Return the text that a code cell after this text of a lesson shows: the first, unless told."""
        cells = self.notebook.cells
        (start,) = [n for n, c in enumerate(cells) if c.cell_type == "markdown" and words in c.source]
        return _text([c for c in cells[start:] if c.cell_type == "code"][place])


def _text(cell: NotebookNode) -> str:
    parts = []
    for output in cell.outputs:
        parts.append(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
        parts.append("\n".join(output.get("traceback", ())))
    return _COLOUR.sub("", "\n".join(parts))


def take(lessons: Lessons, name: str, wrong: Mapping[str, Sequence[str]]) -> CourseRun:
    """Run a lesson in the kernel that the lessons share.

    Args:
        wrong: Wrong answers of the exercises; of the others the notebook has some, and the first is tried.
    """
    notebook = nbformat.read(lessons.folder / "course" / name, as_version=4)
    wrong = {**{number: known[:1] for number, known in wrong_answers(notebook).items()}, **wrong}
    return _run(lessons, notebook, {n: [None, *wrong[n], right] for n, right in solutions(notebook).items()})


def take_without(lessons: Lessons, name: str, number: str) -> CourseRun:
    """Run a lesson with each solution but that of this exercise, which stays open."""
    notebook = nbformat.read(lessons.folder / "course" / name, as_version=4)
    return _run(lessons, notebook, {n: [s if n != number else None] for n, s in solutions(notebook).items()})


def _run(lessons: Lessons, notebook: NotebookNode, answers: Mapping[str, Sequence[str | None]]) -> CourseRun:
    """Run a lesson with these answers of each exercise, one after the other; None leaves it open."""
    run = CourseRun(notebook)
    lessons.kernel = lessons.kernel or Kernel(cwd=str(lessons.folder))
    lessons.kernel.client.stop_channels()
    client = NotebookClient(notebook, km=lessons.kernel.manager, timeout=240)
    try:
        with client.setup_kernel():
            _run_cells(client, run, answers)
    finally:
        if client.kc is not None:
            client.kc.stop_channels()
    lessons.kernel.connect()
    if not lessons.kernel.clear():
        lessons.close()
    return run


def _run_cells(client: NotebookClient, run: CourseRun, answers: Mapping[str, Sequence[str | None]]) -> None:
    cells = run.notebook.cells
    number, first = "", 0
    for place, cell in enumerate(cells):
        if exercise := cell.metadata.get("tfmagic", {}).get("exercise"):
            number, first = exercise, place
        elif number and cell.source == f'tfmagic.course.check("{number}")':
            group = range(first, place + 1)
            given = [cells[first].source if answer is None else answer for answer in answers[number]]
            run.said[number] = [_answer(client, cells, group, answer) for answer in given]
            number = ""
        elif not number and cell.cell_type == "code":
            client.execute_cell(cell, place)


def _answer(client: NotebookClient, cells: Sequence[NotebookNode], group: range, answer: str) -> str:
    """Put an answer into the first cell of a group; run the group; return what its check said."""
    cells[group[0]].source = answer
    for place in group:
        if cells[place].cell_type == "code":
            with contextlib.suppress(CellExecutionError):  # a wrong answer, and some right ones, raise
                client.execute_cell(cells[place], place)
    return _text(cells[group[-1]]).strip()
