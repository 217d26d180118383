"""Small charts of what tasks track: one for each name, with a line for each task over each other.

    points on disk ── Series: at most 400 of them ──→ svg, for panel and saved form; text, of the last values

A series that grows keeps every second point, then every fourth, so the whole run is always seen.
"""

import html
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tfmagic.protocol.cluster_spec import TaskId, parse_task
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.tracked_points import PointsReader

MOST_POINTS = 400
MOST_NAMES = 12
_MOST_LINES = 16
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 320, 150, 54, 22, 20
_COLOURS = ("#1a73e8", "#d93025", "#188038", "#a142f4", "#b06000", "#007b83", "#c5221f", "#5f6368")
Point = tuple[float, float]


@dataclass(slots=True)
class Series:
    """The points of one task under one name, thinned out."""

    points: list[Point] = field(default_factory=list)
    last: Point | None = None
    _stride: int = 1
    _skipped: int = 0

    def add(self, point: Point) -> None:
        self.last = point
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self.points.append(point)
        if len(self.points) > MOST_POINTS:
            del self.points[1::2]
            self._stride *= 2

    @property
    def drawn(self) -> list[Point]:
        """The points to draw, the last one included."""
        is_last = not self.points or self.last is None or self.points[-1] == self.last
        return self.points if is_last or self.last is None else [*self.points, self.last]


class Figures:
    """All series of a cell, read from disk."""

    def __init__(self, run: RunFolder, cell: int, tasks: Iterable[TaskId]):
        self._readers = {task: PointsReader(run, task, cell) for task in tasks}
        self.series: dict[str, dict[str, Series]] = {}  # by name, then by task

    def read(self) -> bool:
        """Read what is new; return whether there is something."""
        is_new = False
        for task, reader in self._readers.items():
            for batch in reader.read():
                is_new = True
                for name, points in batch.items():
                    if name not in self.series and len(self.series) >= MOST_NAMES:
                        continue
                    series = self.series.setdefault(name, {}).setdefault(task.name, Series())
                    for step, value in points:
                        series.add((step, value))
        return is_new

    def charts(self) -> dict[str, str]:
        """Return the SVG of each name."""
        return {name: draw(name, by_task) for name, by_task in self.series.items()}

    def lines(self) -> list[str]:
        """Return the last values as text, a line for each name."""
        return [f"{name}: {_last_values(by_task)}" for name, by_task in self.series.items()]


def draw(name: str, by_task: Mapping[str, Series]) -> str:
    """Return a chart as SVG that needs no style sheet, on a light or a dark page."""
    tasks = sorted(by_task, key=parse_task)[:_MOST_LINES]
    points = [p for task in tasks for p in by_task[task].drawn if math.isfinite(p[0]) and math.isfinite(p[1])]
    if not points:
        points = [(0.0, 0.0)]
    low_x, high_x = _range(x for x, _ in points)
    low_y, high_y = _range(y for _, y in points)
    right, bottom = _WIDTH - 8, _HEIGHT - _BOTTOM

    def place(point: Point) -> str:
        x = _LEFT + (point[0] - low_x) / (high_x - low_x) * (right - _LEFT)
        y = bottom - (point[1] - low_y) / (high_y - low_y) * (bottom - _TOP)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="system-ui,sans-serif" font-size="11" role="img">',
        f"<title>{html.escape(f'{name}: {_last_values(by_task)}')}</title>",
        f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="5" fill="#fff" '
        'stroke="#dadce0"/>',
        f'<text x="8" y="15" font-weight="600" fill="#202124">{_shortened(name, len(tasks))}</text>',
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#9aa0a6"/>',
    ]
    for value, y in ((high_y, _TOP + 8), (low_y, bottom)):
        parts.append(f'<text x="{_LEFT - 4}" y="{y}" text-anchor="end" fill="#5f6368">{_short(value)}</text>')
    for step, x, anchor in ((low_x, _LEFT, "start"), (high_x, right, "end")):
        parts.append(
            f'<text x="{x}" y="{_HEIGHT - 6}" text-anchor="{anchor}" fill="#5f6368">{_short(step)}</text>'
        )
    for number, task in enumerate(tasks):
        colour = _COLOURS[number % len(_COLOURS)]
        drawn = [place(p) for p in by_task[task].drawn if math.isfinite(p[0]) and math.isfinite(p[1])]
        title = f"<title>{html.escape(f'{task}: {_last_value(by_task[task])}')}</title>"
        if len(drawn) == 1:
            cx, _, cy = drawn[0].partition(",")
            parts.append(f'<circle cx="{cx}" cy="{cy}" r="2.5" fill="{colour}">{title}</circle>')
        dash = "" if number < len(_COLOURS) else ' stroke-dasharray="4 2"'
        parts.append(
            f'<polyline points="{" ".join(drawn)}" fill="none" stroke="{colour}" stroke-width="1.5" '
            f'stroke-opacity="0.8"{dash}>{title}</polyline>'
        )
        if number < 4:
            parts.append(
                f'<text x="{right - 62 * (min(len(tasks), 4) - 1 - number)}" y="15" text-anchor="end" '
                f'fill="{colour}">{html.escape(task)}</text>'
            )
    return "".join([*parts, "</svg>"])


def _shortened(name: str, tasks: int) -> str:
    """Return a name that fits beside the names of the tasks."""
    room = max(40 - 10 * min(tasks, 4), 9)
    return html.escape(name if len(name) <= room else f"{name[: room - 1]}…")


def _range(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    low, high = min(found), max(found)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) < 1e5 and value == int(value) else f"{value:.3g}"


def _last_value(series: Series) -> str:
    step, value = series.last or (0.0, 0.0)
    return f"{value:.4g} (step {_short(step)})"


def _last_values(by_task: Mapping[str, Series]) -> str:
    tasks = sorted(by_task, key=parse_task)
    texts = [f"{task} {_last_value(by_task[task])}" for task in tasks[:_MOST_LINES]]
    return ", ".join(
        [*texts, *([f"and {len(tasks) - _MOST_LINES} more"] if len(tasks) > _MOST_LINES else [])]
    )
