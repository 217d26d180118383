"""Chooses the one exception that a cell raises, from the outcomes of its tasks.

The root cause is the earliest failure that is not a consequence of another one. It is raised as it was on
its task. Every other failure becomes a note; tasks with an equal failure share one. The attribute `failures`
of the exception holds all of them, {task name: exception}, the root cause first.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tfmagic.errors import TaskDied, TaskTimeoutError
from tfmagic.failures import hints, ipython_tracebacks, notebook_hints
from tfmagic.failures.deaths import describe_end, died_error, line_of_death, place_in_cell
from tfmagic.failures.headlines import first_line, headline
from tfmagic.failures.ipython_tracebacks import Explanation
from tfmagic.protocol.cluster_spec import TaskId, parse_task
from tfmagic.protocol.events import CellRaised, CellReturned, TaskExited, TaskLost
from tfmagic.protocol.payload import PackedError
from tfmagic.runs.cell_records import ErrorRecord
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.given_hints import Hint
from tfmagic.runs.log_reader import tail_lines
from tfmagic.runs.tensorflow_noise import is_noise
from tfmagic.serialization import exceptions, tracebacks
from tfmagic.supervisor import stall_sentences
from tfmagic.supervisor.state import CellState, Outcome
from tfmagic.system import features
from tfmagic.system.advice import Step, in_notebook
from tfmagic.system.signal_handlers import name_signal

_CONSEQUENCE_TYPES = frozenset(
    # TensorFlow and barriers raise these in a task because another task failed
    {"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "BrokenBarrierError"}
)
_CONSEQUENCE_TEXT = re.compile(
    # TensorFlow 2.21's messages for a lost peer, in exceptions of any class
    r"Collective ops is aborted by|stopped sending heartbeats|CoordinationService/Heartbeat|Socket closed|"
    r"[Cc]onnection reset by peer|different incarnation|remote target|tasks have crashed|peer is not alive"
)
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")  # equal failures differ in it between processes
_AFTER_FAILURE = "interrupted, since another task had failed"
_MAX_NOTE = 300
_LAST_LINES = 5


class FailureContext(msgspec.Struct, frozen=True):
    """Everything beside the outcomes that the exception is built from."""

    main: Mapping[str, Any]  #: The notebook's namespace.
    run: RunFolder
    oom_kills: int | None = None  #: As for `describe_end`.
    stacks: str = ""  #: The stacks of tasks that could not be reached or ran out of time.
    rename: tracebacks.Rename = lambda name: name
    starts: Mapping[TaskId, int] = {}  #: Offsets in the logs where the cell began.


def find_failures(cell: CellState, raised_first: bool = False) -> dict[TaskId, Outcome]:
    """Return the tasks that failed, the root cause first.

    `raised_first` puts exceptions before deaths, even where a death explains them.
    """
    failed = {t: o for t, o in cell.outcomes.items() if not isinstance(o, CellReturned)}

    def order(item: tuple[TaskId, Outcome]) -> tuple[bool, bool, float]:
        task, outcome = item
        at = getattr(outcome, "raised_at", 0.0) or cell.ended_at.get(task, 0.0)
        is_later = raised_first and not isinstance(outcome, CellRaised)
        return is_later, _is_consequence(cell, task, outcome), at

    return dict(sorted(failed.items(), key=order))


def build_error(cell: CellState, context: FailureContext, raised_first: bool = False) -> BaseException | None:
    """Return the exception that the cell raises in the notebook, or None; see `find_failures`."""
    failed = find_failures(cell, raised_first)
    if cell.presses or cell.timed_out:
        error: BaseException = (
            _interrupt_error(cell, failed) if cell.presses else _timeout_error(cell, failed, context.stacks)
        )
        failed = {t: o for t, o in failed.items() if not _is_consequence(cell, t, o)}
        errors = {task: _error_of(task, outcome, context) for task, outcome in failed.items()}
        for names, failure in fold_failures(cell, None, failed.items()):
            exceptions.add_note(error, f"failed before: {names}: {failure}")
    elif failed:
        errors = {task: _error_of(task, outcome, context) for task, outcome in failed.items()}
        (root, outcome), *others = failed.items()
        error = errors[root]
        for note in also_failed(cell, outcome, others):
            exceptions.add_note(error, note)
        if isinstance(outcome, CellRaised) and (note := _hint_of(cell, root, outcome).note):
            exceptions.add_note(error, note)
    else:
        return None
    with contextlib.suppress(Exception):  # a class can forbid attributes
        error.failures = {task.name: found for task, found in errors.items()}  # type: ignore[attr-defined]
    if cell.replaced and not cell.timed_out:
        note = (
            f"{_names(cell.replaced)} could not be reached (in native code, stopped, or in code that catches "
            "KeyboardInterrupt): killed, and started again without variables."
        )
        note += f" There it was:\n{context.stacks}" if context.stacks else ""
        exceptions.add_note(error, note)
    return error


def explain(cell: CellState, error: BaseException, context: FailureContext) -> Explanation:
    """Return the text around the traceback of the cell's error where a failure is short text."""
    failed = describe_failures(cell, context)
    root = next(iter(failed), None)
    if root is None or cell.presses or cell.timed_out:  # the error begins with the outcome
        return Explanation("", [f"more:  {Step('errors')}"])
    found, since = failed[root], context.starts.get(parse_task(root), 0)
    place = f" at line {found.line} of the cell" if found.line else ""
    what = next(iter(found.message.strip().splitlines()), "")
    more = f"more:  {Step('errors')}   or   {Step('logs', root, tail=50)}"
    if found.type == "TaskDied":  # which has all that
        return Explanation("", [more])
    until = getattr(cell.outcomes.get(parse_task(root)), "log_end", None)
    lines = tail_lines(context.run.log_path(parse_task(root)), _LAST_LINES, since=since, until=until)
    shown = [f"    {line}" for line in lines if not is_noise(line)]
    above = [f"the last lines of {root}:", *shown] if shown else []
    return Explanation(f"{root} failed{place}: {found.type}{what and ': '}{what}", [*above, more])


def describe_failures(cell: CellState, context: FailureContext) -> dict[str, ErrorRecord]:
    """Return every failure in full by task name, the root cause first."""
    found: dict[str, ErrorRecord] = {}
    for task, outcome in find_failures(cell).items():
        is_root = not found or not _is_consequence(cell, task, outcome)
        match outcome:
            case CellRaised(error=packed) as outcome:
                hint = _hint_of(cell, task, outcome)
                text = ipython_tracebacks.name_cells(packed.text.rstrip())
                why = "" if packed.message else _why_interrupted(cell, outcome)
                text += f"{why and ': '}{why}{hint.note and chr(10)}{hint.note}"
                message = headline(packed.type_name, packed.message) or why
                found[task.name] = ErrorRecord(
                    packed.type_name,
                    message,
                    packed.line,
                    text,
                    is_root,
                    hint.advice or _noted_advice(packed),
                    hint.name,
                )
            case TaskExited() | TaskLost():
                error = _died(task, outcome, context)
                line, code = line_of_death(context.run, task, outcome), error.exit_code
                found[task.name] = ErrorRecord(
                    "TaskDied",
                    f"{task} {describe_end(outcome, context.oom_kills)}",
                    line,
                    str(error),
                    is_root,
                    exit_code=code if code is not None and code >= 0 else None,
                    signal="" if code is None or code >= 0 else name_signal(-code),
                )
    return found


def _why_interrupted(cell: CellState, outcome: CellRaised) -> str:
    """Return what a KeyboardInterrupt on a task cannot know: who has asked for it, or ""."""
    if not outcome.interrupted:
        return ""
    if cell.presses:
        return "the cell was interrupted"
    if cell.timed_out:
        waited = cell.waits and f"; before that, {cell.waits}"
        return f"the cell was not done within {cell.request.timeout_s:g} s{waited}"
    return _AFTER_FAILURE if cell.escalation is not None else ""


def _hint_of(cell: CellState, task: TaskId, outcome: CellRaised) -> Hint:
    """Return the hint for a failure; a host that was cut off explains what its peers raise."""
    if cell.cut_off and _is_consequence(cell, task, outcome):
        hosts, was = " and ".join(cell.cut_off), "was" if len(cell.cut_off) == 1 else "were"
        return Hint(
            "host-cut-off",
            f"{hosts} {was} cut off from the others during this cell. "
            f"{features.propose('join hosts', '{} joins what is still cut off; then ')}make the strategy "
            f"again. Should a task keep failing, {Step('restart')} gives new processes to all",
        )
    found = hints.find_hint(outcome.error)
    return found if found.name else notebook_hints.find_hint(outcome.error)


def _noted_advice(error: PackedError) -> str:
    """Return the hint that the task itself has noted, or ""."""
    notes = re.findall(r"^hint: (.+)$", error.text, re.MULTILINE) if error.explained else []
    return notes[-1] if notes else ""


def _died(task: TaskId, end: TaskExited | TaskLost, context: FailureContext) -> TaskDied:
    return died_error(task, end, context.run, context.oom_kills, context.starts.get(task, 0))


def _is_consequence(cell: CellState, task: TaskId, outcome: Outcome) -> bool:
    if not isinstance(outcome, CellRaised):
        return task in cell.replaced
    return outcome.interrupted or any(
        name in _CONSEQUENCE_TYPES or _CONSEQUENCE_TEXT.search(message)
        for name, message in outcome.error.chain or ((outcome.error.type_name, outcome.error.message),)
    )


def _error_of(task: TaskId, outcome: Outcome, context: FailureContext) -> BaseException:
    match outcome:
        case CellRaised(error=packed, interrupted=True):
            error = KeyboardInterrupt(packed.message or f"interrupted on {task}")
            error.add_note(f"raised on {packed.where}")
            return error
        case CellRaised(error=packed):
            return tracebacks.unpack_error(packed, context.main, context.rename)
        case TaskExited() | TaskLost():
            return _died(task, outcome, context)
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
    late = _names(stopped) or "no task, since all of them ended at the last moment"
    what = in_notebook("cell") or "call"
    lines = [f"the {what} was not done within {cell.request.timeout_s:g} s; it was stopped on {late}."]
    if cell.waits:
        lines.append(f"Before that, {cell.waits}.")
    if stacks:
        lines += ["Where they were:", stacks]
    if cell.replaced:
        lines.append(f"{_names(cell.replaced)} had to be killed and lost the variables.")
    if cell.waits.endswith(stall_sentences.FOR_EVER):
        lines.append(
            "More time would not help: let each task come to the same collectives in the same order."
        )
    else:
        lines.append(
            f"Give it more time with {Step('give time')}, or look for a task that waits for another."
        )
    return TaskTimeoutError("\n".join(lines))


def also_failed(cell: CellState, root: Outcome, others: Iterable[tuple[TaskId, Outcome]]) -> list[str]:
    """Return one note for each different failure beside the root, with the tasks that share it."""
    folded = fold_failures(cell, root, others)
    return [f"also on {names}{failure and ': '}{failure}" for names, failure in folded]


def fold_failures(
    cell: CellState, root: Outcome | None, others: Iterable[tuple[TaskId, Outcome]]
) -> list[tuple[str, str]]:
    """Return (names of tasks, their failure in one line); the line is "" where it equals the root's."""
    folded: dict[str, list[TaskId]] = {}
    for task, outcome in others:
        failure = _one_line(outcome)
        if isinstance(outcome, CellRaised) and outcome.interrupted and cell.escalation is not None:
            failure = _AFTER_FAILURE
        elif task in cell.replaced:
            failure = "killed, since it waited for the failed task"
        is_equal = root is not None and failure == _one_line(root)
        folded.setdefault("" if is_equal else failure, []).append(task)
    return [(_names(tasks), failure) for failure, tasks in folded.items()]


def _one_line(outcome: Outcome) -> str:
    match outcome:
        case CellRaised(error=packed):
            line = first_line(packed.type_name, packed.message)
            first = _ADDRESS.sub("0x...", line)
            return f"{packed.type_name}: {first[:_MAX_NOTE]}"
        case TaskExited() | TaskLost():
            return describe_end(outcome)
        case CellReturned():
            return ""


def _names(tasks: Iterable[TaskId]) -> str:
    return ", ".join(task.name for task in sorted(tasks))
