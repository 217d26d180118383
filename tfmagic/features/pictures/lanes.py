"""From the records of a run to a timeline: a lane for each task, arrows, and events. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from tfmagic.features.pictures.timeline_file import ENDED_WELL, CellBegan, CellEnded, Change, Mark, Record
from tfmagic.protocol.cluster_spec import TASK_TYPES
from tfmagic.runs.doing import Doing
from tfmagic.system.advice import Step
from tfmagic.views.words import duration

MOST_SPANS = 600  # of a picture
_SHORTEST_S = 1e-4
_AFTER_S = 0.5  # after the end of a cell its events are still shown: a task that was killed, for example


@dataclass(frozen=True, slots=True)
class Span:
    """What a task did for a while; times are in seconds since the beginning of the timeline."""

    begin: float
    end: float
    doing: str
    attempt: int = 1
    line: int = 0
    file: str = ""
    what: str = ""
    whom: tuple[str, ...] = ()
    text: str = ""  #: One sentence.
    where: str = ""  #: The line, with its code where it is one of the cell.

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Lane:
    """A task."""

    task: str
    spans: tuple[Span, ...]


class Arrow(NamedTuple):
    """A task waits for another one."""

    at: float
    seconds: float
    source: str
    target: str
    text: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a task, or, without one, to all."""

    at: float
    task: str
    sign: str  #: interrupt, failed, died, new or other: how it is drawn.
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the tasks did in a cell, or in a whole run."""

    title: str
    began: float  #: Its beginning, in seconds since the epoch.
    seconds: float  #: Its length.
    lanes: tuple[Lane, ...]
    events: tuple[Event, ...]
    cells: tuple[tuple[float, str], ...]  #: The beginning and the name of each cell.
    note: str = ""  #: What is missing in it, or "".

    @property
    def arrows(self) -> list[Arrow]:
        """Which task begins to wait for which one, and when."""
        known = {lane.task for lane in self.lanes}
        return [
            Arrow(span.begin, span.seconds, lane.task, whom, f"{lane.task} {span.text}")
            for lane in self.lanes
            for span in lane.spans
            for whom in span.whom
            if whom in known
        ]


class NoRecords(Exception):
    """The run has no record of what was asked for. The argument is the message."""


def build(
    records: Sequence[Record], name: str, *, until: float, prompt: int | None = None, whole: bool = False,
    note: str = "",
) -> Timeline:  # fmt: skip
    """Return the timeline of the last cell, of the cell with this prompt, or of the whole run.

    That of a script is always whole, since each of its tasks makes a call of its own. Records without an end
    last `until` now, or until the kernel was last seen alive. Raise NoRecords if there is no such cell.
    """
    cells = [record for record in records if isinstance(record, CellBegan)]
    calls = {cell.tasks for cell in cells}
    is_script = len(calls) > 1 and not any(cell.prompt or len(cell.tasks) > 1 for cell in cells)
    if whole or (is_script and prompt is None):
        if not records:
            raise NoRecords(f"{name} has no records of what its tasks did")
        begin = records[0].t
        tasks = {r.task for r in records if isinstance(r, Change)} | {t for r in cells for t in r.tasks}
        return _cut(records, f"{name}: the whole run", begin, max(until, records[-1].t), tasks, note)
    chosen = [cell for cell in cells if prompt in (None, cell.prompt)]
    if not chosen:
        what = f"cell [{prompt}]" if prompt is not None else "a cell"
        raise NoRecords(f"{name} has no record of {what}; {Step('show all')} shows the whole run")
    cell = chosen[-1]
    ended = [record for record in records if isinstance(record, CellEnded) and record.cell == cell.cell]
    end = ended[-1].t if ended else max(until, cell.t)
    title = f"{name}: {name_of(cell)} on {_count(cell.tasks)}, {duration(end - cell.t)}"
    title += "" if ended else ", not ended"
    return _cut(records, title, cell.t, end, set(cell.tasks), note, cell)


def name_of(cell: CellBegan) -> str:
    """Name a cell by its number in the notebook, else by that in the run."""
    kind = "cell" if cell.source else "call"
    return f"{kind} [{cell.prompt}]" if cell.prompt else f"{kind} {cell.cell}"


def _count(tasks: Sequence[str]) -> str:
    return tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"


def _cut(
    records: Sequence[Record],
    title: str,
    begin: float,
    end: float,
    tasks: set[str],
    note: str,
    only: CellBegan | None = None,
) -> Timeline:
    end = max(end, begin + _SHORTEST_S)
    cells = {record.cell: record for record in records if isinstance(record, CellBegan)}
    ends = {record.cell: record for record in records if isinstance(record, CellEnded)}
    shown = [cell for cell in cells.values() if only is None or cell.cell == only.cell]
    involved = set(tasks)  # and the tasks for which these wait
    for record in records:
        if isinstance(record, Change) and begin <= record.t <= end and record.task in tasks:
            involved |= set(record.whom)
    lanes = tuple(
        Lane(task, tuple(_spans(changes_of(records, task, cells, ends), begin, end, cells)))
        for task in sorted(involved, key=_order)
    )
    bars = tuple((max(cell.t - begin, 0.0), name_of(cell)) for cell in shown)
    until = end - begin + _AFTER_S
    events = tuple(e for e in _events(records, involved, ends, begin) if 0 <= e.at <= until)
    return Timeline(title, begin, end - begin, lanes, events, bars, note)


def _order(task: str) -> tuple[int, int]:
    kind, _, index = task.rpartition("-")
    return TASK_TYPES.index(kind) if kind in TASK_TYPES else 9, int(index) if index.isdigit() else 0


# ---- lanes ----------------------------------------------------------------------------------------


def changes_of(
    records: Iterable[Record], task: str, cells: dict[int, CellBegan], ends: dict[int, CellEnded]
) -> list[Change]:
    """Return the changes of a task in order, with those that the records of cells imply."""
    found = [record for record in records if isinstance(record, Change) and record.task == task]
    for cell in cells.values():
        if task in cell.tasks:
            attempt = next((c.attempt for c in reversed(found) if c.t <= cell.t), 1)
            found.append(Change(cell.t, task, Doing.RUNNING, attempt, cell.cell))
    for cell_end in ends.values():
        part = cell_end.parts.get(task)
        if part is not None and part.how != Doing.DIED:
            attempt = next((c.attempt for c in reversed(found) if c.t <= part.t), 1)
            found.append(Change(part.t, task, Doing.IDLE, attempt))
    found.sort(key=lambda change: (change.t, change.doing == Doing.IDLE))
    over = {number: cell_end.parts[task].t for number, cell_end in ends.items() if task in cell_end.parts}
    # others were noted after the task's part of the cell
    return [change for change in found if change.t <= over.get(change.cell, change.t)]


def _spans(changes: Sequence[Change], begin: float, end: float, cells: dict[int, CellBegan]) -> list[Span]:
    spans: list[Span] = []
    changes = _with_late_lines(changes)
    for place, change in enumerate(changes):
        until = changes[place + 1].t if place + 1 < len(changes) else end
        first, last = max(change.t, begin), min(until, end)
        if last - first < _SHORTEST_S:
            continue
        span = Span(
            first - begin,
            last - begin,
            change.doing,
            change.attempt,
            change.line,
            change.file.rpartition("/")[2],
            change.what,
            change.whom,
            _sentence(change, where := _where(change, cells)),
            where,
        )
        if spans and _looks_like(spans[-1], span):
            spans[-1] = replace(spans[-1], end=span.end)
        else:
            spans.append(span)
    return spans


def _with_late_lines(changes: Sequence[Change]) -> list[Change]:
    """Return the changes in which a wait has the line that was seen last in it: looks come a little later."""
    found: list[Change] = []
    for change in reversed(changes):
        after = found[-1] if found else change
        is_one = change.doing == after.doing == Doing.WAITING and change.cell == after.cell
        if is_one and change.what and change.what == after.what:
            change = msgspec.structs.replace(change, line=after.line, file=after.file)
        found.append(change)
    return found[::-1]


def _looks_like(one: Span, other: Span) -> bool:
    return replace(one, begin=0.0, end=0.0) == replace(other, begin=0.0, end=0.0)


def _where(change: Change, cells: dict[int, CellBegan]) -> str:
    """Return the line at which the task is, "" if that is not known."""
    if not change.line:
        return ""
    where = f"line {change.line}" + (f" of {change.file.rpartition('/')[2]}" if change.file else "")
    source = cells[change.cell].source.split("\n") if change.cell in cells else []
    if not change.file and 0 < change.line <= len(source):
        where += f": {source[change.line - 1].strip()[:80]}"
    return where


def _sentence(change: Change, where: str) -> str:
    """Describe what the task does, with the line of the cell."""
    what = change.doing
    if change.whom:
        more = f" and {len(change.whom) - 4} more" if len(change.whom) > 4 else ""
        at = f" at {change.what}" if change.what else ""
        what = f"waits for {', '.join(change.whom[:4])}{more}{at}"
    elif change.note:
        what = f"{change.doing}: {change.note}"
    elif change.what:
        what = f"{change.doing} in {change.what}"
    return f"{what}; {where}" if where else what


def coarsen(timeline: Timeline, most: int) -> Timeline:
    """Return the timeline with short spans joined to those before them, so that at most `most` are left."""
    shortest = timeline.seconds / 2000
    lanes = timeline.lanes
    while sum(len(lane.spans) for lane in lanes) > most and shortest < timeline.seconds:
        lanes = tuple(replace(lane, spans=_join(lane.spans, shortest)) for lane in lanes)
        shortest *= 2
    if lanes is timeline.lanes:
        return timeline
    note = f"{timeline.note} Spans shorter than {duration(shortest / 2)} are joined to others.".strip()
    return replace(timeline, lanes=lanes, note=note)


def _join(spans: Sequence[Span], shortest: float) -> tuple[Span, ...]:
    joined: list[Span] = []
    for span in spans:
        if joined and (span.seconds < shortest or _looks_like(joined[-1], span)):
            joined[-1] = replace(joined[-1], end=span.end)
        elif joined and joined[-1].seconds < shortest:
            joined[-1] = replace(span, begin=joined[-1].begin)
        else:
            joined.append(span)
    return tuple(joined)


# ---- events ---------------------------------------------------------------------------------------


def _events(
    records: Sequence[Record], tasks: set[str], ends: dict[int, CellEnded], begin: float
) -> list[Event]:
    found: list[Event] = []
    attempts: dict[str, int] = {}
    for record in records:
        at = record.t - begin
        match record:
            case Mark(_, "ended", names, note):
                sign = "other" if note == ENDED_WELL else "died"
                found += [Event(at, task, sign, note) for task in names if task in tasks]
            case Mark(_, what, names, note):
                sign = "interrupt" if what == "interrupt" else "other"
                chosen = [task for task in names if task in tasks] if names else [""]
                found += [Event(at, task, sign, _with(what, note)) for task in chosen]
            case CellEnded(_, _, parts, note):
                signs: dict[str, str] = {Doing.FAILED: "failed", "interrupted": "interrupt"}
                found += [
                    Event(part.t - begin, task, signs[part.how], _with(part.how, part.note))
                    for task, part in parts.items()
                    if task in tasks and part.how in signs
                ]
                found += [Event(at, "", "interrupt", note)] if note else []
            case Change(_, task, _, attempt):
                if attempt > attempts.get(task, attempt) and task in tasks:
                    found.append(Event(at, task, "new", f"new process, number {attempt}"))
                attempts[task] = max(attempt, attempts.get(task, attempt))
    return sorted(found, key=lambda event: event.at)


def _with(what: str, note: str) -> str:
    return f"{what}: {note}" if note else what


def line_of(span: Span) -> str:
    """Name a span in a picture: its line, or what it waits for."""
    match span.doing:
        case Doing.RUNNING:
            return f"{span.line}" if span.line else ""
        case Doing.WAITING:
            return f"waits for {', '.join(span.whom[:2])}" if span.whom else f"waits {span.what}".rstrip()
        case Doing.IDLE:
            return ""
    return span.doing
