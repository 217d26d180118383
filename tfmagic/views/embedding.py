"""Rich displays as html that stands inside the static form: images, text and sanitized fragments of html.

`nh3` removes everything from a fragment that could run or break out of its place. A fragment that loses an
element by this, or a handler, needs a front end: it is shown beside the static form instead.
"""

import base64
import html
import math
import re
from collections.abc import Mapping
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
_MORE_TAGS = {
    *(
        "audio",
        "button",
        "dialog",
        "font",
        "input",
        "label",
        "main",
        "meter",
        "output",
        "picture",
        "progress",
    ),
    *("search", "section", "select", "option", "source", "tfoot", "track", "video", "fieldset", "legend"),
}
_ATTRIBUTES = {
    *(
        "style",
        "class",
        "id",
        "title",
        "dir",
        "lang",
        "role",
        "hidden",
        "open",
        "name",
        "label",
        "alt",
        "src",
    ),
    *("href", "download", "type", "value", "min", "max", "checked", "disabled", "for", "controls", "loop"),
    *("autoplay", "muted", "align", "valign", "width", "height", "border", "cellpadding", "cellspacing"),
    *("colspan", "rowspan", "scope", "start", "span", "color", "bgcolor", "face", "size", "datetime"),
}
_SCOPED_STYLE = re.compile(r"<style scoped>.*?</style>", re.DOTALL)  # of pandas; sanitizers drop it
_TAGS = re.compile(r"</?(?!tbody)[a-z][\w-]*|<[?!](?!--)")  # a parser adds <tbody> by itself
_SCRIPTED = re.compile(r"<[^<>]*?(\bon\w+\s*=|script\s*:|data:text/html)", re.IGNORECASE)


def as_html(data: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """Return the display as html that stands by itself; None where only a front end can show it."""
    for kind in _IMAGES:
        if kind in data:
            return _image(f"data:{kind};base64,{''.join(str(data[kind]).split())}", data, metadata.get(kind))
    if "image/svg+xml" in data:
        code = base64.b64encode(str(data["image/svg+xml"]).encode()).decode()
        return _image(f"data:image/svg+xml;base64,{code}", data, metadata.get("image/svg+xml"))
    if "text/html" in data:
        return _sanitize(_SCOPED_STYLE.sub("", str(data["text/html"])))
    if set(data) <= {"text/plain", "text/markdown"}:
        text = html.escape(str(data.get("text/markdown", data.get("text/plain", ""))))
        return f'<pre style="margin:0;white-space:pre-wrap;background:none;padding:0">{text}</pre>'
    return None


def name_of(data: Mapping[str, Any]) -> str:
    """Return the kind of a display in a word."""
    return next((word for kind, word in _NAMES.items() if kind in data), "display")


def _sanitize(fragment: str) -> str | None:
    """Return the sanitized fragment, or None if it loses a tag or a handler or is not balanced."""
    import nh3  # not loaded by `import tfmagic`

    clean = nh3.clean(
        fragment,
        tags=nh3.ALLOWED_TAGS | _MORE_TAGS,
        attributes={"*": _ATTRIBUTES},
        generic_attribute_prefixes={"data-", "aria-"},
        url_schemes={"http", "https", "mailto", "ftp", "data"},
    )
    is_whole = _TAGS.findall(fragment.lower()) == _TAGS.findall(clean)
    return clean if is_whole and not _SCRIPTED.search(fragment) else None


def _image(source: str, data: Mapping[str, Any], size: Any) -> str:
    words = html.escape(str(data.get("text/plain", "")), quote=True)
    source = html.escape(source, quote=True)
    limits = "".join(
        f' {side}="{int(size[side])}"'
        for side in ("width", "height")
        if isinstance(size, Mapping) and isinstance(size.get(side), int | float) and math.isfinite(size[side])
    )
    return f'<img src="{source}" alt="{words}"{limits} style="max-width:100%;background:#fff">'
