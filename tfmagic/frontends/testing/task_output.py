"""What each task wrote during a test, for the report of its failure: bounded, from the logs on disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tfmagic.failures.deaths import describe_end
from tfmagic.frontends.testing.cluster_pool import ClusterLease
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.runs.folder import file_size
from tfmagic.runs.log_reader import prefix, tail_lines
from tfmagic.runs.tensorflow_noise import is_noise
from tfmagic.supervisor.state import ClusterState, Phase
from tfmagic.system.memory import format_bytes

_LINES = 100  # of each task
_BYTES = 1 << 16


def describe_tasks(loan: ClusterLease, with_output: bool) -> list[tuple[str, str]]:
    """A title and a text for each task that wrote something or died.

    Args:
        with_output: False where the output was shown while the test ran: then only deaths and logs are told.
    """
    run, life = loan.run, loan.cluster._life
    if run is None or life is None:
        return []
    described = []
    for task in loan.cluster.tasks:
        path, start = run.log_path(task), loan.start_of(task)
        lines = [*(_tail(path, start) if with_output else ()), *_fate(task, life.supervisor.state)]
        if lines:
            lines.append(f"(the whole log: {path})")
            described.append((f"Captured output of {task}", "\n".join(lines) + "\n"))
    return described


def _tail(path: Path, start: int) -> list[str]:
    size = file_size(path) - start
    if size <= 0:
        return []
    lines = tail_lines(path, _LINES + 1, _BYTES, start)
    told = [line for line in lines[-_LINES:] if not is_noise(line)]
    notes = []
    if len(lines) > _LINES or size > _BYTES:
        shown = sum(len(line.encode()) + 1 for line in lines[-_LINES:])
        notes.append(f"(about {format_bytes(max(size - shown, 0))} before these lines are left out)")
    if chatter := min(len(lines), _LINES) - len(told):
        notes.append(f"(start-up lines of TensorFlow that are left out: {chatter})")
    return [*notes, *told]


def _fate(task: TaskId, state: ClusterState) -> list[str]:
    seen = state.tasks[task]
    lines = (
        [f"(new processes that {task} got since the start: {seen.attempt - 1})"] if seen.attempt > 1 else []
    )
    if seen.phase is Phase.DEAD and seen.end is not None:
        lines.append(f"({task} {describe_end(seen.end)})")
    return lines


def without_lines_of(tasks: Iterable[TaskId], text: str) -> str:
    """A captured text without the prefixed lines that a call printed for these tasks."""
    heads = tuple(prefix(task).rstrip() for task in tasks)
    return "".join(line for line in text.splitlines(True) if not line.startswith(heads))
