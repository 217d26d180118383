"""From the outcomes of a cell to the one exception that is raised for them."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from tfmagic import tracebacks
from tfmagic.errors import TaskDied, TaskTimeoutError
from tfmagic.events import CellRaised, CellReturned, TaskExited, TaskLost
from tfmagic.lifecycle import CellState, Outcome
from tfmagic.runs import Run
from tfmagic.spec import TaskId
from tfmagic.tasklog import tail_lines

_CONSEQUENCES = frozenset(
    # what TensorFlow and barriers raise in a task because of another one
    {"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "BrokenBarrierError"}
)
_TAIL_LINES = 20
_SIGNALS = {
    signal.SIGSEGV: "a segmentation fault in native code",
    signal.SIGABRT: "an abort, usually a failed check in native code",
    signal.SIGKILL: "killed from outside, often because memory ran out",
    signal.SIGTERM: "asked to end",
    signal.SIGBUS: "a bus error, often because shared memory or the disk ran out",
    signal.SIGILL: "an instruction that this processor does not have",
    signal.SIGFPE: "an arithmetic fault in native code",
}


def find_failures(cell: CellState) -> dict[TaskId, Outcome]:
    """The tasks that failed, the root cause first: the earliest that no other failure explains."""
    failed = {t: o for t, o in cell.outcomes.items() if not isinstance(o, CellReturned)}
    return dict(sorted(failed.items(), key=lambda item: _is_consequence(cell, item[1])))


def build_error(cell: CellState, main: Mapping[str, Any], run: Run, stacks: str = "") -> BaseException | None:
    """The exception that the cell raises in the notebook, or None.

    Args:
        cell: The finished cell.
        main: The notebook's namespace, where its own classes are found.
        run: Where the logs are.
        stacks: The stacks that were taken when the time limit passed.
    """
    failed = find_failures(cell)
    if cell.presses:
        return KeyboardInterrupt("the cell was interrupted")
    if cell.timed_out:
        return _timeout_error(cell, failed, stacks)
    if not failed:
        return None
    (root, outcome), *others = failed.items()
    error = _error_of(root, outcome, main, run)
    for note in _fold_notes(others):
        error.add_note(note)
    return error


def describe_end(end: TaskExited | TaskLost) -> str:
    """How a process ended, in words: ``was ended by SIGKILL (killed from outside, ...)``."""
    if isinstance(end, TaskLost):
        return f"was lost: {end.reason}"
    if end.exit_code >= 0:
        return f"exited with code {end.exit_code}"
    try:
        name = signal.Signals(-end.exit_code).name
    except ValueError:
        name = f"signal {-end.exit_code}"
    likely = _SIGNALS.get(-end.exit_code)  # type: ignore[call-overload]
    return f"was ended by {name}" + (f" ({likely})" if likely else "")


def died_error(task: TaskId, end: TaskExited | TaskLost, run: Run) -> TaskDied:
    """`TaskDied` with the way it ended, its last lines, and the next step."""
    lines = [f"{task} {describe_end(end)}."]
    tail = tail_lines(run.log_path(task), _TAIL_LINES)
    if tail:
        lines += [f"Its last {len(tail)} lines of output:", *(f"    {line}" for line in tail)]
    lines.append(f"Bring it back with:  %tfcluster restart {task}   (or restart, for all of them)")
    return TaskDied("\n".join(lines), task.name, getattr(end, "exit_code", None))


def _is_consequence(cell: CellState, outcome: Outcome) -> bool:
    if isinstance(outcome, CellRaised):
        return outcome.interrupted or outcome.error.type_name in _CONSEQUENCES
    ended_by_us = cell.ladder is not None and cell.ladder.rung > 2
    return ended_by_us and getattr(outcome, "exit_code", 0) == -signal.SIGKILL


def _error_of(task: TaskId, outcome: Outcome, main: Mapping[str, Any], run: Run) -> BaseException:
    match outcome:
        case CellRaised(error=packed):
            return tracebacks.unpack_error(packed, main)
        case TaskExited() | TaskLost():
            return died_error(task, outcome, run)
        case CellReturned():
            raise AssertionError("a returned cell is no failure")


def _timeout_error(cell: CellState, failed: Mapping[TaskId, Outcome], stacks: str) -> TaskTimeoutError:
    late = ", ".join(t.name for t in failed) or "every task came in at the last moment"
    lines = [f"the cell was not done within {cell.request.timeout_s:g} s; it was stopped on {late}."]
    if stacks:
        lines += ["Where they were:", stacks]
    lines.append("Give it more time with --timeout, or look for a task that waits for another.")
    return TaskTimeoutError("\n".join(lines))


def _fold_notes(others: list[tuple[TaskId, Outcome]]) -> list[str]:
    """One note for each different failure, with the tasks that share it."""
    folded: dict[str, list[str]] = {}
    for task, outcome in others:
        match outcome:
            case CellRaised(interrupted=True):
                what = "interrupted, since it waited for the failed task"
            case CellRaised(error=packed):
                what = f"{packed.type_name}: {packed.message.splitlines()[0] if packed.message else ''}"
            case TaskExited() | TaskLost():
                what = describe_end(outcome)
            case _:
                continue
        folded.setdefault(what, []).append(task.name)
    return [f"also on {', '.join(tasks)}: {what}" for what, tasks in folded.items()]
