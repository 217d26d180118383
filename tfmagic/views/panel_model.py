"""What a live panel shows, and what of it has changed: a dict for the page at each look.

    {"head": {...}, "tasks": {"0": {...}}, "rows": {"0": {"base": n, "items": [...]}}, ...}

Only what differs from what was sent before is in a message; a snapshot has everything, and the page then
forgets what it had. Tasks are known to the page by their place in `setup["tasks"]`. Rows go out only for
the tasks that the page watches: those whose panel is open, or all while it merges them.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from tfmagic.failures import ipython_tracebacks, stacks
from tfmagic.protocol.cluster_spec import TaskId, parse_task
from tfmagic.protocol.events import Displayed, SignalAsked, StopRequested
from tfmagic.runs.cell_records import CellRecord, TaskRecord
from tfmagic.runs.folder import RunFolder, file_size
from tfmagic.runs.terminal.screen import Screen, plain_text
from tfmagic.supervisor.state import SIGKILL, SIGUSR1
from tfmagic.system.usage import Usage
from tfmagic.views.facts import (
    count_done,
    describe_cell,
    find_ending,
    find_news,
    find_place,
    with_texts,
)
from tfmagic.views.log_items import GapItem, Pace, Patch, TaskFeed, read_items
from tfmagic.views.protocol import ViewContext
from tfmagic.views.values import fold_values

_OPEN_TASKS = 4  # so many tasks are open from the start, more are closed
_ROW_LIMIT = 2000  # rows a task that the page keeps, and that are kept for one that is loaded anew
_KEYFRAME_ROWS = 200
_FLOOD_ROWS = 96  # of all tasks together at one look; nobody reads more, and the page needs a core to draw it
_LOOK_BYTES, _FLOOD_BYTES = 1 << 16, 1 << 15  # a server drops what exceeds 1 MB/s
_STACKS_S = 2.0
_LOG_BYTES = 4 << 20
_LOG_PART_CHARACTERS = 1 << 19
_MEGABYTE = 1 << 20

Send = Callable[[Mapping[str, Any]], None]


class PanelModel:
    """See the module. Used by one thread, but for `act`."""

    def __init__(self, stage: ViewContext, *, fold_noise: bool = True, fold_equal: bool = True):
        self._stage = stage
        self._fold = {"fold_noise": fold_noise, "fold_equal": fold_equal}
        self.tasks = tuple(stage.starts)
        self._feeds: dict[TaskId, TaskFeed] = {}  # none as long as the cell is queued behind another one
        self._displays: dict[TaskId, deque[Displayed]] = {task: deque() for task in self.tasks}
        is_small = len(self.tasks) <= _OPEN_TASKS
        self._watched = set(self.tasks) if is_small else set()
        self._opened: set[TaskId] = set()  # as the page said last
        self._sent: dict[TaskId, dict[str, Any]] = {task: {} for task in self.tasks}
        self._head: dict[str, Any] = {}
        self._values = 0
        self._greeted = False  # whether a page has asked: then it gets all rows that are kept
        self._dumps: dict[TaskId, tuple[int, float, int]] = {}
        self._texts: Mapping[str, str] = {}
        self.is_flooded = False  # whether a task wrote more than was shown at the last look

    # -- what the page gets --

    @property
    def setup(self) -> dict[str, Any]:
        """What the page must know before anything else."""
        stage = self._stage
        return {
            "cell": stage.prompt or stage.run.request.cell,
            "cluster": stage.cluster,
            "shape": stage.shape,
            "tasks": [{"name": t.name, "type": t.type, "index": t.index} for t in self.tasks],
            "open": [i for i, task in enumerate(self.tasks) if task in self._watched],
            "row_limit": _ROW_LIMIT,
            "log_hint": str(stage.folder.folder),
            **self._fold,
        }

    @property
    def open_names(self) -> tuple[str, ...]:
        """The tasks whose panels stood open on the page, as it said last."""
        return tuple(sorted(task.name for task in self._opened))

    def look(self, record: CellRecord | None = None) -> dict[str, Any]:
        """What has changed since the last look; {} when nothing has.

        Args:
            record: The cell when it has ended; its present state otherwise.
        """
        patches = self._pull(record)
        now = record or self._describe()
        message: dict[str, Any] = {}
        rows = {
            self._number(task): _encode_patch(patch)
            for task, patch in patches.items()
            if task in self._watched
        }
        if rows:
            message["rows"] = {n: {"base": p["base"], "items": p["items"]} for n, p in rows.items()}
            if replaced := {n: p["replaced"] for n, p in rows.items() if p["replaced"]}:
                message["replaced"] = replaced
        if changed := self._changed_tasks(now):
            message["tasks"] = changed
        head = self._describe_head(now)
        if head != self._head:
            self._head = head
            message["head"] = {**head, "elapsed": round(now.elapsed_s, 2)}
        if values := self._new_values():
            message["values"] = values
        if dumps := self._take_dumps():
            message["stacks"] = dumps
        return {"kind": "update", **message} if message else {}

    def snapshot(self) -> dict[str, Any]:
        """Everything, for a page that knows nothing."""
        self.look()
        rows = {
            self._number(t): _encode_rows(feed.snapshot(), _ROW_LIMIT if self._greeted else _KEYFRAME_ROWS)
            for t, feed in self._feeds.items()
            if t in self._watched
        }
        record = self._describe()
        return {
            "kind": "update",
            "reset": True,
            "head": {**self._head, "elapsed": round(record.elapsed_s, 2)},
            "tasks": {self._number(task): dict(self._sent[task]) for task in self.tasks},
            "rows": rows,
            "values": self._encode_values(),
        }

    def greet(self) -> dict[str, Any]:
        """The answer to a page that has just been loaded."""
        self._greeted = True
        return self.snapshot()

    # -- what the page asks for --

    def act(self, request: Mapping[str, Any]) -> bool:
        """Carry out what must not wait; False where it is something else. Any thread may call it."""
        number = request.get("task")
        tasks = () if number is None else (self.tasks[int(number)],)
        supervisor = self._stage.supervisor
        match request.get("kind"):
            case "interrupt":
                supervisor.interrupt(tasks, self._stage.run.request.cell)
            case "kill":
                for task in tasks:
                    supervisor.ask(SignalAsked(task, SIGKILL))
            case "stop":
                supervisor.ask(StopRequested())
            case _:
                return False
        return True

    def obey(self, request: Mapping[str, Any], send: Send) -> None:
        """Carry out what needs an answer.

        Raises:
            KeyError, TypeError, ValueError, IndexError: It is none of ours.
        """
        match request["kind"]:
            case "watch":
                self._watch([self.tasks[int(n)] for n in request["tasks"]], bool(request["merged"]), send)
            case "stacks":
                task = self.tasks[int(request["task"])]
                if not stacks.can_answer(self._stage.state(), task):
                    return
                offset = file_size(self._stage.folder.stacks_path(task))
                self._dumps[task] = (offset, time.monotonic(), offset)
                self._stage.supervisor.ask(SignalAsked(task, SIGUSR1))
            case "log":
                for part in self._read_log(self.tasks[int(request["task"])], request["request"]):
                    send(part)

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    @staticmethod
    def replay(record: CellRecord, folder: RunFolder) -> dict[str, Any]:
        """A snapshot of a cell that has ended, from disk."""
        tasks, rows = {}, {}
        for number, part in enumerate(record.tasks):
            path = folder.log_path(parse_task(part.task))
            end = file_size(path) if part.end is None else part.end
            start = max(part.start, end - _MEGABYTE)
            items, _ = read_items(path, start, end, deque())
            rows[str(number)] = _encode_rows(Patch(0, items), _ROW_LIMIT)
            tasks[str(number)] = _describe_ended(part)
        head = {
            "done": count_done(record),
            "total": len(record.tasks),
            "over": True,
            "verdict": record.verdict,
            "queued": "",
            "message": "",
            "elapsed": round(record.elapsed_s, 2),
        }
        return {"kind": "update", "reset": True, "head": head, "tasks": tasks, "rows": rows}

    # -- inside --

    def _number(self, task: TaskId) -> str:
        return str(self.tasks.index(task))

    def _pull(self, record: CellRecord | None) -> dict[TaskId, Patch]:
        incoming = self._stage.run.displays
        while incoming:
            shown = incoming.popleft()
            if shown.task in self._displays:
                self._displays[shown.task].append(shown)
        if not self._feeds and self._stage.has_begun():
            count = len(self.tasks)
            pace = Pace(
                max(_LOOK_BYTES // count, 4096),
                max(_FLOOD_BYTES // count, 2048),
                max(_FLOOD_ROWS // count, 4),
            )
            self._feeds = {
                task: TaskFeed(self._stage.folder.log_path(task), start, _ROW_LIMIT, pace)
                for task, start in self._stage.starts.items()
            }
        ends = self._ends_so_far() if record is None else {t.task: t.end for t in record.tasks}
        patches: dict[TaskId, Patch] = {}
        for task, feed in self._feeds.items():
            is_over = record is not None
            until = ends.get(task.name)
            if is_over and until is None:
                until = file_size(self._stage.folder.log_path(task))
            patch = feed.pull(self._displays[task], until)
            if patch is not None:
                patches[task] = patch
        self.is_flooded = any(isinstance(i, GapItem) for p in patches.values() for i in p.items)
        return patches

    def _ends_so_far(self) -> dict[str, int | None]:
        """Where the part of tasks ends that are through: what follows in their logs is of other cells."""
        cell = self._stage.state().cells.get(self._stage.run.request.cell)
        outcomes = {} if cell is None else cell.outcomes
        return {task.name: getattr(outcome, "log_end", None) for task, outcome in outcomes.items()}

    def _describe(self) -> CellRecord:
        record = describe_cell(self._stage, None, time.monotonic())
        if any(task.error for task in record.tasks):
            cell = self._stage.state().cells.get(record.cell)
            if cell is not None and not self._texts:
                self._texts = self._stage.texts(cell)
            record = with_texts(record, self._texts)
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
        facts = _describe_ended(part)
        usage = self._stage.supervisor.usage.get(task, Usage())
        file, line = find_place(self._stage, task)
        if part.error is not None and part.error.line:  # where it failed, not where it was seen last
            file, line = self._stage.filename, part.error.line
        facts["line"] = line
        facts["where"] = "" if file in ("", self._stage.filename) else os.path.basename(file)
        facts["source"] = linecache.getline(file, line).strip()[:200] if line else ""
        is_over = part.seconds is not None
        facts["cpu"] = None if is_over or usage.cpu_percent is None else round(usage.cpu_percent)
        weight = usage.memory_bytes
        facts["memory"] = None if weight is None else weight // _MEGABYTE * _MEGABYTE
        feed = self._feeds.get(task)
        facts["last"] = None if feed is None else feed.last_row
        facts["bytes"] = 0 if feed is None else feed.written_bytes
        return facts

    def _describe_head(self, record: CellRecord) -> dict[str, Any]:
        queued = all(task.note == "queued" for task in record.tasks)
        return {
            "done": count_done(record),
            "total": len(record.tasks),
            "over": bool(record.verdict),
            "verdict": record.verdict,
            "queued": "queued: it begins when the cells before it on these tasks have ended"
            if queued
            else "",
            "message": "" if record.verdict else find_ending(self._stage) or find_news(self._stage),
        }

    def _new_values(self) -> list[Any]:
        count = sum(len(feed.values) for feed in self._feeds.values())
        if count == self._values:
            return []
        self._values = count
        return self._encode_values()

    def _encode_values(self) -> list[Any]:
        rows = fold_values({task.name: feed.values for task, feed in self._feeds.items()})
        return [row.encode() for row in rows]

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
        """The stacks that have arrived."""
        taken = {}
        for task, (offset, asked_at, seen) in list(self._dumps.items()):
            size = file_size(self._stage.folder.stacks_path(task))
            if size > offset and size == seen:
                texts = stacks.read_stacks(self._stage.folder, {task: offset})
                taken[self._number(task)] = ipython_tracebacks.name_cells(stacks.group_stacks(texts))
            elif time.monotonic() - asked_at > _STACKS_S:
                taken[self._number(task)] = f"{task} does not answer: its process is stopped, or has ended."
            else:
                self._dumps[task] = (offset, asked_at, size)
                continue
            del self._dumps[task]
        return taken

    def _read_log(self, task: TaskId, request: Any) -> list[dict[str, Any]]:
        """The end of the task's log as text, in parts."""
        path = self._stage.folder.log_path(task)
        size = file_size(path)
        start = max(size - _LOG_BYTES, 0)
        data = b""
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(start)
            data = file.read(size - start)
        if start:
            cut = data.find(b"\n") + 1
            start, data = start + cut, data[cut:]
        screen = Screen()
        screen.feed(data)
        screen.finish()
        text = "\n".join(map(plain_text, screen.take()[1]))
        pieces = [text[i : i + _LOG_PART_CHARACTERS] for i in range(0, len(text), _LOG_PART_CHARACTERS)] or [
            ""
        ]
        return [
            {
                "kind": "update",
                "log": {
                    "task": int(self._number(task)),
                    "request": request,
                    "path": str(path),
                    "text": piece,
                    "part": number,
                    "parts": len(pieces),
                    "skipped_bytes": start,
                },
            }
            for number, piece in enumerate(pieces)
        ]


def _describe_ended(part: TaskRecord) -> dict[str, Any]:
    error = part.error
    return {
        "state": part.state,
        "note": part.note,
        "seconds": None if part.seconds is None else round(part.seconds, 3),
        "error": None
        if error is None
        else {"type": error.type, "message": error.message, "line": error.line, "text": error.text},
    }


def _encode_patch(patch: Patch) -> dict[str, Any]:
    return {
        "base": patch.base,
        "items": [item.encode() for item in patch.items],
        "replaced": {str(n): item.encode() for n, item in patch.replaced.items()},
    }


def _encode_rows(patch: Patch, limit: int) -> dict[str, Any]:
    """The last rows, numbered as they are."""
    surplus = max(len(patch.items) - limit, 0)
    return {"base": patch.base + surplus, "items": [item.encode() for item in patch.items[surplus:]]}
