"""A timeline as SVG: a lane for each task, hatched where it waits, with arrows and events.

What depends on the time has it in `data-a` and `data-b`, in seconds: `assets/timeline.js`, which runs in
trusted notebooks only, moves these elements when the user zooms.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfmagic.views.pictures import drawing
from tfmagic.views.pictures.drawing import (
    AMBER,
    BLUE,
    FAINT,
    GREEN,
    LINE,
    MONO,
    RED,
    Spot,
    element,
    shortened,
    words,
)
from tfmagic.views.pictures.lanes import Arrow, Event, Lane, Span, Timeline, line_of
from tfmagic.views.pictures.map_svg import Drawn

_LEFT, _WIDE, _RIGHT = 100, 640, 14  # the plot, in pixels, between names and margin
_TOP, _LANE, _BAR = 62, 34, 20  # where lanes begin, their distance, and the height of a span
_MOST_LANES, _MOST_SPOTS, _MOST_ARROWS = 100, 300, 120
_ARROW_PX = 5  # a wait that is narrower has no arrow
_CHARACTER_PX = 5.8  # of the names in spans
_PAPERS = ("#cfe3fb", "#e2eefc")  # lines of a cell, in turn
_FILLS = {
    "starting": "#eaeef2",
    "waiting": "url(#waits)",
    "input": "#f0e3ff",
    "stalled": "url(#stalls)",
    "paused": "#e6dcf5",
    "ending": "#ffe2e0",
    "dead": "url(#dead)",
}
_LEGEND = (
    ("running", _PAPERS[0], "a line of the cell"), ("waiting", _FILLS["waiting"], "waits"),
    ("starting", _FILLS["starting"], "starting"), ("input", _FILLS["input"], "waits for input"),
    ("stalled", _FILLS["stalled"], "stalled"), ("paused", _FILLS["paused"], "paused"),
    ("dead", _FILLS["dead"], "no process"),
)  # fmt: skip
_SIGNS = {"interrupt": AMBER, "failed": RED, "died": RED, "new": GREEN, "other": FAINT}
_NAMES = {
    "interrupt": "interrupted",
    "failed": "failed",
    "died": "died",
    "new": "new process",
    "other": "other event",
}
_SHAPES = {
    "interrupt": "M-5 -5 h10 v10 h-10 z",
    "failed": "M-5 -5 L5 5 M5 -5 L-5 5",
    "died": "M-5 -5 L5 5 M5 -5 L-5 5 M-6 0 H6",
    "new": "M-5 0 H5 M0 -5 V5",
    "other": "M0 -6 L5 3 L-5 3 z",
}


def draw(timeline: Timeline) -> Drawn:
    """Return the picture of a timeline."""
    lanes = timeline.lanes[:_MOST_LANES]
    rows = {lane.task: _TOP + row * _LANE for row, lane in enumerate(lanes)}
    scale = _WIDE / timeline.seconds
    bottom = _TOP + len(lanes) * _LANE
    parts = [_patterns(bottom), words(16, 22, shortened(timeline.title, 100), size=13, font_weight="bold")]
    parts.append(element("g", _axis(timeline.seconds, scale, bottom), class_="axis"))
    plot = [
        _cell_bar(bar.begin, bar.name, scale, bottom) for bar in timeline.cells if len(timeline.cells) > 1
    ]
    for lane in lanes:
        parts.append(words(12, rows[lane.task] + 15, lane.task, font_family=MONO))
        plot += _lane(lane, rows[lane.task], scale)
    plot += _arrows(timeline, rows, scale)
    plot += [_event(event, rows, scale, bottom) for event in timeline.events]
    parts.append(element("g", "".join(plot), clip_path="url(#plot)"))
    seen = {span.doing for lane in lanes for span in lane.spans}
    legend, height = _legend(seen, timeline.events, bottom + 22)
    parts.append(legend)
    notes = [timeline.note] if timeline.note else []
    if len(timeline.lanes) > len(lanes):
        notes.append(f"{len(timeline.lanes) - len(lanes)} more tasks are not drawn.")
    if notes:
        height += 16
        parts.append(words(16, height, shortened(" ".join(notes), 125), size=11, fill=FAINT))
    size = (float(_LEFT + _WIDE + _RIGHT), float(height + 12))
    return Drawn(
        drawing.svg(*size, "".join(parts), timeline.title), size, _spots(timeline, lanes, rows, scale)
    )


def bundle(timeline: Timeline, text: str) -> dict[str, str]:
    """Return the html and the text of a timeline; where the notebook is trusted, one can zoom and select."""
    drawn = draw(timeline)
    shown = drawing.bundle(drawn.svg, drawn.size, drawn.spots, text, script=f"<script>{_script()}</script>")
    facts = f"{_LEFT},{_WIDE},{timeline.seconds:.4f}"
    page = f'<div class="tfmagic-timeline" title="" data-plot="{facts}">{shown["text/html"]}</div>'
    return {**shown, "text/html": page}


@functools.cache
def _script() -> str:
    return (Path(__file__).parents[1] / "assets" / "timeline.js").read_text("utf-8")


# ---- elements -------------------------------------------------------------------------------------


def _patterns(bottom: float) -> str:
    def hatch(name: str, paper: str, ink: str, wide: int) -> str:
        lines = element("rect", width=wide, height=wide, fill=paper)
        lines += element("path", d=f"M0 0 V{wide}", stroke=ink, stroke_width=2)
        how: dict[str, Any] = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
        return element("pattern", lines, id=name, width=wide, height=wide, **how)

    end = element("path", d="M0 0 L7 3.5 L0 7 z", fill=AMBER)
    marker = element(
        "marker", end, id="to", markerWidth=7, markerHeight=7, refX=6, refY=3.5, orient="auto",
        markerUnits="userSpaceOnUse",
    )  # fmt: skip
    frame = element("rect", x=_LEFT - 7, y=_TOP - 24, width=_WIDE + 14, height=bottom - _TOP + 30)
    return element(
        "defs",
        hatch("waits", "#fff3d6", "#e0a93b", 7)
        + hatch("stalls", "#f3e8ff", "#a475e0", 6)
        + hatch("dead", "#ffffff", "#f0b4b0", 9)
        + marker
        + element("clipPath", frame, id="plot"),
    )


def _axis(seconds: float, scale: float, bottom: float) -> str:
    step = step_of(seconds)
    parts, count = [], int(seconds / step) + 1
    for number in range(count):
        x = _LEFT + number * step * scale
        parts.append(element("path", d=f"M{x:.1f} {_TOP - 12} V{bottom}", stroke=LINE, stroke_width=1))
        parts.append(words(x + 3, _TOP - 10, f"{number * step:g} s", size=10.5, fill=FAINT))
    return "".join(parts)


def step_of(seconds: float) -> float:
    """Return a round distance of ticks, so that there are 4 to 10."""
    step = 10.0 ** _exponent(seconds)
    while seconds / step > 10:
        step *= 2 if f"{step:.0e}"[0] in "15" else 2.5
    while seconds / step < 4:
        step /= 2
    return step


def _exponent(seconds: float) -> int:
    return int(f"{seconds:e}".partition("e")[2]) - 1


def _cell_bar(begin: float, name: str, scale: float, bottom: float) -> str:
    line = element("path", d=f"M0 {_TOP - 24} V{bottom}", stroke=BLUE, stroke_width=1, stroke_dasharray="2 3")
    return _moved(begin, line, scale, name)


def _moved(at: float, content: str, scale: float, title: str) -> str:
    """Return a group at a time."""
    return drawing.titled(
        title, content, transform=f"translate({_LEFT + at * scale:.1f} 0)", data_a=f"{at:.4f}"
    )


def _lane(lane: Lane, y: float, scale: float) -> list[str]:
    parts, line_number = [], 0
    for span in lane.spans:
        line_number += 1
        fill = _FILLS.get(span.doing, _PAPERS[line_number % 2])
        x, width = _LEFT + span.begin * scale, max(span.seconds * scale, 0.6)
        times = {"data_a": f"{span.begin:.4f}", "data_b": f"{span.end:.4f}"}
        if span.doing in ("idle", "stopped"):
            middle = y + _BAR / 2 - 1
            parts.append(element("rect", x=x, y=middle, width=width, height=2, fill=LINE, **times))
            continue
        title = element("title", drawing.escape(title_of(lane.task, span)))
        frame: dict[str, Any] = {
            "y": y,
            "height": _BAR,
            "stroke": "#8b98a5",
            "stroke_width": 0.5,
            "class_": "span",
            **times,
        }
        parts.append(element("rect", title, x=x, width=width, fill=fill, **frame))
        parts.append(_name(line_of(span), x, y, width, times))
    return parts


def _name(name: str, x: float, y: float, width: float, times: Mapping[str, str]) -> str:
    """Return the name of a span, which is hidden where it does not fit."""
    needs = len(name) * _CHARACTER_PX + 6
    how = {"pointer_events": "none", "visibility": "visible" if needs < width else "hidden", **times}
    return words(x + 4, y + 14, name, size=10.5, data_w=f"{needs:.0f}", **how) if name else ""


def title_of(task: str, span: Span) -> str:
    """Return what the pointer shows over a span."""
    number = f", process {span.attempt}" if span.attempt > 1 else ""
    return f"{task}{number}: {span.text}\n{span.begin:.2f} s to {span.end:.2f} s, {span.seconds:.2f} s"


def _arrows(timeline: Timeline, rows: dict[str, int], scale: float) -> list[str]:
    """Return an arrow from each wait that is wide enough to the task that it waits for."""
    parts: list[str] = []
    waits = {(lane.task, span.begin): span for lane in timeline.lanes for span in lane.spans if span.whom}
    drawable = [arrow for arrow in timeline.arrows if {arrow.source, arrow.target} <= rows.keys()]
    for number, arrow in enumerate(drawable):
        span = waits[arrow.source, arrow.at]
        if span.seconds * scale < _ARROW_PX or len(parts) >= _MOST_ARROWS:
            continue
        parts.append(_arrow(arrow, rows, scale, 3 + number % 5 * 3))
    return parts


def _arrow(arrow: Arrow, rows: dict[str, int], scale: float, shift: float) -> str:
    source, target = rows[arrow.source], rows[arrow.target]
    begin, end = (source + _BAR, target) if target > source else (source, target + _BAR)
    how: dict[str, Any] = {"stroke": AMBER, "stroke_width": 1.5, "marker_end": "url(#to)"}
    path = element("path", d=f"M{shift} {begin} V{end}", fill="none", **how)
    return _moved(arrow.at, path, scale, arrow.text)


def _event(event: Event, rows: dict[str, int], scale: float, bottom: float) -> str:
    colour = _SIGNS.get(event.sign, FAINT)
    how: dict[str, Any] = {"stroke": colour, "stroke_width": 2, "fill": "#ffffff"}
    if event.task not in rows:
        line = element("path", d=f"M0 {_TOP - 8} V{bottom}", stroke=colour, stroke_width=1, fill="none")
        return _moved(event.at, line, scale, event.text)
    sign = element("path", d=_SHAPES.get(event.sign, _SHAPES["other"]), **how)
    placed = element("g", sign, transform=f"translate(0 {rows[event.task] - 3})")
    return _moved(event.at, placed, scale, f"{event.at:.2f} s: {event.task} {event.text}")


def _legend(seen: set[str], events: tuple[Event, ...], y: float) -> tuple[str, float]:
    """Return the legend of what is drawn, and where it ends."""
    parts, x = [], 16.0
    for doing, fill, text in _LEGEND:
        if doing in seen:
            parts.append(element("rect", x=x, y=y - 9, width=18, height=11, fill=fill, stroke="#8b98a5"))
            parts.append(words(x + 23, y, text, size=11, fill=FAINT))
            x += 34 + 6.2 * len(text)
    for sign, name in _NAMES.items():
        if any(event.sign == sign and event.task for event in events):
            shape = element("path", d=_SHAPES[sign], stroke=_SIGNS[sign], stroke_width=2, fill="#ffffff")
            parts.append(element("g", shape, transform=f"translate({x + 7:.0f} {y - 4:.0f})"))
            parts.append(words(x + 17, y, name, size=11, fill=FAINT))
            x += 30 + 6.2 * len(name)
    return "".join(parts), y


def _spots(
    timeline: Timeline, lanes: tuple[Lane, ...], rows: dict[str, int], scale: float
) -> tuple[Spot, ...]:
    """Return what the pointer shows in a notebook without scripts: events, then the longest spans."""
    found = [
        Spot(_LEFT + event.at * scale - 6, rows[event.task] - 9, 12, 12, f"{event.task} {event.text}")
        for event in timeline.events[:_MOST_SPOTS]
        if event.task in rows
    ]
    spans = [(span, lane) for lane in lanes for span in lane.spans if span.doing not in ("idle", "stopped")]
    spans.sort(key=lambda pair: -pair[0].seconds)
    for span, lane in spans[:_MOST_SPOTS]:
        width = max(span.seconds * scale, 2)
        found.append(
            Spot(_LEFT + span.begin * scale, rows[lane.task], width, _BAR, title_of(lane.task, span))
        )
    return tuple(found)
