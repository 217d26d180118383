"""The rows of the table, their targets, and the sizes of the work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

HEADER = ("what", "ours", "peer", "ratio", "target", "met?")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of rounds and sizes of all benchmarks."""

    cell_rounds: int = 6  # of CELLS_PER_ROUND calls, tfmagic and the peer in turn
    starts: int = 3
    engine_starts: int = 3  # a quarter of a minute each
    restarts: int = 7
    print_rounds: int = 7
    print_lines: int = 300_000  # a task; about a second of plain printing on two cores
    flood_lines: int = 2_500_000  # a task; 10 million lines together
    page_lines: int = 1_000_000  # a task
    array_rounds: int = 7
    deaths: int = 3
    watch_s: float = 15.0
    training_rounds: int = 3
    training_blocks: int = 12  # of 50 steps
    growth_rounds: int = 5  # for each number of tasks


QUICK = Sizes(
    cell_rounds=3,
    starts=3,
    engine_starts=1,
    restarts=3,
    print_rounds=3,
    print_lines=100_000,
    flood_lines=500_000,
    page_lines=250_000,
    array_rounds=3,
    deaths=2,
    watch_s=6.0,
    training_rounds=3,
    training_blocks=4,
    growth_rounds=3,
)


@dataclass(frozen=True, slots=True)
class Target:
    """A limit of our value, in its unit, or of its ratio to the peer's value."""

    of: Literal["value", "ratio"]
    sign: Literal["<=", ">="]
    limit: float

    def text(self, unit: str) -> str:
        return f"{self.sign} {self.limit:g} {unit if self.of == 'value' else 'x'}"

    def met(self, value: float, ratio: float) -> bool:
        measured = value if self.of == "value" else ratio
        return measured <= self.limit if self.sign == "<=" else measured >= self.limit


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `peer` is None where there is nothing to compare with.

    A value that depends on the number of tasks has it: such rows are the cells of one table, `render_growth`.
    """

    what: str
    ours: float
    unit: str
    peer: float | None = None
    peer_name: str = ""
    target: Target | None = None
    rounds: tuple[Sequence[float], Sequence[float]] | None = None  # all values; the row shows the medians
    tasks: int = 0
    is_simulated: bool = False  # the tasks have no processes

    @property
    def ratio(self) -> float:
        return self.ours / self.peer if self.peer else math.nan

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, in the order of HEADER."""
        peer = "-" if self.peer is None else f"{short(self.peer)} {self.unit}, {self.peer_name}"
        ratio = "-" if self.peer is None else f"{self.ratio:.3f}"
        target, met = "-", "-"
        if self.target is not None:
            target = self.target.text(self.unit)
            met = "yes" if self.target.met(self.ours, self.ratio) else "NO"
        return (self.what, f"{short(self.ours)} {self.unit}", peer, ratio, target, met)


def short(value: float) -> str:
    """Return the value with three significant digits and separators of thousands."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def render_rounds(rows: Sequence[Row]) -> str:
    """Return the values behind the medians: a target that is within their scatter is not proved."""
    lines = []
    for row in rows:
        if row.rounds is not None:
            ours, theirs = (" ".join(short(value) for value in values) for values in row.rounds)
            lines.append(f"{row.what}, rounds in {row.unit}: ours {ours}; peer {theirs}")
    return "\n".join(lines)


def render(rows: Sequence[Row], markdown: bool = False) -> str:
    """Return the tables as text: that of the figures, and that of growth if there is one."""
    single = [row for row in rows if not row.tasks]
    tables = [[HEADER, *(row.cells() for row in single)]] if single else []
    if grown := [row for row in rows if row.tasks]:
        tables.append(_growth(grown))
    return "\n\n".join(_render_table(table, markdown) for table in tables)


def _growth(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return a line for each subject, with its value and the cost a task for each number of tasks."""
    columns = sorted({(row.is_simulated, row.tasks) for row in rows})
    found = {(row.what, row.unit, row.is_simulated, row.tasks): row for row in rows}
    names = [f"{tasks:,} simulated" if is_simulated else f"{tasks}" for is_simulated, tasks in columns]
    table = [("value (a task) of", *names, "target", "met?")]
    for what, unit in dict.fromkeys((row.what, row.unit) for row in rows):
        cells = [found.get((what, unit, *column)) for column in columns]
        values = [
            "-" if row is None else f"{short(row.ours)} ({short(row.ours / row.tasks)})" for row in cells
        ]
        target = next((row for row in cells if row is not None and row.target is not None), None)
        limit = f"{target.tasks} tasks: {target.cells()[-2]}" if target else "-"
        table.append((f"{what}, {unit}", *values, limit, target.cells()[-1] if target else "-"))
    return table


def _render_table(lines: Sequence[tuple[str, ...]], markdown: bool) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    if markdown:
        rule = tuple("---" for _ in widths)
        return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (lines[0], rule, *lines[1:])
    )
