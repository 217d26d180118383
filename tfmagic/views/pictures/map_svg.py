"""The map of a cluster as SVG: cards of tasks, in a box for each host where there are several, and arrows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfmagic.views.pictures import drawing
from tfmagic.views.pictures.drawing import (
    AMBER,
    BLUE,
    FAINT,
    GREEN,
    GREY,
    MONO,
    PURPLE,
    RED,
    Spot,
    element,
    escape,
    shortened,
    words,
)

_COLOURS = {
    "running": BLUE,
    "ready": GREEN,
    "waiting": AMBER,
    "starting": AMBER,
    "stalled": PURPLE,
    "dead": RED,
}
_TINTS = {"chief": "#ddf4ff", "worker": "#f6f8fa", "ps": "#fff8c5", "evaluator": "#fbefff"}
_KINDS = {"ring": BLUE, "cut": RED, "call": PURPLE, "data": GREEN, "files": FAINT}
_WIDE, _HIGH = 196, 74
_SMALL_WIDE, _SMALL_HIGH, _SMALL_ABOVE = 104, 34, 16  # of a card, where there are more tasks than that
_GAP_X, _GAP_Y, _MARGIN, _HEAD = 44, 46, 18, 34
_IN_ROW, _SMALL_IN_ROW, _MOST = 4, 8, 200
_MOST_LINKS = 48


@dataclass(frozen=True, slots=True)
class Card:
    """A task as the map shows it."""

    name: str
    role: str
    state: str
    note: str
    pid: int
    host: str
    address: str
    attempt: int

    @property
    def title(self) -> str:
        """What the pointer shows."""
        facts = [f"{self.name}: {self.role}", f"{self.state}{f': {self.note}' if self.note else ''}"]
        facts += [f"pid {self.pid}, process number {self.attempt}"] if self.pid else []
        facts += [f"on {self.host}"] if self.host else []
        return "\n".join([*facts, f"listens on {self.address}"] if self.address else facts)


@dataclass(frozen=True, slots=True)
class Link:
    """One task talks to another one.

    Attributes:
        kind: ring, cut (of a ring), call, data or files: the colour of the arrow.
        is_known: Whether tasks have reported it; otherwise its line is dashed.
    """

    source: str
    target: str
    what: str
    kind: str
    is_known: bool


@dataclass(frozen=True, slots=True)
class Box:
    """A place in the picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is: the cards by name, the hosts by name, and the size of the picture."""

    cards: Mapping[str, Box]
    hosts: Mapping[str, Box]
    size: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A picture."""

    svg: str
    size: tuple[float, float]
    spots: tuple[Spot, ...]


def draw(cards: Sequence[Card], links: Sequence[Link], title: str, note: str) -> Drawn:
    """Return the picture of these tasks."""
    shown = cards[:_MOST]
    place = lay_out(shown)
    kept, more = choose_links(links, {card.name for card in shown})
    note += f" {more}" if more else ""
    if len(cards) > len(shown):
        note += f" {len(cards) - len(shown)} more tasks are not drawn."
    parts = [_markers(), words(_MARGIN, 22, shortened(title, 110), size=13, font_weight="bold")]
    parts += [_host(name, box) for name, box in place.hosts.items()]
    parts += [_arrow(link, place) for link in kept]
    parts += [_card(card, place.cards[card.name]) for card in shown]
    width, height = place.size
    lines = _wrap(note, int((width - 2 * _MARGIN) / 6.2))
    kinds = list(dict.fromkeys((link.kind, link.what, link.is_known) for link in kept))
    for row, (kind, what, is_known) in enumerate(kinds):
        parts.append(_legend(kind, what, is_known, height + 16 * row))
    height += 16 * len(kinds)
    parts += [words(_MARGIN, height + 16 * row, line, fill=FAINT) for row, line in enumerate(lines)]
    size = (width, height + 16 * len(lines) + 2)
    spots = tuple(
        Spot(box.x, box.y, box.width, box.height, card.title)
        for card in shown
        if (box := place.cards[card.name])
    )
    return Drawn(drawing.svg(*size, "".join(parts), title), size, spots)


def lay_out(cards: Sequence[Card]) -> Layout:
    """Place the cards: a row for each type, or a column for each host."""
    wide, high, in_row = _WIDE, _HIGH, _IN_ROW
    gap_x, gap_y = _GAP_X, _GAP_Y
    if len(cards) > _SMALL_ABOVE:
        wide, high, in_row, gap_x, gap_y = _SMALL_WIDE, _SMALL_HIGH, _SMALL_IN_ROW, 22, 26
    hosts = list(dict.fromkeys(card.host for card in cards))
    places: dict[str, Box] = {}
    boxes: dict[str, Box] = {}
    if len(hosts) > 1:
        return _lay_out_hosts(cards, hosts, (wide, high, in_row, gap_x, gap_y))
    y = float(_HEAD + 12)
    for row in _rows(cards, in_row):
        for column, card in enumerate(row):
            places[card.name] = Box(_MARGIN + column * (wide + gap_x), y, wide, high)
        y += high + gap_y
    right = max((box.x + box.width for box in places.values()), default=0) + _MARGIN
    return Layout(places, boxes, (max(right, 620.0), y))


def _lay_out_hosts(
    cards: Sequence[Card], hosts: Sequence[str], how: tuple[int, int, int, int, int]
) -> Layout:
    wide, high, in_row, gap_x, _ = how
    places: dict[str, Box] = {}
    boxes: dict[str, Box] = {}
    top, bottom = float(_HEAD + 4), 0.0
    for number, host in enumerate(hosts):
        if number and number % in_row == 0:
            top, bottom = bottom + _GAP_Y, 0.0
        x = _MARGIN + (number % in_row) * (wide + 24 + gap_x)
        here = [card for card in cards if card.host == host]
        for row, card in enumerate(here):
            places[card.name] = Box(x + 12, top + 28 + row * (high + 16), wide, high)
        box = Box(x, top, wide + 24, 28 + len(here) * (high + 16))
        boxes[host] = box
        bottom = max(bottom, top + box.height)
    right = max(box.x + box.width for box in boxes.values()) + _MARGIN
    return Layout(places, boxes, (max(right, 620.0), bottom + 34))


def _rows(cards: Sequence[Card], in_row: int) -> list[list[Card]]:
    """Return the cards by row: chief and evaluator, workers, servers."""
    kinds = {"chief": 0, "evaluator": 0, "worker": 1, "ps": 2}
    rows: list[list[Card]] = []
    for kind in range(4):
        found = [card for card in cards if kinds.get(_type(card.name), 3) == kind]
        rows += [found[first : first + in_row] for first in range(0, len(found), in_row)]
    return rows


def choose_links(links: Sequence[Link], names: set[str]) -> tuple[list[Link], str]:
    """Return the arrows to draw, and a sentence about the others.

    Of too many, all of the ring stay, and one for each pair of types.
    """
    kept = [link for link in links if {link.source, link.target} <= names]
    if len(kept) <= _MOST_LINKS:
        return kept, ""
    pairs: dict[tuple[str, str, str], Link] = {}
    for link in kept:
        pairs.setdefault((_type(link.source), _type(link.target), link.kind), link)
    few = [link for link in kept if link.kind in ("ring", "cut") or link in pairs.values()]
    return few, "One arrow stands for all of its kind." if any(link.kind != "ring" for link in few) else ""


def _type(name: str) -> str:
    return name.rpartition("-")[0]


# ---- elements -------------------------------------------------------------------------------------


def _card(card: Card, box: Box) -> str:
    colour = _COLOURS.get(card.state, GREY)
    frame = element(
        "rect",
        x=box.x,
        y=box.y,
        width=box.width,
        height=box.height,
        rx=7,
        fill=_TINTS.get(_type(card.name), "#f6f8fa"),
        stroke=colour,
        stroke_width=1.5,
    )
    dot = element("circle", cx=box.x + 13, cy=box.y + 16, r=5, fill=colour)
    name = words(box.x + 24, box.y + 20, card.name, size=13, font_weight="bold", font_family=MONO)
    if box.height < _HIGH:
        state = words(box.x + 24, box.y + 31, card.state, size=9.5, fill=colour)
        return drawing.titled(card.title, frame + dot + name + state)
    room = int((box.width - 20) / 5.6)
    rows = [
        (shortened(card.role.partition(":")[0], room), FAINT),
        (shortened(f"{card.state}{f' {card.note}' if card.note else ''}", room), colour),
        (f"{card.address}{f'  pid {card.pid}' if card.pid else ''}", FAINT),
    ]
    lines = "".join(
        words(box.x + 10, box.y + 37 + 14.5 * row, text, size=10.5, fill=fill)
        for row, (text, fill) in enumerate(rows)
    )
    return drawing.titled(card.title, frame + dot + name + lines)


def _host(name: str, box: Box) -> str:
    frame = element(
        "rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=9, fill="#ffffff", stroke=FAINT,
        stroke_dasharray="4 3",
    )  # fmt: skip
    return frame + words(box.x + 12, box.y + 19, f"host {name}", size=12, fill=FAINT, font_weight="bold")


def _markers() -> str:
    marks = "".join(
        element(
            "marker",
            element("path", d="M0 0 L8 4 L0 8 z", fill=colour),
            id=f"end-{kind}",
            markerWidth=8,
            markerHeight=8,
            refX=7,
            refY=4,
            orient="auto",
            markerUnits="userSpaceOnUse",
        )
        for kind, colour in _KINDS.items()
    )
    return element("defs", marks)


def _legend(kind: str, what: str, is_known: bool, y: float) -> str:
    text = what if is_known or kind in ("files", "cut") else f"{what} (not seen yet)"
    line = _line(f"M{_MARGIN} {y - 4:.0f} h30", kind, is_known)
    return line + words(_MARGIN + 40, y, text, size=11, fill=_KINDS[kind])


def _line(path: str, kind: str, is_known: bool) -> str:
    return element(
        "path",
        d=path,
        fill="none",
        stroke=_KINDS[kind],
        stroke_width=1.6,
        stroke_dasharray=None if is_known else "5 4",
        marker_end=f"url(#end-{kind})",
    )


def _arrow(link: Link, place: Layout) -> str:
    path = path_between(place.cards[link.source], place.cards[link.target])
    return drawing.titled(
        f"{link.source} → {link.target}: {link.what}", _line(path, link.kind, link.is_known)
    )


def path_between(source: Box, target: Box) -> str:
    """Return the path of an arrow: straight between neighbours, else below the cards between them."""
    (ax, ay), (bx, by) = source.middle, target.middle
    if abs(ay - by) < 1:  # in one row
        shift = 7.0 if bx > ax else -7.0  # there and back do not cover each other
        if abs(ax - bx) < 2 * source.width:
            start, end = (
                (source.x + source.width, target.x) if bx > ax else (source.x, target.x + target.width)
            )
            return f"M{start:.1f} {ay - shift:.1f} L{end:.1f} {by - shift:.1f}"
        low = ay + source.height / 2
        depth = low + 30
        return f"M{ax:.1f} {low:.1f} C{ax:.1f} {depth:.1f} {bx:.1f} {depth:.1f} {bx:.1f} {low:.1f}"
    if abs(ax - bx) < 1 and abs(ay - by) > 2 * source.height:  # past the cards between them
        left, out = source.x, source.x - 22
        return f"M{left:.1f} {ay:.1f} C{out:.1f} {ay:.1f} {out:.1f} {by:.1f} {left:.1f} {by:.1f}"
    shift = 5.0 if by > ay else -5.0
    (x1, y1), (x2, y2) = _edge(source, bx, by), _edge(target, ax, ay)
    return f"M{x1 + shift:.1f} {y1:.1f} L{x2 + shift:.1f} {y2:.1f}"


def _edge(box: Box, x: float, y: float) -> tuple[float, float]:
    """Return where the line from the middle of a box to a point leaves the box."""
    mx, my = box.middle
    dx, dy = x - mx, y - my
    scale = min(
        box.width / 2 / abs(dx) if dx else float("inf"), box.height / 2 / abs(dy) if dy else float("inf")
    )
    return mx + dx * scale, my + dy * scale


def _wrap(text: str, columns: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) + 1 > columns:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


# ---- below the picture ----------------------------------------------------------------------------


def details_html(explanations: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Return what a click on a name opens: TF_CONFIG of each task, field by field."""
    summary = "cursor:pointer;padding:1px 6px"
    parts = [
        f'<details style="margin:1px 0"><summary style="{summary}">TF_CONFIG of <b>{escape(name)}</b>'
        f"</summary>{table_html(rows)}</details>"
        for name, rows in explanations.items()
    ]
    inner = "".join(parts)
    if len(parts) <= 4:
        return inner
    head = f'<summary style="{summary}">TF_CONFIG of each task, field by field</summary>'
    return f'<details style="margin:2px 0">{head}<div style="margin-left:18px">{inner}</div></details>'


def table_html(rows: Sequence[tuple[str, str]]) -> str:
    """Return the fields of a TF_CONFIG with their meanings."""
    cells = "".join(
        f'<tr><td style="text-align:left;font-family:{MONO};font-size:12px">{escape(field)}</td>'
        f'<td style="text-align:left">{escape(meaning)}</td></tr>'
        for field, meaning in rows
    )
    return f'<table style="margin:2px 0"><tbody>{cells}</tbody></table>'
