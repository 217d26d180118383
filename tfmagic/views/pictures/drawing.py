"""Elements of SVG, and the bundle by which a notebook shows a picture and keeps it.

JupyterLab's sanitizer for untrusted notebooks drops inline SVG, and shows no `image/svg+xml` at all
(measured, 4.6). It keeps an <img> with a data URL, positions in inline styles, the attribute `title` and
<details>. So the picture is an image, and transparent elements above it have the texts that the pointer
shows. The picture has a background of its own, since an image does not know the theme of the page.
"""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass

INK, FAINT, PAPER, LINE = "#1f2328", "#57606a", "#ffffff", "#d0d7de"
GREEN, RED, AMBER, BLUE, GREY, PURPLE = "#116329", "#b31d28", "#7d4e00", "#0550ae", "#57606a", "#6639ba"
FONT = "system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"

_LEAST = 520.0  # pixels: a picture shrinks with the page to this width; then it is scrolled


@dataclass(frozen=True, slots=True)
class Spot:
    """A part of a picture, and the text that the pointer shows there."""

    x: float
    y: float
    width: float
    height: float
    title: str


def element(name: str, content: str = "", **attributes: object) -> str:
    """Return an element; `_` in a name of an attribute stands for a hyphen, `content` is markup."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{content}</{name}>" if content else f"<{name}{given}/>"


def words(x: float, y: float, text: str, *, size: float = 12, fill: str = INK, **attributes: object) -> str:
    """Return a line of text whose baseline begins at (x, y)."""
    return element("text", escape(text), x=x, y=y, font_size=size, fill=fill, **attributes)


def titled(text: str, content: str, **attributes: object) -> str:
    """Return a group with a text that the pointer shows."""
    return element("g", element("title", escape(text)) + content, **attributes)


def svg(width: float, height: float, content: str, name: str) -> str:
    """Return a picture on its own background; `name` is read to those who do not see it."""
    paper = element("rect", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=8, fill=PAPER, stroke=LINE)
    return element(
        "svg",
        paper + content,
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        font_family=FONT,
        role="img",
        aria_label=name,
    )


def bundle(
    picture: str,
    size: tuple[float, float],
    spots: Sequence[Spot],
    text: str,
    below: str = "",
    script: str = "",
) -> dict[str, str]:
    """Return the html and the text of a picture.

    Args:
        spots: What the pointer shows; the first of two that overlap counts.
        below: Html under the picture.
        script: Runs in trusted notebooks only, which show the rest without it.
    """
    width, height = size
    encoded = base64.b64encode(picture.encode("utf-8", "replace")).decode()
    image = (
        f'<img alt="{escape(text)}" src="data:image/svg+xml;base64,{encoded}" '
        'style="display:block;width:100%;max-width:none;height:auto;margin:0">'
    )
    above = "".join(_spot_html(spot, width, height) for spot in reversed(spots))
    frame = (
        f"position:relative;width:100%;max-width:{_number(width)}px;min-width:{_number(min(width, _LEAST))}px"
    )
    page = f'<div style="overflow-x:auto"><div style="{frame}">{image}{above}</div>{below}</div>{script}'
    return {"text/html": page, "text/plain": text}


def _spot_html(spot: Spot, width: float, height: float) -> str:
    """Return a transparent element in its place, whatever the size of the picture on the page."""
    place = {
        "left": spot.x / width,
        "top": spot.y / height,
        "width": spot.width / width,
        "height": spot.height / height,
    }
    style = "".join(f";{name}:{100 * share:.2f}%" for name, share in place.items())
    return f'<div title="{escape(spot.title)}" style="position:absolute{style}"></div>'


def escape(text: str) -> str:
    """Return text for markup; what XML cannot hold is replaced."""
    kept = "".join(c if c >= " " or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return html.escape(kept.encode("utf-8", "replace").decode())


def shortened(text: str, limit: int) -> str:
    """Return the text, or its beginning and `…` where it is longer than `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _number(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
