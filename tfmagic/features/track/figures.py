"""Small charts of what tasks track: one for each name, with a line for each task over each other.

    points on disk ── Series: at most 400 of them ──→ Figure: svg; text, of the last values

A series that grows keeps every second point, then every fourth, so the whole run is always seen.
"""

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tfmagic.features.track.names import NAME
from tfmagic.protocol.cluster_spec import TaskId, parse_task
from tfmagic.runs.feature_records import RecordReader
from tfmagic.runs.folder import RunFolder
from tfmagic.views.figures import Figure
from tfmagic.views.palette import FAINT, GREY, TONES
from tfmagic.views.scene import Scene, shortened

MOST_POINTS = 400
MOST_NAMES = 12
_MOST_LINES, _NAMED = 16, 4
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 320, 150, 54, 26, 20
_DASHES = (None, "6 3", "2 2", "9 3 2 3")  # of the named tasks, which differ in more than their colour
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


class Charts:
    """All series of a cell, read from disk."""

    def __init__(self, run: RunFolder, cell: int, tasks: Iterable[TaskId]):
        self._run, self._cell, self._tasks = run, cell, tuple(tasks)
        self.series: dict[str, dict[str, Series]] = {}  # by name, then by task

    @functools.cached_property
    def _readers(self) -> dict[TaskId, RecordReader]:
        return {task: RecordReader(self._run, task, NAME, self._cell) for task in self._tasks}

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

    def figures(self) -> list[Figure]:
        """Return a chart for each name; its text has the last values."""
        return [
            Figure(name, f"{name}: {_last_values(by_task)}", functools.partial(draw, name, by_task))
            for name, by_task in self.series.items()
        ]


def open_figures(run: RunFolder, cell: int, tasks: Iterable[TaskId]) -> Charts:
    """Return the charts of a cell."""
    return Charts(run, cell, tasks)


def draw(name: str, by_task: Mapping[str, Series]) -> str:
    """Return a chart as SVG that needs no style sheet, on a light or a dark page."""
    tasks = sorted(by_task, key=parse_task)[:_MOST_LINES]
    lines = {task: [p for p in by_task[task].drawn if all(map(math.isfinite, p))] for task in tasks}
    points = [point for line in lines.values() for point in line] or [(0.0, 0.0)]
    low_x, high_x = _range(x for x, _ in points)
    low_y, high_y = _range(y for _, y in points)
    right, bottom = _WIDTH - 8, _HEIGHT - _BOTTOM

    def place(point: Point) -> str:
        x = _LEFT + (point[0] - low_x) / (high_x - low_x) * (right - _LEFT)
        y = bottom - (point[1] - low_y) / (high_y - low_y) * (bottom - _TOP)
        return f"{x:.1f},{y:.1f}"

    scene = Scene(f"{name}: {_last_values(by_task)}", float(_WIDTH), float(_HEIGHT))
    scene.text(8, 15, shortened(name, max(40 - 10 * min(len(tasks), _NAMED), 9)), font_weight=600)
    scene.line(f"M{_LEFT} {_TOP}V{bottom}H{right}", GREY.mid)
    for value, y in ((high_y, _TOP + 8), (low_y, bottom)):
        scene.text(_LEFT - 4, y, _short(value), text_anchor="end", fill=FAINT)
    for step, x, anchor in ((low_x, _LEFT, "start"), (high_x, right, "end")):
        scene.text(x, _HEIGHT - 6, _short(step), text_anchor=anchor, fill=FAINT)
    for number, task in enumerate(tasks):
        tone, title = TONES[number % len(TONES)], f"{task}: {_last_value(by_task[task])}"
        drawn = list(map(place, lines[task]))
        if len(drawn) == 1:
            cx, _, cy = drawn[0].partition(",")
            scene.add("circle", "", title, cx=cx, cy=cy, r=2.5, fill=tone.mid)
        dash = _DASHES[number % len(_DASHES)]
        look = {"fill": "none", "stroke": tone.mid, "stroke_width": 1.5, "stroke_dasharray": dash}
        scene.add("polyline", "", title, points=" ".join(drawn), **look)
        if number < _NAMED:
            x = right - 62 * (min(len(tasks), _NAMED) - 1 - number)
            scene.text(x, 15, task, text_anchor="end", fill=tone.ink)
            scene.line(f"M{x} 20h-46", tone.mid, stroke_width=1.5, stroke_dasharray=dash)
    return scene.themed_svg


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
    return ", ".join(texts + [f"and {len(tasks) - _MOST_LINES} more"] * (len(tasks) > _MOST_LINES))
