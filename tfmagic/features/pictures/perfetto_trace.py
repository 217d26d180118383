"""From a timeline to events of Chrome's JSON trace format, which Perfetto reads. Pure functions.

    process   the notebook or program, and each task
    track     cells, state and line: slices; what happened in an instant is on the track of states
    flow      from a task that others wait for, as it arrives, to each of them, as it goes on
    counter   what features have recorded over time

Times are in microseconds since the beginning of the timeline. The numbers of processes and threads in the
trace are our own: a task can have had several processes, and pids of several hosts can be equal. The format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tfmagic.features.pictures.lanes import Lane, Span, Timeline, name_of
from tfmagic.features.pictures.timeline_file import CellBegan, CellEnded, Change, Record, TaskPart
from tfmagic.runs.doing import Doing
from tfmagic.views.scene import shortened

_MOST_SOURCES = 4  # of the arrows to a task: where more were missing at the last look, none is drawn
_ARRIVAL_S = 1e-6  # the length of the slices at the ends of an arrow
_ROUNDING_S = 2e-3  # records have milliseconds
_NAME_CHARACTERS = 120
_TRACKS = 100  # numbers of threads that a process has in the trace
_STATE, _LINE, _CELLS = 1, 2, 10  # of these numbers; cells that overlap have several
_INTERRUPTED = "interrupted"  # how a part of a cell can have ended, besides what a `Doing` says
_STARTS = (Doing.PLANNED, Doing.STARTING)
_IN_CELL = (Doing.RUNNING, Doing.WAITING, Doing.INPUT, Doing.STALLED, Doing.PAUSED)
Event = dict[str, Any]


class Point(NamedTuple):
    """A value of a counter of a task; `at` is in seconds since the epoch."""

    at: float
    task: str
    name: str
    value: float


class Slice(NamedTuple):
    """A piece of a track; times are in seconds since the beginning of the timeline."""

    begin: float
    end: float
    name: str
    more: Mapping[str, Any]


class Arrival(NamedTuple):
    """A task comes to where others wait for it."""

    at: float
    source: str
    what: str  #: The barrier or the call in which they waited.


class GoingOn(NamedTuple):
    """A task goes on after such a wait."""

    at: float
    task: str


def events_of(
    timeline: Timeline, records: Sequence[Record], names: Mapping[str, str], points: Iterable[Point]
) -> list[Event]:
    """Return the events of a trace.

    Args:
        names: The process of each task, such as ``pid 4242, host``, and under "" that of the notebook.
        points: Of counters; those before or after the timeline are left out.
    """
    numbers = {task: place for place, task in enumerate(["", *(lane.task for lane in timeline.lanes)], 1)}
    found: list[Event] = []
    for task, number in numbers.items():
        called = task or _starter(records)
        named = f"{called} ({names[task]})" if names.get(task) else called
        found.append(_meta("process_name", number, {"name": named}))
        found.append(_meta("process_sort_index", number, {"sort_index": number}))
    pids, failures = _pids_of(records), _failures_of(timeline, records)
    for task, slices in _cells_of(timeline, records).items():
        for place, track in enumerate(_without_overlaps(slices)):
            found += _track(numbers[task], _CELLS + place, "cells", "cell", track)
    for lane in timeline.lanes:
        number = numbers[lane.task]
        found += _track(number, _STATE, "state", "state", _states_of(lane, pids, failures.get(lane.task, ())))
        found += _track(number, _LINE, "line", "line", _lines_of(lane))
    for happened in timeline.events:
        where = _place(numbers[happened.task], _STATE if happened.task else _CELLS)
        name = shortened(happened.text, _NAME_CHARACTERS)
        mark = {"ph": "i", "s": "t", "name": name, "cat": happened.sign, "ts": _us(happened.at)}
        found.append({**mark, **where})
    found += _flows(arrivals_of(timeline, records), numbers)
    found += _counters(timeline, points, numbers)
    return found


# ---- the format -------------------------------------------------------------------------------------


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _place(number: int, track: int) -> Event:
    return {"pid": number, "tid": number * _TRACKS + track}


def _meta(name: str, number: int, args: Event, track: int = 0) -> Event:
    return {"ph": "M", "name": name, "args": args, "pid": number, "tid": number * _TRACKS + track}


def _slice(piece: Slice, category: str, place: Event) -> Event:
    at, until = _us(piece.begin), _us(piece.end)
    named = {"ph": "X", "name": shortened(piece.name, _NAME_CHARACTERS), "cat": category}
    return {**named, "ts": at, "dur": until - at, **place, "args": dict(piece.more)}


def _track(number: int, track: int, name: str, category: str, slices: Sequence[Slice]) -> Iterator[Event]:
    if slices:
        yield _meta("thread_name", number, {"name": name}, track)
        yield _meta("thread_sort_index", number, {"sort_index": track}, track)
    for piece in slices:
        yield _slice(piece, category, _place(number, track))


def _flows(arrivals: Mapping[Arrival, Sequence[GoingOn]], numbers: Mapping[str, int]) -> Iterator[Event]:
    """Yield arrows from each arrival to those who go on; a short slice at either end is what they bind to."""
    count = 0
    seen: set[GoingOn] = set()  # a task can have waited for several
    for (at, source, what), waiters in arrivals.items():
        begin, here = at - _ARRIVAL_S, _place(numbers[source], _STATE)
        yield _slice(
            Slice(begin, at, f"arrives at {what}", {"others": ", ".join(task for _, task in waiters)}),
            "arrow",
            here,
        )
        for waiter in waiters:
            there, count = _place(numbers[waiter.task], _STATE), count + 1
            if waiter not in seen:
                after = Slice(waiter.at, waiter.at + _ARRIVAL_S, f"goes on after {what}", {})
                yield _slice(after, "arrow", there)
            seen.add(waiter)
            arrow = {"name": what, "cat": "waits", "id": count}
            yield {"ph": "s", **arrow, "ts": _us(begin), **here}
            yield {"ph": "f", "bp": "e", **arrow, "ts": _us(waiter.at), **there}


def _counters(timeline: Timeline, points: Iterable[Point], numbers: Mapping[str, int]) -> Iterator[Event]:
    for at, task, name, value in points:
        since = at - timeline.began
        if task in numbers and 0 <= since <= timeline.seconds + _ROUNDING_S and math.isfinite(value):
            yield {"ph": "C", "name": name, "ts": _us(since), "pid": numbers[task], "args": {"value": value}}


# ---- what is on the tracks --------------------------------------------------------------------------


def _pids_of(records: Iterable[Record]) -> dict[tuple[str, int], int]:
    """Return the pid of each process of each task, by the number of the process."""
    return {(r.task, r.attempt): r.pid for r in records if isinstance(r, Change) and r.pid}


def describe_processes(records: Sequence[Record]) -> dict[str, str]:
    """Return the pids and the host of each task, the newest pid first: ``pid 4310, before 4242, here``."""
    found: dict[str, list[str]] = {}
    hosts = {record.task: record.host for record in records if isinstance(record, Change) and record.host}
    for (task, _), pid in sorted(_pids_of(records).items(), reverse=True):
        found.setdefault(task, []).append(str(pid))
    texts = {task: f"pid {', before '.join(pids)}" for task, pids in found.items()}
    return {task: f"{text}, {hosts[task]}" if task in hosts else text for task, text in texts.items()}


def _starter(records: Iterable[Record]) -> str:
    """Return what runs the cells: a notebook, or a program whose calls have no number."""
    has_prompt = any(isinstance(record, CellBegan) and record.prompt for record in records)
    return "notebook" if has_prompt else "program"


def _first_line(source: str) -> str:
    return next((line.strip() for line in source.splitlines() if line.strip()), "")


def _cells_of(timeline: Timeline, records: Sequence[Record]) -> dict[str, list[Slice]]:
    """Return the cells of the notebook ("") and of each task in the timeline, in order."""
    ends = {record.cell: record for record in records if isinstance(record, CellEnded)}
    found: dict[str, list[Slice]] = {"": [], **{lane.task: [] for lane in timeline.lanes}}
    for cell in {record.cell: record for record in records if isinstance(record, CellBegan)}.values():
        end = ends.get(cell.cell)
        name = f"{name_of(cell)}: {line}" if (line := _first_line(cell.source)) else name_of(cell)
        more = {"source": cell.source} if cell.source else {}
        until = timeline.began + timeline.seconds if end is None else end.t
        outcomes = {"not ended": ""} if end is None else {t: part.how for t, part in end.parts.items()}
        parts = [("", until, more | outcomes), *_parts_of(cell, end, until, more)]
        for task, over, args in parts:
            begin, last = max(cell.t - timeline.began, 0.0), min(over - timeline.began, timeline.seconds)
            if task in found and last > begin:
                found[task].append(Slice(begin, last, name, args))
    return found


def _parts_of(
    cell: CellBegan, end: CellEnded | None, until: float, more: Mapping[str, Any]
) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yield each task that has begun the cell, the end of its part, and how that ended."""
    for task in cell.tasks:
        if end is None:
            yield task, until, {**more, "outcome": "not ended"}
        elif part := end.parts.get(task):
            yield task, part.t, {**more, "outcome": part.how, **({"note": part.note} if part.note else {})}


def _without_overlaps(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Return the slices on as many tracks as they need."""
    tracks: list[list[Slice]] = []
    for piece in sorted(slices):
        free = next((track for track in tracks if track[-1].end <= piece.begin), None)
        if free is None:
            tracks.append([piece])
        else:
            free.append(piece)
    return tracks


def _failures_of(timeline: Timeline, records: Iterable[Record]) -> dict[str, list[Slice]]:
    """Return from when to when each task had failed in a cell that others still ran."""
    found: dict[str, list[Slice]] = {}
    for end in records:
        for task, part in end.parts.items() if isinstance(end, CellEnded) else ():
            if part.how in (Doing.FAILED, _INTERRUPTED) and end.t > part.t:
                piece = Slice(part.t - timeline.began, end.t - timeline.began, part.how, {"note": part.note})
                found.setdefault(task, []).append(piece)
    return found


def _with_failures(spans: Iterable[Span], failures: Sequence[Slice]) -> Iterator[Span]:
    """Yield the spans; where a task was idle because it had failed, it is said so."""
    by_begin = {failure.begin: failure for failure in failures}  # a task is idle from that moment on
    for span in spans:
        failure = by_begin.get(span.begin)
        if failure is None or span.doing != Doing.IDLE:
            yield span
            continue
        until = min(failure.end, span.end)
        yield replace(span, end=until, doing=failure.name, text=f"{failure.name}: {failure.more['note']}")
        if span.end > until:
            yield replace(span, begin=until)


def _states_of(lane: Lane, pids: Mapping[tuple[str, int], int], failures: Sequence[Slice]) -> list[Slice]:
    """Return what the task did, wherever it was in its cell."""
    found: list[Slice] = []
    had_process = False
    for span in _with_failures(lane.spans, failures):
        is_new = span.doing in _STARTS
        name = "restarting" if is_new and (had_process or span.attempt > 1) else _name_of_state(span)
        had_process = had_process or not is_new
        more: dict[str, Any] = {"what": span.text.removesuffix(span.where).removesuffix("; ")}
        more |= {"process": span.attempt}
        if pid := pids.get((lane.task, span.attempt)):
            more["pid"] = pid
        if found and found[-1][2:] == (name, more) and span.begin <= found[-1].end:
            found[-1] = found[-1]._replace(end=span.end)
        else:
            found.append(Slice(span.begin, span.end, name, more))
    return found


def _name_of_state(span: Span) -> str:
    if span.doing != Doing.WAITING or not span.whom:
        return str(span.doing)
    more = f" and {len(span.whom) - _MOST_SOURCES} more" if len(span.whom) > _MOST_SOURCES else ""
    return f"waiting for {', '.join(span.whom[:_MOST_SOURCES])}{more}"


def _lines_of(lane: Lane) -> list[Slice]:
    """Return the lines at which the task was seen."""
    found: list[Slice] = []
    for span in lane.spans:
        if not span.where:
            continue
        name, more = (
            span.where.removeprefix("line "),
            {"line": span.line} | ({"file": span.file} if span.file else {}),
        )
        if found and found[-1][2:] == (name, more) and span.begin <= found[-1].end:
            found[-1] = found[-1]._replace(end=span.end)
        else:
            found.append(Slice(span.begin, span.end, name, more))
    return found


# ---- who has waited for whom ------------------------------------------------------------------------


def arrivals_of(timeline: Timeline, records: Iterable[Record]) -> dict[Arrival, list[GoingOn]]:
    """Return the tasks that had waited for each arrival.

    A wait that ends with a failure, an interrupt or the end of a process ends without one.
    """
    found: dict[Arrival, list[GoingOn]] = {}
    parts: dict[str, list[TaskPart]] = {lane.task: [] for lane in timeline.lanes}
    for record in records:
        for task, part in record.parts.items() if isinstance(record, CellEnded) else ():
            parts.setdefault(task, []).append(part)
    for ended in parts.values():
        ended.sort(key=lambda part: part.t)
    lanes = {lane.task: lane for lane in timeline.lanes}
    for lane in timeline.lanes:
        for place, span in enumerate(lane.spans):
            if not 0 < len(span.whom) <= _MOST_SOURCES:
                continue
            goes_on = place + 1 < len(lane.spans) and _goes_on(span, lane.spans[place + 1])
            if not goes_on and not _is_done(parts[lane.task], timeline.began + span.end):
                continue
            for source in filter(lanes.__contains__, span.whom):
                at = _arrival_s(lanes[source], parts[source], span, timeline.began)
                if at is not None:
                    arrival = Arrival(at, source, span.what or "a wait")
                    found.setdefault(arrival, []).append(GoingOn(span.end, lane.task))
    return found


def _goes_on(wait: Span, after: Span) -> bool:
    """Check whether a task went on after a wait: it runs, or is at the next place where it waits."""
    return after.doing == Doing.RUNNING or bool(after.whom and after.what != wait.what)


def _last_part(parts: Sequence[TaskPart], at: float) -> TaskPart | None:
    """Return the part of a cell that a task has ended last at this time."""
    place = bisect.bisect_right(parts, at + _ROUNDING_S, key=lambda part: part.t)
    return parts[place - 1] if place else None


def _is_done(parts: Sequence[TaskPart], at: float) -> bool:
    """Check whether a task has returned from its cell at this time: the wait was in the last line."""
    last = _last_part(parts, at)
    return last is not None and last.how == Doing.DONE and last.t >= at - _ROUNDING_S


def _arrival_s(lane: Lane, parts: Sequence[TaskPart], wait: Span, began: float) -> float | None:
    """Return when a task came to where another one waited for it; None if it failed or ended instead.

    A look at the tasks comes a little later than what happens, so it can have ended the cell by then.
    """
    last, end = _last_part(parts, began + wait.end), began + wait.end
    place = bisect.bisect_left(lane.spans, wait.end - _ARRIVAL_S, key=lambda span: span.begin) - 1
    span = lane.spans[place] if place >= 0 else None
    if span is not None and span.end >= wait.end - _ARRIVAL_S and span.doing in _IN_CELL:
        is_end = last is not None and last.t >= end - _ROUNDING_S and last.how != Doing.DONE
        return None if is_end else wait.end
    is_over = last is not None and last.how == Doing.DONE and last.t > began + wait.begin
    return last.t - began if last is not None and is_over else None
