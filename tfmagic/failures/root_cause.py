"""From the outcomes of a cell to the one exception that is raised for them.

The root cause is the earliest failure that is not a consequence of another one. It is raised as what
it was; the others are a note each, tasks with an equal failure in one; and all are in its attribute
`failures`, {task name: exception}, the root cause first.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tfmagic.errors import TaskDied, TaskTimeoutError
from tfmagic.failures import hints, ipython_tracebacks
from tfmagic.failures.deaths import MemoryWatch, describe_end, died_error, place_in_cell
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellRaised, CellReturned, TaskExited, TaskLost
from tfmagic.runs.folder import RunFolder
from tfmagic.serialization import exceptions, tracebacks
from tfmagic.supervisor.state import CellState, Outcome
from tfmagic.system.advice import here

_CONSEQUENCE_TYPES = frozenset(
    # what TensorFlow and barriers raise in a task because of another one
    {"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "BrokenBarrierError"}
)
_CONSEQUENCE_TEXT = re.compile(
    # TensorFlow 2.21's words for a lost peer, whatever class they come in
    r"Collective ops is aborted by|stopped sending heartbeats|CoordinationService/Heartbeat|Socket closed|"
    r"[Cc]onnection reset by peer|different incarnation|remote target|tasks have crashed|peer is not alive"
)
_NODE_NAME = re.compile(r"^\{\{function_node [^}]*\}\} ")
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")  # differs between processes that failed alike
_MAX_NOTE = 300


@dataclass(frozen=True, slots=True)
class FailureContext:
    """What is needed to tell a failure: the notebook's names, the logs, the memory, the stacks.

    `stacks` are those that were taken of tasks that could not be reached, or ran out of time; `starts`
    say where in the tasks' logs the cell began.
    """

    main: Mapping[str, Any]
    run: RunFolder
    watch: MemoryWatch | None = None
    stacks: str = ""
    rename: tracebacks.Rename = lambda name: name
    starts: Mapping[TaskId, int] = field(default_factory=dict)


def find_failures(cell: CellState, raised_first: bool = False) -> dict[TaskId, Outcome]:
    """The tasks that failed, the root cause first: the earliest that no other failure explains.

    Args:
        raised_first: What was raised comes before deaths, also where a death explains it.
    """
    failed = {t: o for t, o in cell.outcomes.items() if not isinstance(o, CellReturned)}

    def order(item: tuple[TaskId, Outcome]) -> tuple[bool, bool, float]:
        task, outcome = item
        at = getattr(outcome, "raised_at", 0.0) or cell.ended_at.get(task, 0.0)
        is_later = raised_first and not isinstance(outcome, CellRaised)
        return is_later, _is_consequence(cell, task, outcome), at

    return dict(sorted(failed.items(), key=order))


def build_error(cell: CellState, scene: FailureContext, raised_first: bool = False) -> BaseException | None:
    """The exception that the cell raises in the notebook, or None. For `raised_first` see `find_failures`."""
    failed = find_failures(cell, raised_first)
    if cell.presses:
        error: BaseException = _interrupt_error(cell, failed)
    elif cell.timed_out:
        error = _timeout_error(cell, failed, scene.stacks)
    elif failed:
        return _add_replaced(cell, scene, _root_error(cell, failed, scene))
    else:
        return None
    own = {t: o for t, o in failed.items() if not _is_consequence(cell, t, o)}
    for note in fold_notes(cell, None, list(own.items())):
        exceptions.add_note(error, note.replace("also on", "failed before:", 1))
    _add_failures(error, {task: _error_of(task, outcome, scene) for task, outcome in own.items()})
    return _add_replaced(cell, scene, error)


def full_texts(cell: CellState, scene: FailureContext) -> dict[str, str]:
    """Every failure in full by task name, the root cause first."""
    texts = {}
    for task, outcome in find_failures(cell).items():
        match outcome:
            case CellRaised(error=packed):
                advice = "" if "\nhint: " in packed.text else hints.find_hint(packed)
                text = ipython_tracebacks.name_cells(packed.text.rstrip())
                texts[task.name] = text + (here(f"\nhint: {advice}") if advice else "")
            case TaskExited() | TaskLost():
                texts[task.name] = str(_died(task, outcome, scene))
    return texts


def _root_error(cell: CellState, failed: Mapping[TaskId, Outcome], scene: FailureContext) -> BaseException:
    errors = {task: _error_of(task, outcome, scene) for task, outcome in failed.items()}
    (root, outcome), *others = failed.items()
    error = errors[root]
    for note in fold_notes(cell, outcome, others):
        exceptions.add_note(error, note)
    explained = any(str(note).startswith("hint: ") for note in exceptions.notes_of(error))
    if isinstance(outcome, CellRaised) and not explained and (advice := hints.find_hint(outcome.error)):
        exceptions.add_note(error, here(f"hint: {advice}"))
    _add_failures(error, errors)
    return error


def _add_failures(error: BaseException, errors: Mapping[TaskId, BaseException]) -> None:
    with contextlib.suppress(Exception):  # a class may forbid attributes
        error.failures = {task.name: found for task, found in errors.items()}  # type: ignore[attr-defined]


def _add_replaced(cell: CellState, scene: FailureContext, error: BaseException) -> BaseException:
    if cell.replaced and not cell.timed_out:
        exceptions.add_note(error, _replaced_note(cell, scene.stacks))
    return error


def _died(task: TaskId, end: TaskExited | TaskLost, scene: FailureContext) -> TaskDied:
    return died_error(task, end, scene.run, scene.watch, scene.starts.get(task, 0))


def _is_consequence(cell: CellState, task: TaskId, outcome: Outcome) -> bool:
    if not isinstance(outcome, CellRaised):
        return task in cell.replaced
    return outcome.interrupted or any(
        name in _CONSEQUENCE_TYPES or _CONSEQUENCE_TEXT.search(message)
        for name, message in outcome.error.chain or ((outcome.error.type_name, outcome.error.message),)
    )


def _error_of(task: TaskId, outcome: Outcome, scene: FailureContext) -> BaseException:
    match outcome:
        case CellRaised(error=packed, interrupted=True):
            error = KeyboardInterrupt(packed.message or f"interrupted on {task}")
            error.add_note(f"raised on {packed.where}")
            return error
        case CellRaised(error=packed):
            if packed.type_name == "SystemExit":  # the words are ours
                packed = replace(packed, message=here(packed.message), text=here(packed.text))
            return tracebacks.unpack_error(packed, scene.main, scene.rename)
        case TaskExited() | TaskLost():
            return _died(task, outcome, scene)
        case CellReturned():
            raise AssertionError("a returned cell is no failure")


def _interrupt_error(cell: CellState, failed: Mapping[TaskId, Outcome]) -> KeyboardInterrupt:
    error = KeyboardInterrupt("the cell was interrupted")
    places: dict[str, list[TaskId]] = {}
    for task, outcome in failed.items():
        if isinstance(outcome, CellRaised):
            place = place_in_cell(cell.request.commands[task].filename, outcome.error.line)
            places.setdefault(place, []).append(task)
    for place, tasks in places.items():
        if place:
            error.add_note(f"{_names(tasks)}: {place}")
    return error


def _timeout_error(cell: CellState, failed: Mapping[TaskId, Outcome], stacks: str) -> TaskTimeoutError:
    stopped = [t for t, outcome in failed.items() if _is_consequence(cell, t, outcome)]
    late = _names(stopped) or "no task, since all came in at the last moment"
    lines = [f"the cell was not done within {cell.request.timeout_s:g} s; it was stopped on {late}."]
    if stacks:
        lines += ["Where they were:", stacks]
    if cell.replaced:
        lines.append(f"{_names(cell.replaced)} had to be killed and lost the variables.")
    lines.append("Give it more time with --timeout, or look for a task that waits for another.")
    return TaskTimeoutError("\n".join(lines))


def _replaced_note(cell: CellState, stacks: str) -> str:
    note = (
        f"{_names(cell.replaced)} could not be reached (in native code, stopped, or in code that catches "
        "KeyboardInterrupt): killed, and started again without variables."
    )
    return f"{note} There it was:\n{stacks}" if stacks else note


def fold_notes(cell: CellState, root: Outcome | None, others: list[tuple[TaskId, Outcome]]) -> list[str]:
    """One note for each different failure beside the root, with the tasks that share it."""
    folded: dict[str, list[TaskId]] = {}
    for task, outcome in others:
        what = _essence(outcome)
        if isinstance(outcome, CellRaised) and outcome.interrupted and cell.ladder is not None:
            what = "interrupted, since another task had failed"
        elif task in cell.replaced:
            what = "killed, since it waited for the failed task"
        same = root is not None and what == _essence(root)
        folded.setdefault("" if same else f": {what}", []).append(task)
    return [f"also on {_names(tasks)}{what}" for what, tasks in folded.items()]


def _essence(outcome: Outcome) -> str:
    """A failure in one line."""
    match outcome:
        case CellRaised(error=packed):
            lines = [line for line in packed.message.splitlines() if line.strip()]
            if lines and lines[0].startswith("Graph execution error"):  # TensorFlow tells the place first
                told = [x for x in lines[1:] if not x[0].isspace() and not x.startswith("Detected at")]
                lines = told or lines
            first = _ADDRESS.sub("0x...", _NODE_NAME.sub("", lines[0])) if lines else ""
            return f"{packed.type_name}: {first[:_MAX_NOTE]}"
        case TaskExited() | TaskLost():
            return describe_end(outcome)
        case CellReturned():
            return ""


def _names(tasks: Iterable[TaskId]) -> str:
    return ", ".join(task.name for task in sorted(tasks))
