"""The html of the static form: inline styles with literal colours, no script.

JupyterLab's sanitizer for untrusted notebooks keeps <details>, <pre>, <table>, <img> and inline styles
with literal colours, and drops scripts, style sheets, SVG and variables (measured, JupyterLab 4.6). So marks
have the middle tones of the palette, which can be seen on white and on black, and text has the page's own
colour. A log is scrolled to its end because its outer box is laid out in reverse.

JupyterLab's table of contents sanitizes each html output a second after a change, in a trusted notebook, too.
The first `background` on a page takes it 50 ms (a regular expression is compiled), a `background-color` 2 ms.
"""

import os
import time
from collections.abc import Mapping, Sequence
from html import escape as _esc
from itertools import groupby

from tfmagic.runs.cell_records import CellRecord, ErrorRecord, TaskRecord
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.given_hints import Hint, count_hints
from tfmagic.runs.terminal.screen import Row, plain_text
from tfmagic.views import embedding, palette, words
from tfmagic.views.log_items import DisplayItem, GapItem, Item, RemarkItem, RowItem
from tfmagic.views.values import ValueRow

_LINE = "border:1px solid rgba(128,128,128,.28)"
_MONO = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:12px;line-height:1.45"
_FAINT = "opacity:.7"
_NOTE = f"padding:5px 12px;border-left:3px solid {palette.AMBER.mid}"
_HINT = f"{_NOTE};background-color:rgba(181,123,0,.12)"
_FONT = "font-size:12px;line-height:1.5;font-family:system-ui,-apple-system,Segoe UI,sans-serif"
_SURFACE = "border-radius:6px;background-color:rgba(128,128,128,.07)"
_HEADER = (  # as high as that of the panel with its buttons
    "display:flex;flex-wrap:wrap;align-items:center;gap:2px 8px;min-height:22px;padding:6px 8px 5px 12px;"
    "background-color:rgba(128,128,128,.07)"
)
_ICON = (
    "display:inline-block;width:16px;height:16px;border-radius:50%;text-align:center;font-size:10px;"
    "font-weight:700;line-height:16px;color:#ffffff"
)
_BODY = "padding:0 12px 8px 30px"
_COUNT = f"font-size:11px;{_FAINT}"
_WRAPPED = f"white-space:pre-wrap;overflow-wrap:anywhere;{_MONO}"
# JupyterLab shows "model not found" above a draft, without an element, where the kernel is gone
_DRAFT_SHEET = (
    "<style>.jp-OutputArea-child:has(~ .jp-OutputArea-child .tfm-draft) > .jp-OutputArea-output:not(:has(*))"
    "{display:none}</style>"
)
_RULE = "border-top:1px solid rgba(128,128,128,.2)"


def page_html(body: str, name: str, is_draft: bool = False, said: str = "", ended: float = 0.0) -> str:
    """Return the frame around the html of a cell; `panel.js` finds it by name, MathJax no formula in it.

    It looks as the panel does, so that a page does not jump when it takes the panel's place. `panel.css`
    hides a draft below a live panel, and gives a form the theme's colours on a page that has shown one.

    Args:
        said: What `panel.js` reads out where no panel did: a cell can fail before it has one.
        ended: When the cell ended, in seconds since the epoch.
    """
    style = f"{_LINE};border-radius:8px;overflow:hidden;margin:2px 0;{_FONT}"
    kind, sheet = ("tfm-draft ", _DRAFT_SHEET) if is_draft else ("", "")
    kind += "tfm-form tex2jax_ignore mathjax_ignore"
    more = f' data-tfmagic-said="{_esc(said)}" data-tfmagic-ended="{ended:.0f}"' if said else ""
    return f'<div class="{kind}" data-tfmagic="{_esc(name)}"{more} style="{style}">{body}{sheet}</div>'


def head_html(record: CellRecord, run: RunFolder, notes: Sequence[str] = (), hints: str = "") -> str:
    """Return the line on top: name, shape, time, how many tasks are done; and the notes below it.

    Args:
        hints: Their number, in words.
    """
    colour = palette.OF_VERDICT.get(record.verdict, palette.GREY).mid
    badges = "".join(f" {_badge(palette.tone_of(state), text)}" for state, text in words.counts_of(record))
    badges += f" {_badge(palette.AMBER, hints)}" if hints else ""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started)) if record.started else ""
    facts = (_esc(record.shape), words.duration(record.elapsed_s), f"<b>{words.outcome_of(record)}</b>")
    sign = f'<span aria-hidden="true" style="{_ICON};background-color:{colour}">'
    return (
        f'<div style="{_HEADER};border-bottom:2px solid {colour}" '
        f'title="{_esc(f"{when}, run {run}, cell {record.cell}")}">'
        f"{sign}{words.sign_of(record.verdict)}</span> "
        f'<b style="font-size:13px">{_esc(record.cluster)}</b> '
        + " ".join(f'<span style="{_FAINT}">· {fact}</span>' for fact in facts)
        + f"{badges}</div>"
        + "".join(f'<div style="{_NOTE}">{_esc(note)}</div>' for note in (*notes, *record.notes))
    )


def hints_html(hints: Sequence[Hint], room: int, whole: str) -> str:
    """Return a bar for each hint, as far as they fit in `room`; `whole` shows the others, which are named."""
    bars, others = "", list[Hint]()
    for hint in hints:
        who, more = hint.names and f" for {hint.names}", hint.more and f" ({hint.more})"
        text = f"<b>Hint{_esc(who)}</b>: {_esc(_short(hint.advice, 2000))}{_esc(more)}"
        bar = f'<div role="note" style="{_HINT}">{text}</div>'
        if others or len(bars) + len(bar) > room:
            others.append(hint)
        else:
            bars += bar
    if not others:
        return bars
    names = _short(", ".join(dict.fromkeys(hint.name for hint in others if hint.name)), 600)
    do = "does" if len(others) == 1 else "do"
    text = f"{count_hints(others)} {do} not fit here{names and f': {names}'}:  {whole}"
    return f'{bars}<div role="note" style="{_HINT}">{_esc(text)}</div>'


def _badge(tone: palette.Tone, text: str) -> str:
    """Return a text with a dot on a surface in this tone."""
    style = "display:inline-block;padding:0 7px;border-radius:9px;font-size:11px;line-height:18px;"
    dot = "display:inline-block;width:6px;height:6px;border-radius:3px;margin:0 5px 1px 0;"
    return (
        f'<span class="tfm-{tone.name}" style="{style}background-color:{tone.mid}21">'
        f'<span style="{dot}background-color:{tone.mid}"></span>{_esc(text)}</span>'
    )


def figures_html(figures: Mapping[str, str], room: int) -> str:
    """Return figures (SVG by the text that says the same) as images, as far as they fit into `room`."""
    shown = ""
    for text, svg in figures.items():
        image = embedding.as_html({"image/svg+xml": svg, "text/plain": text}, {}) or ""
        if len(shown) + len(image) <= room:
            shown += image + " "
    return f'<div class="tfm-charts" style="{_RULE};padding:6px 12px">{shown}</div>' if shown else ""


def values_html(values: Sequence[ValueRow], room: int) -> str:
    """Return the table task → value, or "" without values; `room` is its size at most, in characters."""
    rows = ""
    for value in values:
        share = room // len(values)
        shown = embedding.as_html(value.data, value.metadata)
        if shown is None or len(shown) > share:
            text = _esc(_short(value.text, share))
            shown = f'<pre style="margin:0;white-space:pre-wrap;{_MONO}">{text}</pre>'
        rows += (
            f'<tr><td style="text-align:left;vertical-align:top;{_MONO};{_FAINT}">{_esc(value.names)}</td>'
            f'<td style="text-align:left">{shown}</td></tr>'
        )
    table = f'<table style="margin:2px 0"><tbody>{rows}</tbody></table>'
    return f'<div style="{_RULE};padding:6px 12px;overflow:auto">{table}</div>' if rows else ""


def task_html(
    task: TaskRecord, items: Sequence[Item], lines: int, *, is_open: bool, fold_noise: bool, curve: str = ""
) -> str:
    """Return a task's panel with its failure and its log.

    Args:
        lines: The number of lines that it wrote.
        curve: The image of its CPU.
    """
    facts = " · ".join(filter(None, (task.host, task.note)))
    head = (
        f'<summary style="padding:3px 12px 3px 10px;cursor:pointer"><b style="{_MONO}">{_esc(task.task)}</b> '
        f"{_badge(palette.tone_of(task.state), task.state)} "
        f'<span style="{_FAINT}">{_esc(facts)}</span>{" · " * bool(facts and task.seconds)}'
        f'<span>{curve}<span style="{_FAINT}">{words.took(task)}</span></span></summary>'
    )
    count = f'<div class="tfm-count" style="{_COUNT}">{f"{lines:,} lines" if lines > 1 else ""}</div>'
    body = f"{count}{error_html(task.error)}{_log_html(task.task, items, fold_noise)}"
    attribute = ' open=""' if is_open else ""  # euporie ignores an attribute without a value
    return f'<details{attribute} style="{_RULE}">{head}<div style="{_BODY}">{body}</div></details>'


def _log_html(task: str, items: Sequence[Item], fold_noise: bool) -> str:
    """Return the log in a box that the keyboard can scroll."""

    def kind_of(item: Item) -> str:
        is_folded = fold_noise and isinstance(item, RowItem) and item.noise
        return "noise" if is_folded else "display" if isinstance(item, DisplayItem) else "lines"

    blocks: list[str] = []
    for kind, group in groupby(items, kind_of):
        if kind == "noise":
            blocks.append(_noise_html(list(group)))
        elif kind == "lines":
            style = f"margin:0;padding:0;background-color:transparent;{_WRAPPED}"
            blocks.append(f'<pre style="{style}">' + "\n".join(map(_row_html, group)) + "</pre>")
        else:
            shown = [embedding.as_html(i.data, i.metadata) for i in group if isinstance(i, DisplayItem)]
            blocks += [f'<div style="margin:4px 0">{page}</div>' for page in shown]
    if not blocks:
        return ""
    height = "60em" if any(isinstance(item, DisplayItem) for item in items) else "22em"
    outer = f"display:flex;flex-direction:column-reverse;overflow:auto;max-height:{height};{_SURFACE}"
    inner = "flex:none;padding:5px 10px"
    name = f'tabindex="0" role="group" aria-label="Output of {_esc(task)}"'
    return f'<div {name} style="{outer}"><div style="{inner}">{"".join(blocks)}</div></div>'


def _noise_html(items: Sequence[Item]) -> str:
    lines = "\n".join(_esc(plain_text(i.row)) for i in items if isinstance(i, RowItem))
    count = f"{len(items)} line{'s' if len(items) > 1 else ''}"
    return (
        f'<details style="{_FAINT}"><summary style="font-size:12px">TensorFlow log: {count}</summary>'
        f'<pre style="margin:0;{_WRAPPED}">{lines}</pre></details>'
    )


def _row_html(item: Item) -> str:
    match item:
        case RowItem(row, noise):
            return f'<span style="{_FAINT}">{row_html(row)}</span>' if noise else row_html(row)
        case RemarkItem(text):
            return f'<i style="{_FAINT}">{_esc(text)}</i>'
        case DisplayItem() | GapItem():
            raise TypeError(f"{item} is not a row")


def item_size(item: Item) -> int:
    """Return the length of the item's html in bytes."""
    match item:
        case DisplayItem(data, metadata):
            return len((embedding.as_html(data, metadata) or "").encode("utf-8", "replace"))
        case RowItem(row):
            return len(row_html(row).encode("utf-8", "replace")) + 1
        case _:
            return 200


def more_html(count: int, whole: str) -> str:
    """Return a line about the tasks that have no panel here; `whole` shows them."""
    return (
        f'<div style="padding:3px 10px;{_FAINT}"><i>{count} more tasks had output:  {_esc(whole)}</i></div>'
    )


def logs_html(run: RunFolder) -> str:
    """Return the line with the folder of the logs."""
    folder = str(run.folder).replace(os.path.expanduser("~") + "/", "~/")
    return f'<div style="{_RULE};padding:1px 10px;font-size:11px;{_FAINT}">logs: {_esc(folder)}</div>'


def error_html(error: ErrorRecord | None) -> str:
    """Return a failure: its type, message and line, and its traceback in a <details>."""
    if error is None:
        return ""
    where = f' <span style="{_FAINT}">{words.place_of(error)}</span>' if error.line else ""
    style = f"margin:0 0 6px;padding:6px 10px;border-left:3px solid {palette.RED.mid}"
    style += ";border-radius:0 5px 5px 0;background-color:rgba(217,72,95,.08)"
    kind, message = _esc(_short(error.type, 200)), _esc(_short(error.message, 2000))
    trace = (
        f'<details><summary style="font-size:12px;{_FAINT}">traceback</summary>'
        f'<pre style="margin:0;{_WRAPPED}">{_esc(_short(error.text, 6000))}</pre></details>'
    )
    return (
        f'<div style="{style}"><span style="{_MONO};white-space:pre-wrap"><b>{kind}</b>: '
        f"{message}</span>{where}{trace if error.text else ''}</div>"
    )


def row_html(row: Row) -> str:
    """Return a row with its colours as inline styles."""
    if isinstance(row, str):
        return _esc(row)
    runs = (("".join(map(_css_of, style.split())), _esc(text)) for style, text in row)
    return "".join(f'<span style="{css}">{text}</span>' if css else text for css, text in runs)


_PLAIN_STYLES: Mapping[str, str] = {
    "b": "font-weight:bold;",
    "d": "opacity:.7;",
    "i": "font-style:italic;",
    "u": "text-decoration:underline;",
    "s": "text-decoration:line-through;",
    "r": "background-color:rgba(128,128,128,.35);",
    "e": "background-color:rgba(217,72,95,.13);",
}


def _css_of(token: str) -> str:
    if token in _PLAIN_STYLES:
        return _PLAIN_STYLES[token]
    kind, value = token[0], token[1:]
    if not value.startswith("#"):
        return palette.terminal_css(int(value), is_text=kind == "f")
    return f"{'color' if kind == 'f' else 'background-color'}:{value};"


def _short(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    kept = max(limit - 60, 0)
    end = kept // 3  # of a message or a traceback, the end says what went wrong
    return f"{text[: kept - end]} … (+{len(text) - kept} characters) … {text[len(text) - end :]}"
