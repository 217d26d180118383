"""A timeline as a picture: a lane for each task, hatched where it waits, with arrows and events.

What depends on the time has it in `data-a` and `data-b`, in seconds: `timeline.js`, which runs in
trusted notebooks only, moves these elements when the user zooms.
"""

import functools
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tfmagic.features.pictures.lanes import Arrow, Event, Lane, Span, Timeline, line_of
from tfmagic.features.pictures.timeline_text import LEGEND, SIGNS, Sign
from tfmagic.runs.doing import Doing
from tfmagic.views.palette import AMBER, BLUE, FAINT, GREY, LINE, PAPER, tone_of
from tfmagic.views.scene import MONO, Box, Scene

_LEFT, _WIDE, _RIGHT = 100, 640, 30  # the plot, in pixels, between names and margin
_TOP, _LANE, _BAR = 62, 34, 20  # where lanes begin, their distance, and the height of a span
_MOST_LANES, _MOST_ARROWS = 100, 120
_ARROW_PX = 5  # a wait that is narrower has no arrow
_CHARACTER_PX = 5.8  # of the names in spans
_HATCHED = (Doing.WAITING, Doing.STALLED, Doing.DEAD)
_LINES = "running: a line of the cell"
_EMPTY = (Doing.IDLE, Doing.STOPPED)


def draw(timeline: Timeline) -> Scene:
    """Return the picture of a timeline."""
    return _Drawing(timeline).scene


def bundle(timeline: Timeline, text: str) -> dict[str, str]:
    """Return the html and the text of a timeline; where the notebook is trusted, one can zoom and select."""
    shown = draw(timeline).bundle(text, script=f"<script>{_script()}</script>")
    facts = f"{_LEFT},{_WIDE},{timeline.seconds:.4f}"
    page = f'<div class="tfmagic-timeline" title="" data-plot="{facts}">{shown["text/html"]}</div>'
    return {**shown, "text/html": page}


@functools.cache
def _script() -> str:
    return (Path(__file__).parent / "timeline.js").read_text("utf-8")


class _Drawing:
    """Puts a timeline into a scene."""

    def __init__(self, timeline: Timeline):
        lanes = timeline.lanes[:_MOST_LANES]
        self._rows = {lane.task: float(_TOP + row * _LANE) for row, lane in enumerate(lanes)}
        self._scale = _WIDE / timeline.seconds
        self._bottom = _TOP + len(lanes) * _LANE
        scene = self.scene = Scene(timeline.title, float(_LEFT + _WIDE + _RIGHT))
        scene.heading(timeline.title)
        with scene.group(class_="axis"):
            self._axis(timeline.seconds)
        for task, y in self._rows.items():
            scene.text(12, y + 15, task, font_size=12, font_family=MONO)
        plot = Box(_LEFT - 7, _TOP - 24, _WIDE + 14, self._bottom - _TOP + 30)
        with scene.group(clip_path=scene.clip(plot)):
            self._content(timeline, lanes)
        scene.rect(Box(_LEFT, _TOP - 24, 0, 0), class_="band", fill=BLUE.ink, opacity=0.15)
        legend = [
            (
                functools.partial(scene.rect, Box(0, -5, 18, 11), fill=self._fill(doing), stroke=GREY.mid),
                _LINES if doing is Doing.RUNNING else text,
            )
            for doing, (_, text) in LEGEND.items()
            if doing not in _EMPTY and any(span.doing == doing for lane in lanes for span in lane.spans)
        ]
        legend += [
            (functools.partial(self._sign, sign, x=9.0), sign.name)
            for word, sign in SIGNS.items()
            if any(event.sign == word and event.task for event in timeline.events)
        ]
        more = len(timeline.lanes) - len(lanes)
        left_out = f"{more} more tasks are not drawn." if more else ""
        scene.end(self._bottom + 22, legend, f"{timeline.note} {left_out}".strip())

    def _content(self, timeline: Timeline, lanes: tuple[Lane, ...]) -> None:
        if len(timeline.cells) > 1:
            for begin, name in timeline.cells:
                with self._at(begin, name):
                    self.scene.line(f"M0 {_TOP - 24} V{self._bottom}", BLUE.ink, stroke_dasharray="2 3")
        for lane in lanes:
            for number, span in enumerate(lane.spans):
                self._span(lane.task, span, is_second=number % 2 == 1)
        drawable = [arrow for arrow in timeline.arrows if {arrow.source, arrow.target} <= self._rows.keys()]
        wide = [arrow for arrow in drawable if arrow.seconds * self._scale >= _ARROW_PX]
        for number, arrow in enumerate(wide[:_MOST_ARROWS]):
            self._arrow(arrow, 3 + number % 5 * 3)
        for event in timeline.events:
            self._event(event)

    def _x(self, seconds: float) -> float:
        return _LEFT + seconds * self._scale

    def _at(self, seconds: float, title: str, spot: Box | None = None) -> AbstractContextManager[None]:
        """Return a group at a time."""
        place = f"translate({self._x(seconds):.1f} 0)"
        return self.scene.group(title, spot, transform=place, data_a=f"{seconds:.4f}")

    def _axis(self, seconds: float) -> None:
        step = step_of(seconds)
        for number in range(int(seconds / step) + 1):
            x = self._x(number * step)
            self.scene.line(f"M{x:.1f} {_TOP - 12} V{self._bottom}", LINE)
            is_last = x > _LEFT + _WIDE - 20  # there is no room on its right
            place, anchor = (x - 3, "end") if is_last else (x + 3, "start")
            name = f"{number * step:g} s"
            self.scene.text(place, _TOP - 10, name, font_size=10.5, fill=FAINT, text_anchor=anchor)

    def _fill(self, doing: str) -> str:
        tone = tone_of(doing)
        return self.scene.hatch(tone) if doing in _HATCHED else tone.tint

    def _span(self, task: str, span: Span, is_second: bool) -> None:
        y, width = self._rows[task], max(span.seconds * self._scale, 0.6)
        times = {"data_a": f"{span.begin:.4f}", "data_b": f"{span.end:.4f}"}
        if span.doing in _EMPTY:
            self.scene.rect(Box(self._x(span.begin), y + _BAR / 2 - 1, width, 2), fill=LINE, **times)
            return
        box, name = Box(self._x(span.begin), y, width, _BAR), line_of(span)
        look = {"fill": self._fill(span.doing), "stroke": GREY.mid, "stroke_width": 0.5, "class_": "span"}
        if is_second and span.doing == Doing.RUNNING:  # two lines, one after the other
            look["fill_opacity"] = 0.6
        self.scene.rect(box, title_of(task, span), box, **look, **times)
        if name:
            needs = len(name) * _CHARACTER_PX + 6  # it is hidden where it does not fit
            how = {"pointer_events": "none", "visibility": "visible" if needs < width else "hidden", **times}
            self.scene.text(box.x + 4, y + 14, name, font_size=10.5, data_w=f"{needs:.0f}", **how)

    def _arrow(self, arrow: Arrow, shift: int) -> None:
        """Add an arrow from a task that waits to the one that it waits for."""
        source, target = self._rows[arrow.source], self._rows[arrow.target]
        begin, end = (source + _BAR, target) if target > source else (source, target + _BAR)
        with self._at(arrow.at, arrow.text):
            self.scene.arrow(f"M{shift} {begin:.0f} V{end:.0f}", AMBER)

    def _event(self, event: Event) -> None:
        sign, y = SIGNS.get(event.sign, SIGNS["other"]), self._rows.get(event.task)
        if y is None:
            with self._at(event.at, event.text):
                self.scene.line(f"M0 {_TOP - 8} V{self._bottom}", sign.tone.ink)
            return
        spot = Box(self._x(event.at) - 6, y - 9, 12, 12)
        with self._at(event.at, f"{event.at:.2f} s: {event.task} {event.text}", spot):
            self._sign(sign, y=y - 3)

    def _sign(self, sign: Sign, x: float = 0.0, y: float = 0.0) -> None:
        place: dict[str, Any] = {"transform": f"translate({x:.0f} {y:.0f})", "stroke_width": 2}
        self.scene.line(sign.shape, sign.tone.ink, fill=PAPER, **place)


def step_of(seconds: float) -> float:
    """Return a round distance of ticks, so that there are 4 to 10."""
    step = 10.0 ** (int(f"{seconds:e}".partition("e")[2]) - 1)
    while seconds / step > 10:
        step *= 2 if f"{step:.0e}"[0] in "15" else 2.5
    while seconds / step < 4:
        step /= 2
    return step


def title_of(task: str, span: Span) -> str:
    """Return the text under the pointer over a span."""
    number = f", process {span.attempt}" if span.attempt > 1 else ""
    return f"{task}{number}: {span.text}\n{span.begin:.2f} s to {span.end:.2f} s, {span.seconds:.2f} s"
