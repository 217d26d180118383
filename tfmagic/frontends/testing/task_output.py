"""The sections of a failed test's report: what each task wrote during the test, and how it died."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tfmagic.failures.deaths import describe_end
from tfmagic.frontends.testing.cluster_lease import ClusterLease
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.folder import file_size
from tfmagic.runs.log_reader import prefix, tail_lines
from tfmagic.runs.tensorflow_noise import is_noise
from tfmagic.supervisor.state import Phase, TaskState
from tfmagic.system.memory import format_bytes

_LINES = 100  # of each task
_BYTES = 1 << 16


def describe_tasks(lease: ClusterLease, with_output: bool) -> list[tuple[str, str]]:
    """Return a title and a text for each task that wrote something or died.

    Args:
        with_output: False where the output was shown while the test ran: only deaths are described then.
    """
    state = lease.cluster.state
    if state is None:
        return []
    described = []
    for task in lease.cluster.tasks:
        path = lease.cluster.run_folder.log_path(task)
        output = _tail(path, lease.log_starts.get(path, 0)) if with_output else []
        lines = [*output, *_describe_death(task, state.tasks[task])]
        if lines:
            lines.append(f"(the whole log: {path})")
            described.append((f"Captured output of {task}", "\n".join(lines) + "\n"))
    return described


def _tail(path: Path, start: int) -> list[str]:
    size = file_size(path) - start
    if size <= 0:
        return []
    lines = tail_lines(path, _LINES + 1, _BYTES, start)
    last = lines[-_LINES:]
    shown = [line for line in last if not is_noise(line)]
    notes = []
    if len(lines) > _LINES or size > _BYTES:
        left_out = size - sum(len(line.encode()) + 1 for line in last)
        notes.append(f"(about {format_bytes(max(left_out, 0))} before these lines are left out)")
    if len(shown) < len(last):
        notes.append(f"(start-up lines of TensorFlow that are left out: {len(last) - len(shown)})")
    return [*notes, *shown]


def _describe_death(task: TaskId, seen: TaskState) -> list[str]:
    lines = []
    if seen.attempt > 1:
        lines.append(f"(new processes that {task} got since the start: {seen.attempt - 1})")
    if seen.phase is Phase.DEAD and seen.end is not None:
        lines.append(f"({task} {describe_end(seen.end)})")
    return lines


def without_lines_of(tasks: Iterable[TaskId], text: str) -> str:
    """Return a captured text without the prefixed lines that a call printed for these tasks."""
    heads = tuple(prefix(task).rstrip() for task in tasks)
    return "".join(line for line in text.splitlines(True) if not line.startswith(heads))
