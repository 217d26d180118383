"""The page of a report: one html file without a script, which loads nothing, and has its JSON at the end."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tfmagic.views import tables
from tfmagic.views.palette import AMBER, GREEN, RED
from tfmagic.views.scene import escape

MARK = "<!-- written by tfmagic report -->"  #: In a file that can be replaced by another report.
_TONES = {"fine": GREEN, "note": AMBER, "trouble": RED}
_STYLE = """\
:root { color-scheme: light dark; --line: #8886; --paper: #fff; --ink: #1f2328; --soft: #8881 }
@media (prefers-color-scheme: dark) { :root { --paper: #16191d; --ink: #e6e8eb } }
body { font: 14px/1.5 system-ui, sans-serif; background: var(--paper); color: var(--ink);
  max-width: 1100px; margin: 0 auto; padding: 16px }
h1 { font-size: 22px } h2 { font-size: 17px; margin: 32px 0 8px; border-bottom: 1px solid var(--line) }
pre { background: var(--soft); padding: 8px 10px; overflow: auto; max-height: 32em; font-size: 12px }
table { border-collapse: collapse }
td, th { padding: 2px 14px 2px 0; vertical-align: top; overflow-wrap: anywhere; text-align: left }
svg { display: block; width: 100%; height: auto; min-width: 520px }
.picture { overflow-x: auto }
.first { border-left: 4px solid #b57b00; padding: 4px 12px; background: var(--soft) }
td:first-child { white-space: nowrap } summary { cursor: pointer } nav a { margin-right: 8px }
"""


class Failure(msgspec.Struct, frozen=True):
    """A task's failure in the last cell that failed."""

    task: str
    type: str  #: "…" for a class that Python, TensorFlow and tfmagic do not have.
    is_consequence: bool
    cell_line: int | None
    hint: str  #: The short name of a known trap.
    message: str  #: "" for a message that is not tfmagic's.


class Contents(msgspec.Struct, frozen=True):
    """What a report says. All of it is known to be tfmagic's, except for `texts`."""

    run: str
    facts: Sequence[tuple[str, str]]
    cells: Sequence[tuple[str, str]]
    failures: Sequence[Failure]
    tasks: Sequence[Mapping[str, Any]]
    versions: Sequence[tuple[str, str]]
    story: Sequence[str]  #: What the loop saw and decided lately; see `tfmagic.supervisor.story`.
    loop: str  #: The same, for `tfmagic.features.report.own_story.read`.
    texts: Sequence[tuple[str, str]]  #: The user's own, each with a title; only if they were asked for.
    replaced: int  #: How many secrets were replaced in them.
    doctor: Sequence[tuple[str, str, str]] = ()  #: Severity, what, advice.
    events: Sequence[tuple[str, str, str]] = ()  #: Seconds since the beginning, task, what happened.


def build(found: Contents, pictures: Sequence[tuple[str, str]]) -> str:
    """Return the page.

    Args:
        pictures: Titles, and SVG.
    """
    sections = {
        "Run": tables.to_html(("", ""), [*found.facts, *found.cells]),
        "Errors": _failures(found.failures) or "<p>No cell of this run has failed on a task.</p>",
        **{title: f'<div class="picture">{svg}</div>' for title, svg in pictures},
        "Story": _folded("What the loop of the cluster saw and decided lately", "\n".join(found.story)),
        "Doctor": tables.to_html(("", "", ""), [(_toned(tone), *rest) for tone, *rest in found.doctor]),
        "Versions": tables.to_html(("", ""), found.versions),
        "Texts": "".join(f"<h3>{escape(title)}</h3><pre>{escape(text)}</pre>" for title, text in found.texts),
        "JSON": _folded("For programs", _json(found)),
    }
    shown = {title: body for title, body in sections.items() if body}
    links = " ".join(f'<a href="#{title.lower()}">{title}</a>' for title in shown)
    body = "".join(f'<h2 id="{title.lower()}">{title}</h2>\n{text}\n' for title, text in shown.items())
    title = f"tfmagic: run {escape(found.run)}"
    return (
        f'<!doctype html>\n{MARK}\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="referrer" content="no-referrer">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n"
        f'<div class="first">{_first(found)}</div>\n<nav>{links}</nav>\n{body}</body></html>\n'
    )


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary><pre>{escape(text)}</pre></details>" if text else ""


def _json(found: Contents) -> str:
    return msgspec.json.format(msgspec.json.encode(found)).decode()


def _first(found: Contents) -> str:
    """Return what of the user's is in the file."""
    if not found.texts:
        return (
            "<p>This file has states, numbers, versions and sentences of tfmagic. A word that is not in "
            "tfmagic's own source is shown as …, so output, messages, tracebacks, code, names, paths and "
            "addresses are not in it.</p>"
        )
    kept = "".join(f"<li>{escape(title)}: {len(text.splitlines())} lines</li>" for title, text in found.texts)
    return (
        "<p><b>Read this file before you send it.</b> You have asked for texts of your own, which are kept "
        f"as they are. {found.replaced} texts in them had the form of a token, or were the value of a secret "
        "variable, and were replaced. Nobody has judged the rest: passwords without such a form, names of "
        "people, customers, machines and files, paths, addresses, and data that was printed. Kept were:</p>"
        f"<ul>{kept}</ul>"
    )


def _failures(failures: Sequence[Failure]) -> str:
    rows = [
        (
            failure.task,
            failure.type + (" (a consequence)" if failure.is_consequence else ""),
            f"line {failure.cell_line} of the cell" if failure.cell_line else "",
            f"hint {failure.hint}" if failure.hint else "",
            failure.message,
        )
        for failure in failures
    ]
    return tables.to_html(("", "", "", "", ""), rows) if rows else ""


def _toned(severity: str) -> tables.Shown:
    return tables.Shown(severity, f'<b style="color:{_TONES[severity].mid}">{severity}</b>')
