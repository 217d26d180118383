"""Describes the end of a task process: how it ended, the likely cause, the place, and its last output."""

from __future__ import annotations

import linecache
import re
import signal
from dataclasses import dataclass

from tfmagic.errors import TaskDied
from tfmagic.failures import ipython_tracebacks, stacks
from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import TaskExited, TaskLost
from tfmagic.runs.folder import RunFolder
from tfmagic.runs.log_reader import tail_lines
from tfmagic.runs.tensorflow_noise import is_noise
from tfmagic.system import memory
from tfmagic.system.memory import format_bytes

_TAIL_LINES = 20
_NEARLY_ALL = 0.7  # share of the memory limit: SIGKILL after a higher peak is probably the OOM killer
_CELL_FRAME = re.compile(ipython_tracebacks.CELL_FILE + r", line (\d+)")
_CAUSES = {
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
_SHELL_SIGNAL = 128  # a shell reports the end by signal n with this exit code plus n


@dataclass(frozen=True, slots=True)
class MemoryWatch:
    """The number of processes that the OOM killer had ended when the cluster was started."""

    oom_kills: int

    @classmethod
    def begin(cls) -> MemoryWatch:
        return cls(memory.count_oom_kills())

    def explain(self, end: TaskExited) -> str:
        """Return whether a SIGKILL was probably due to lack of memory, with figures."""
        limit = memory.limit_bytes()
        peak = f"its peak was {format_bytes(end.peak_bytes)} of the {format_bytes(limit)} there are"
        if memory.count_oom_kills() > self.oom_kills:
            return f"out of memory: the kernel's OOM killer was at work here, {peak}"
        if end.peak_bytes > _NEARLY_ALL * limit:
            return f"probably out of memory: {peak}"
        return f"killed from outside; {peak}"


def describe_end(end: TaskExited | TaskLost, watch: MemoryWatch | None = None) -> str:
    """Describe how a process ended: ``was ended by SIGSEGV (a segmentation fault: ...)``."""
    if isinstance(end, TaskLost):
        return f"was lost: {end.reason}"
    if end.reason:
        return f"was ended by tfmagic: {end.reason}"
    if end.exit_code < 0:
        name, cause = _name_signal(-end.exit_code)
        if end.exit_code == -signal.SIGKILL and watch is not None:
            cause = watch.explain(end)
        return f"was ended by {name}" + (f" ({cause})" if cause else "")
    if end.exit_code == 0:
        return "exited with code 0: something in the cell ended the process, such as os._exit(0)"
    if end.exit_code > _SHELL_SIGNAL:
        name, _ = _name_signal(end.exit_code - _SHELL_SIGNAL)
        return f"exited with code {end.exit_code}, which often stands for {name} of a program that it ran"
    return f"exited with code {end.exit_code}"


def died_error(
    task: TaskId, end: TaskExited | TaskLost, run: RunFolder, watch: MemoryWatch | None, since: int = 0
) -> TaskDied:
    """Return `TaskDied` with the way it ended, the place, its last lines, and the next step.

    Args:
        since: The offset in the task's log at which the cell began.
    """
    stack = stacks.fatal_stack(run, task, end.attempt)
    lines = [f"{task} {describe_end(end, watch)}."]
    if place := _place_in_cell(stack):
        lines.append(f"It was {place}")
    if stack:
        lines += ["Its Python stack, the innermost call first:", ipython_tracebacks.name_cells(stack)]
    until = getattr(end, "log_end", None)
    lines_of_log = tail_lines(run.log_path(task), _TAIL_LINES, since=since, until=until)
    tail = [line for line in lines_of_log if not is_noise(line)]
    if tail:
        how_many = "line" if len(tail) == 1 else f"{len(tail)} lines"
        lines += [f"Its last {how_many} of output:", *(f"    {line}" for line in tail)]
    lines.append(
        f"Go on with:  %tfcluster revive   (or %tfcluster restart {task}) which brings it back and keeps the "
        "other tasks' variables; make strategies anew. New processes for all:  %tfcluster restart"
    )
    return TaskDied("\n".join(lines), task.name, getattr(end, "exit_code", None))


def place_in_cell(file: str, line: int) -> str:
    """Return ``at line 3 of the cell:  x = f(y)``, or "" where the line is not known."""
    if not line:
        return ""
    source = linecache.getline(file, line).strip()
    return f"at line {line} of the cell" + (f":  {source}" if source else "")


def _place_in_cell(stack: str) -> str:
    found = _CELL_FRAME.search(stack)
    return place_in_cell(found[1], int(found[2])) if found else ""


def _name_signal(number: int) -> tuple[str, str]:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}", "a signal that only a program of your own would send"
    cause = _CAUSES.get(signal.Signals(number))
    return name, cause or (signal.strsignal(number) or "").lower()
