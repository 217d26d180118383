"""Rich displays inside html that anybody may have to trust: images and harmless html; the rest is told.

A fragment of html stands inside our own only when it cannot break out of it or run anything: its tags are
closed in order, and it holds no script.
"""

from __future__ import annotations

import base64
import html
import math
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_NAMES = {
    "image/png": "figure",
    "image/jpeg": "picture",
    "image/gif": "picture",
    "image/svg+xml": "drawing",
    "text/html": "table or html",
    "text/markdown": "text",
    "text/latex": "formula",
}
_VOID = {
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"),
}
_ACTIVE = {
    *("script", "iframe", "object", "embed", "form", "base", "meta", "link", "frame", "frameset"),
    *("html", "head", "body", "style", "title", "textarea", "plaintext", "xmp", "noscript", "svg", "math"),
}
_SCOPED_STYLE = re.compile(r"<style scoped>.*?</style>", re.DOTALL)  # pandas', which sanitizers drop anyway
_SCRIPT_ADDRESS = re.compile(r"(javascript|vbscript):|data:text/html", re.IGNORECASE)


def as_html(data: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """The display as html that stands by itself; None where only a front end can show it."""
    for kind in _IMAGES:
        if kind in data:
            return _image(f"data:{kind};base64,{''.join(str(data[kind]).split())}", data, metadata.get(kind))
    if "image/svg+xml" in data:
        code = base64.b64encode(str(data["image/svg+xml"]).encode()).decode()
        return _image(f"data:image/svg+xml;base64,{code}", data, metadata.get("image/svg+xml"))
    if "text/html" in data:
        fragment = _SCOPED_STYLE.sub("", str(data["text/html"]))
        return fragment if is_harmless(fragment) else None
    if set(data) <= {"text/plain", "text/markdown", "text/latex"} and "text/latex" not in data:
        text = str(data.get("text/plain") or data.get("text/markdown") or "")
        if "text/markdown" in data:
            text = str(data["text/markdown"])
        return (
            f'<pre style="margin:0;white-space:pre-wrap;background:none;padding:0">{html.escape(text)}</pre>'
        )
    return None


def name_of(data: Mapping[str, Any]) -> str:
    """What it is, in a word."""
    return next((word for kind, word in _NAMES.items() if kind in data), "display")


def is_harmless(fragment: str) -> bool:
    """Whether the fragment closes what it opens, and runs nothing."""
    reader = _Reader()
    reader.feed(fragment)
    is_whole = "<" not in reader.rawdata  # else it ends in the middle of a tag, and swallows what follows
    reader.close()
    return is_whole and reader.harmless and not reader.open


def _image(source: str, data: Mapping[str, Any], size: Any) -> str:
    words = html.escape(str(data.get("text/plain", "")), quote=True)
    source = html.escape(source, quote=True)
    limits = "".join(
        f' {side}="{int(size[side])}"'
        for side in ("width", "height")
        if isinstance(size, Mapping) and isinstance(size.get(side), int | float) and math.isfinite(size[side])
    )
    return f'<img src="{source}" alt="{words}"{limits} style="max-width:100%;background:#fff">'


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.harmless = True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _ACTIVE or any(map(_is_active, attrs)):
            self.harmless = False
        elif tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)  # <div/> leaves a div open, whatever it looks like

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.harmless = False

    def handle_comment(self, data: str) -> None:
        if "[if" in data:
            self.harmless = False

    def handle_decl(self, decl: str) -> None:
        self.harmless = False

    def handle_pi(self, data: str) -> None:
        self.harmless = False

    def unknown_decl(self, data: str) -> None:
        self.harmless = False


def _is_active(attribute: tuple[str, str | None]) -> bool:
    name, value = attribute
    return name.startswith("on") or bool(_SCRIPT_ADDRESS.match("".join((value or "").split())))
