"""The exit code of ``tfmagic run``, and the lines that explain a failed run.

    why the run stopped + how each task ended ── summarize ──→ RunSummary ── format_summary ──→ text

`run` calls both when all tasks have ended.
"""

import enum
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tfmagic.clusters.one_shot_tasks import OneShotTasks
from tfmagic.failures import hints, stacks
from tfmagic.failures.deaths import describe_end
from tfmagic.failures.headlines import first_line
from tfmagic.failures.root_cause import FailureContext, also_failed, describe_failures, find_failures
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellRaised, TaskExited, TaskLost
from tfmagic.runs import feature_fields
from tfmagic.runs.log_reader import tail_lines
from tfmagic.runs.schemas import RunReport, error_report, hint_reports
from tfmagic.runs.tensorflow_noise import is_noise
from tfmagic.supervisor.state import Outcome
from tfmagic.system.advice import program_name

SIGNALLED = 128  # a shell adds the number of the signal
_TAIL_LINES = 20
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/|^<")
_PLACE = re.compile(r'^(?:  \| )? *File "([^"]+)", line (\d+)(?:, in (\S+)| in (\S+))?', re.MULTILINE)


class StopReason(enum.Enum):
    """Why the run stopped; the value is the exit code."""

    TASKS_ENDED = 0  # the exit code is that of the task that failed first
    TIMEOUT = 124
    NOT_STARTED = 125
    HUNG_UP = SIGNALLED + signal.SIGHUP
    INTERRUPTED = SIGNALLED + signal.SIGINT
    QUIT = SIGNALLED + signal.SIGQUIT
    BROKEN_PIPE = SIGNALLED + signal.SIGPIPE
    TERMINATED = SIGNALLED + signal.SIGTERM


_HEADLINES = {
    StopReason.TIMEOUT: "the run was not done after {:g} s (--timeout), and was ended",
    StopReason.INTERRUPTED: "the run was interrupted",
    StopReason.HUNG_UP: "the run was asked to end (SIGHUP)",
    StopReason.QUIT: "the run was asked to end (SIGQUIT)",
    StopReason.TERMINATED: "the run was asked to end (SIGTERM)",
    StopReason.BROKEN_PIPE: "the reader of the output has closed it (SIGPIPE): the run was ended",
}

_OUTCOMES = {
    StopReason.TIMEOUT: "timed out",
    StopReason.INTERRUPTED: "interrupted",
    StopReason.HUNG_UP: "terminated",
    StopReason.QUIT: "terminated",
    StopReason.TERMINATED: "terminated",
    StopReason.BROKEN_PIPE: "broken pipe",
}
_BY_SIGNAL = (StopReason.HUNG_UP, StopReason.INTERRUPTED, StopReason.QUIT, StopReason.TERMINATED)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The content of the last lines of a run."""

    reason: StopReason
    code: int
    root: TaskId | None = None  #: the task that failed first
    why: str = ""  #: how it failed: ``raised ValueError``, ``was ended by SIGSEGV (...)``
    place: str = ""  #: the line of its code, "" if unknown
    details: str = ""  #: its traceback, or its last lines of output
    notes: Sequence[str] = ()  #: the other tasks that failed, and hints
    ended_by_us: Sequence[TaskId] = ()  #: tasks that had not failed and were ended
    seconds: float = 0.0  #: how long the tasks ran
    logs_command: str = ""  #: the command that prints the logs


def summarize(one_shot: OneShotTasks, reason: StopReason, seconds: float) -> RunSummary:
    """Summarize a run whose tasks have all ended."""
    failed = failed_tasks(one_shot)
    root = next(iter(failed), None)
    code = exit_code(reason, None if root is None else failed[root])
    command = f"{program_name()} logs {one_shot.cluster.run}"
    if root is None or reason in _BY_SIGNAL:
        return RunSummary(reason, code, seconds=seconds, logs_command=command)
    outcome = failed[root]
    others = [(task, how) for task, how in failed.items() if task != root]
    notes = also_failed(one_shot.failures(), outcome, others)
    if note := hints.find_hint(outcome.error).note if isinstance(outcome, CellRaised) else "":
        notes.append(note)
    ended = [t for t, task in one_shot.known.items() if task.terminated and t not in failed]
    why, place, details = _explain(one_shot, root, outcome)
    return RunSummary(reason, code, root, why, place, details, notes, ended, seconds, command)


def report_run(one_shot: OneShotTasks, summary: RunSummary) -> RunReport:
    """Return the outcome of a run, for programs."""
    cluster, failed = one_shot.cluster, failed_tasks(one_shot)
    found = describe_failures(one_shot.failures(), FailureContext({}, cluster.run, cluster.oom_kills))
    errors = []
    for task in failed:
        error = found[task.name]
        place = place_of(error.text, innermost_first=error.type == "TaskDied")
        report = error_report(task.name, error, cluster.run)
        errors.append(msgspec.structs.replace(report, cell_line=None, place=place))
    ended = "failed" if summary.code else "succeeded"
    return RunReport(
        outcome=_OUTCOMES.get(summary.reason, ended),
        exit_code=summary.code,
        seconds=round(summary.seconds, 3),
        run=str(cluster.run),
        errors=errors,
        hints=hint_reports(cluster.run),
        **feature_fields.of_run(cluster.run, one_shot.known),
    )


def failed_tasks(one_shot: OneShotTasks) -> dict[TaskId, Outcome]:
    """Return the outcome of each task whose last process failed, the root cause first."""
    found = find_failures(one_shot.failures())
    return {task: how for task, how in found.items() if one_shot.known[task].failed_at is not None}


def exit_code(reason: StopReason, root: Outcome | None) -> int:
    """Return the exit code of the run, from the outcome of the task that failed first, None if none did."""
    if reason.value:
        return reason.value
    match root:
        case TaskExited(exit_code=code):
            return code if code >= 0 else SIGNALLED - code
        case TaskLost():
            return SIGNALLED + signal.SIGKILL  # unknown, since its parent was killed too
        case CellRaised(interrupted=interrupted):
            return StopReason.INTERRUPTED.value if interrupted else 1
        case _:
            return 0


def _explain(one_shot: OneShotTasks, task: TaskId, outcome: Outcome) -> tuple[str, str, str]:
    """Return why a task failed, where, and its traceback or last output."""
    if isinstance(outcome, CellRaised):
        packed = outcome.error
        message = first_line(packed.type_name, packed.message)
        what = f"{packed.type_name}: {message}" if message else packed.type_name
        return f"raised {what}", place_of(packed.text), packed.text.rstrip()
    assert isinstance(outcome, TaskExited | TaskLost)  # a task that returned has not failed
    run = one_shot.cluster.run
    stack = stacks.fatal_stack(run, task, outcome.attempt)
    tail = [line for line in tail_lines(run.log_path(task), _TAIL_LINES) if not is_noise(line)]
    details = ["its Python stack, the innermost call first:", stack] if stack else []
    details += ["its last lines of output:", *(f"  {line}" for line in tail)] if tail else []
    why = describe_end(outcome, one_shot.cluster.oom_kills)
    return why, place_of(stack, innermost_first=True), "\n".join(details)


def place_of(stack: str, innermost_first: bool = False) -> str:
    """Return the innermost frame of the user's code as ``train.py, line 12, in step``.

    Without a frame of the user's it is the innermost frame of all; without any frame, "".
    """
    found = [(path, line, one or other) for path, line, one, other in _PLACE.findall(stack)]
    frames = [frame for frame in found if not _LIBRARY.search(frame[0])] or found
    if not frames:
        return ""
    path, line, function = frames[0 if innermost_first else -1]
    inside = f", in {function}" if function and function != "<module>" else ""
    return f"{path}, line {line}{inside}"


def format_summary(summary: RunSummary) -> str:
    """Return the last lines of a run; "" for one that succeeded."""
    if not summary.code:
        return ""
    lines = [_HEADLINES.get(summary.reason, "").format(summary.seconds)]
    if summary.root is not None:
        place = f", at {summary.place}" if summary.place else ""
        first = "failed first" if summary.notes or summary.ended_by_us else "failed"
        lines.append(f"{summary.root} {first}: it {summary.why}{place}")
        lines += [f"    {line}" for line in summary.details.splitlines()]
    lines += summary.notes
    if summary.ended_by_us:
        names = ", ".join(task.name for task in sorted(summary.ended_by_us))
        lines.append(f"ended the others: {names}")
    if summary.logs_command:
        lines.append(f"all output:  {summary.logs_command}")
    lines.append(f"exit code {summary.code}")
    return "".join(f"tfmagic: {line}\n" if line[:1] != " " else f"{line}\n" for line in lines if line)
