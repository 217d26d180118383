"""A timeline as text: a row of characters for each task, a legend, and a list of events.

The picture has the same signs and legend.
"""

import re
from dataclasses import dataclass

from tfmagic.features.pictures.lanes import Lane, Span, Timeline
from tfmagic.runs.doing import Doing
from tfmagic.views.palette import AMBER, GREEN, GREY, RED, Tone
from tfmagic.views.scene import shortened
from tfmagic.views.words import duration

LEGEND = {
    Doing.STARTING: (">", "starting"), Doing.IDLE: (".", "idle"),
    Doing.RUNNING: ("=", "running"), Doing.WAITING: ("~", "waiting"), Doing.INPUT: ("?", "waits for input"),
    Doing.STALLED: ("!", "stalled"), Doing.PAUSED: ("|", "paused"),
    Doing.ENDING: ("x", "ending"), Doing.DEAD: ("X", "dead"), Doing.STOPPED: (" ", ""),
}  # fmt: skip
"""What the lanes show: the sign of each in text, and its meaning."""
_MOST_EVENTS, _MOST_LANES = 40, 100
_LINE_CHARACTERS = 160
_WAITS = (Doing.WAITING, Doing.INPUT, Doing.STALLED, Doing.PAUSED)


@dataclass(frozen=True, slots=True)
class Sign:
    """How an event is drawn: its path in a picture, its letter in text ("" for none)."""

    name: str
    letter: str
    tone: Tone
    shape: str


SIGNS = {
    "interrupt": Sign("interrupted", "^", AMBER, "M-5 -5 h10 v10 h-10 z"),
    "failed": Sign("failed", "F", RED, "M-5 -5 L5 5 M5 -5 L-5 5"),
    "died": Sign("died", "X", RED, "M-5 -5 L5 5 M5 -5 L-5 5 M-6 0 H6"),
    "new": Sign("new process", "N", GREEN, "M-5 0 H5 M0 -5 V5"),
    "other": Sign("other event", "", GREY, "M0 -6 L5 3 L-5 3 z"),
}


def draw(timeline: Timeline, width: int = 72) -> str:
    """Return the timeline as text whose rows of signs are `width` characters long."""
    names = max((len(lane.task) for lane in timeline.lanes), default=0)
    rows = {lane.task: _row(lane, timeline, width) for lane in timeline.lanes[:_MOST_LANES]}
    lines = [_clean(timeline.title), f"{'':{names}}  {_axis(timeline.seconds, width)}"]
    lines += [f"{task:{names}}  {row}".rstrip() for task, row in rows.items()]
    if len(timeline.lanes) > _MOST_LANES:
        lines.append(f"and {len(timeline.lanes) - _MOST_LANES} more tasks")
    seen = set("".join(rows.values()))
    legend = {letter: f"{letter} {word}" for letter, word in LEGEND.values() if letter in seen - {" "}}
    legend |= {sign.letter: f"{sign.letter} {sign.name}" for sign in SIGNS.values() if sign.letter in seen}
    if any(letter.isdigit() for letter in seen):
        legend["12"] = "12= line 12 of the cell"
    lines.append(f"{'':{names}}  {'   '.join(legend.values())}")
    happened = _happened(timeline)
    lines += [shortened(_clean(line), _LINE_CHARACTERS) for line in happened[:_MOST_EVENTS]]
    if len(happened) > _MOST_EVENTS:
        lines.append(f"and {len(happened) - _MOST_EVENTS} more events")
    return "\n".join([*lines, timeline.note] if timeline.note else lines)


def _axis(seconds: float, width: int) -> str:
    half, end = duration(seconds / 2), duration(seconds)
    line = "0".ljust(width // 2 - len(half) // 2) + half
    return line.ljust(width - len(end)) + end


def _row(lane: Lane, timeline: Timeline, width: int) -> str:
    scale = width / timeline.seconds
    row = [" "] * width
    letters: dict[str, str] = {doing: letter for doing, (letter, _) in LEGEND.items()}
    for column in range(width):
        if span := _longest(lane, column / scale, (column + 1) / scale):
            row[column] = letters.get(span.doing, "=")
    for span in lane.spans:
        first, last = round(span.begin * scale), round(span.end * scale)
        name = str(span.line)
        if span.doing == Doing.RUNNING and span.line and not span.file and last - first > len(name):
            row[first : first + len(name)] = name
    for event in timeline.events:
        if event.task == lane.task and (sign := SIGNS[event.sign]).letter:
            row[min(int(event.at * scale), width - 1)] = sign.letter
    return "".join(row)


def _longest(lane: Lane, begin: float, end: float) -> Span | None:
    """Return the span that takes most of this time."""
    there = [span for span in lane.spans if span.begin < end and span.end > begin]
    return max(there, key=lambda span: min(span.end, end) - max(span.begin, begin), default=None)


def _happened(timeline: Timeline) -> list[str]:
    """Return the events and the waits that can be seen, in the order of their times."""
    found = [(event.at, f"{event.task or 'all tasks'} {event.text}") for event in timeline.events]
    for lane in timeline.lanes:
        for span in lane.spans:
            is_wait = span.doing in _WAITS
            if is_wait and span.seconds >= timeline.seconds / 100:
                found.append((span.begin, f"{lane.task} {span.text} (for {duration(span.seconds)})"))
    return [f"{at:8.2f} s  {text}" for at, text in sorted(found)]


def _clean(text: str) -> str:
    """Return text for one line of a terminal."""
    return re.sub(r"[\x00-\x1f\x7f]+", " ", text)
