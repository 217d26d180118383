"""Reads the state of a cluster from its run folder, for the server extension and `tfmagic status`.

The kernel writes `status.json` to a temporary file and renames it, so that a reader sees it whole. It can be
missing (an older version, or a run that is just starting) or come from another program. Content of an
unexpected kind is left out; this module raises nothing because of the content of a file.
"""

import contextlib
import heapq
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfmagic.runs.doing import PHASES
from tfmagic.runs.folder import RunFolder, is_task_name
from tfmagic.runs.kept import kept_until
from tfmagic.runs.kernels import host_elsewhere, kernel_lives
from tfmagic.system import files

CELL_STATES = ("running", "queued", "ended")
MAX_TEXT = 200  # characters of a name or a note
_MAX_BYTES = 1 << 20  # a status of 1,000 tasks has 400 kB; a longer file is cut, and then no JSON
_MAX_TASKS = 2000
_FRESH_S = 90.0  # a kernel writes every 10 s, and NFS can show it 60 s later (nfs(5), acdirmax)
TASK_NUMBERS = (
    *("pid", "uptime_s", "cpu_percent", "cpu_s", "memory_bytes", "shared_bytes"),
    *("threads", "open_files", "restarts", "stalls", "log_bytes", "line"),
)
PROCESS_NUMBERS = ("cpu_percent", "memory_bytes")
PROCESS_NUMBERS = ("cpu_percent", "memory_bytes")
TASK_TEXTS = ("host", "address", "doing", "note", "not_forked")

Number = int | float


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task as its kernel described it last."""

    task: str
    state: str  #: One of `PHASES`, or "" where it is not known.
    numbers: Mapping[str, Number] = field(default_factory=dict)  #: Those of `TASK_NUMBERS` that are known.
    texts: Mapping[str, str] = field(default_factory=dict)  #: Those of `TASK_TEXTS` that are known.


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at this moment."""

    run: str  #: The folder's name.
    cluster: str = ""
    shape: str = ""
    pid: int = 0  #: The kernel's.
    started: float = 0.0
    live: bool = False  #: The kernel lives, or has just written elsewhere, and has noted no end.
    host: str = ""  #: Of a kernel of another machine or container that has noted no end.
    died: bool = False  #: The kernel is gone, and had not noted that the cluster ended.
    kept_until: float | None = None  #: Until then the tasks go on without a kernel; seconds since the epoch.
    readable: bool = True  #: False for a status.json that cannot be used.
    written: float = 0.0  #: When the kernel last wrote, in seconds since the epoch; 0 if never.
    processes: Mapping[str, Mapping[str, Number]] = field(default_factory=dict)  #: "kernel" and "launcher".
    tasks: tuple[TaskStatus, ...] = ()
    cells: Mapping[str, Number] | None = None


def newest_runs(base: Path, limit: int) -> list[Path]:
    """Return the folders of the runs that were written last, the latest first.

    The order is that of the folders' times, not of their names: a kernel that has run for days still writes
    its status every few seconds, and must not be hidden by fifty newer runs that have ended.
    """
    found = []
    with contextlib.suppress(OSError), os.scandir(base / "runs") as entries:  # there is no run yet
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # pruned at this moment
                if _is_run(entry):
                    found.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    return [Path(path) for _, path in heapq.nlargest(limit, found)]


def _is_run(entry: os.DirEntry[str]) -> bool:
    try:
        entry.name.encode()  # tfmagic makes no other names, and they could not be labels of metrics
    except UnicodeEncodeError:
        return False
    return not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)


def read_snapshot(folder: Path) -> Snapshot | None:
    """Return the state of a run; None for a folder that is not a run."""
    meta = _read_object(folder / "run.json")
    if not meta:
        return None
    content = _read_object(folder / "status.json")
    status = content or {}
    pid, started = _number(meta.get("pid")) or 0, _number(meta.get("started")) or 0.0
    written = _number(status.get("written")) or 0.0
    open_ended = bool(status) and status.get("ended") is not True
    run = RunFolder(folder)
    host = clean_text(host_elsewhere(run)) if open_ended else ""
    lives = open_ended and pid > 0 and (time.time() - written < _FRESH_S if host else kernel_lives(run))
    until = kept_until(folder) if open_ended and not lives else None
    is_kept = until is not None and time.time() < until
    return Snapshot(
        run=folder.name,
        cluster=clean_text(meta.get("cluster")) or clean_text(status.get("cluster")),
        shape=clean_text(status.get("shape")) or clean_text(meta.get("shape")),
        pid=int(pid),
        started=float(started),
        live=lives,
        host=host,
        died=open_ended and not lives and not is_kept and not host,
        kept_until=until if is_kept else None,
        readable=content != {},
        written=float(written),
        processes={name: _numbers(status.get(name), PROCESS_NUMBERS) for name in ("kernel", "launcher")},
        tasks=_read_tasks(status.get("tasks") if status else [{"task": task.name} for task in run.tasks]),
        cells=_numbers(status.get("cells"), CELL_STATES) if status else None,
    )


def state_of(snapshot: Snapshot) -> str:
    """Return running, kept, ended, died, elsewhere, or unknown if the run has no status."""
    if snapshot.live:
        return "running"
    if snapshot.kept_until is not None:
        return "kept"
    if snapshot.died:
        return "died"
    if snapshot.host:
        return "elsewhere"
    return "ended" if snapshot.written else "unknown"


def row_of(task: TaskStatus) -> dict[str, Any]:
    """Return a row as `clusters.tools.status.status_rows` does, with None or "" for unknown values."""
    unknown = {**dict.fromkeys(TASK_TEXTS, ""), **dict.fromkeys(TASK_NUMBERS)}
    return {"task": task.task, "state": task.state, **unknown, **task.texts, **task.numbers}


def clean_text(value: object) -> str:
    """Return text that can be encoded and is not too long; "" for anything but text."""
    if not isinstance(value, str):
        return ""
    return value[:MAX_TEXT].encode("utf-8", "replace").decode()


def _read_object(path: Path) -> dict[str, Any] | None:
    """Return a JSON object; {} for any other content, None if there is no file."""
    try:
        content = json.loads(files.read_bytes(path, _MAX_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_tasks(content: object) -> tuple[TaskStatus, ...]:
    found: dict[str, TaskStatus] = {}  # each once: Prometheus refuses a page with a sample twice
    for part in content[:_MAX_TASKS] if isinstance(content, list) else ():
        name = part.get("task") if isinstance(part, dict) else None
        if isinstance(name, str) and is_task_name(name):
            state = part.get("state")
            texts = {key: clean_text(part[key]) for key in TASK_TEXTS if isinstance(part.get(key), str)}
            known = state if state in PHASES else ""
            found[name] = TaskStatus(name, known, _numbers(part, TASK_NUMBERS), texts)
    return tuple(found.values())


def _numbers(content: object, keys: tuple[str, ...]) -> dict[str, Number]:
    if not isinstance(content, dict):
        return {}
    read = {key: _number(content.get(key)) for key in keys}
    return {key: value for key, value in read.items() if value is not None}


def _number(value: object) -> Number | None:
    """Return a number from 0 up to where a float is exact; None for any other value, a bool or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value < 1e15 else None
