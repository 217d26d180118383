"""What ``--compare`` has measured: a table with a bar for each variant, and notes.

    results, bytes on the links ──→ Row for each variant ──→ Comparison ──→ text, html

A step is a call of the tf.function that the cell called most often: that of a training loop, or of `fit`.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfmagic.clusters.cells import features
from tfmagic.clusters.cells.results import TaskResults
from tfmagic.features.comparison.axes import Variant, name_of
from tfmagic.system.memory import format_bytes
from tfmagic.views import palette, tables

_BAR_PX, _LEAST_SHARE = 220, 1 / 40  # of a bar: one of 40 characters
_FIRST_STEP = (
    "Seconds and ms a step include the first step, in which TensorFlow makes its graphs: the more steps, the "
    "smaller is its share."
)


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one variant.

    Attributes:
        variant: The value of each axis.
        tasks: How many tasks ran the cell.
        seconds: The time of the cell: that of the slowest task.
        steps: How many steps a task made; 0 if the cell called no tf.function.
        step_s: Time of a step, in seconds.
        sent_bytes: What each host sent to others in a step, or in the cell if it has no steps; None without
            simulated hosts.
        communication: The share of the tasks' time in which they transferred data; None if it is not known.
        efficiency: The time of a step (or of the cell) in the first variant, divided by that in this one.
    """

    variant: Variant
    tasks: int
    seconds: float
    steps: int
    step_s: float
    sent_bytes: float | None
    communication: float | None
    efficiency: float


class Comparison(dict[Any, TaskResults[Any]]):
    """The results of ``--compare``, by the value of the axis, or by a tuple of values if there are several.

    Attributes:
        rows: What was measured, a `Row` for each.
        left_out: The combinations that make no cluster, and why.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.left_out: list[str] = []
        self._reports: list[tuple[object, ...]] = []

    def add(
        self,
        variant: Variant,
        results: TaskResults[Any],
        sent: Mapping[str, int] | None,
        reports: Iterable[object] = (),
    ) -> None:
        """Add the results of a variant, the bytes that each of its hosts has sent, and the tasks' reports."""
        seconds, steps = max(results.seconds.values()), max(results.steps.values(), default=0)
        step_s = seconds / max(steps, 1)
        sent_bytes = None if sent is None else max(sent.values()) / max(steps, 1)
        first = self.rows[0].step_s if self.rows else step_s
        share = features.communication(results)
        row = Row(variant, len(results), seconds, steps, step_s, sent_bytes, share, first / step_s)
        self.rows.append(row)
        self._reports.append(tuple(reports))
        values = tuple(variant.values())
        self[values[0] if len(values) == 1 else values] = results

    @property
    def seconds(self) -> dict[Any, float]:
        """The time of the cell in each variant: that of the slowest task."""
        return {key: row.seconds for key, row in zip(self, self.rows, strict=True)}

    @property
    def table(self) -> list[dict[str, Any]]:
        """The rows as plain data, for `pandas.DataFrame` for example."""
        found = [asdict(row) for row in self.rows]
        return [{**row.pop("variant"), **row} for row in found]

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        header, cells = _columns(self.rows)
        names = [name_of(row.variant) for row in self.rows]
        seen = list(zip(names, self._reports, strict=True))
        first = [_FIRST_STEP] if any(row.steps for row in self.rows) else []
        notes = [*features.compare(seen), *first, *cores_sentence(self.rows), *self.left_out]
        return tables.bundle(header, cells, notes)


def cores_sentence(rows: Sequence[Row], cores: int | None = None) -> list[str]:
    """Return notes on how sharing this machine's cores adds to the times; [] if each task had one."""
    cores = cores or len(os.sched_getaffinity(0))
    most = max(row.tasks for row in rows)
    if most <= cores:
        return []
    return [
        f"Up to {most} tasks shared the {cores} cores of this machine: on a machine each they would compute "
        f"up to {most / cores:.1f} times faster, and communication would be a larger share of a step."
    ]


def _columns(rows: Sequence[Row]) -> tuple[list[str], list[tuple[tables.Cell, ...]]]:
    """Return header and cells of the table, with a bar for each row; empty columns are left out."""
    has_steps = any(row.steps for row in rows)
    columns: list[tuple[str, Sequence[tables.Cell]]] = [
        (axis, [str(row.variant[axis]) for row in rows]) for axis in rows[0].variant
    ]
    most = max(row.step_s for row in rows)
    columns.append(("", [_bar(row, most) for row in rows]))
    columns.append(("seconds", [f"{row.seconds:.2f}" for row in rows]))
    if has_steps:
        columns.append(("steps", [str(row.steps) for row in rows]))
        columns.append(("ms a step", [f"{row.step_s * 1e3:.1f}" for row in rows]))
    if any(row.communication is not None for row in rows):
        shares = ["-" if row.communication is None else f"{row.communication:.0%}" for row in rows]
        columns.append(("communication", shares))
    if any(row.sent_bytes is not None for row in rows):
        each = "sent a step and host" if has_steps else "sent a host"
        sent = ["-" if row.sent_bytes is None else format_bytes(row.sent_bytes) for row in rows]
        columns.append((each, sent))
    columns.append(("speed-up", [f"{rows[0].seconds / row.seconds:.2f} ×" for row in rows]))
    if has_steps:
        columns.append(("efficiency", [f"{row.efficiency:.0%}" for row in rows]))
    return [name for name, _ in columns], list(zip(*(cells for _, cells in columns), strict=True))


def _bar(row: Row, most: float) -> tables.Shown:
    taken = f"{row.step_s * 1e3:.1f} ms a step" if row.steps else f"{row.seconds:.2f} s"
    share = max(row.step_s / most, _LEAST_SHARE)
    return tables.bar(
        [tables.Piece(share, "█", palette.BLUE.mid, f"{name_of(row.variant)}: {taken}")], _BAR_PX
    )
