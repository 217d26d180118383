"""A timeline as text: a row of characters for each task, a legend, and a list of events."""

from collections import Counter

from tfmagic.views.pictures.drawing import shortened
from tfmagic.views.pictures.lanes import Lane, Span, Timeline, clean
from tfmagic.views.words import duration

SIGNS = {
    "starting": ">",
    "idle": ".",
    "running": "=",
    "waiting": "~",
    "input": "?",
    "stalled": "!",
    "paused": "|",
    "ending": "x",
    "dead": "X",
    "stopped": " ",
}
_EVENT_SIGNS = {"interrupt": "^", "failed": "F", "died": "X", "new": "N"}
_WORDS = {
    ">": "starting", ".": "idle", "=": "running", "~": "waiting", "?": "waits for input", "!": "stalled",
    "|": "paused", "x": "ending", "X": "died", "^": "interrupted", "F": "failed", "N": "new process",
}  # fmt: skip
_MOST_EVENTS, _MOST_LANES = 40, 100
_LINE_CHARACTERS = 160


def draw(timeline: Timeline, width: int = 72) -> str:
    """Return the timeline as text whose rows of signs are `width` characters long."""
    names = max((len(lane.task) for lane in timeline.lanes), default=0)
    rows = {lane.task: _row(lane, timeline, width) for lane in timeline.lanes[:_MOST_LANES]}
    lines = [clean(timeline.title), f"{'':{names}}  {_axis(timeline.seconds, width)}"]
    lines += [f"{task:{names}}  {row}".rstrip() for task, row in rows.items()]
    if len(timeline.lanes) > _MOST_LANES:
        lines.append(f"and {len(timeline.lanes) - _MOST_LANES} more tasks")
    seen = Counter("".join(rows.values()))
    legend = [f"{sign} {word}" for sign, word in _WORDS.items() if seen[sign]]
    if any(sign.isdigit() for sign in seen):
        legend.append("12= line 12 of the cell")
    lines.append(f"{'':{names}}  {'   '.join(legend)}")
    happened = _happened(timeline)
    lines += [shortened(clean(line), _LINE_CHARACTERS) for line in happened[:_MOST_EVENTS]]
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
    for column in range(width):
        if span := _longest(lane, column / scale, (column + 1) / scale):
            row[column] = SIGNS.get(span.doing, "=")
    for span in lane.spans:
        first, last = round(span.begin * scale), round(span.end * scale)
        name = str(span.line)
        if span.doing == "running" and span.line and not span.file and last - first > len(name):
            row[first : first + len(name)] = name
    for event in timeline.events:
        if event.task == lane.task and event.sign in _EVENT_SIGNS:
            row[min(int(event.at * scale), width - 1)] = _EVENT_SIGNS[event.sign]
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
            is_wait = span.doing in ("waiting", "input", "stalled", "paused")
            if is_wait and span.seconds >= timeline.seconds / 100:
                found.append((span.begin, f"{lane.task} {span.text} (for {duration(span.seconds)})"))
    return [f"{at:8.2f} s  {text}" for at, text in sorted(found)]
