"""Tables, and what is above and below them, as text and as html: the same rows make both.

The html needs no script and no style sheet, so that it is also shown where a notebook is not trusted.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfmagic.system.memory import format_bytes

STATUS_HEADER = (
    "task", "state", "pid", "host", "uptime", "CPU %", "memory", "shared", "threads", "files", "does",
    "address",
)  # fmt: skip
_BAR_COLUMNS = 40


@dataclass(frozen=True, slots=True)
class Shown:
    """A cell of a table that is more than its text in html."""

    text: str
    html: str

    def __str__(self) -> str:
        return self.text


Cell = str | Shown


class Piece(NamedTuple):
    """A piece of a bar: its share of the longest one, and what the pointer shows."""

    share: float
    mark: str
    colour: str
    title: str


def bar(pieces: Iterable[Piece], pixels: int = 420) -> Shown:
    """Return a horizontal bar; a whole one is `pixels` wide."""
    text, page, taken, drawn = "", "", 0.0, 0
    for piece in pieces:
        taken += piece.share
        text += piece.mark * (round(_BAR_COLUMNS * taken) - len(text))
        if width := round(pixels * taken) - drawn:
            style = f"display:inline-block;vertical-align:middle;height:14px;width:{width}px"
            title = html.escape(piece.title)
            page += f'<span title="{title}" style="{style};background-color:{piece.colour}"></span>'
        drawn += width
    return Shown(text, f'<span style="white-space:nowrap;font-size:0">{page}</span>')


def key(name: str, mark: str, colour: str, meaning: str) -> Shown:
    """Return a name with the mark of its pieces in bars."""
    style = f"display:inline-block;width:10px;height:10px;margin-right:4px;background-color:{colour}"
    page = f'<span title="{html.escape(meaning)}"><span style="{style}"></span>{html.escape(name)}</span>'
    return Shown(f"{name} {mark}", page)


def code(text: str) -> Shown:
    """Return a cell in the font of code."""
    return Shown(text, f'<code style="background-color:transparent">{html.escape(text)}</code>')


def bundle(
    header: Sequence[Cell], rows: Sequence[Sequence[Cell]], notes: Iterable[str] = (), title: str = ""
) -> dict[str, str]:
    """Return a table as text and html, with a line above it and lines below."""
    notes = list(notes)
    parts = [title, to_text(header, rows) if rows else "", *notes]
    above, *below = (f"<p>{html.escape(line)}</p>" if line else "" for line in (title, *notes))
    page = f"{above}{to_html(header, rows) if rows else ''}{''.join(below)}"
    return {"text/plain": "\n".join(filter(None, parts)), "text/html": page}


def to_text(header: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table in columns as text, without a line end at its end."""
    table = [header, *rows] if any(header) else rows
    widths = [max(len(str(row[i])) for row in table) for i in range(len(header))]
    lines = ("  ".join(str(c).ljust(w) for c, w in zip(row, widths, strict=True)) for row in table)
    return "\n".join(line.rstrip() for line in lines)


def to_html(header: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table as html."""
    head = f"<thead>{_row('th', header)}</thead>" if any(header) else ""
    return f"<table>{head}<tbody>{''.join(_row('td', row) for row in rows)}</tbody></table>"


def _row(tag: str, row: Sequence[Cell]) -> str:
    shown = (cell.html if isinstance(cell, Shown) else html.escape(str(cell)) for cell in row)
    cells = "".join(f'<{tag} style="text-align:left">{cell}</{tag}>' for cell in shown)
    return f"<tr>{cells}</tr>"


def status_table(
    rows: Iterable[Mapping[str, Any]], own: Iterable[Mapping[str, Any]] = ()
) -> list[tuple[str, ...]]:
    """Return a row for each of `status_rows` and of `own_rows` in `tfmagic.clusters.tools.status`."""
    table = [_status_row(row) for row in rows]
    for row in own:
        used = (_percent(row["cpu_percent"]), _size(row["memory_bytes"]))
        table.append((row["process"], "", str(row["pid"]), "", "", *used, *[""] * 5))
    return table


def imports(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each reason for which processes have imported TensorFlow themselves."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if why := row.get("not_forked"):
            found.setdefault(why, []).append(row["task"])
    return [f"{', '.join(tasks)}: not forked, because of {why}" for why, tasks in found.items()]


def _status_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["task"],
        row["state"],
        str(row["pid"] or "-"),
        f"{row['host']} (cut off)" if row.get("cut_off") else row["host"] or "-",
        "-" if row["uptime_s"] is None else f"{row['uptime_s']:.0f} s",
        _percent(row["cpu_percent"]),
        _size(row["memory_bytes"]),
        _size(row["shared_bytes"]),
        str(row["threads"] or "-"),
        str(row["open_files"] or "-"),
        _what_it_does(row),
        row["address"],
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else format_bytes(size_bytes)


def _what_it_does(row: Mapping[str, Any]) -> str:
    if row["doing"] == row["state"] and row["line"] is None:
        return ""
    where = f" at line {row['line']}" if row["line"] else ""
    return f"{row['doing']}{where}{': ' if row['note'] else ''}{row['note']}"
