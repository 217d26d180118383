"""The Python stacks of task processes, on disk.

The fault handler of a task process writes them to a file of the run folder when SIGUSR1 arrives, also when
the process is stuck in native code. This module reads them, and groups equal ones.
"""

import contextlib
import re
import signal
import time
from collections.abc import Iterable, Mapping

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs import orphans
from tfmagic.runs.folder import RunFolder, file_size
from tfmagic.runs.status_reader import read_snapshot
from tfmagic.system import files, own_code

_WAIT_S = 1.0  # a fault handler answers within milliseconds or not at all
_LOOK_S = 0.02
_ANSWERS = ("ready", "running")  # before, a process has no fault handler, and the signal would end it
_LIBRARY = re.compile(r'File ".*(/site-packages/|/lib/python3\.\d+/)')
_NO_FRAME = "  (between cells, or in a call without Python code)"


def stack_offsets(run: RunFolder, tasks: Iterable[TaskId]) -> dict[TaskId, int]:
    """Return the offsets at which the next dump of each task will begin."""
    return {task: file_size(run.stacks_path(task)) for task in tasks}


def read_stacks(run: RunFolder, offsets: Mapping[TaskId, int]) -> dict[str, str]:
    """Wait until all fault handlers have written their stacks; return these by task name.

    Args:
        offsets: The ends of the files before the tasks were asked.
    """
    deadline = time.monotonic() + _WAIT_S
    seen: dict[TaskId, int] = {}
    while time.monotonic() < deadline:
        now = stack_offsets(run, offsets)
        if now == seen and all(now[task] > start for task, start in offsets.items()):
            break
        seen = now
        time.sleep(_LOOK_S)
    texts = {}
    for task, start in offsets.items():
        with contextlib.suppress(OSError), open(files.open_regular(run.stacks_path(task)), "rb") as file:
            file.seek(start)
            texts[task.name] = file.read().decode("utf-8", "replace").strip()
    return {name: text for name, text in texts.items() if text}


def ask_for_stacks(run: RunFolder) -> dict[str, str]:
    """Ask the living tasks of a run for their stacks, from any process of the user; return them by task."""
    snapshot, processes = read_snapshot(run.folder), orphans.noted(run)
    seen = () if snapshot is None else snapshot.tasks
    can_answer = {t.task: t.numbers.get("pid") for t in seen if t.state in _ANSWERS}
    asked: dict[TaskId, int] = {}
    for task, offset in stack_offsets(run, run.tasks).items():
        process = processes.get(task.name)
        if process is not None and can_answer.get(task.name) == process.pid:
            asked |= {task: offset} if process.signal(signal.SIGUSR1) else {}
    return read_stacks(run, asked)


def group_stacks(stacks: Mapping[str, str], notes: Mapping[str, str] | None = None) -> str:
    """Return the stacks of the user's threads as text, equal stacks of several tasks once.

    Args:
        stacks: The dumps by task name, the innermost call first.
        notes: A line to put above the stack of a task.
    """
    grouped: dict[str, list[str]] = {}
    for name, text in stacks.items():
        note = (notes or {}).get(name, "")
        grouped.setdefault(note + (_by_threads(text) or _NO_FRAME), []).append(name)
    return "\n".join(f"{', '.join(names)}:\n{text}" for text, names in grouped.items())


def _by_threads(text: str) -> str:
    """Return the frames of the threads that run user code, the main one first; with headings if several."""
    blocks = sorted(text.split("\n\n"), key=lambda block: not block.startswith("Current thread"))
    threads = [_without_depths(own_code.users_lines(block)) for block in blocks]
    is_main = [block.startswith("Current thread") for block in blocks]
    shown = [(main, frames) for main, frames in zip(is_main, threads, strict=True) if frames]
    if len(shown) < 2:
        return "\n".join(line for _, frames in shown for line in frames)
    names = ["  the main thread:" if main else f"  thread {n}:" for n, (main, _) in enumerate(shown, 1)]
    return "\n".join(line for name, (_, frames) in zip(names, shown, strict=True) for line in (name, *frames))


def _without_depths(frames: list[str]) -> list[str]:
    """Leave out most frames of libraries; return none for a thread that only runs library code."""
    users = [i for i, line in enumerate(frames) if not _LIBRARY.search(line)]
    if not users or users[0] <= 2:
        return frames if users else []
    hidden = f"  ... {users[0] - 2} more inside libraries"
    return [frames[0], hidden, *frames[users[0] - 1 :]]
