"""What a live panel shows, and what has changed in it: a dict for the page at each look.

    {"head": {...}, "tasks": {"0": {...}}, "rows": {"0": {"base": n, "items": [...]}}, ...}

A message holds only what differs from the messages before. A snapshot holds everything, and the page then
drops what it had. The page knows a task by its place in `setup["tasks"]`. Rows are sent only for the tasks
that the page watches: those whose panel is open, or all while it merges them.
"""

import linecache
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tfmagic.failures import stacks
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import Displayed
from tfmagic.runs.cell_records import CellRecord, ErrorRecord, TaskRecord
from tfmagic.runs.doing import ENDS, FAILURES, Doing
from tfmagic.runs.folder import file_size
from tfmagic.runs.kept import is_kept
from tfmagic.runs.schemas import cell_report, describe
from tfmagic.system.memory import format_bytes
from tfmagic.system.usage import Usage
from tfmagic.views.facts import attach_line, describe_cell, find_ending, find_news, find_place, with_failures
from tfmagic.views.figures import Figures
from tfmagic.views.hints import CellHints, hints_of
from tfmagic.views.log_items import GapItem, Pace, Patch, TaskFeed
from tfmagic.views.protocol import ViewContext
from tfmagic.views.sparklines import CpuSamples
from tfmagic.views.values import fold_values
from tfmagic.views.whole_logs import WholeLogs
from tfmagic.views.words import count_done, done_of, duration, outcome_of, place_of, sign_of, took

_OPEN_TASKS = 4  # so many tasks are open from the start, more are closed
_ROW_LIMIT = 2000  # rows a task that the page keeps, and that are kept for a page that is loaded again
_KEYFRAME_ROWS = 200
_FLOOD_ROWS = 96  # of all tasks at one look: more cannot be read, and the page needs a core to draw them
_LOOK_BYTES, _FLOOD_BYTES = 1 << 16, 1 << 15  # a server drops what exceeds 1 MB/s
_STACKS_S = 2.0
_DRAW_S = 0.5
_MEGABYTE = 1 << 20

_ANNOUNCED = (*FAILURES, Doing.DEAD, Doing.STALLED, Doing.PAUSED, Doing.INPUT)  # to a screen reader
_QUEUED = "queued: it begins when the cells before it on these tasks have ended"

Send = Callable[[Mapping[str, Any]], None]


class PanelModel:
    """Collects what the page gets, and carries out what it asks for; on one thread, except for `act`."""

    def __init__(self, context: ViewContext, *, fold_noise: bool = True, fold_equal: bool = True):
        self._context = context
        self._fold = {"fold_noise": fold_noise, "fold_equal": fold_equal}
        self.tasks = tuple(context.run.starts)
        self.logs = WholeLogs(context.folder, self.tasks)
        self._cpu = CpuSamples()
        self._feeds: dict[TaskId, TaskFeed] = {}  # empty while the cell waits for another one
        self._displays: dict[TaskId, deque[Displayed]] = {task: deque() for task in self.tasks}
        is_small = len(self.tasks) <= _OPEN_TASKS
        self._watched = set(self.tasks) if is_small else set()
        self._opened: set[TaskId] = set()
        self._sent: dict[TaskId, dict[str, Any]] = {task: {} for task in self.tasks}
        self._head: dict[str, Any] = {}
        self._values = 0
        self.greeted = False  # whether a page has asked: then it gets all rows that are kept
        self._dumps: dict[TaskId, tuple[int, float, int]] = {}
        self._failures: Mapping[str, ErrorRecord] = {}
        self._figures = Figures(context.folder, context.run.request.cell, self.tasks)
        self._drawn_at = 0.0
        self._given = CellHints(context.folder, context.run.request.cell, lambda: context.run.has_hints)
        self._hints: list[Any] = []  # as they were sent last
        self.is_flooded = False  # whether a task wrote more than was shown at the last look

    # -- what the page gets --

    @property
    def setup(self) -> dict[str, Any]:
        """What the page must know first."""
        context = self._context
        kept = is_kept(context.folder.folder)
        return {
            "cell": context.prompt or context.run.request.cell,
            "name": f"{context.folder}/{context.run.request.cell}",
            "cluster": context.cluster,
            "shape": context.shape,
            "tasks": [{"name": t.name, "type": t.type, "index": t.index} for t in self.tasks],
            "open": [i for i, task in enumerate(self.tasks) if task in self._watched],
            "states": list(Doing),
            "failures": FAILURES,
            "announced": _ANNOUNCED,
            "ends": ENDS,
            "row_limit": _ROW_LIMIT,
            "notifies": context.notifies,
            "log_hint": str(context.folder.folder),
            "kept": kept,
            "attach": attach_line(context.folder, 0 if kept else context.prompt),
            "grace_s": None
            if context.run.request.keep_going
            else context.supervisor.policy().failure_grace_s,
            **self._fold,
        }

    def complete(self, record: CellRecord) -> CellRecord:
        """Return the record with what only a panel knows: what is open on its page, the CPU of the tasks."""
        tasks = tuple(replace(part, cpu=self._cpu.of(part.task)) for part in record.tasks)
        return replace(record, open=tuple(sorted(task.name for task in self._opened)), tasks=tasks)

    def look(self, record: CellRecord | None = None) -> dict[str, Any]:
        """Return the changes since the last look, {} if there are none; `record` is of an ended cell."""
        patches = self._pull(record)
        now = record or self._describe()
        self._note_cpu(now)
        watched = {self._number(task): patch for task, patch in patches.items() if task in self._watched}
        message: dict[str, Any] = {}
        if watched:
            message["rows"] = {number: _encode_rows(patch) for number, patch in watched.items()}
        if any(patch.replaced for patch in watched.values()):
            message["replaced"] = {
                number: {str(place): item.encode() for place, item in patch.replaced.items()}
                for number, patch in watched.items()
                if patch.replaced
            }
        if changed := self._changed_tasks(now):
            message["tasks"] = changed
        head = self._describe_head(now)
        if head != self._head:
            self._head = head
            message["head"] = {**head, **_time_of(now)}
        count = sum(len(feed.values) for feed in self._feeds.values())
        if count != self._values:
            self._values = count
            message["values"] = self._encode_values()
        if figures := self._draw_figures(at_once=record is not None):
            message["figures"] = figures
        if dumps := self._take_dumps():
            message["stacks"] = dumps
        if (hints := self._encode_hints(now)) != self._hints:
            message["hints"] = self._hints = hints
        return {"kind": "update", **message} if message else {}

    def snapshot(self) -> dict[str, Any]:
        """Return everything, for a page that has nothing yet."""
        self.look()
        rows = {
            self._number(t): _encode_rows(feed.snapshot(), _ROW_LIMIT if self.greeted else _KEYFRAME_ROWS)
            for t, feed in self._feeds.items()
            if t in self._watched
        }
        record = self._describe()
        return {
            "kind": "update",
            "reset": True,
            "head": {**self._head, **_time_of(record)},
            "tasks": {self._number(task): dict(self._sent[task]) for task in self.tasks},
            "rows": rows,
            "values": self._encode_values(),
            "figures": self._figures.pictures(),
            "hints": self._hints,
        }

    def greet(self) -> dict[str, Any]:
        """Return the answer to a page that was just loaded."""
        self.greeted = True
        return self.snapshot()

    # -- what the page asks for --

    def act(self, request: Mapping[str, Any]) -> bool:
        """Carry out a request that must not wait; return whether it is one. Any thread can call it."""
        number = request.get("task")
        tasks = () if number is None else (self.tasks[int(number)],)
        match request.get("kind"):
            case "interrupt":
                self._context.controls.interrupt(tasks)
            case "kill":
                self._context.controls.kill(tasks)
            case "stop":
                self._context.controls.stop()
            case _:
                return False
        return True

    def obey(self, request: Mapping[str, Any], send: Send) -> None:
        """Carry out a request that needs an answer. One that is not of `panel.js` can raise an error."""
        match request["kind"]:
            case "watch":
                self._watch([self.tasks[int(n)] for n in request["tasks"]], bool(request["merged"]), send)
            case "stacks":
                task = self.tasks[int(request["task"])]
                if stacks.can_answer(self._context.supervisor.state, task):
                    offset = file_size(self._context.folder.stacks_path(task))
                    self._dumps[task] = (offset, time.monotonic(), offset)
                    self._context.controls.write_stacks(task)
            case "log":
                self.logs.obey(request, send)

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    # -- inside --

    def _number(self, task: TaskId) -> str:
        return str(self.tasks.index(task))

    def _pull(self, record: CellRecord | None) -> dict[TaskId, Patch]:
        incoming = self._context.run.displays
        while incoming:
            shown = incoming.popleft()
            if shown.task in self._displays:
                self._displays[shown.task].append(shown)
        if not self._feeds and self._context.has_begun():
            look, flood, rows = (n // len(self.tasks) for n in (_LOOK_BYTES, _FLOOD_BYTES, _FLOOD_ROWS))
            pace = Pace(max(look, 4096), max(flood, 2048), max(rows, 4))
            self._feeds = {
                task: TaskFeed(self._context.folder.log_path(task), start, _ROW_LIMIT, pace)
                for task, start in self._context.run.starts.items()
            }
        cell = self._context.cell
        outcomes = {} if cell is None else cell.outcomes  # other cells wrote what follows these in a log
        ends = {task.name: getattr(outcome, "log_end", None) for task, outcome in outcomes.items()}
        if record is not None:
            ends = {task.task: task.end for task in record.tasks}
        patches: dict[TaskId, Patch] = {}
        for task, feed in self._feeds.items():
            until = ends.get(task.name)
            if record is not None and until is None:
                until = file_size(feed.log.path)
            if (patch := feed.pull(self._displays[task], until)) is not None:
                patches[task] = patch
        self.is_flooded = any(isinstance(i, GapItem) for p in patches.values() for i in p.items)
        return patches

    def _describe(self) -> CellRecord:
        record = describe_cell(self._context, None, time.monotonic())
        if failed := {task.task for task in record.tasks if task.error}:
            cell = self._context.cell
            if cell is not None and not failed <= self._failures.keys():  # a later one can be the cause
                self._failures = self._context.failures(cell)
            record = with_failures(record, self._failures)
        return record

    def _changed_tasks(self, record: CellRecord) -> dict[str, dict[str, Any]]:
        changed = {}
        for number, (task, part) in enumerate(zip(self.tasks, record.tasks, strict=True)):
            facts = self._describe_task(task, part)
            before = self._sent[task]
            differs = {key: value for key, value in facts.items() if before.get(key, ...) != value}
            if differs:
                self._sent[task] = facts
                changed[str(number)] = differs
        return changed

    def _describe_task(self, task: TaskId, part: TaskRecord) -> dict[str, Any]:
        usage = self._context.supervisor.usage.get(task, Usage())
        file, line = find_place(self._context, task)
        if part.error is not None and part.error.line:  # the line that failed, not the one seen last
            file, line = self._context.filename, part.error.line
        is_over, size = part.state in ENDS, usage.memory_bytes
        feed = self._feeds.get(task)
        if is_over and part.state != Doing.FAILED:
            line = 0
        where = "" if file in ("", self._context.filename) else os.path.basename(file)
        return {
            **_describe_end(part),
            "host": part.host,
            "place": f"{where} line {line}".strip() if line else "",
            "source": linecache.getline(file, line).strip()[:200] if line else "",
            "cpu": None if is_over or usage.cpu_percent is None else round(usage.cpu_percent),
            "memory": took(part) if is_over else format_bytes(size // _MEGABYTE * _MEGABYTE) if size else "",
            "last": None if feed is None else feed.last_row,
            "written": "" if feed is None or not feed.written_bytes else format_bytes(feed.written_bytes),
        }

    def _note_cpu(self, record: CellRecord) -> None:
        usage = self._context.supervisor.usage
        running = [
            task for task, part in zip(self.tasks, record.tasks, strict=True) if part.state not in ENDS
        ]
        self._cpu.add({task.name: usage.get(task, Usage()).cpu_percent for task in running})

    def _describe_head(self, record: CellRecord) -> dict[str, Any]:
        message = ""
        if not record.verdict:
            is_queued = all(task.note == "queued" for task in record.tasks)
            message = _QUEUED if is_queued else find_ending(self._context) or find_news(self._context)
        return {
            "done": count_done(record),
            "total": len(record.tasks),
            "words": outcome_of(record) if record.verdict else done_of(record),
            "sign": record.verdict and sign_of(record.verdict),
            "over": bool(record.verdict),
            "verdict": record.verdict,
            "message": message,
            "notice": describe(cell_report(record, self._context.folder))
            if self._context.notifies and record.verdict
            else "",
        }

    def _encode_values(self) -> list[Any]:
        rows = fold_values({task.name: feed.values for task, feed in self._feeds.items()})
        return [row.encode() for row in rows]

    def _encode_hints(self, record: CellRecord) -> list[Any]:
        found = hints_of(record, self._given.read())
        return [{"advice": hint.advice, "tasks": hint.names, "more": hint.more} for hint in found]

    def _draw_figures(self, at_once: bool) -> dict[str, str]:
        """Return the figures as SVG by name, if they have changed and it is time."""
        if not at_once and time.monotonic() - self._drawn_at < _DRAW_S:
            return {}
        self._drawn_at = time.monotonic()
        return self._figures.pictures() if self._figures.read() else {}

    def _watch(self, tasks: list[TaskId], merged: bool, send: Send) -> None:
        wanted = set(self.tasks) if merged else set(tasks)
        new, self._watched = (wanted - self._watched) & set(self._feeds), wanted
        self._opened = set(tasks)
        if new:
            rows = {
                self._number(task): _encode_rows(self._feeds[task].snapshot(), _ROW_LIMIT) for task in new
            }
            send({"kind": "update", "rows": rows})

    def _take_dumps(self) -> dict[str, str]:
        """Return the stacks that have arrived."""
        taken = {}
        for task, (offset, asked_at, seen) in list(self._dumps.items()):
            size = file_size(self._context.folder.stacks_path(task))
            if size > offset and size == seen:
                taken[self._number(task)] = stacks.read_grouped(self._context.folder, {task: offset})
            elif time.monotonic() - asked_at > _STACKS_S:
                taken[self._number(task)] = f"{task} does not answer: its process is stopped, or has ended."
            else:
                self._dumps[task] = (offset, asked_at, size)
                continue
            del self._dumps[task]
        return taken


def _time_of(record: CellRecord) -> dict[str, Any]:
    """Return the time of the cell, which the page counts on while it runs."""
    return {"elapsed": round(record.elapsed_s, 2), "took": duration(record.elapsed_s)}


def _describe_end(part: TaskRecord) -> dict[str, Any]:
    error = part.error
    return {
        "state": part.state,
        "note": part.note,
        "error": None
        if error is None
        else {
            "type": error.type,
            "message": error.message,
            "at": place_of(error),
            "text": error.text,
            "root": error.root,
        },
    }


def _encode_rows(patch: Patch, limit: int = sys.maxsize) -> dict[str, Any]:
    """Return the last rows of a patch, with the number of the first of them."""
    surplus = max(len(patch.items) - limit, 0)
    return {"base": patch.base + surplus, "items": [item.encode() for item in patch.items[surplus:]]}
