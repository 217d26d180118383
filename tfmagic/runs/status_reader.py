"""What a run folder says of its cluster at this moment, however broken or old the folder is.

The kernel writes `status.json` beside and renames it, so that a reader sees it whole. All the same it may
be missing (a run of an older version, or one that is just starting), or be no work of ours: what is not of
the expected kind is left out, and nothing here raises for what a file holds.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tfmagic.errors import ClusterSpecError
from tfmagic.protocol.cluster_spec import parse_task

STATES = ("planned", "starting", "ready", "running", "ending", "dead", "stopped")
CELL_STATES = ("running", "queued", "ended")
MAX_TEXT = 200  # characters of a name or a note: a label is not a place for a novel
_MAX_BYTES = 1 << 20  # a status of 1,000 tasks has 400 kB
_MAX_TASKS = 2000
_FRESH_S = 60.0  # the kernel writes at least every 10 s
TASK_NUMBERS = (
    *("pid", "uptime_s", "cpu_percent", "cpu_s", "memory_bytes", "shared_bytes"),
    *("threads", "open_files", "restarts", "stalls", "log_bytes", "line"),
)
TASK_TEXTS = ("host", "address", "doing", "note")

Number = int | float


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task as its kernel saw it last.

    Attributes:
        state: One of `STATES`, or "" where that is not known.
        numbers, texts: What was said of it, by the key of status.json; what was not is not there.
    """

    task: str
    state: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at this moment.

    Attributes:
        run: The folder's name.
        pid: Of its kernel.
        live: Its kernel lives, and says that the cluster does.
        died: Its kernel is gone and had not said that the cluster ended.
        readable: False for a status.json that is there and no use.
        written: When its kernel last wrote, in seconds since the epoch; 0 where it never did.
        processes: Figures of "kernel" and "launcher".
    """

    run: str
    cluster: str = ""
    shape: str = ""
    pid: int = 0
    started: float = 0.0
    live: bool = False
    died: bool = False
    readable: bool = True
    written: float = 0.0
    processes: Mapping[str, Mapping[str, Number]] = field(default_factory=dict)
    tasks: tuple[TaskStatus, ...] = ()
    cells: Mapping[str, Number] | None = None


def newest_runs(base: Path, limit: int) -> list[Path]:
    """The folders of the runs in which something happened last, the latest first.

    By the time of the folder, not by its name: a kernel that has run for days still renames its status
    into its folder every few seconds, and is not lost behind fifty that came and went since.
    """
    found = []
    try:
        with os.scandir(base / "runs") as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # pruned at this moment
                    if _is_run(entry):
                        found.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    except OSError:
        pass  # no run yet
    return [Path(path) for _, path in heapq.nlargest(limit, found)]


def _is_run(entry: os.DirEntry[str]) -> bool:
    try:
        entry.name.encode()  # a name of other bytes could be no label, and is none that tfmagic makes
    except UnicodeEncodeError:
        return False
    return not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)


def read_snapshot(folder: Path) -> Snapshot | None:
    """What the folder says; None for one that is not a run."""
    made = _read_object(folder / "run.json")
    if not made:
        return None
    status = _read_object(folder / "status.json")
    said = status or {}
    pid, started = _number(made.get("pid")) or 0, _number(made.get("started")) or 0.0
    written = _number(said.get("written")) or 0.0
    open_ended = bool(said) and said.get("ended") is not True
    lives = open_ended and is_kernel_alive(int(pid), float(started), float(written))
    tasks = _read_tasks(said.get("tasks"))
    return Snapshot(
        run=folder.name,
        cluster=clean_text(made.get("cluster")) or clean_text(said.get("cluster")),
        shape=clean_text(said.get("shape")) or clean_text(made.get("shape")),
        pid=int(pid),
        started=float(started),
        live=lives,
        died=open_ended and not lives,
        readable=status != {},
        written=float(written),
        processes={who: _numbers(said.get(who), ("cpu_percent", "memory_bytes")) for who in _PROCESSES},
        tasks=tasks if said else _tasks_with_logs(folder),
        cells=_numbers(said.get("cells"), CELL_STATES) if said else None,
    )


_PROCESSES = ("kernel", "launcher")


def is_kernel_alive(pid: int, started: float, written: float) -> bool:
    """Whether the process that wrote the run is there, and not another one of the same number.

    A process that is younger than the run is another one; but clocks are set, so a run that was written
    a moment ago is believed.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(time.time() - written) < _FRESH_S or process.create_time() < started + _FRESH_S
    except (psutil.Error, ValueError, OverflowError):
        return False


def is_task_name(name: str) -> bool:
    """Whether this is how tfmagic writes a task's name; int() would take other digits, too."""
    try:
        return parse_task(name).name == name
    except (ClusterSpecError, ValueError):
        return False


def clean_text(value: object) -> str:
    """Text that can be encoded and is not too long; "" for anything else."""
    if not isinstance(value, str):
        return ""
    return value[:MAX_TEXT].encode("utf-8", "replace").decode()


def read_bounded(path: Path) -> bytes:
    """The content of a regular file that is not too big: no pipe is waited for, no link followed.

    Raises:
        OSError: There is none.
        ValueError: It is something else, or too big.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{path} is not a file")
        content = os.pread(fd, _MAX_BYTES + 1, 0)
    finally:
        os.close(fd)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"{path} is too big")
    return content


def _read_object(path: Path) -> dict[str, Any] | None:
    """An object of JSON; {} for anything else, None where there is no file."""
    try:
        content = json.loads(read_bounded(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_tasks(content: object) -> tuple[TaskStatus, ...]:
    found: dict[str, TaskStatus] = {}  # each once: Prometheus refuses a whole page for one double sample
    for part in content[:_MAX_TASKS] if isinstance(content, list) else ():
        name = part.get("task") if isinstance(part, dict) else None
        if isinstance(name, str) and is_task_name(name):
            state = part.get("state")
            texts = {key: clean_text(part[key]) for key in TASK_TEXTS if isinstance(part.get(key), str)}
            known = state if state in STATES else ""
            found[name] = TaskStatus(name, known, _numbers(part, TASK_NUMBERS), texts)
    return tuple(found.values())


def _tasks_with_logs(folder: Path) -> tuple[TaskStatus, ...]:
    try:
        stems = sorted(name.removesuffix(".log") for name in os.listdir(folder) if name.endswith(".log"))
    except OSError:
        return ()
    return tuple(TaskStatus(stem, "") for stem in stems if is_task_name(stem))


def _numbers(content: object, keys: tuple[str, ...]) -> dict[str, Number]:
    if not isinstance(content, dict):
        return {}
    read = {key: _number(content.get(key)) for key in keys}
    return {key: value for key, value in read.items() if value is not None}


def _number(value: object) -> Number | None:
    """A number that is one: not a bool, not NaN, nothing below zero or beyond what a float holds exactly."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value < 1e15 else None
