"""A picture made of shapes: rectangles, lines, arrows and texts; as SVG, and as what a notebook keeps.

JupyterLab's sanitizer for untrusted notebooks drops inline SVG, and shows no `image/svg+xml` at all
(measured, 4.6). It keeps an <img> with a data URL, positions in inline styles, the attribute `title` and
<details>. So the picture is an image, and transparent elements above it have the texts that the pointer
shows. The picture has a background of its own, since an image does not know the theme of the page. Where the
page keeps style sheets (a trusted notebook, for example), it is dark in a dark theme.
"""

import base64
import contextlib
import html
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

from tfmagic.views.palette import DARK_PAGE, FAINT, INK, LINE, PAPER, Tone, dark_sheet

FONT = "system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"
MARGIN = 16

_LEAST = 520.0  # pixels: a picture shrinks with the page to this width; then it is scrolled
_MOST_SPOTS = 600  # with a text for the pointer; of more, the widest have one
_SHEET = f"<style>{DARK_PAGE} .tfm-picture {{ color-scheme: dark }}</style>"
_CHARACTER_PX = 6.2  # of the texts of legend and note


@dataclass(frozen=True, slots=True)
class Box:
    """A place in a picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


class Scene:
    """Shapes, the later ones above the earlier ones; `name` is read to those who do not see the picture."""

    def __init__(self, name: str, width: float, height: float = 0.0):
        self.name, self.width, self.height = name, width, height
        self._parts: list[str] = []
        self._defs: dict[str, str] = {}
        self._spots: list[tuple[Box, str]] = []

    def add(
        self, kind: str, content: str = "", title: str = "", spot: Box | None = None, /, **look: object
    ) -> None:
        """Add an element with markup; `_` in the name of an attribute stands for a hyphen.

        The pointer shows the title there and, in a notebook, in which the picture is an image, at the spot.
        """
        if title:
            content = _element("title", escape(title)) + content
        self._parts.append(_element(kind, content, **look))
        if spot is not None:
            self._spots.append((spot, title))

    @contextlib.contextmanager
    def group(self, title: str = "", spot: Box | None = None, /, **look: object) -> Iterator[None]:
        """Put what is added meanwhile into a group."""
        begin = len(self._parts)
        yield
        content = "".join(self._parts[begin:])
        del self._parts[begin:]
        self.add("g", content, title, spot, **look)

    def rect(self, box: Box, title: str = "", spot: Box | None = None, /, **look: object) -> None:
        self.add("rect", "", title, spot, **asdict(box), **look)

    def text(self, x: float, y: float, text: str, **look: object) -> None:
        """Add a line of text whose baseline begins at (x, y)."""
        self.add("text", escape(text), x=x, y=y, **{"font_size": 11, "fill": INK, **look})

    def heading(self, text: str) -> None:
        self.text(MARGIN, 22, shortened(text, 110), font_size=13, font_weight="bold")

    def line(self, d: str, colour: str, **look: object) -> None:
        """Add a path without a surface."""
        self.add("path", d=d, stroke=colour, **{"fill": "none", **look})

    def arrow(self, d: str, tone: Tone, dashed: bool = False) -> None:
        """Add a path with an arrow's head at its end."""
        name, size = f"end-{tone.name}", {"markerWidth": 8, "markerHeight": 8, "refX": 7, "refY": 4}
        head = _element("path", d="M0 0 L8 4 L0 8 z", fill=tone.ink)
        self._defs[name] = _element(
            "marker", head, id=name, orient="auto", markerUnits="userSpaceOnUse", **size
        )
        dash = "5 4" if dashed else None
        self.line(d, tone.ink, stroke_width=1.6, stroke_dasharray=dash, marker_end=f"url(#{name})")

    def hatch(self, tone: Tone) -> str:
        """Return a surface with lines, to fill something with."""
        name, both = f"hatch-{tone.name}", {"width": 7, "height": 7}
        lines = _element("rect", fill=tone.tint, **both)
        lines += _element("path", d="M0 0 V7", stroke=tone.mid, stroke_width=2, stroke_opacity=0.7)
        how = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
        self._defs[name] = _element("pattern", lines, id=name, **both, **how)
        return f"url(#{name})"

    def clip(self, box: Box) -> str:
        """Return the attribute that clips a group to a box."""
        self._defs["plot"] = _element("clipPath", _element("rect", **asdict(box)), id="plot")
        return "url(#plot)"

    def end(self, y: float, legend: Iterable[tuple[Callable[[], object], str]], note: str = "") -> None:
        """Draw a legend (what draws each mark, from 0 to 24 pixels wide, and its meaning) and a note; end."""
        x = float(MARGIN)
        for draw, meaning in legend:
            width = 42 + _CHARACTER_PX * len(meaning)
            if x > MARGIN and x + width > self.width:
                x, y = float(MARGIN), y + 16
            with self.group(transform=f"translate({x:.0f} {y - 4:.0f})"):
                draw()
            self.text(x + 30, y, meaning, fill=FAINT)
            x += width
        for line in textwrap.wrap(note, int((self.width - 2 * MARGIN) / _CHARACTER_PX)):
            y += 16
            self.text(MARGIN, y, line, fill=FAINT)
        self.height = y + 12

    @property
    def themed_svg(self) -> str:
        """The picture as an image, which is dark where the page's style gives it a dark `color-scheme`."""
        return self._draw(_element("style", dark_sheet()))

    @property
    def svg(self) -> str:
        """The picture on its own background."""
        return self._draw()

    def _draw(self, style: str = "") -> str:
        frame = {"x": 0.5, "y": 0.5, "width": self.width - 1, "height": self.height - 1, "rx": 8}
        paper = _element("rect", fill=PAPER, stroke=LINE, **frame)
        defs = _element("defs", "".join(self._defs.values())) if self._defs else ""
        return _element(
            "svg",
            _element("title", escape(self.name)) + style + defs + paper + "".join(self._parts),
            xmlns="http://www.w3.org/2000/svg",
            width=self.width,
            height=self.height,
            viewBox=f"0 0 {_number(self.width)} {_number(self.height)}",
            font_family=FONT,
            role="img",
        )

    def bundle(self, text: str, below: str = "", script: str = "") -> dict[str, str]:
        """Return the html and the text of the picture, with html below it.

        The text can be opened, by those who do not see the picture or have no pointer to show its titles. The
        script runs in trusted notebooks only; others show the rest.
        """
        encoded = base64.b64encode(self.themed_svg.encode("utf-8", "replace")).decode()
        image = (
            f'<img alt="{escape(self.name)}" src="data:image/svg+xml;base64,{encoded}" '
            'class="tfm-picture" style="display:block;width:100%;max-width:none;height:auto;margin:0">'
        )
        least = sorted((box.width for box, _ in self._spots), reverse=True)[:_MOST_SPOTS]
        above = "".join(self._spot(box, title) for box, title in self._spots if box.width >= least[-1])
        style = f"max-width:{_number(self.width)}px;min-width:{_number(min(self.width, _LEAST))}px"
        frame = f'<div style="position:relative;width:100%;{style}">{image}{above}</div>'
        style = f"margin:0;padding:2px 18px;font:12px/1.45 {MONO}"
        below += details("As text", f'<pre style="{style}">{escape(text)}</pre>')
        page = f'<div style="overflow-x:auto">{frame}{below}</div>{_SHEET}{script}'
        return {"text/html": page, "text/plain": text}

    def _spot(self, box: Box, title: str) -> str:
        """Return a transparent element in its place, whatever the size of the picture on the page."""
        place = {"left": box.x / self.width, "top": box.y / self.height}
        place |= {"width": box.width / self.width, "height": box.height / self.height}
        style = "".join(f";{name}:{100 * share:.2f}%" for name, share in place.items())
        return f'<div title="{escape(title)}" style="position:absolute{style}"></div>'


def _element(kind: str, content: str = "", /, **attributes: object) -> str:
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{kind}{given}>{content}</{kind}>" if content else f"<{kind}{given}/>"


def escape(text: str) -> str:
    """Return text for markup; what XML cannot hold is replaced."""
    kept = "".join(c if c >= " " or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return html.escape(kept.encode("utf-8", "replace").decode())


def details(summary: str, body: str) -> str:
    """Return html that a click on the summary opens."""
    head = f'<summary style="cursor:pointer;padding:1px 6px">{summary}</summary>'
    return f'<details style="margin:1px 0">{head}{body}</details>'


def shortened(text: str, limit: int) -> str:
    """Return the text, or its beginning and `…` where it is longer than `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _number(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
