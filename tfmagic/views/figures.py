"""What features show of a cell beside its output: figures, each with a line of text that says the same.

records of the run, on disk ── NAME/figures.py: open_figures ──→ Figures ─┬─→ panel, saved form: pictures
                                                                          └─→ text: lines
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.folder import RunFolder
from tfmagic.system import features


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure as it is now.

    Attributes:
        name: Stays the same while the figure changes.
        text: Says what it shows.
        draw: Returns it as SVG that needs no style sheet, on a light or a dark page.
    """

    name: str
    text: str
    draw: Callable[[], str]


class Source(Protocol):
    """The figures of one feature for one cell: what `open_figures` of its half returns."""

    def read(self) -> bool:
        """Read what is new; return whether there is something."""

    def figures(self) -> list[Figure]:
        """Return the figures of what was read."""


class Figures:
    """The figures of all features for one cell."""

    def __init__(self, run: RunFolder, cell: int, tasks: Iterable[TaskId]):
        self._of = run, cell, tuple(tasks)

    @functools.cached_property
    def _sources(self) -> list[Source]:
        return [half.open_figures(*self._of) for half in features.halves("figures")]

    def read(self) -> bool:
        """Read what is new; return whether there is something."""
        found = [source.read() for source in self._sources]
        return any(found)

    def figures(self) -> list[Figure]:
        """Return all figures."""
        return [figure for source in self._sources for figure in source.figures()]

    def pictures(self) -> dict[str, str]:
        """Return the SVG of each name."""
        return {figure.name: figure.draw() for figure in self.figures()}

    def lines(self) -> list[str]:
        """Return the text of each figure."""
        return [figure.text for figure in self.figures()]
