"""The map of a cluster as a picture: cards of tasks, in boxes if there are several hosts, and arrows."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tfmagic.views import tables
from tfmagic.views.palette import BLUE, FAINT, GREEN, GREY, OF_TYPE, PAPER, PURPLE, RED, tone_of
from tfmagic.views.scene import MARGIN, MONO, Box, Scene, details, escape, shortened

_KINDS = {"ring": BLUE, "cut": RED, "call": PURPLE, "data": GREEN, "files": GREY}
_ROWS = {"chief": 0, "evaluator": 0, "worker": 1, "ps": 2}
_SMALL_ABOVE = 16  # of more tasks, each has a small card
_HEAD, _INSET, _HOST_HEAD = 46, 12, 28  # above all, in a host's box, and above its cards
_LEAST_WIDTH = 620.0
_MOST, _MOST_LINKS = 200, 48


class _Grid(NamedTuple):
    """The size of a card, how many stand in a row, and the gaps between them."""

    wide: int
    high: int
    in_row: int
    gap_x: int
    gap_y: int


_LARGE, _SMALL = _Grid(196, 74, 4, 44, 46), _Grid(104, 34, 8, 22, 26)


@dataclass(frozen=True, slots=True)
class Card:
    """A task as the map shows it; its state is a `Doing`."""

    name: str
    role: str
    state: str
    note: str
    pid: int
    host: str
    address: str
    attempt: int

    @property
    def type(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def doing(self) -> str:
        """Its state, and the note on it."""
        return f"{self.state}: {self.note}" if self.note else self.state

    @property
    def title(self) -> str:
        """What the pointer shows."""
        facts = [f"{self.name}: {self.role}", self.doing]
        facts += [f"pid {self.pid}, process number {self.attempt}"] if self.pid else []
        facts += [f"on {self.host}"] if self.host else []
        return "\n".join([*facts, f"listens on {self.address}"] if self.address else facts)


@dataclass(frozen=True, slots=True)
class Link:
    """One task talks to another one."""

    source: str
    target: str
    what: str
    kind: str  #: ring, cut (of a ring), call, data or files: the colour of the arrow.
    is_known: bool  #: Whether tasks have reported it; otherwise its line is dashed.


@dataclass(slots=True)
class Layout:
    """Where everything is: the cards by name, the hosts by name, and the size of it all."""

    cards: dict[str, Box] = field(default_factory=dict)
    hosts: dict[str, Box] = field(default_factory=dict)
    bottom: float = _HEAD

    @property
    def width(self) -> float:
        boxes = (*self.cards.values(), *self.hosts.values())
        return max([_LEAST_WIDTH, *(box.x + box.width + MARGIN for box in boxes)])


def draw(cards: Sequence[Card], links: Sequence[Link], title: str, note: str) -> Scene:
    """Return the picture of these tasks."""
    shown = cards[:_MOST]
    place = lay_out(shown)
    kept, more = choose_links(links, {card.name for card in shown})
    left_out = f"{len(cards) - len(shown)} more tasks are not drawn." if len(cards) > len(shown) else ""
    scene = Scene(title, place.width)
    scene.heading(title)
    for name, box in place.hosts.items():
        scene.rect(box, rx=9, fill=PAPER, stroke=FAINT, stroke_dasharray="4 3")
        scene.text(box.x + 12, box.y + 19, f"host {name}", font_size=12, fill=FAINT, font_weight="bold")
    for link in kept:
        path = path_between(place.cards[link.source], place.cards[link.target])
        with scene.group(f"{link.source} → {link.target}: {link.what}"):
            scene.arrow(path, _KINDS[link.kind], dashed=not link.is_known)
    for card in shown:
        with scene.group(card.title, place.cards[card.name]):
            _draw_card(scene, card, place.cards[card.name])
    legend = []
    for kind, what, is_known in dict.fromkeys((link.kind, link.what, link.is_known) for link in kept):
        mark = functools.partial(scene.arrow, "M0 0 h24", _KINDS[kind], not is_known)
        legend.append((mark, what if is_known or kind in ("files", "cut") else f"{what} (not seen yet)"))
    scene.end(place.bottom + 12, legend, " ".join(filter(None, (note, more, left_out))))
    return scene


def lay_out(cards: Sequence[Card]) -> Layout:
    """Place the cards: in rows for each type, or in a column for each host."""
    grid, place = _SMALL if len(cards) > _SMALL_ABOVE else _LARGE, Layout()
    hosts = list(dict.fromkeys(card.host for card in cards))
    if len(hosts) > 1:
        for first in range(0, len(hosts), grid.in_row):
            _place_hosts(cards, hosts[first : first + grid.in_row], grid, place)
        return place
    for kind in range(4):
        found = [card for card in cards if _ROWS.get(card.type, 3) == kind]
        for number, card in enumerate(found):
            row, column = divmod(number, grid.in_row)
            y = place.bottom + row * (grid.high + grid.gap_y)
            place.cards[card.name] = Box(MARGIN + column * (grid.wide + grid.gap_x), y, grid.wide, grid.high)
        place.bottom += math.ceil(len(found) / grid.in_row) * (grid.high + grid.gap_y)
    return place


def _place_hosts(cards: Sequence[Card], hosts: Sequence[str], grid: _Grid, place: Layout) -> None:
    """Place a row of hosts with their cards."""
    top, step = place.bottom, grid.high + 16
    for column, host in enumerate(hosts):
        x = MARGIN + column * (grid.wide + 2 * _INSET + grid.gap_x)
        here = [card for card in cards if card.host == host]
        for row, card in enumerate(here):
            place.cards[card.name] = Box(x + _INSET, top + _HOST_HEAD + row * step, grid.wide, grid.high)
        box = place.hosts[host] = Box(x, top, grid.wide + 2 * _INSET, _HOST_HEAD + len(here) * step)
        place.bottom = max(place.bottom, box.y + box.height + 34)


def choose_links(links: Sequence[Link], names: set[str]) -> tuple[list[Link], str]:
    """Return the arrows to draw, and a sentence about the others.

    Of too many, all of the ring stay, and one for each pair of types.
    """
    kept = [link for link in links if {link.source, link.target} <= names]
    if len(kept) <= _MOST_LINKS:
        return kept, ""
    pairs: dict[tuple[str, str, str], Link] = {}
    for link in kept:
        types = (link.source.rpartition("-")[0], link.target.rpartition("-")[0])
        pairs.setdefault((*types, link.kind), link)
    few = [link for link in kept if link.kind in ("ring", "cut") or link in pairs.values()]
    return few, "One arrow stands for all of its kind." if any(link.kind != "ring" for link in few) else ""


def _draw_card(scene: Scene, card: Card, box: Box) -> None:
    colour = tone_of(card.state).ink
    scene.rect(box, rx=7, fill=OF_TYPE.get(card.type, GREY).tint, stroke=colour, stroke_width=1.5)
    scene.add("circle", cx=box.x + 13, cy=box.y + 16, r=5, fill=colour)
    scene.text(box.x + 24, box.y + 20, card.name, font_size=13, font_weight="bold", font_family=MONO)
    if box.height < _LARGE.high:
        scene.text(box.x + 24, box.y + 31, card.state, font_size=9.5, fill=colour)
        return
    room = int((box.width - 20) / 5.6)
    pid = f"  pid {card.pid}" if card.pid else ""
    lines = (card.role.partition(":")[0], card.doing.replace(":", "", 1), f"{card.address}{pid}")
    for row, (text, fill) in enumerate(zip(lines, (FAINT, colour, FAINT), strict=True)):
        scene.text(box.x + 10, box.y + 37 + 14.5 * row, shortened(text, room), font_size=10.5, fill=fill)


def path_between(source: Box, target: Box) -> str:
    """Return the path of an arrow: straight, but around the cards between two in one row or column."""
    (ax, ay), (bx, by) = source.middle, target.middle
    if abs(ay - by) < 1 and abs(ax - bx) >= 2 * source.width:
        low = ay + source.height / 2
        return f"M{ax:.1f} {low:.1f} C{ax:.1f} {low + 30:.1f} {bx:.1f} {low + 30:.1f} {bx:.1f} {low:.1f}"
    if abs(ax - bx) < 1 and abs(ay - by) > 2 * source.height:
        left, out = source.x, source.x - 22
        return f"M{left:.1f} {ay:.1f} C{out:.1f} {ay:.1f} {out:.1f} {by:.1f} {left:.1f} {by:.1f}"
    is_level = abs(ay - by) < 1
    side = 6.0 if (bx > ax if is_level else by > ay) else -6.0  # there and back do not cover each other
    side_x, side_y = (0.0, -side) if is_level else (side, 0.0)
    (x1, y1), (x2, y2) = _edge(source, bx, by), _edge(target, ax, ay)
    return f"M{x1 + side_x:.1f} {y1 + side_y:.1f} L{x2 + side_x:.1f} {y2 + side_y:.1f}"


def _edge(box: Box, x: float, y: float) -> tuple[float, float]:
    """Return where the line from the middle of a box to a point leaves the box."""
    mx, my = box.middle
    dx, dy = x - mx, y - my
    scale = min(size / 2 / abs(way) if way else math.inf for size, way in ((box.width, dx), (box.height, dy)))
    return mx + dx * scale, my + dy * scale


# ---- below the picture ----------------------------------------------------------------------------


def details_html(explanations: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Return the details that a click on a name opens: TF_CONFIG of each task, field by field."""
    parts = []
    for name, rows in explanations.items():
        table = tables.to_html(("", ""), [(tables.code(place), meaning) for place, meaning in rows])
        parts.append(details(f"TF_CONFIG of <b>{escape(name)}</b>", table))
    inner = "".join(parts)
    if len(parts) <= 4:
        return inner
    return details("TF_CONFIG of each task, field by field", f'<div style="margin-left:18px">{inner}</div>')
