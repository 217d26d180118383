"""What a run came to: its exit code, and the lines that say why. Pure.

how the run went + how each task ended ──→ Verdict ──→ exit code, summary
"""

from __future__ import annotations

import enum
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.events import CellRaised, TaskExited, TaskLost
from tfmagic.supervisor.state import Outcome

_SIGNALLED = 128  # as a shell says it: and the number of the signal
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/|^<")
_PLACE = re.compile(r'^ *File "([^"]+)", line (\d+)(?:, in (\S+)| in (\S+))?', re.MULTILINE)


class Ending(enum.Enum):
    """Why the run was over, where the tasks did not just end; the value is the exit code."""

    ITSELF = 0
    TIMEOUT = 124
    NOT_STARTED = 125
    INTERRUPTED = _SIGNALLED + signal.SIGINT
    BROKEN_PIPE = _SIGNALLED + signal.SIGPIPE
    TERMINATED = _SIGNALLED + signal.SIGTERM


def exit_code(ending: Ending, root: Outcome | None) -> int:
    """The exit code of the run.

    Args:
        ending: Why it was over.
        root: How the task that failed first did; None where none did.
    """
    return ending.value or code_of(root)


def code_of(outcome: Outcome | None) -> int:
    """The exit code that a shell would give for a task that ended so."""
    match outcome:
        case TaskExited(exit_code=code):
            return code if code >= 0 else _SIGNALLED - code
        case TaskLost():
            return _SIGNALLED + signal.SIGKILL  # nobody could ask, since its parent was killed, too
        case CellRaised(interrupted=interrupted):
            return Ending.INTERRUPTED.value if interrupted else 1
        case _:
            return 0


def place_of(stack: str, innermost_first: bool = False) -> str:
    """``train.py, line 12, in step``: the innermost frame of the user's own code, or of all where there is
    none such; "" where there is no frame."""
    found = [(path, line, one or other) for path, line, one, other in _PLACE.findall(stack)]
    frames = [frame for frame in found if not _LIBRARY.search(frame[0])] or found
    if not frames:
        return ""
    path, line, function = frames[0 if innermost_first else -1]
    inside = f", in {function}" if function and function != "<module>" else ""
    return f"{path}, line {line}{inside}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a summary tells.

    Attributes:
        ending: Why the run was over.
        root: The task that failed first, or None.
        why: How it failed, in words: ``raised ValueError``, ``was ended by SIGSEGV (...)``.
        place: Where its code was; "" where that is not known.
        details: Its traceback, or its last lines; "" for none.
        notes: Of other tasks that failed, and advice.
        ended_by_us: Tasks that had not failed, and were ended.
        seconds: How long the tasks had run.
        where: How to see the logs.
    """

    ending: Ending
    code: int
    root: TaskId | None = None
    why: str = ""
    place: str = ""
    details: str = ""
    notes: Sequence[str] = ()
    ended_by_us: Sequence[TaskId] = ()
    seconds: float = 0.0
    where: str = ""


def summarize(verdict: Verdict) -> str:
    """The last lines of a run; "" for one that went well."""
    if not verdict.code:
        return ""
    lines = [_headline(verdict)]
    if verdict.root is not None:
        place = f", at {verdict.place}" if verdict.place else ""
        first = "failed first" if verdict.notes or verdict.ended_by_us else "failed"
        lines.append(f"{verdict.root} {first}: it {verdict.why}{place}")
        lines += [f"    {line}" for line in verdict.details.splitlines()]
    lines += verdict.notes
    if verdict.ended_by_us:
        names = ", ".join(task.name for task in sorted(verdict.ended_by_us))
        lines.append(f"ended the others: {names}")
    if verdict.where:
        lines.append(f"all output:  {verdict.where}")
    lines.append(f"exit code {verdict.code}")
    return "".join(f"tfmagic: {line}\n" if line[:1] != " " else f"{line}\n" for line in lines if line)


def _headline(verdict: Verdict) -> str:
    match verdict.ending:
        case Ending.TIMEOUT:
            return f"the run was not done after {verdict.seconds:g} s (--timeout), and was ended"
        case Ending.INTERRUPTED:
            return "the run was interrupted"
        case Ending.TERMINATED:
            return "the run was asked to end (SIGTERM)"
        case Ending.BROKEN_PIPE:
            return "nobody reads the output any more (SIGPIPE): the run was ended"
        case _:
            return ""
