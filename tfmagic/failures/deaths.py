"""Describes the end of a task process: how it ended, the likely cause, the place, and its last output."""

import linecache
import re
import signal
from collections.abc import Mapping

from tfmagic.errors import TaskDied
from tfmagic.failures import ipython_tracebacks, stacks
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import Cause, TaskExited, TaskLost
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.log_reader import tail_lines
from tfmagic.runs.tensorflow_noise import is_noise
from tfmagic.supervisor.state import Outcome
from tfmagic.system import memory
from tfmagic.system.advice import Step
from tfmagic.system.memory import format_bytes
from tfmagic.system.signal_handlers import name_signal

NEXT_STEP = "Go on with:"  #: Begins the last line of a `TaskDied`.
_TAIL_LINES = 20
_NEARLY_ALL = 0.7  # share of the memory limit: SIGKILL after a higher peak is probably the OOM killer
_CELL_FRAME = re.compile(ipython_tracebacks.CELL_FILE + r", line (\d+)")
_CAUSES: dict[int, str] = {
    signal.SIGSEGV: "a segmentation fault: native code touched memory that is not its own",
    signal.SIGABRT: "an abort: native code gave up, usually after a failed check that it has logged",
    signal.SIGBUS: "a bus error: often shared memory or the disk is full, or a mapped file was cut off",
    signal.SIGILL: "an instruction that this processor does not have: a library built for another one",
    signal.SIGFPE: "an arithmetic fault in native code, such as an integer division by zero",
    signal.SIGTERM: "another process asked it to end",
    signal.SIGHUP: "its terminal went away",
    signal.SIGINT: "interrupted from outside",
    signal.SIGQUIT: "another process asked it to quit",
    signal.SIGPIPE: "it wrote to a pipe that has no reader",
    signal.SIGXCPU: "its limit of processor time (ulimit -t) is used up",
    signal.SIGXFSZ: "it wrote a file larger than its limit (ulimit -f)",
    signal.SIGALRM: "an alarm that it had set, and did not handle, went off",
    signal.SIGSYS: "a system call that this machine or container forbids",
    signal.SIGTRAP: "a trap in native code, usually a failed check",
}
_ENDS = {
    Cause.USER: "was killed by you ({})",
    Cause.CHAOS: "was killed by the chaos that you started ({})",
    Cause.STOP: "was ended by the stop of its cluster",
    Cause.RESTART: "was ended for a new process, as you asked",
    Cause.UNREACHABLE: "was killed by tfmagic, since nothing else reached it",
    Cause.CHIEF: "was ended with its chief",
}
_SHELL_SIGNAL = 128  # a shell reports the end by signal n with this exit code plus n


def describe_end(end: TaskExited | TaskLost, oom_kills: int | None = None) -> str:
    """Describe how a process ended: ``was ended by SIGSEGV (a segmentation fault: ...)``.

    `oom_kills` is the count of the OOM killer when the cluster was started: with it, SIGKILL is explained.
    """
    if isinstance(end, TaskLost):
        return f"was lost: {end.reason}"
    if end.reason:
        return f"was ended by tfmagic: {end.reason}"
    if end.cause is not Cause.NONE:
        return _ENDS[end.cause].format(name_signal(-end.exit_code))
    if end.exit_code < 0:
        cause = _likely_cause(-end.exit_code)
        if end.exit_code == -signal.SIGKILL and oom_kills is not None:
            cause = _explain_kill(end, oom_kills)
        return f"was ended by {name_signal(-end.exit_code)}" + (f" ({cause})" if cause else "")
    if not end.exit_code:
        return "exited with code 0: something in the cell ended the process, such as os._exit(0)"
    if _SHELL_SIGNAL < end.exit_code < _SHELL_SIGNAL + signal.NSIG:
        name = name_signal(end.exit_code - _SHELL_SIGNAL)
        return f"exited with code {end.exit_code}, which often stands for {name} of a program that it ran"
    return f"exited with code {end.exit_code}"


def _explain_kill(end: TaskExited, oom_kills: int) -> str:
    """Return whether a SIGKILL was probably due to lack of memory, with figures."""
    limit = memory.limit_bytes()
    peak = f"its peak was {format_bytes(end.peak_bytes)} of the {format_bytes(limit)} there are"
    if memory.count_oom_kills() > oom_kills:
        return f"out of memory: the kernel's OOM killer was at work here, {peak}"
    if end.peak_bytes > _NEARLY_ALL * limit:
        return f"probably out of memory: {peak}"
    return f"killed from outside; {peak}"


def died_error(
    task: TaskId, end: TaskExited | TaskLost, run: RunFolder, oom_kills: int | None, since: int = 0
) -> TaskDied:
    """Return `TaskDied` with the way it ended, the place, its last lines, and the next step.

    `oom_kills` is as for `describe_end`, `since` the offset in the task's log at which the cell began.
    """
    stack = stacks.fatal_stack(run, task, end.attempt)
    lines = [f"{task} {describe_end(end, oom_kills)}."]
    if found := _CELL_FRAME.search(stack):
        lines.append(f"It was {place_in_cell(found[1], int(found[2]))}")
    if stack:
        lines += ["Its Python stack, the innermost call first:", ipython_tracebacks.name_cells(stack)]
    until = getattr(end, "log_end", None)
    lines_of_log = tail_lines(run.log_path(task), _TAIL_LINES, since=since, until=until)
    tail = [line for line in lines_of_log if not is_noise(line)]
    if tail:
        how_many = "line" if len(tail) == 1 else f"{len(tail)} lines"
        lines += [f"Its last {how_many} of output:", *(f"    {line}" for line in tail)]
    return _died(task, end, lines)


def _died(task: TaskId, end: TaskExited | TaskLost, lines: list[str]) -> TaskDied:
    how = (
        f"{NEXT_STEP}  {Step('revive')}   (or {Step('restart', task)}) which brings it back and keeps the "
        f"other tasks' variables; make strategies again. New processes for all:  {Step('restart')}"
    )
    return TaskDied("\n".join([*lines, how]), task.name, getattr(end, "exit_code", None))


class DeathReports:
    """Remembers the deaths that an exception has reported: each is reported in full once."""

    def __init__(self) -> None:
        self._attempts: dict[TaskId, int] = {}

    def note(self, outcomes: Mapping[TaskId, Outcome]) -> None:
        """Note what the exception of a cell has reported."""
        ends = [outcome for outcome in outcomes.values() if isinstance(outcome, TaskExited | TaskLost)]
        self._attempts.update({end.task: end.attempt for end in ends})

    def error_of(
        self, end: TaskExited | TaskLost, run: RunFolder, oom_kills: int | None, since: int
    ) -> TaskDied:
        """Return the error of a cell that a dead task could not run; `since` is that of `died_error`."""
        task = end.task
        if self._attempts.get(task) == end.attempt:
            what = f"{task} still has no process: it {describe_end(end, oom_kills)}, as reported before."
            return _died(task, end, [f"{what} Nothing was run."])
        self._attempts[task] = end.attempt
        return died_error(task, end, run, oom_kills, since)


def place_in_cell(file: str, line: int) -> str:
    """Return ``at line 3 of the cell:  x = f(y)``, or "" where the line is not known."""
    if not line:
        return ""
    source = linecache.getline(file, line).strip()
    return f"at line {line} of the cell" + (f":  {source}" if source else "")


def line_of_death(run: RunFolder, task: TaskId, end: TaskExited | TaskLost) -> int:
    """Return the line of the cell in which the process crashed, or 0."""
    found = _CELL_FRAME.search(stacks.fatal_stack(run, task, end.attempt))
    return int(found[2]) if found else 0


def _likely_cause(number: int) -> str:
    """Return the likely cause of an end by this signal."""
    if number not in set(signal.Signals):
        return "a signal that only a program of your own would send"
    return _CAUSES.get(number) or (signal.strsignal(number) or "").lower()
