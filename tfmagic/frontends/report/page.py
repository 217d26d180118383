"""The page of a report: one html file without a script, which loads nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from tfmagic.frontends.report.redaction import KINDS
from tfmagic.runs.schemas import ErrorReport, FindingReport
from tfmagic.views import tables
from tfmagic.views.palette import AMBER, GREEN, RED
from tfmagic.views.pictures.scene import escape

MARK = "<!-- written by tfmagic report -->"  #: In a file that can be replaced by another report.
_TONES = {"fine": GREEN, "note": AMBER, "trouble": RED}
_WARNING = """\
Names of users and machines, paths of your home and project and of other folders, addresses, sites, mail
addresses, and what looks like a password, key or token were taken out: labels such as &lt;home&gt; and
&lt;host-1&gt; stand for them, the same label for the same text. What your code printed is in here otherwise
unchanged, and so are names of files and the lines of your code in tracebacks: take out yourself what nobody
should read."""
_STYLE = """\
:root { color-scheme: light dark; --line: #8886; --paper: #fff; --ink: #1f2328; --soft: #8881 }
@media (prefers-color-scheme: dark) { :root { --paper: #16191d; --ink: #e6e8eb } }
body { font: 14px/1.5 system-ui, sans-serif; background: var(--paper); color: var(--ink);
  max-width: 1100px; margin: 0 auto; padding: 16px }
h1 { font-size: 22px } h2 { font-size: 17px; margin: 32px 0 8px; border-bottom: 1px solid var(--line) }
pre { background: var(--soft); padding: 8px 10px; overflow: auto; max-height: 32em; font-size: 12px }
table { border-collapse: collapse }
td, th { padding: 2px 14px 2px 0; vertical-align: top; overflow-wrap: anywhere }
svg { display: block; width: 100%; height: auto; min-width: 520px }
.picture { overflow-x: auto }
.first { border-left: 4px solid #b57b00; padding: 4px 12px; background: var(--soft) }
td:first-child { white-space: nowrap } summary { cursor: pointer } nav a { margin-right: 8px }
"""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a report says; the texts are as they shall be read."""

    run: str
    facts: Sequence[tuple[str, str]]
    taken_out: Sequence[tuple[str, int]]  #: Labels, and how often each was written.
    errors: Sequence[tuple[ErrorReport, str]]  #: Each failure with its text.
    no_errors: str  #: Why there is none.
    pictures: Sequence[tuple[str, str]]  #: A title, and SVG.
    stacks: str
    doctor: Sequence[FindingReport]
    versions: Sequence[tuple[str, str]]
    logs: Sequence[tuple[str, str]]  #: The name of each task, and its last lines.


def build(found: Contents) -> str:
    """Return the page."""
    sections = {
        "Run": tables.to_html(("", ""), found.facts),
        "Errors": "".join(_error(*error) for error in found.errors) or f"<p>{escape(found.no_errors)}</p>",
        **{title: f'<div class="picture">{svg}</div>' for title, svg in found.pictures},
        "Stacks": f"<pre>{escape(found.stacks)}</pre>" if found.stacks else "",
        "Doctor": _doctor(found.doctor),
        "Versions": tables.to_html(("", ""), found.versions),
        "Logs": "".join(_log(*log) for log in found.logs) or "<p>No task has a log.</p>",
    }
    shown = {title: body for title, body in sections.items() if body}
    links = " ".join(f'<a href="#{title.lower()}">{title}</a>' for title in shown)
    body = "".join(f'<h2 id="{title.lower()}">{title}</h2>\n{text}\n' for title, text in shown.items())
    title = f"tfmagic: run {escape(found.run)}"
    return (
        f'<!doctype html>\n{MARK}\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="referrer" content="no-referrer">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n"
        f"{_first(found.taken_out)}\n<nav>{links}</nav>\n{body}</body></html>\n"
    )


def _first(taken_out: Sequence[tuple[str, int]]) -> str:
    """Return what was taken out, and what to do before sending the file."""
    rows = [(f"<{label}>", KINDS[label.partition("-")[0]], f"{n} ×") for label, n in taken_out]
    table = tables.to_html(("", "", ""), rows)
    meaning = f"<details><summary>What the labels stand for</summary>{table}</details>" if rows else ""
    return f'<div class="first"><p><b>Read this file before you send it.</b> {_WARNING}</p>{meaning}</div>'


def _error(error: ErrorReport, text: str) -> str:
    where = f", line {error.cell_line} of the cell" if error.cell_line else ""
    rank = "" if error.root else " (a consequence)"
    hint = f"<p>hint {escape(error.hint_name)}: {escape(error.hint)}</p>" if error.hint else ""
    head = f"<b>{escape(error.task)}</b>{rank}{where}: <b>{escape(error.type)}</b>: {escape(error.message)}"
    return f"<p>{head}</p>{hint}<pre>{escape(text)}</pre>"


def _doctor(findings: Sequence[FindingReport]) -> str:
    rows = [
        (
            tables.Shown(f.severity, f'<b style="color:{_TONES[f.severity].mid}">{f.severity}</b>'),
            f.what,
            f.advice,
        )
        for f in findings
    ]
    return tables.to_html(("", "", ""), rows)


def _log(task: str, text: str) -> str:
    return f"<details open><summary><b>{escape(task)}</b></summary><pre>{escape(text)}</pre></details>"
