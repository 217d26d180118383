"""The one protocol: what the kernel and a task process say to each other, and what else happens.

Commands (`tfmagic.protocol.commands`) are imperative and go to a task; events, here, are in the past tense
and come from one, from the operating system, or from the user. All are frozen and carry the user's data only
as `Packed` bytes (`tfmagic.protocol.payload`), which nobody but the code that asked for them unpickles.

There is no "cell started": a channel keeps its order and a task runs one cell at a time, so a cell
runs from the moment when it was sent. That saves a third of the messages of an empty cell.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from tfmagic.protocol.cluster_spec import TaskId
from tfmagic.protocol.commands import AnswerInput, RunCell
from tfmagic.protocol.payload import Handle, Message, Packed, PackedError, Record

FIRST_STRATEGY = "first strategy"  # where tasks meet that have made no collective strategy before


class Wait(enum.Enum):
    """What a call waits for that does not return: known from the frames of the thread that made it."""

    NONE = ""
    COLLECTIVE = "a collective"
    RPC = "a remote call"
    DATASET = "its data set"
    PEERS = "its peers to start"
    STEP = "its data set or a collective"  # a tf.function that has both


# ---- events of a task ---------------------------------------------------------------------------


class TaskReady(Message, frozen=True):
    """The task is set up and takes cells."""

    task: TaskId
    attempt: int
    pid: int
    host: str


class Displayed(Message, frozen=True):
    """Something rich was displayed when the log was `offset` bytes long.

    `bundle` is JSON of {"data", "metadata", "transient", "update", "clear"}.
    """

    task: TaskId
    attempt: int
    cell: int
    offset: int
    bundle: bytes


class LineReached(Message, frozen=True):
    """The cell is at this line of this file now, as seen at a look; most lines are never seen.

    `inside` is set when it has been in one and the same call for a while: what was called, as
    ``time.sleep`` or ``all_reduce``; `wait` is then the kind of wait, where it is a known one.
    """

    task: TaskId
    attempt: int
    cell: int
    filename: str
    line: int
    inside: str = ""
    wait: Wait = Wait.NONE


class BarrierReached(Message, frozen=True):
    """The task waits at a barrier that all of `members` must reach. It is known by its cell and its name.

    `cell` is the number of the group, where its cell has one.

    It waits `timeout_s` seconds, or, where that is None, as long as they may still come.
    """

    task: TaskId
    attempt: int
    barrier: str
    members: tuple[TaskId, ...]
    timeout_s: float | None = None
    cell: int = 0


class InputWanted(Message, frozen=True):
    """The cell called `input()` when the log was `offset` bytes long; `hidden` is for passwords."""

    task: TaskId
    attempt: int
    cell: int
    offset: int
    number: int
    prompt: str
    hidden: bool = False


class WriterWanted(Message, frozen=True):
    """The cell opened a shared HDF5 file: connect this socket with its writer; see
    `tfmagic.hdf5.shared_writer.sessions`.

    `group` is that of the cell, `members` the tasks that run it together.
    """

    task: TaskId
    attempt: int
    cell: int
    group: int
    members: tuple[TaskId, ...]
    path: str
    mode: str
    copy_of: int
    handle: Handle


class FailedPull(Record, frozen=True):
    """Why a variable could not be sent back; `is_missing` if the task has no such variable."""

    reason: str
    is_missing: bool = False


class CellReturned(Message, frozen=True):
    """The cell ended normally when the log was `log_end` bytes long.

    `owned` lists the names that the task's own cells have assigned, or None where that has not
    changed since the last report; `failed_pulls` says why a name could not be sent back;
    `lost_bytes` is how much of the cell's output could not be written, since the disk is full.
    """

    task: TaskId
    attempt: int
    cell: int
    seconds: float
    log_end: int
    value: Packed | None = None
    value_error: str = ""
    pulled: Mapping[str, Packed] = {}
    failed_pulls: Mapping[str, FailedPull] = {}
    owned: tuple[str, ...] | None = None
    lost_bytes: int = 0


class CellRaised(Message, frozen=True):
    """The cell raised; `interrupted` where that was a KeyboardInterrupt.

    `bound` is False where it was the variables that could not be unpickled; `raised_at` is the time
    on the monotonic clock of the kernel's machine, in seconds, so that failures can be ordered.
    """

    task: TaskId
    attempt: int
    cell: int
    seconds: float
    log_end: int
    error: PackedError
    interrupted: bool = False
    owned: tuple[str, ...] | None = None
    lost_bytes: int = 0
    bound: bool = True
    raised_at: float = 0.0


TaskEvent = (
    TaskReady
    | Displayed
    | LineReached
    | BarrierReached
    | InputWanted
    | WriterWanted
    | CellReturned
    | CellRaised
)


# ---- events of the operating system -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """The task has a process."""

    task: TaskId
    attempt: int
    pid: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class TaskExited:
    """The task process ended; the last event of this attempt. Negative codes are signals.

    Its log was `log_end` bytes long then; what follows is of a new process. None where nobody looked.
    `reason` says why tfmagic itself has ended it, in the backend or in the task; "" where it has not.
    """

    task: TaskId
    attempt: int
    exit_code: int
    peak_bytes: int = 0
    log_end: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TaskLost:
    """Nobody can say how the task ended (its launcher is gone); the last event of this attempt."""

    task: TaskId
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """What shows from outside whether a task makes progress.

    `cpu_s` is None where it could not be read; `stopped` as by SIGSTOP, or by a debugger. `wanted_s` is the
    time for which threads of the task and of what it started computed, or would have: known of few.
    """

    cpu_s: float | None
    log_bytes: int
    stopped: bool = False
    wanted_s: float | None = None


@dataclass(frozen=True, slots=True)
class TasksObserved:
    """A look at task processes from outside was taken; a look need not see all of them."""

    samples: Mapping[TaskId, ProcessSample]


# ---- what the user asks for ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchRequested:
    """Give these tasks a new process each; a running one is killed first. One that is new joins them."""

    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class CellRequested:
    """Run `commands` and finish when every task in it has ended its part.

    Each task runs its cells in the order of request.
    """

    cell: int
    commands: Mapping[TaskId, RunCell]
    timeout_s: float | None = None
    keep_going: bool = False


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """Who of a group of cells will never come to a barrier any more, and why; the others may."""

    group: int
    gone: Mapping[TaskId, str]


@dataclass(frozen=True, slots=True)
class InterruptPressed:
    """The user wants the prompt back, or only these tasks or this cell to stop; a second press means it."""

    tasks: tuple[TaskId, ...] = ()
    cell: int = 0  # every one


@dataclass(frozen=True, slots=True)
class InputAnswered:
    """The user has typed what the task asked for."""

    task: TaskId
    answer: AnswerInput


@dataclass(frozen=True, slots=True)
class SignalAsked:
    """The user, or a fault on purpose, wants the task's present process to get this signal."""

    task: TaskId
    number: int


@dataclass(frozen=True, slots=True)
class FloodAsked:
    """The user wants this task to write so much, to see what happens."""

    task: TaskId
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    """End every task."""


Event = (
    TaskEvent
    | TaskStarted
    | TaskExited
    | TaskLost
    | TasksObserved
    | LaunchRequested
    | CellRequested
    | GroupChanged
    | InterruptPressed
    | InputAnswered
    | SignalAsked
    | FloodAsked
    | StopRequested
)
