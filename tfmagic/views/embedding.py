"""Rich displays as html inside the static form: images, text and sanitized fragments of html.

`nh3` removes everything from a fragment that could run or break out of its place. A fragment that loses an
element by this, or a handler, needs a front end: it is shown beside the static form instead. Pictures that it
names are loaded, as in a plain notebook, also those that a style names.
"""

import base64
import html
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from tfmagic.protocol.comms import WIDGET_VIEW

_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_TYPESET = "tex2jax_process mathjax_process"  # MathJax looks for formulas here
_CODE = (
    "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background-color:transparent;padding:0"
)
_FORMULA = re.compile(r"\$\$.+?\$\$|(?<![\\$])\$[^\s$](?:[^$\n]*[^\s$\\])?\$(?!\d)", re.DOTALL)
_SVG_WITHOUT_NAMESPACE = re.compile(r"<svg\b(?![^>]*\sxmlns\s*=)")  # a browser shows no such file
_JSON_DEPTH = 20
_LINK_LIMIT = (
    20_000_000  # markdown-it reads the rest again for each bracket that is not closed: a tenth of a second
)
_NAMES = {
    "image/png": "figure",
    "image/jpeg": "picture",
    "image/gif": "picture",
    "image/svg+xml": "drawing",
    "text/html": "table or html",
    "text/markdown": "text",
    "text/latex": "formula",
    "application/json": "JSON",
    WIDGET_VIEW: "widget",
}
_words = re.compile(r"\w+").findall
_MORE_TAGS = _words(
    """audio button dialog fieldset font input label legend main meter option output picture progress
    search section select source tfoot track video"""
)
_ATTRIBUTES = _words(
    """align alt autoplay bgcolor border cellpadding cellspacing checked class color colspan controls
    datetime dir disabled download face for height hidden href id label lang loop max min muted name open
    role rowspan scope size span src start style title type valign value width"""
)
_SCOPED_STYLE = re.compile(r"<style scoped>.*?</style>", re.DOTALL)  # of pandas; sanitizers drop it
_TAGS = re.compile(r"</?(?!tbody)[a-z][\w-]*|<[?!](?!--)")  # a parser adds <tbody> by itself
_SCRIPTED = re.compile(r"<[^<>]*?(\bon\w+\s*=|script\s*:|data:text/html)", re.IGNORECASE)
_STYLES = re.compile(  # without places, layers, transformations and shadows: they leave the form
    r"\s*(?:accent|align|aspect|background|border|box-sizing|caption|clear|color|column|cursor|direction|display|empty"
    r"|fill|flex|float|font|gap|grid|height|hyphens|justify|line|list|margin|max|min|object|opacity|overflow|padding"
    r"|quotes|row|stop|stroke|tab|table|text-(?!indent|shadow)|vertical|visibility|white|width|word-(?!spacing))"
    r"(?:[a-z]+|(?:-[a-z]+)*)\s*:[^\\]*"
)
_PART = re.compile(r";(?!(?:charset=[\w-]+;)?base64,)")  # not within the address of a picture
_LEAVES = re.compile(r"\s*margin[a-z-]*\s*:.*(?:-\s*[\d.]|\()")  # to the left, or above


def as_html(data: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """Return the display as html that needs nothing else; None where only a front end can show it.

    Formulas are left to the front end, which typesets them in html, too.
    """
    if "text/html" in data:
        shown = _sanitize(_SCOPED_STYLE.sub("", _text_of(data, "text/html")))
    elif "text/markdown" in data:
        shown = _markdown(_text_of(data, "text/markdown"))
    elif "text/latex" in data:
        shown = html.escape(_text_of(data, "text/latex"))
    else:
        shown = None
    if shown is not None:
        return f'<div class="{_TYPESET}">{shown}</div>' if "$" in shown or "\\" in shown else shown
    for kind in ("image/svg+xml", *_IMAGES):
        if kind in data:
            return _image(kind, data, metadata.get(kind))
    if "application/json" in data:
        return f'<div style="{_CODE}">{_json_tree(data["application/json"])}</div>'
    if WIDGET_VIEW in data or set(data) <= {"text/plain"}:
        text = html.escape(_text_of(data, "text/plain"))
        return f'<pre style="margin:0;white-space:pre-wrap;{_CODE}">{text}</pre>'
    return None


def _text_of(data: Mapping[str, Any], kind: str) -> str:
    value = data.get(kind, "")
    return "".join(map(str, value)) if isinstance(value, list) else str(value)


def _markdown(text: str) -> str | None:
    """Return Markdown as sanitized html; formulas stay as they are, as in JupyterLab."""
    from markdown_it import MarkdownIt  # not loaded by `import tfmagic`

    if text.count("[") * len(text) > _LINK_LIMIT:
        return None

    formulas: list[str] = []

    def keep(found: re.Match[str]) -> str:
        formulas.append(html.escape(found[0]))
        return f"\ue000{len(formulas) - 1}\ue001"

    source = _FORMULA.sub(keep, text.replace("\ue000", "\ufffd"))
    made = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(source)
    made = re.sub("\ue000(\\d+)\ue001", lambda found: formulas[int(found[1])], made)
    return _sanitize(made)


def _json_tree(value: Any, name: str = "", depth: int = 0) -> str:
    """Return JSON as nested <details>, the outermost one open; `name` is its place in the one around it."""
    label = f"<b>{html.escape(name)}</b>: " if name else ""
    if not isinstance(value, dict | list) or depth >= _JSON_DEPTH:
        text = html.escape(json.dumps(value, ensure_ascii=False))
        return f'<div style="padding-left:1.2em">{label}{text}</div>'
    items = value.items() if isinstance(value, dict) else enumerate(value)
    body = "".join(_json_tree(item, str(key), depth + 1) for key, item in items)
    size = f"{len(value)} {'key' if isinstance(value, dict) else 'item'}{'' if len(value) == 1 else 's'}"
    attribute = "" if depth else ' open=""'
    return (
        f'<details{attribute} style="padding-left:1.2em"><summary>{label}'
        f'<span style="opacity:.7">{size}</span></summary>{body}</details>'
    )


def name_of(data: Mapping[str, Any]) -> str:
    """Return the kind of a display in a word."""
    return next((word for kind, word in _NAMES.items() if kind in data), "display")


def _sanitize(fragment: str) -> str | None:
    """Return the sanitized fragment, or None if it loses a tag or a handler or is not balanced."""
    import nh3  # not loaded by `import tfmagic`

    clean = nh3.clean(
        fragment,
        tags={*nh3.ALLOWED_TAGS, *_MORE_TAGS},
        attributes={"*": set(_ATTRIBUTES)},
        generic_attribute_prefixes={"data-", "aria-"},
        url_schemes={"http", "https", "mailto", "ftp", "data"},
        attribute_filter=_filtered,
    )
    is_whole = _TAGS.findall(fragment.lower()) == _TAGS.findall(clean)
    return clean if is_whole and not _SCRIPTED.search(fragment) else None


def _filtered(tag: str, name: str, value: str) -> str | None:
    """Return what stays of an attribute; None without it. The parser has decoded the value."""
    if name == "style":
        parts = _PART.split(value)
        kept = [
            part
            for part in parts
            if not part.strip() or (_STYLES.fullmatch(part) and not _LEAVES.match(part))
        ]
        return value if len(kept) == len(parts) else ";".join(kept) or None
    if name.startswith("data-tfmagic"):  # by which our own script finds its elements
        return None
    is_link = name != "src" and "".join(value.split()).lower().startswith("data:")
    return None if is_link and name in ("href", "download") else value


def _image(kind: str, data: Mapping[str, Any], size: Any) -> str:
    code = "".join(_text_of(data, kind).split())
    if kind == "image/svg+xml":
        drawing = _SVG_WITHOUT_NAMESPACE.sub(
            '<svg xmlns="http://www.w3.org/2000/svg"', _text_of(data, kind), 1
        )
        code = base64.b64encode(drawing.encode()).decode()
    words = html.escape(_text_of(data, "text/plain"), quote=True)
    source = html.escape(f"data:{kind};base64,{code}", quote=True)
    limits = "".join(
        f' {side}="{int(size[side])}"'
        for side in ("width", "height")
        if isinstance(size, Mapping) and isinstance(size.get(side), int | float) and math.isfinite(size[side])
    )
    return f'<img src="{source}" alt="{words}"{limits} style="max-width:100%;background-color:#fff">'
